"""States of managed tables: how they are loaded and published, and the records of their snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import (
    AlreadyExists,
    Conflict,
    Contention,
    Internal,
    LimitExceeded,
    PreconditionFailed,
    SkiwayError,
    TimedOut,
    Unavailable,
)
from skiway.formats import Content, Snapshot, TableName, data_files
from skiway.formats.iceberg.metadata import read_metadata
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.foundation.files import synced_together
from skiway.metastore.managed.locations import check_files, files_of_table
from skiway.metastore.records import keys
from skiway.metastore.records.branches import branch_of
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import FILE_STATS, SNAPSHOT, TABLE, TABLE_STATS
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Stored
from skiway.metastore.records.updates import apply_batch, copied
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.hierarchy import writer
from skiway.metastore.resources.snapshots import current_put, stored_id
from skiway.metastore.statistics import file_table
from skiway.metastore.statistics.file_table import snapshot_record, stored_files
from skiway.model import v1
from skiway.storage import ABSENT, Check, Delete, Operation

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata


def added_snapshots(
    realm: Realm,
    table: v1.Table,
    now: TableMetadata,
    base: TableMetadata | None,
    table_files: TableFiles,
    *,
    opened: Callable[[], IcebergTable],
    synced: bool = False,
) -> Iterator[Operation]:
    """The operations that publish the snapshots that `base` does not have, each with the statistics of its files.

    The table is `opened`, which takes 0.3 ms, only if there are such snapshots. Files that clients wrote may not be `synced`
    to disk.
    """
    known = set() if base is None else {each.snapshot_id for each in base.snapshots}
    if all(each.snapshot_id in known for each in now.snapshots):
        return
    handle = opened()
    for snapshot in handle.snapshots_except(known):
        files = handle.placed_files(snapshot)
        check_files(files["path"], table_files, handle.location)
        if not synced:
            _sync(handle, snapshot, files, table_files)
        record = snapshot_record(realm, table.resource_id, handle, snapshot, files=files)
        yield from realm.all(SNAPSHOT).reservation(record)[1]
        yield from _statistics(realm, table, handle, snapshot, files)


def _sync(handle: IcebergTable, snapshot: Snapshot, files: pa.Table, table_files: TableFiles) -> None:
    """Sync the files that a snapshot adds to those of its parent, so that they survive a power failure."""
    before: set[str] = set()
    with suppress(SkiwayError):  # if the parent cannot be read, all files are synced
        parents = [each for each in handle.snapshots() if each.id == snapshot.parent_id]
        before.update(*(handle.placed_files(parent)["path"].to_pylist() for parent in parents))
    table_files.seal_all({*files["path"].to_pylist(), *handle.new_manifests(snapshot)} - before, handle.location)


def removed_snapshots(
    realm: Realm, table_id: str, base: TableMetadata, now: TableMetadata
) -> Iterator[list[Operation]]:
    """The operations that delete the records of each snapshot that `base` has and `now` does not."""
    left = {each.snapshot_id for each in now.snapshots}
    for snapshot in base.snapshots:
        if snapshot.snapshot_id not in left:
            yield list(_deleting(realm, table_id, snapshot.snapshot_id))


def leftover_snapshots(realm: Realm, table: Stored[v1.Table], now: TableMetadata) -> Iterator[list[Operation]]:
    """The operations that delete records of removed snapshots that a process left behind when it died."""
    left = {snapshot.snapshot_id for snapshot in now.snapshots}
    table_id = table.value.resource_id.id
    for pointer in realm.stores.pointers.scan(keys.snapshot(realm.account_id, table_id)):
        number = int(keys.last_segment(pointer.key))
        if number not in left:
            unchanged = Check(table.pointer.key, expect=table.pointer.version)
            yield [unchanged, *_deleting(realm, table_id, number)]


def current_snapshot(realm: Realm, table_id: str, now: TableMetadata) -> Iterator[Operation]:
    """The operations that make the metadata's current snapshot the current one."""
    key = keys.current_snapshot(realm.account_id, table_id)
    pointer = realm.stores.pointers.get(key)
    wanted = now.current_snapshot_id
    if wanted is None:
        yield Delete(key, expect=pointer.version) if pointer else Check(key, expect=ABSENT)
    elif pointer is None or stored_id(pointer) != wanted:
        yield current_put(realm, table_id, wanted, before=pointer)


def _deleting(realm: Realm, table_id: str, snapshot_id: int) -> Iterator[Operation]:
    snapshot = realm.all(SNAPSHOT).find(keys.snapshot(realm.account_id, table_id, snapshot_id))
    named = [] if snapshot is None else [snapshot.pointer.key, *SNAPSHOT.names(snapshot.value)]
    named += (keys.statistics(realm.account_id, table_id, snapshot_id, of=of) for of in ("table", "columns", "files"))
    for pointer in filter(None, map(realm.stores.pointers.get, named)):
        yield Delete(pointer.key, expect=pointer.version)


def _statistics(
    realm: Realm, table: v1.Table, handle: IcebergTable, snapshot: Snapshot, files: pa.Table
) -> Iterator[Operation]:
    facts: dict[str, Any] = {"table_id": table.resource_id, "snapshot_id": snapshot.id, "updated_at": realm.now()}
    stored = file_table.written(stored_files(handle, snapshot, files))
    yield from realm.all(FILE_STATS).reservation(v1.FileStatsSet(arrow_file=stored, **facts))[1]
    data = data_files(files)
    deleted, is_exact = _deleted_rows(files)
    stats = v1.TableStats(
        upstream=_stamp(realm, table, handle),
        row_count=max(0, _total(data, "row_count") - deleted),
        data_file_count=data.num_rows,
        total_size_bytes=_total(data, "size_bytes"),
        properties=None if is_exact else {"quality.row_count": "bound"},
        **facts,
    )
    yield from realm.all(TABLE_STATS).reservation(stats)[1]


def _deleted_rows(files: pa.Table) -> tuple[int, bool]:
    """How many rows are deleted at least, and whether that is their exact number. Delete files are not read here.

    Only the rows of a delete file for a single data file are surely rows of that file. Two delete files may have the same rows, and others
    may have rows of files that are no longer there. The number of rows that are deleted by equality is unknown.
    """
    data = data_files(files)
    unknown = data.filter(pc.is_null(data["deleted_rows"]))
    total, is_exact = _total(data, "deleted_rows"), True
    if not unknown.num_rows:
        return total, is_exact
    names = ["ordinal", "content", "row_count", "referenced", "path_from", "path_to"]
    others = files.filter(pc.not_equal(files["content"], Content.DATA)).select(names)
    deletes = {delete["ordinal"]: delete for delete in others.to_pylist()}
    for path, applied in zip(unknown["path"].to_pylist(), unknown["deletes"].to_pylist(), strict=True):
        own = [deletes[number]["row_count"] for number in applied if _is_of_file(deletes[number], path)]
        total += max(own, default=0)
        is_exact = is_exact and len(own) == len(applied) == 1
    return total, is_exact


def _is_of_file(delete: Mapping[str, Any], path: str) -> bool:
    """Whether a delete file has positions in a single data file, which is the one at this path."""
    bounds = {delete["path_from"], delete["path_to"]}
    return delete["content"] == Content.POSITION_DELETES and (delete["referenced"] == path or bounds == {path.encode()})


def _total(files: pa.Table, column: str) -> int:
    return int(pc.sum(files[column], min_count=0).as_py())


def _stamp(realm: Realm, table: v1.Table, handle: IcebergTable) -> v1.UpstreamStamp:
    return v1.UpstreamStamp(
        system=v1.TF_ICEBERG,
        table_native_id=str(handle.metadata.table_uuid),
        commit_ref=table.metadata_location,
        fetched_at=realm.now(),
    )


_JOURNAL: Final = 2  # operations that the journal adds for each table


@dataclass(frozen=True)
class ManagedTable:
    """A managed table in one state: its record, its metadata, and its files, which can be read and written."""

    stored: Stored[v1.Table]
    metadata: TableMetadata
    files: TableFiles
    json: str = field(default="", repr=False, compare=False)
    """The metadata as JSON, if it has just been written."""

    @property
    def table(self) -> v1.Table:
        return self.stored.value

    @property
    def id(self) -> str:
        return self.table.resource_id.id

    @property
    def metadata_location(self) -> str:
        return self.table.metadata_location

    @cached_property
    def handle(self) -> IcebergTable:
        """A handle to read the table's snapshots, files and rows."""
        return handle_of(self.table, self.metadata, self.files)


KEPT: Final = "gc.enabled"
"""The property by which Iceberg's clients know that they must not delete files of a table."""


def read_state(realm: Realm, files: TableFiles, location: str) -> TableMetadata:
    """The metadata of a table at a location; on a branch, as a table in the folder of the branch whose files nobody deletes."""
    metadata = read_metadata(files, location)
    return metadata if branch_of(realm.stores) is None else at_home(metadata, files)


def at_home(metadata: TableMetadata, files: TableFiles) -> TableMetadata:
    """The metadata as that of a table on a branch."""
    if metadata.location == files.home and metadata.properties.get(KEPT) == "false":
        return metadata
    wanted = {"location": files.home, "properties": {**metadata.properties, KEPT: "false"}}
    return metadata.model_copy(update=wanted)


# --- loading ----------------------------------------------------------------------------------------------------------


def handle_of(table: v1.Table, metadata: TableMetadata, files: TableFiles) -> IcebergTable:
    """A handle to read the table in the state that `metadata` describes."""
    name = TableName((), table.display_name)
    return IcebergTable(name, metadata, metadata_location=table.metadata_location, files=files)


def open_current(realm: Realm, warehouse: Warehouse, table: v1.Table) -> IcebergTable:
    """A handle to read the table in the state that its record names."""
    files = files_of_table(realm, warehouse, table)
    return handle_of(table, read_state(realm, files, table.metadata_location), files)


def open_earlier(realm: Realm, warehouse: Warehouse, table: v1.Table, snapshot_id: int) -> IcebergTable | None:
    """A handle to read a snapshot that was removed from the table, in the last state that had it; None if none is left."""
    files = files_of_table(realm, warehouse, table)
    for entry in reversed(read_metadata(files, table.metadata_location).metadata_log):
        try:
            metadata = read_metadata(files, entry.metadata_file)
        except SkiwayError:  # garbage collection has deleted it
            return None
        if any(snapshot.snapshot_id == snapshot_id for snapshot in metadata.snapshots):
            earlier = v1.Table()
            earlier.CopyFrom(table)
            earlier.metadata_location = entry.metadata_file
            return handle_of(earlier, metadata, files)
    return None


def managed_record(realm: Realm, table_id: v1.ResourceId, *, damaged: bool = False) -> Stored[v1.Table]:
    """The record of a table; if `damaged`, also a damaged one. Raise `PreconditionFailed` if the table is not managed."""
    table = hierarchy.table(realm, table_id, damaged=damaged)
    if not (table.value.metadata_location or table.value.damage):
        raise PreconditionFailed(
            f"table {table.value.display_name} is not a managed table: change it in its source",
            key="table.not_managed",
            id=table.value.resource_id.id,
        )
    return table


def load(realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId) -> ManagedTable:
    """The table in its current state. Raise `PreconditionFailed` if it is not managed."""
    found = managed_record(realm, table_id)
    files = files_of_table(realm, warehouse, found.value)
    try:
        metadata = read_state(realm, files, found.value.metadata_location)
    except PreconditionFailed as error:
        if error.key not in ("file.corrupt", "file.missing"):
            raise
        raise PreconditionFailed(
            f"table {found.value.display_name} is damaged: {error.message}", key="table.damaged", detail=error.detail
        ) from error
    return ManagedTable(found, metadata, files)


# --- publishing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewState:
    """The state that a table gets if it is still in the `expected` one. Its metadata is in the file at `location`.

    Publishing it syncs this file to disk, together with the records and, unless they are `synced`, the files of its new
    snapshots.
    """

    expected: ManagedTable
    metadata: TableMetadata
    location: str
    json: str = field(default="", repr=False)
    synced: bool = False


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table that is created if its name is free. Its metadata is stored at `location`."""

    table: v1.Table
    metadata: TableMetadata
    location: str
    files: TableFiles


Also = Callable[[Sequence[ManagedTable]], Iterable[Operation]]
"""Returns further operations for the batch that publishes new states, given the tables in these states."""


def nothing_else(_published: Sequence[ManagedTable]) -> Iterable[Operation]:
    """No further operations."""
    return ()


def publish(realm: Realm, states: Sequence[NewState | NewTable], *, also: Also = nothing_else) -> list[ManagedTable]:
    """Replace or create the records of all tables, and with them the records of their snapshots, in one batch, or none.

    If one of the tables is no longer in the expected state, raise `Contention`, or `PreconditionFailed` with the key
    `version.mismatch`. If the name of a new table is taken, raise `AlreadyExists`. The number of tables is limited by the size
    of a batch of the store.
    """
    with synced_together():
        for state in states:
            if isinstance(state, NewState):
                state.expected.files.seal(state.location)
        prepared = [
            _prepare(realm, state) if isinstance(state, NewState) else _prepare_new(realm, state) for state in states
        ]
    published = [each.published for each in prepared]
    batch = _merged(operation for each in prepared for operation in each.operations) + list(also(published))
    needed, limit = len(batch) + _JOURNAL * len(states), realm.stores.pointers.max_batch
    room = limit - needed
    if room < 0 and len(states) > 1:
        fitting = limit * len(states) // needed
        raise failure(LimitExceeded, "commit.too_many_tables", found=str(len(states)), limit=str(fitting))
    remaining: list[tuple[str, list[Operation]]] = []
    for table_id, removed in ((each.published.id, removed) for each in prepared for removed in each.removed):
        if remaining or len(removed) > room:
            remaining.append((table_id, removed))
        else:
            batch += removed
            room -= len(removed)
    try:
        realm.stores.pointers.apply(batch)
    except Contention:
        raise
    except Conflict:
        if (reason := _explained(prepared)) is not None:
            raise reason from None
    for table_id, removed in remaining:
        # The commit is done: no error here may undo it. Garbage collection deletes the rest.
        with suppress(Contention):
            apply_batch(realm, removed, what=f"a snapshot of table {table_id}")
    return published


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A state that is ready to be published. `removed` deletes the records of each snapshot that it no longer has."""

    explain: Callable[[], SkiwayError | None]
    published: ManagedTable
    operations: list[Operation]
    removed: list[list[Operation]]


def _prepare(realm: Realm, state: NewState) -> _Prepared:
    base, metadata = state.expected, state.metadata
    desired = copied(base.table)
    update_record(desired, metadata, state.location, before=base.metadata)
    desired.updated_at.CopyFrom(realm.now())
    repository = writer(realm, TABLE)
    replacement = repository.replacement(base.stored, desired)
    published = ManagedTable(replacement.stored, metadata, base.files, state.json)
    operations = [
        *replacement.operations,
        *added_snapshots(
            realm,
            published.table,
            metadata,
            base.metadata,
            base.files,
            opened=lambda: published.handle,
            synced=state.synced,
        ),
        *current_snapshot(realm, base.id, metadata),
    ]
    removed = list(removed_snapshots(realm, base.id, base.metadata, metadata))
    return _Prepared(lambda: repository.explain(replacement), published, operations, removed)


def _prepare_new(realm: Realm, new: NewTable) -> _Prepared:
    table, metadata = copied(new.table), new.metadata
    update_record(table, metadata, new.location)
    checks = hierarchy.entering(realm, table)
    repository = writer(realm, TABLE)
    creation = repository.creation(table)
    created = ManagedTable(creation.stored, metadata, new.files)
    operations: list[Operation] = [*creation.operations, *checks]
    if metadata.snapshots:
        operations += added_snapshots(realm, created.table, metadata, None, new.files, opened=lambda: created.handle)
        operations += current_snapshot(realm, created.id, metadata)
    return _Prepared(lambda: repository.explain_creation(creation), created, operations, [])


def _merged(operations: Iterable[Operation]) -> list[Operation]:
    """The operations, with each check once: new tables in one namespace have the same."""
    checks: dict[str, Check] = {}
    batch: list[Operation] = []
    for operation in operations:
        if isinstance(operation, Check):
            if checks.setdefault(operation.key, operation) != operation:
                raise failure(Contention, "store.contended", what="a namespace")  # it has changed in between
            if checks[operation.key] is not operation:
                continue
        batch.append(operation)
    return batch


def _explained(prepared: Sequence[_Prepared]) -> SkiwayError | None:
    """The reason why a batch was rejected: a table that changed, if there is one. None if everything is done already."""
    reasons = [reason for each in prepared if (reason := each.explain()) is not None]
    certain = (each for each in reasons if each.key == "version.mismatch" or isinstance(each, AlreadyExists))
    return next(certain, reasons[0] if reasons else None)


def is_certainly_undone(error: SkiwayError) -> bool:
    """Whether certainly nothing was committed. If the store did not respond, the commit may have succeeded."""
    return not isinstance(error, Unavailable | TimedOut | Internal)


@contextmanager
def undoing(undo: Callable[[], object], *, when: bool = True) -> Iterator[None]:
    """Call `undo` if the block fails and certainly nothing was committed; nothing unless `when`."""
    try:
        yield
    except SkiwayError as error:
        if when and is_certainly_undone(error):
            undo()
        raise


def update_record(
    table: v1.Table, metadata: TableMetadata, location: str, *, before: TableMetadata | None = None
) -> None:
    """Update the table's record from its metadata; `before` is the metadata that the record is from."""
    from skiway.formats.iceberg.types import schema_json

    comment = metadata.properties.get("comment")
    if comment != table.properties.get("comment"):
        table.description = comment or ""
    table.metadata_location = location
    if before is None or before.schema() is not metadata.schema():  # most commits leave it as it is
        table.schema_json = schema_json(metadata.schema())
    table.properties.clear()
    table.properties.update(metadata.properties)
