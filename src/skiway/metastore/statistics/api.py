"""Statistics of a snapshot: of the table, of its columns, of its files.

Columns are stored together, and so are files: a snapshot has three pointers for its statistics, however wide or large
the table is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, cast

import pyarrow as pa
from google.protobuf.message import Message

from skiway.errors import AlreadyExists, Conflict, Contention, NotFound, PreconditionFailed
from skiway.metastore.records import keys, updates
from skiway.metastore.records.errors import failure
from skiway.metastore.records.idempotency import Claim, fingerprint, once
from skiway.metastore.records.kinds import COLUMN_STATS, FILE_STATS, TABLE_STATS
from skiway.metastore.records.paging import page_size, sliced
from skiway.metastore.records.parents import retrying
from skiway.metastore.records.realm import Realm, timestamp
from skiway.metastore.records.repository import Also, Repository, Stored
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.current_snapshot import check_id, meant
from skiway.metastore.statistics import file_table
from skiway.metastore.statistics.uploads import Target, Upload
from skiway.metastore.statistics.validation import check_column, check_file, check_table
from skiway.model import v1
from skiway.storage import Check, Operation
from skiway.storage.paging import open_token, seal_token

__all__ = ["file_statistics", "get_table", "list_columns", "list_files", "put_columns", "put_files", "put_table"]

PAGE = 200
M = TypeVar("M", bound=Message)
Item = TypeVar("Item", v1.ColumnStats, v1.FileColumnStats)


def put_table(realm: Realm, request: v1.PutTableStatsRequest) -> v1.PutTableStatsResponse:
    """Store the statistics of a table. They may come before their snapshot does."""
    table = hierarchy.table(realm, request.table_id)
    check_id(request.snapshot_id, field="snapshot_id")
    stats = updates.copied(request.stats)
    stats.table_id.CopyFrom(table.value.resource_id)
    stats.snapshot_id = request.snapshot_id
    stats.ClearField("updated_at")
    check_table(stats)
    claim = Claim(realm, "PutTableStats", request.idempotency.key, _lasting(stats), v1.PutTableStatsResponse)

    def attempt() -> v1.PutTableStatsResponse:
        now = hierarchy.table(realm, request.table_id)

        def also(stored: Stored[v1.TableStats]) -> tuple[Operation, ...]:
            answer = v1.PutTableStatsResponse(stats=stored.value, meta=stored.meta)
            return Check(now.pointer.key, expect=now.pointer.version), *claim.remembering(answer)

        repository = realm.all(TABLE_STATS)
        stored = _upsert(realm, repository, repository.find(TABLE_STATS.key(stats)), stats, also=also)
        return v1.PutTableStatsResponse(stats=stored.value, meta=stored.meta)

    return once(claim, lambda: retrying(attempt))


def get_table(realm: Realm, request: v1.GetTableStatsRequest) -> v1.GetTableStatsResponse:
    """The statistics of a table in one of its snapshots."""
    table_id, snapshot_id = _which(realm, request.table_id, request.snapshot)
    found = realm.all(TABLE_STATS).find(keys.statistics(realm.account_id, table_id.id, snapshot_id, of="table"))
    if found is None:
        raise failure(NotFound, "table.stats", table_id=table_id.id, snapshot_id=str(snapshot_id))
    return v1.GetTableStatsResponse(stats=found.value, meta=found.meta)


def put_columns(realm: Realm, requests: Iterable[v1.PutColumnStatsRequest]) -> v1.PutColumnStatsResponse:
    """Store statistics of columns, replacing what there is of the same columns."""
    upload: Upload[v1.PutColumnStatsRequest, v1.ColumnStats] = Upload(
        realm,
        take=lambda request: request.columns,
        check=check_column,
        write=lambda target, items: retrying(lambda: _write_columns(realm, target, items)),
        empty="column.stats.empty",
    )
    return v1.PutColumnStatsResponse(upserted=upload.run(requests))


def list_columns(realm: Realm, request: v1.ListColumnStatsRequest) -> v1.ListColumnStatsResponse:
    """The statistics of the columns in one snapshot, by column id."""
    table_id, snapshot_id = _which(realm, request.table_id, request.snapshot)
    key = keys.statistics(realm.account_id, table_id.id, snapshot_id, of="columns")
    found = realm.all(COLUMN_STATS).named(key)
    columns = found.columns if found else []
    shown, page = sliced(
        columns, request.page, listing=key, name=lambda column: f"{column.column_id:019d}", default=PAGE
    )
    return v1.ListColumnStatsResponse(columns=shown, page=page)


def put_files(realm: Realm, requests: Iterable[v1.PutFileColumnStatsRequest]) -> v1.PutFileColumnStatsResponse:
    """Store statistics of files, replacing what there is of the same files."""
    upload: Upload[v1.PutFileColumnStatsRequest, v1.FileColumnStats] = Upload(
        realm,
        take=lambda request: request.files,
        check=check_file,
        write=lambda target, items: retrying(lambda: _write_files(realm, target, items)),
        empty="file.column.stats.empty",
    )
    return v1.PutFileColumnStatsResponse(upserted=upload.run(requests))


def list_files(realm: Realm, request: v1.ListFileColumnStatsRequest) -> v1.ListFileColumnStatsResponse:
    """The statistics of the files of one snapshot, by path."""
    table_id, snapshot_id = _which(realm, request.table_id, request.snapshot)
    key = keys.statistics(realm.account_id, table_id.id, snapshot_id, of="files")
    table = file_statistics(realm, table_id.id, snapshot_id)
    after = open_token(key, request.page.page_token) if request.page.page_token else ""
    size = page_size(request.page, default=PAGE)
    found = file_table.files_after(table, after, limit=size + 1, table_id=table_id, snapshot_id=snapshot_id)
    token = seal_token(key, found[size - 1].file_path) if len(found) > size else ""
    page = v1.PageResponse(next_page_token=token, total_size=table.num_rows)
    return v1.ListFileColumnStatsResponse(files=found[:size], page=page)


def file_statistics(realm: Realm, table_id: str, snapshot_id: int) -> pa.Table:
    """All files of a snapshot with their statistics, as `file_table.SCHEMA` says; empty where none were put."""
    found = realm.all(FILE_STATS).named(keys.statistics(realm.account_id, table_id, snapshot_id, of="files"))
    return file_table.opened(found.arrow_file if found else b"")


def _which(realm: Realm, table: v1.ResourceId, ref: v1.SnapshotRef) -> tuple[v1.ResourceId, int]:
    table_id = hierarchy.table(realm, table).value.resource_id
    if ref.WhichOneof("which") == "snapshot_id":
        return table_id, ref.snapshot_id
    return table_id, meant(realm, table_id.id, ref).value.snapshot_id


def _write_columns(realm: Realm, target: Target, items: list[v1.ColumnStats]) -> None:
    repository = realm.all(COLUMN_STATS)
    wanted = v1.ColumnStatsSet(table_id=target.table_id, snapshot_id=target.snapshot_id)
    current = repository.find(COLUMN_STATS.key(wanted))
    known = current.value if current else v1.ColumnStatsSet()
    now = timestamp(realm.clock())
    puts = {number: put for number, put in known.puts.items() if put.expires_at.ToNanoseconds() > now.ToNanoseconds()}
    accepted, refusal = _sift(realm, target, items, puts, name=lambda column: column.column_id, op="PutColumnStats")
    columns = {column.column_id: column for column in (*known.columns, *accepted.values())}
    wanted.columns.extend(columns[number] for number in sorted(columns))
    for number, put in puts.items():
        wanted.puts[number].CopyFrom(put)
    if accepted:
        _upsert(realm, repository, current, wanted, also=lambda _: target.checks)
    if refusal is not None:
        raise refusal


def _write_files(realm: Realm, target: Target, items: list[v1.FileColumnStats]) -> None:
    repository = realm.all(FILE_STATS)
    wanted = v1.FileStatsSet(table_id=target.table_id, snapshot_id=target.snapshot_id)
    current = repository.find(FILE_STATS.key(wanted))
    table = file_table.opened(current.value.arrow_file if current else b"")
    puts = file_table.last_puts(table, (item.file_path for item in items), now=realm.clock())
    accepted, refusal = _sift(realm, target, items, puts, name=lambda file: file.file_path, op="PutFileColumnStats")
    if accepted:
        wanted.arrow_file = file_table.written(file_table.merged(table, file_table.rows(accepted.values(), puts)))
        _upsert(realm, repository, current, wanted, also=lambda _: target.checks)
    if refusal is not None:
        raise refusal


def _sift(
    realm: Realm,
    target: Target,
    items: Iterable[Item],
    puts: dict[Any, v1.ItemPut],
    *,
    name: Callable[[Item], Any],
    op: str,
) -> tuple[Mapping[Any, Item], Conflict | None]:
    """Those items that are to be stored, by name, up to the first that came with the same key but said otherwise.

    What came with this key before is not stored again. `puts` is brought up to date.
    """
    accepted: dict[Any, Item] = {}
    expires_at = timestamp(realm.clock() + timedelta(seconds=realm.idempotency_ttl_s))
    for item in items:
        item.table_id.CopyFrom(target.table_id)
        item.snapshot_id = target.snapshot_id
        mark = fingerprint(_lasting(item))
        last = puts.get(name(item))
        if target.key and last is not None and last.key == target.key:
            if last.fingerprint != mark:
                return accepted, failure(Conflict, "idempotency.mismatch", op=op, idempotency_key=target.key)
            continue
        puts.pop(name(item), None)
        if target.key:
            puts[name(item)] = v1.ItemPut(key=target.key, fingerprint=mark, expires_at=expires_at)
        accepted[name(item)] = item
    return accepted, None


def _lasting(stats: M) -> M:
    """A copy without when it was fetched: the same facts, fetched again, are the same."""
    copy = updates.copied(stats)
    for part in (copy, *getattr(copy, "columns", ())):
        if "upstream" in part.DESCRIPTOR.fields_by_name and part.HasField("upstream"):
            part.upstream.ClearField("fetched_at")
    return copy


def _upsert(
    realm: Realm, repository: Repository[M], current: Stored[M] | None, value: M, *, also: Also[M]
) -> Stored[M]:
    """Store what was made from `current`; if that is no longer there, it must be made again."""
    stamped = updates.copied(value)
    cast(Any, stamped).updated_at.CopyFrom(realm.now())
    try:
        if current is None:
            return repository.create(stamped, also=also)
        return repository.update(current, stamped, also=also)
    except (AlreadyExists, NotFound, PreconditionFailed):
        what = f"the {repository.kind.noun} of {repository.kind.title(value)}"
        raise failure(Contention, "store.contended", what=what) from None
