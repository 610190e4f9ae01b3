# mypy: disable-error-code="no-any-return,call-arg"
# PyIceberg's models take the names of fields, but are typed with those of JSON.
"""Changes of a table's content, each a new snapshot, in the form in which catalogs take them: requirements and updates.

A `Producer` makes a change for the state that it is given. Whoever loses a race calls it again with the new state; it
then either fits the change to what was done meanwhile, or says why it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

from skiway.errors import NotFound
from skiway.formats.iceberg_metadata import commit_failed
from skiway.formats.iceberg_snapshot import MAIN, NewSnapshot
from skiway.formats.iceberg_warehouse import TableFiles

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

__all__ = ["Change", "Producer", "append", "delete_all", "overwrite", "plain", "rollback", "set_ref"]


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit asks of a catalog, and the files that it wrote for it: of no use if it is not committed."""

    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    written: tuple[str, ...] = ()


Clock: TypeAlias = Callable[[], datetime]
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
