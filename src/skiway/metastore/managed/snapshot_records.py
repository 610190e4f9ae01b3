"""The records of a managed table's snapshots, which are the same as for any other table.

They are written in the batch of the commit, so that leases, planners and statistics see a snapshot as soon as it
exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import SkiwayError
from skiway.formats import Content, Snapshot, data_files
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.metastore.managed.locations import check_files
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import FILE_STATS, SNAPSHOT, TABLE_STATS
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Stored
from skiway.metastore.resources.snapshots import current_put, stored_id
from skiway.metastore.statistics import file_table
from skiway.metastore.statistics.file_table import snapshot_record, stored_files
from skiway.model import v1
from skiway.storage import ABSENT, Check, Delete, Operation

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["added", "current", "leftover", "removed"]


def added(
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
    for snapshot in handle.snapshots():
        if snapshot.id not in known:
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
        before.update(*(handle.placed_files(each)["path"].to_pylist() for each in parents))
    table_files.seal_all({*files["path"].to_pylist(), *handle.new_manifests(snapshot)} - before, handle.location)


def removed(realm: Realm, table_id: str, base: TableMetadata, now: TableMetadata) -> Iterator[list[Operation]]:
    """The operations that delete the records of each snapshot that `base` has and `now` does not."""
    left = {each.snapshot_id for each in now.snapshots}
    for snapshot in base.snapshots:
        if snapshot.snapshot_id not in left:
            yield list(_deleting(realm, table_id, snapshot.snapshot_id))


def leftover(realm: Realm, table: Stored[v1.Table], now: TableMetadata) -> Iterator[list[Operation]]:
    """The operations that delete records of removed snapshots that a process left behind when it died."""
    left = {each.snapshot_id for each in now.snapshots}
    table_id = table.value.resource_id.id
    for pointer in realm.stores.pointers.scan(keys.snapshot(realm.account_id, table_id)):
        number = int(keys.last_segment(pointer.key))
        if number not in left:
            unchanged = Check(table.pointer.key, expect=table.pointer.version)
            yield [unchanged, *_deleting(realm, table_id, number)]


def current(realm: Realm, table_id: str, now: TableMetadata) -> Iterator[Operation]:
    """The operations that make the metadata's current snapshot the current one."""
    key = keys.current_snapshot(realm.account_id, table_id)
    pointer = realm.stores.pointers.get(key)
    wanted = now.current_snapshot_id
    if wanted is None:
        yield Delete(key, expect=pointer.version) if pointer else Check(key, expect=ABSENT)
    elif pointer is None or stored_id(pointer) != wanted:
        yield current_put(realm, table_id, wanted, before=pointer)


def _deleting(realm: Realm, table_id: str, snapshot_id: int) -> Iterator[Operation]:
    found = realm.all(SNAPSHOT).find(keys.snapshot(realm.account_id, table_id, snapshot_id))
    named = [] if found is None else [found.pointer.key, *SNAPSHOT.names(found.value)]
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
