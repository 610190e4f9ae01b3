"""Changes of a table's content, each a new snapshot, in the form in which catalogs take them: requirements and updates.

A `Producer` makes a change for the state that it is given. Whoever loses a race calls it again with the new state; it
then either fits the change to what was done meanwhile, or says why it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from skiway.clock import Clock
from skiway.errors import NotFound
from skiway.formats.iceberg.metadata import commit_failed, updated
from skiway.formats.iceberg.snapshots import MAIN, NewSnapshot
from skiway.formats.iceberg.warehouse import TableFiles

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.table.update import TableRequirement, TableUpdate

__all__ = [
    "Change",
    "Producer",
    "Replacement",
    "append",
    "delete_all",
    "overwrite",
    "plain",
    "replacing",
    "rollback",
    "set_ref",
]

# mypy: disable-error-code="no-any-return,call-arg"
# PyIceberg's models take the names of fields, but are typed with those of JSON.


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit asks of a catalog, and the files that it wrote for it: of no use if it is not committed."""

    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    written: tuple[str, ...] = ()


Producer: TypeAlias = "Callable[[TableMetadata, TableFiles, Clock], Change]"
Operation: TypeAlias = Literal["append", "overwrite", "delete", "replace"]


def plain(requirements: Sequence[TableRequirement], updates: Sequence[TableUpdate]) -> Producer:
    """A change that is the same in every state; the requirements tell whether it fits."""
    return lambda _metadata, _files, _clock: Change(tuple(requirements), tuple(updates))


def append(added: Sequence[DataFile], *, properties: Mapping[str, str] | None = None) -> Producer:
    """Add data files. It fits every state; without files it makes an empty snapshot."""

    def produce(snapshot: NewSnapshot) -> Operation:
        snapshot.merge()
        snapshot.add(added)
        return "append"

    return _producer(produce, properties)


def overwrite(
    removed: Collection[str],
    added: Sequence[DataFile],
    *,
    based_on: int | None,
    operation: Operation = "overwrite",
    properties: Mapping[str, str] | None = None,
) -> Producer:
    """Put data files in the place of others, named by their paths: UPDATE and DELETE by copy, or rewriting.

    `based_on` is the snapshot that the rows were read from. Rows that others added since then stay; if others removed
    one of the files, or deleted rows of any by delete files, the commit fails.
    """

    def produce(snapshot: NewSnapshot) -> Operation:
        _check_no_new_deletes(snapshot, based_on)
        snapshot.remove(removed)
        snapshot.add(added)
        return operation

    return _producer(produce, properties)


def delete_all(
    added: Sequence[DataFile] = (), *, based_on: int | None = None, properties: Mapping[str, str] | None = None
) -> Producer:
    """Remove all rows, and put those of `added` in their place: TRUNCATE, or INSERT OVERWRITE.

    With `based_on`, only if that snapshot is still the current one; without, whatever is there.
    """

    def produce(snapshot: NewSnapshot) -> Operation:
        if based_on is not None and (snapshot.parent is None or snapshot.parent.snapshot_id != based_on):
            raise commit_failed(f"snapshot {based_on} is not the current one any more")
        snapshot.remove_all()
        snapshot.add(added)
        return "overwrite" if added else "delete"

    return _producer(produce, properties)


def rollback(snapshot_id: int) -> Producer:
    """Make an older snapshot the current one again."""
    return set_ref(MAIN, snapshot_id)


def set_ref(name: str, snapshot_id: int, *, kind: Literal["branch", "tag"] = "branch") -> Producer:
    """Let a branch or tag name a snapshot; `main` names the current one."""

    def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:  # noqa: ARG001
        from pyiceberg.table.refs import SnapshotRefType
        from pyiceberg.table.update import AssertRefSnapshotId, SetSnapshotRefUpdate

        if metadata.snapshot_by_id(snapshot_id) is None:
            raise NotFound(
                f"the table has no snapshot {snapshot_id}, or no longer; list its snapshots, and choose one",
                key="snapshot.not_found",
                snapshot=str(snapshot_id),
            )
        before = metadata.refs.get(name)
        unchanged = AssertRefSnapshotId(ref=name, snapshot_id=before.snapshot_id if before else None)
        update = SetSnapshotRefUpdate(ref_name=name, type=SnapshotRefType(kind), snapshot_id=snapshot_id)
        return Change((unchanged,), (update,))

    return produce


def _producer(produce: Callable[[NewSnapshot], Operation], properties: Mapping[str, str] | None) -> Producer:
    def producer(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:
        snapshot = NewSnapshot(metadata, files, clock=clock)
        try:
            operation = produce(snapshot)
            updates = snapshot.finish(operation, properties or {})
        except BaseException:
            files.remove(snapshot.written)
            raise
        return Change(snapshot.requirements, updates, tuple(snapshot.written))

    return producer


def _check_no_new_deletes(snapshot: NewSnapshot, based_on: int | None) -> None:
    """Rows that were deleted by delete files since they were read would come back with the files that replace them."""
    from pyiceberg.manifest import ManifestContent
    from pyiceberg.table.snapshots import ancestors_of

    known = set()
    for each in ancestors_of(snapshot.parent, snapshot.metadata):
        if each.snapshot_id == based_on:
            break
        known.add(each.snapshot_id)
    for manifest in snapshot.kept:
        if manifest.content == ManifestContent.DELETES and manifest.added_snapshot_id in known:
            raise commit_failed("rows were deleted from it while others were read to be changed")


# --------------------
# A table with other columns and other rows in the place of what it was: CREATE OR REPLACE.
#
# The table keeps its id, its folder and its history: older snapshots can still be asked for. All columns are new ones, so
# nothing of the old rows can be taken for theirs.
#
# change(..., replacing(schema))                      # without rows
#
# replacement = Replacement.of(metadata, schema)
# files = ...                                         # written for replacement.metadata
# change(..., replacement.commit(files))


# mypy: disable-error-code="no-any-return,call-arg"


def replacing(schema: Schema, *, properties: Mapping[str, str] | None = None) -> Producer:
    """The producer of a replacement without rows. It fits every state."""

    def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:
        return Replacement.of(metadata, schema, properties=properties).commit()(metadata, files, clock)

    return produce


@dataclass(frozen=True, slots=True)
class Replacement:
    """What a table is to become. `metadata` is what its new rows are written for."""

    metadata: TableMetadata
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]

    @classmethod
    def of(
        cls,
        base: TableMetadata,
        schema: Schema,
        *,
        spec: PartitionSpec | None = None,
        order: SortOrder | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Replacement:
        """The replacement of `base` by a table of this form; its old properties go, but for those given again."""
        from pyiceberg.table.update import AssertLastAssignedFieldId, AssertTableUUID

        updates = tuple(_updates(base, schema, spec, order, properties or {}))
        unchanged = (
            AssertTableUUID(uuid=base.table_uuid),
            AssertLastAssignedFieldId(last_assigned_field_id=base.last_column_id),
        )
        return cls(updated(base, unchanged, updates), unchanged, updates)

    def commit(self, added: Sequence[DataFile] = ()) -> Producer:
        """The producer of the change, with the first rows. Rows that others add meanwhile are replaced too."""

        def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:
            after = updated(metadata, self.requirements, self.updates)
            snapshot = NewSnapshot(after, files, clock=clock)
            try:
                snapshot.add(added)
                head = snapshot.finish("append", {})
            except BaseException:
                files.remove(snapshot.written)
                raise
            return Change(self.requirements, (*self.updates, *head), tuple(snapshot.written))

        return produce


def _updates(
    base: TableMetadata,
    schema: Schema,
    spec: PartitionSpec | None,
    order: SortOrder | None,
    properties: Mapping[str, str],
) -> Sequence[Any]:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import assign_fresh_schema_ids
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, assign_fresh_sort_order_ids
    from pyiceberg.table.update import (
        AddPartitionSpecUpdate,
        AddSchemaUpdate,
        AddSortOrderUpdate,
        RemovePropertiesUpdate,
        RemoveSnapshotRefUpdate,
        SetCurrentSchemaUpdate,
        SetDefaultSortOrderUpdate,
        SetDefaultSpecUpdate,
        SetPropertiesUpdate,
    )

    columns, parts = count(base.last_column_id + 1), count((base.last_partition_id or 999) + 1)
    fresh = assign_fresh_schema_ids(schema, columns.__next__)
    number = {each: fresh.find_field(schema.find_column_name(each) or each).field_id for each in schema.field_ids}
    fields = [
        PartitionField(number[each.source_id], next(parts), each.transform, each.name)
        for each in (spec.fields if spec else ())
    ]
    sorted_by = assign_fresh_sort_order_ids(order or UNSORTED_SORT_ORDER, schema, fresh)
    return [
        RemoveSnapshotRefUpdate(ref_name=MAIN),
        AddSchemaUpdate(schema=fresh),
        SetCurrentSchemaUpdate(schema_id=-1),
        AddPartitionSpecUpdate(spec=PartitionSpec(*fields)),
        SetDefaultSpecUpdate(spec_id=-1),
        AddSortOrderUpdate(sort_order=sorted_by),
        SetDefaultSortOrderUpdate(sort_order_id=-1),
        RemovePropertiesUpdate(removals=[key for key in base.properties if key not in properties]),
        SetPropertiesUpdate(updates=dict(properties)),
    ]
