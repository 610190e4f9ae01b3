# mypy: disable-error-code="no-any-return,call-arg"
"""Changes of a table's content, each a new snapshot, as the requirements and updates of a commit.

A `Producer` makes a change for a given state of the table. After a lost race it is called again with the new state. It
then rebases the change, or raises Conflict if that is not possible.

A `Replacement` is CREATE OR REPLACE: it gives a table other columns and other rows. The table keeps its id, its folder and
its history, so older snapshots can still be read. All columns get new ids, so that no old data is taken for theirs.

    change(..., replacing(schema))                      # without rows

    replacement = Replacement.of(metadata, schema)
    files = ...                                         # written for replacement.metadata
    change(..., replacement.commit(files))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from skiway.errors import NotFound
from skiway.formats.iceberg import lib
from skiway.formats.iceberg.metadata import MAIN, not_in_future, updated
from skiway.formats.iceberg.types import with_fresh_ids
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.foundation.clock import Clock
from skiway.security.source_access import location

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from skiway.formats.iceberg.changes.snapshots import NewSnapshot

# PyIceberg's models accept the names of fields, but are typed with their JSON aliases.


@dataclass(frozen=True, slots=True)
class Change:
    """The requirements and updates of a commit, and the files written for it, to be deleted if it fails."""

    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    written: tuple[str, ...] = ()

    def moves_from(self, folder: str) -> bool:
        """Whether the updates give the table another location than `folder`."""
        given = [update.location for update in self.updates if update.action == "set-location"]
        return bool(given) and location(given[-1]) != location(folder)


Producer: TypeAlias = "Callable[[TableMetadata, TableFiles, Clock], Change]"
Operation: TypeAlias = Literal["append", "overwrite", "delete", "replace"]


def plain(requirements: Sequence[TableRequirement], updates: Sequence[TableUpdate]) -> Producer:
    """A fixed change of a client; its requirements decide whether it can be applied to a state."""
    return lambda _metadata, _files, clock: Change(tuple(requirements), not_in_future(updates, clock()))


def checked(producer: Producer, check: Callable[[TableMetadata], None]) -> Producer:
    """The producer, after a check of the state that it changes, which raises if that is no longer the expected one."""

    def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:
        check(metadata)
        return producer(metadata, files, clock)

    return produce


def of_metadata(change: Callable[[TableMetadata], Change]) -> Producer:
    """The producer of a change that depends on the metadata only, and writes no files."""
    return lambda metadata, _files, _clock: change(metadata)


def append(added: Sequence[DataFile], *, properties: Mapping[str, str] | None = None) -> Producer:
    """Append data files. This never conflicts. Without files it makes an empty snapshot."""

    def produce(snapshot: NewSnapshot) -> Operation:
        snapshot.merge()
        snapshot.add(added)
        return "append"

    return _producer(produce, properties)


def overwrite(
    removed: Collection[str],
    added: Sequence[DataFile],
    *,
    deletes: Sequence[DataFile] = (),
    based_on: int | None,
    alone: bool = False,
    operation: Operation = "overwrite",
    properties: Mapping[str, str] | None = None,
) -> Producer:
    """Replace data files, named by their paths, by others: UPDATE, DELETE, MERGE or compaction.

    `deletes` are delete files of a `DeleteFileWriter`, which delete rows of further data files by merge-on-read.
    `based_on` is the snapshot that the rows were read from. Rows added since then are preserved. The commit fails if one
    of the data files was removed, or its rows were deleted with delete files, since then. If `alone`, it fails after any
    other commit.
    """

    def produce(snapshot: NewSnapshot) -> Operation:
        if alone:
            snapshot.check_current(based_on)
        changed = {*removed, *(str(lib.manifest_files.referenced_file(delete)) for delete in deletes)}
        snapshot.check_deletes(changed, based_on=based_on)
        snapshot.remove(removed, deletes=deletes)
        if deletes:
            snapshot.merge()
        snapshot.add(added)
        return operation

    return _producer(produce, properties)


def delete_all(
    added: Sequence[DataFile] = (), *, based_on: int | None = None, properties: Mapping[str, str] | None = None
) -> Producer:
    """Replace all rows by those of `added`: TRUNCATE, or INSERT OVERWRITE.

    With `based_on`, only if that snapshot is still the current one.
    """

    def produce(snapshot: NewSnapshot) -> Operation:
        if based_on is not None:
            snapshot.check_current(based_on)
        snapshot.remove_all()
        snapshot.add(added)
        return "overwrite" if added else "delete"

    return _producer(produce, properties)


def tidy(
    unused_deletes: Callable[[TableMetadata, TableFiles], Collection[tuple[str, object]]],
    *,
    min_manifests: int,
    properties: Mapping[str, str] | None = None,
) -> Producer:
    """Remove delete files that delete nothing any more, and merge small manifests if there are at least `min_manifests` of them.

    `unused_deletes` finds the delete files. Without either, nothing is committed. The rows stay the same.
    """

    def produce(snapshot: NewSnapshot) -> Operation | None:
        snapshot.remove_deletes(unused_deletes(snapshot.metadata, snapshot.files))
        snapshot.merge(min_count=min_manifests)
        return "replace" if snapshot.is_changed else None

    return _producer(produce, properties)


def rollback(snapshot_id: int) -> Producer:
    """Make an older snapshot the current one again."""
    return set_ref(MAIN, snapshot_id)


def set_ref(name: str, snapshot_id: int, *, kind: Literal["branch", "tag"] = "branch") -> Producer:
    """Point a branch or tag to a snapshot; `main` is the current one."""

    def produce(metadata: TableMetadata) -> Change:
        if metadata.snapshot_by_id(snapshot_id) is None:
            raise NotFound(
                f"the table has no snapshot {snapshot_id}; it may have expired, list its snapshots",
                key="snapshot.not_found",
                snapshot=str(snapshot_id),
            )
        before = metadata.refs.get(name)
        unchanged = lib.update.AssertRefSnapshotId(ref=name, snapshot_id=before.snapshot_id if before else None)
        update = lib.update.SetSnapshotRefUpdate(
            ref_name=name, type=lib.refs.SnapshotRefType(kind), snapshot_id=snapshot_id
        )
        return Change((unchanged,), (update,))

    return of_metadata(produce)


def _producer(produce: Callable[[NewSnapshot], Operation | None], properties: Mapping[str, str] | None) -> Producer:
    """The producer of a snapshot; nothing is committed if `produce` returns no operation."""

    def producer(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:
        from skiway.formats.iceberg.changes.snapshots import NewSnapshot

        with NewSnapshot(metadata, files, clock=clock) as snapshot:
            operation = produce(snapshot)
            if operation is None:
                return Change((), ())
            updates = snapshot.finish(operation, properties or {})
        return Change(snapshot.requirements, updates, tuple(snapshot.written))

    return producer


def replacing(schema: Schema, *, properties: Mapping[str, str] | None = None) -> Producer:
    """Replace a table by an empty one with this schema. This never conflicts."""
    return lambda metadata, *more: Replacement.of(metadata, schema, properties=properties).commit()(metadata, *more)


@dataclass(frozen=True, slots=True)
class Replacement:
    """A table that replaces another. Its data files are written for `metadata`."""

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
        """Plan the replacement of `base`; of its properties, only those in `properties` remain."""
        updates = tuple(_updates(base, schema, spec, order, properties or {}))
        unchanged = (
            lib.update.AssertTableUUID(uuid=base.table_uuid),
            lib.update.AssertLastAssignedFieldId(last_assigned_field_id=base.last_column_id),
        )
        return cls(updated(base, unchanged, updates), unchanged, updates)

    def commit(self, added: Sequence[DataFile] = (), *, properties: Mapping[str, str] | None = None) -> Producer:
        """The producer of the change, with the first rows. Rows that others add concurrently are replaced too.

        `properties` are those of the new snapshot.
        """

        def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:
            after = updated(metadata, self.requirements, self.updates)
            rows = append(added, properties=properties)(after, files, clock)
            return Change(self.requirements, (*self.updates, *rows.updates), rows.written)

        return produce


def _updates(
    base: TableMetadata,
    schema: Schema,
    spec: PartitionSpec | None,
    order: SortOrder | None,
    properties: Mapping[str, str],
) -> Sequence[Any]:
    columns, parts = count(base.last_column_id + 1), count((base.last_partition_id or 999) + 1)
    fresh = with_fresh_ids(schema, columns.__next__)
    number = {each: fresh.find_field(schema.find_column_name(each) or each).field_id for each in schema.field_ids}
    fields = [
        lib.partitioning.PartitionField(number[each.source_id], next(parts), each.transform, each.name)
        for each in (spec.fields if spec else ())
    ]
    sorted_by = lib.sorting.assign_fresh_sort_order_ids(order or lib.sorting.UNSORTED_SORT_ORDER, schema, fresh)
    return [
        lib.update.RemoveSnapshotRefUpdate(ref_name=MAIN),
        lib.update.AddSchemaUpdate(schema=fresh),
        lib.update.SetCurrentSchemaUpdate(schema_id=-1),
        lib.update.AddPartitionSpecUpdate(spec=lib.partitioning.PartitionSpec(*fields)),
        lib.update.SetDefaultSpecUpdate(spec_id=-1),
        lib.update.AddSortOrderUpdate(sort_order=sorted_by),
        lib.update.SetDefaultSortOrderUpdate(sort_order_id=-1),
        lib.update.RemovePropertiesUpdate(removals=[key for key in base.properties if key not in properties]),
        lib.update.SetPropertiesUpdate(updates=dict(properties)),
    ]
