"""Statistics of a snapshot: of the table, of its columns, of its files.

All columns are stored together, and so are all files: a snapshot has three pointers for its statistics, however wide or
large the table is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar, cast

import pyarrow as pa
from google.protobuf.message import Message

from skiway.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    SkiwayError,
)
from skiway.metastore.records import keys, updates
from skiway.metastore.records.damage import explaining_damage
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import COLUMN_STATS, FILE_STATS, SNAPSHOT, TABLE_STATS
from skiway.metastore.records.policies import NO_FILES
from skiway.metastore.records.realm import Realm, timestamp
from skiway.metastore.records.repository import Also, Repository, Stored, page_size, sliced
from skiway.metastore.records.updates import Claim, fingerprint, once, retrying
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.snapshots import check_id, current_id, resolve
from skiway.metastore.statistics import file_table
from skiway.metastore.statistics.bounds import check_column, check_file, check_table
from skiway.model import v1
from skiway.storage import Check, Operation
from skiway.storage.calls import open_token, seal_token

PAGE = 200
STEP = 10_000
STEP_BYTES = 32 * 1024 * 1024
"""How many items, and how many bytes of them, one write stores at most."""

OTHER_FORMATS: Final = "files.other_formats"
"""Property of a table's statistics: the number of data files that are not profiled because of their format."""

SAMPLED_FILES: Final = "files.sample"
"""Property of a table's statistics: of how many files a sample was to be profiled; absent if it was all of them."""

PROFILE_VERSION: Final = "profile.version"
"""Property of statistics of tables and columns: the version of the code that made them of profiles; absent before version 1."""

CURRENT_VERSION: Final = 1
"""The version of this code. Version 1 counts the empty value as a distinct one, and does not call rounded quantiles exact.

Increase it with every fix of figures. Then snapshots are profiled again; files are read again only if their profiles lack
something (see `ValueKind.since` of the pipeline).
"""

M = TypeVar("M", bound=Message)
Item = TypeVar("Item", v1.ColumnStats, v1.FileColumnStats)
Request = TypeVar("Request", v1.PutColumnStatsRequest, v1.PutFileColumnStatsRequest)


def put_table(realm: Realm, request: v1.PutTableStatsRequest) -> v1.PutTableStatsResponse:
    """Store the statistics of a table. Their snapshot may be created later."""
    table = hierarchy.table(realm, request.table_id)
    check_id(request.snapshot_id, field="snapshot_id")
    stats = updates.copied(request.stats)
    stats.table_id.CopyFrom(table.value.resource_id)
    stats.snapshot_id = request.snapshot_id
    stats.ClearField("updated_at")
    check_table(stats)
    claim = Claim(realm, "PutTableStats", request.idempotency.key, _without_fetch_time(stats), v1.PutTableStatsResponse)

    def attempt() -> v1.PutTableStatsResponse:
        now = hierarchy.table(realm, request.table_id)

        def also(stored: Stored[v1.TableStats]) -> tuple[Operation, ...]:
            answer = v1.PutTableStatsResponse(stats=stored.value, meta=stored.meta)
            return Check(now.pointer.key, expect=now.pointer.version), *claim.storing(answer)

        repository = realm.all(TABLE_STATS)
        stored = _upsert(realm, repository, repository.find(TABLE_STATS.key(stats)), stats, also=also)
        return v1.PutTableStatsResponse(stats=stored.value, meta=stored.meta)

    return once(claim, lambda: retrying(attempt))


def get_table(realm: Realm, request: v1.GetTableStatsRequest) -> v1.GetTableStatsResponse:
    """Return the statistics of a table in one of its snapshots."""
    table_id, snapshot_id = snapshot_of(realm, request.table_id, request.snapshot)
    refuse_restricted(realm, table_id.id, by_masks=False)
    with explaining_damage("statistics of table", table_id.id):
        stats = realm.all(TABLE_STATS).find(keys.statistics(realm.account_id, table_id.id, snapshot_id, of="table"))
    if stats is None:
        raise failure(NotFound, "table.stats", table_id=table_id.id, snapshot_id=str(snapshot_id))
    return v1.GetTableStatsResponse(stats=stats.value, meta=stats.meta)


def put_columns(realm: Realm, requests: Iterable[v1.PutColumnStatsRequest]) -> v1.PutColumnStatsResponse:
    """Store statistics of columns, replacing those of the same columns."""
    upload: Upload[v1.PutColumnStatsRequest, v1.ColumnStats] = Upload(
        realm,
        take=lambda request: request.columns,
        check=check_column,
        write=lambda target, items: retrying(lambda: _write_columns(realm, target, items)),
        empty="column.stats.empty",
    )
    return v1.PutColumnStatsResponse(upserted=upload.run(requests))


def list_columns(realm: Realm, request: v1.ListColumnStatsRequest) -> v1.ListColumnStatsResponse:
    """List the statistics of the columns in a snapshot, by column id."""
    table_id, snapshot_id = snapshot_of(realm, request.table_id, request.snapshot)
    refuse_restricted(realm, table_id.id, by_masks=False)  # the repository leaves out masked columns
    key = keys.statistics(realm.account_id, table_id.id, snapshot_id, of="columns")
    stats = realm.all(COLUMN_STATS).named(key)
    table = hierarchy.table(realm, table_id).value
    columns = named_as_now(realm, table, snapshot_id, stats.columns if stats else [])
    shown, page = sliced(
        columns, request.page, listing=key, name=lambda column: f"{column.column_id:019d}", default=PAGE
    )
    return v1.ListColumnStatsResponse(columns=shown, page=page)


def put_files(realm: Realm, requests: Iterable[v1.PutFileColumnStatsRequest]) -> v1.PutFileColumnStatsResponse:
    """Store statistics of files, replacing those of the same files."""
    upload: Upload[v1.PutFileColumnStatsRequest, v1.FileColumnStats] = Upload(
        realm,
        take=lambda request: request.files,
        check=check_file,
        write=lambda target, items: retrying(lambda: _write_files(realm, target, items)),
        empty="file.column.stats.empty",
    )
    return v1.PutFileColumnStatsResponse(upserted=upload.run(requests))


def list_files(realm: Realm, request: v1.ListFileColumnStatsRequest) -> v1.ListFileColumnStatsResponse:
    """List the statistics of the files of a snapshot, by path."""
    table_id, snapshot_id = snapshot_of(realm, request.table_id, request.snapshot)
    refuse_restricted(realm, table_id.id, by_masks=True)
    key = keys.statistics(realm.account_id, table_id.id, snapshot_id, of="files")
    table = file_statistics(realm, table_id.id, snapshot_id)
    after = open_token(key, request.page.page_token) if request.page.page_token else ""
    size = page_size(request.page, default=PAGE)
    found = file_table.files_after(table, after, limit=size + 1, table_id=table_id, snapshot_id=snapshot_id)
    token = seal_token(key, found[size - 1].file_path) if len(found) > size else ""
    page = v1.PageResponse(next_page_token=token, total_size=table.num_rows)
    record = hierarchy.table(realm, table_id).value
    for file in found:
        rename_as_now(realm, record, snapshot_id, file.columns)
    return v1.ListFileColumnStatsResponse(files=found[:size], page=page)


def file_statistics(realm: Realm, table_id: str, snapshot_id: int) -> pa.Table:
    """All files of a snapshot with their statistics, in `file_table.SCHEMA`; empty if none are stored."""
    stats = realm.all(FILE_STATS).named(keys.statistics(realm.account_id, table_id, snapshot_id, of="files"))
    return file_table.opened(stats.arrow_file if stats else b"")


def has_column_statistics(realm: Realm, table_id: str) -> bool:
    """Whether the columns of the table's current snapshot have statistics."""
    snapshot_id = current_id(realm, table_id)
    if snapshot_id is None:
        return False
    key = keys.statistics(realm.account_id, table_id, snapshot_id, of="columns")
    return realm.stores.pointers.get(key) is not None


def column_statistics_address(realm: Realm, table_id: str, snapshot_id: int) -> str:
    """The address of the stored statistics of all columns, which changes whenever they do; empty if none are stored."""
    pointer = realm.stores.pointers.get(keys.statistics(realm.account_id, table_id, snapshot_id, of="columns"))
    return pointer.blob_uri if pointer else ""


def column_statistics(realm: Realm, table_id: str, snapshot_id: int) -> Sequence[v1.ColumnStats]:
    """The statistics of all columns in a snapshot; empty if none are stored."""
    stats = realm.all(COLUMN_STATS).named(keys.statistics(realm.account_id, table_id, snapshot_id, of="columns"))
    return stats.columns if stats else ()


def present_column_statistics(realm: Realm, table: v1.Table, snapshot_id: int) -> Sequence[v1.ColumnStats]:
    """The statistics of all columns in a snapshot, under their present names if it is the current one."""
    found = column_statistics(realm, table.resource_id.id, snapshot_id)
    return named_as_now(realm, table, snapshot_id, found)


def named_as_now(
    realm: Realm, table: v1.Table, snapshot_id: int, columns: Sequence[v1.ColumnStats]
) -> Sequence[v1.ColumnStats]:
    """Statistics of the current snapshot under the present names of their columns, without those of dropped columns.

    Columns are renamed and dropped without a new snapshot. Statistics of other snapshots keep the names of their time.
    """
    columns = without_outdated(columns, defaulted_fields(table.schema_json))
    names = field_names(table.schema_json)
    if all(names.get(column.column_id) == column.column_name for column in columns):
        return columns
    table_id = table.resource_id.id
    if current_id(realm, table_id) != snapshot_id:
        return columns
    snapshot = realm.all(SNAPSHOT).named(keys.snapshot(realm.account_id, table_id, snapshot_id))
    dropped = (field_names(snapshot.schema_json).keys() if snapshot else set()) - names.keys()
    return [renamed(column, names) for column in columns if column.column_id not in dropped]


def renamed(column: v1.ColumnStats, names: Mapping[int, str]) -> v1.ColumnStats:
    """The statistics of a column under its name in `names`, if its id is there."""
    name = names.get(column.column_id, column.column_name)
    if name == column.column_name:
        return column
    shown = updates.copied(column)
    shown.column_name = name
    return shown


def without_outdated(columns: Sequence[v1.ColumnStats], defaulted: Container[int]) -> Sequence[v1.ColumnStats]:
    """The statistics without those that earlier versions made of columns with a default: as if it were NULL in older files.

    `defaulted` are the ids of the columns that have one.
    """
    return [column for column in columns if column.column_id not in defaulted or not is_older(column, 1)]


@lru_cache(maxsize=1000)
def defaulted_fields(schema_json: str) -> frozenset[int]:
    """The ids of all columns and fields that have a value in files that are older than the column."""
    try:
        found = _fields(json.loads(schema_json), "")
        return frozenset(field["id"] for _, _, field in found if field.get("initial-default") is not None)
    except (ValueError, TypeError, LookupError):
        return frozenset()


@lru_cache(maxsize=1000)
def field_names(schema_json: str) -> Mapping[int, str]:
    """The dotted names of all columns and fields of a schema in Iceberg's JSON format, by id; none if it is invalid."""
    try:
        return {number: name for number, name, _ in _fields(json.loads(schema_json), "")}
    except (ValueError, TypeError, LookupError):
        return {}


def _fields(of: Any, above: str) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """The fields inside of a type: their ids, the names that statistics have, and their JSON."""
    kind = of["type"] if isinstance(of, dict) else ""
    inner = of["fields"] if kind == "struct" else []
    if kind in ("list", "map"):
        parts = [part for part in ("element", "key", "value") if part in of]
        inner = [{"id": of[f"{part}-id"], "name": part, "type": of[part]} for part in parts]
    for field in inner:
        yield field["id"], above + field["name"], field
        yield from _fields(field["type"], f"{above}{field['name']}.")


def rename_as_now(realm: Realm, table: v1.Table, snapshot_id: int, columns: Any) -> None:
    """Rename the statistics in a repeated field of a message as `named_as_now` does."""
    shown = list(named_as_now(realm, table, snapshot_id, columns))
    del columns[:]
    columns.extend(shown)


def counted_nulls(column: v1.ColumnStats) -> int | None:
    """The number of NULLs in a column; None if it is unknown, or an estimate from a sample, which nothing may rely on."""
    is_sampled = column.properties.get("quality.null_count") == "sample"
    return column.null_count if column.HasField("null_count") and not is_sampled else None


def distinct_count(column: v1.ColumnStats) -> float | None:
    """How many distinct values a column has, exactly or about; None if it is unknown."""
    mode = column.ndv.WhichOneof("mode")
    return float(column.ndv.exact) if mode == "exact" else column.ndv.approx.estimate if mode else None


def profile_version(stats: v1.TableStats | v1.ColumnStats) -> int:
    """The version of the code that made these statistics of profiles."""
    return int(stats.properties.get(PROFILE_VERSION) or 0)


def is_older(stats: v1.ColumnStats, version: int) -> bool:
    """Whether an older version of the pipeline made these statistics. Those of other programs have no version."""
    return "rows.profiled" in stats.properties and profile_version(stats) < version


def lacks_profiles(stats: v1.TableStats, *, default: int) -> bool:
    """Whether a file of a snapshot, or of its sample, was never profiled, or the figures are those of an older version.

    `default` is the number of profiled files if none is stored.
    """
    if "files.profiled" in stats.properties and profile_version(stats) < CURRENT_VERSION:
        return True
    profiled = int(stats.properties.get("files.profiled") or default)
    profilable = stats.data_file_count - int(stats.properties.get(OTHER_FORMATS) or 0)
    return profiled < int(stats.properties.get(SAMPLED_FILES) or profilable)


def is_row_bound(stats: v1.TableStats) -> bool:
    """Whether the table has at most as many rows as the statistics say: it is unknown how many of them are deleted."""
    return stats.properties.get("quality.row_count") == "bound"


def table_statistics(realm: Realm, table_id: str, snapshot_id: int) -> v1.TableStats | None:
    """The statistics of a table in a snapshot, or None."""
    return realm.all(TABLE_STATS).named(keys.statistics(realm.account_id, table_id, snapshot_id, of="table"))


def snapshot_of(realm: Realm, table: v1.ResourceId, ref: v1.SnapshotRef) -> tuple[v1.ResourceId, int]:
    """The ids of the table and the snapshot that a request names."""
    table_id = hierarchy.table(realm, table).value.resource_id
    if ref.WhichOneof("which") == "snapshot_id":
        return table_id, ref.snapshot_id
    return table_id, resolve(realm, table_id.id, ref).value.snapshot_id


def refuse_restricted(realm: Realm, table_id: str, *, by_masks: bool) -> None:
    """Raise if policies restrict the caller: by row filters or, if `by_masks`, at all."""
    found = None if realm.policies is None else realm.policies.of_table(table_id)
    if found is not None and (by_masks or found.filters):
        raise found.refused(NO_FILES)


def _write_columns(realm: Realm, target: Target, items: list[v1.ColumnStats]) -> None:
    repository = realm.all(COLUMN_STATS)
    wanted = v1.ColumnStatsSet(table_id=target.table_id, snapshot_id=target.snapshot_id)
    current = repository.find(COLUMN_STATS.key(wanted))
    known = current.value if current else v1.ColumnStatsSet()
    now = timestamp(realm.clock())
    puts = {number: put for number, put in known.puts.items() if put.expires_at.ToNanoseconds() > now.ToNanoseconds()}
    accepted, error = _select_new(realm, target, items, puts, name=lambda column: column.column_id, op="PutColumnStats")
    columns = {column.column_id: column for column in (*known.columns, *accepted.values())}
    wanted.columns.extend(columns[number] for number in sorted(columns))
    for number, put in puts.items():
        wanted.puts[number].CopyFrom(put)
    if accepted:
        _upsert(realm, repository, current, wanted, also=lambda _: target.checks)
    if error is not None:
        raise error


def _write_files(realm: Realm, target: Target, items: list[v1.FileColumnStats]) -> None:
    repository = realm.all(FILE_STATS)
    wanted = v1.FileStatsSet(table_id=target.table_id, snapshot_id=target.snapshot_id)
    current = repository.find(FILE_STATS.key(wanted))
    table = file_table.opened(current.value.arrow_file if current else b"")
    puts = file_table.last_puts(table, (item.file_path for item in items), now=realm.clock())
    accepted, error = _select_new(realm, target, items, puts, name=lambda file: file.file_path, op="PutFileColumnStats")
    if accepted:
        wanted.arrow_file = file_table.written(file_table.merged(table, file_table.rows(accepted.values(), puts)))
        _upsert(realm, repository, current, wanted, also=lambda _: target.checks)
    if error is not None:
        raise error


def _select_new(
    realm: Realm,
    target: Target,
    items: Iterable[Item],
    puts: dict[Any, v1.ItemPut],
    *,
    name: Callable[[Item], Any],
    op: str,
) -> tuple[Mapping[Any, Item], Conflict | None]:
    """Select the items to store, by name, and update `puts`.

    Skips items that an earlier request with the same idempotency key stored. Stops with an error at the first item
    whose earlier content was different.
    """
    accepted: dict[Any, Item] = {}
    expires_at = timestamp(realm.clock() + timedelta(seconds=realm.idempotency_ttl_s))
    for item in items:
        item.table_id.CopyFrom(target.table_id)
        item.snapshot_id = target.snapshot_id
        mark = fingerprint(_without_fetch_time(item))
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


def _without_fetch_time(stats: M) -> M:
    """A copy without the fetch time, so that the same statistics fetched again compare equal."""
    copy = updates.copied(stats)
    for part in (copy, *getattr(copy, "columns", ())):
        if "upstream" in part.DESCRIPTOR.fields_by_name and part.HasField("upstream"):
            part.upstream.ClearField("fetched_at")
    return copy


def _upsert(
    realm: Realm, repository: Repository[M], current: Stored[M] | None, value: M, *, also: Also[M]
) -> Stored[M]:
    """Store a value derived from `current`. Raise `Contention` if that changed, so that the caller derives it again."""
    stamped = updates.copied(value)
    cast(Any, stamped).updated_at.CopyFrom(realm.now())
    return repository.save(current, stamped, also=also)


# --- uploads ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """The snapshot that statistics are stored for, and the request's idempotency key. `checks` hold while it exists."""

    table_id: v1.ResourceId
    snapshot_id: int
    key: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Upload(Generic[Request, Item]):
    """Stores the items of a stream of requests for one table and snapshot, in few large writes.

    `take` returns the items of a request, `check` validates an item, and `write` stores many.
    """

    realm: Realm
    take: Callable[[Request], Sequence[Item]]
    check: Callable[[Item], None]
    write: Callable[[Target, list[Item]], None]
    empty: str

    def run(self, requests: Iterable[Request]) -> int:
        """Store all items and return how many there were. If one is invalid, those before it stay stored."""
        target: Target | None = None
        pending: list[Item] = []
        total = size = 0
        try:
            for request in requests:
                target = self._first(request) if target is None else self._next(target, request)
                for item in self.take(request):
                    self.check(item)
                    pending.append(item)
                    total += 1
                    size += item.ByteSize()
                    if len(pending) == STEP or size >= STEP_BYTES:
                        step, pending, size = pending, [], 0
                        self.write(target, step)
        except SkiwayError:
            if target is not None and pending:
                self.write(target, pending)
            raise
        if target is None or total == 0:
            raise failure(InvalidArgument, self.empty)
        if pending:
            self.write(target, pending)
        return total

    def _first(self, request: Request) -> Target:
        table = hierarchy.table(self.realm, request.table_id)
        key = keys.snapshot(self.realm.account_id, table.value.resource_id.id, request.snapshot_id)
        snapshot = self.realm.all(SNAPSHOT).require(key, name=str(request.snapshot_id))
        checks = tuple(Check(each.key, expect=each.version) for each in (table.pointer, snapshot.pointer))
        return Target(table.value.resource_id, request.snapshot_id, key=request.idempotency.key.strip(), checks=checks)

    def _next(self, target: Target, request: Request) -> Target:
        account = request.table_id.account_id or self.realm.account_id
        named = v1.ResourceId(account_id=account, id=request.table_id.id, kind=v1.RK_TABLE)
        if (named, request.snapshot_id) != (target.table_id, target.snapshot_id):
            raise failure(InvalidArgument, "stats.inconsistent.target")
        key = request.idempotency.key.strip()
        if key and target.key and key != target.key:
            raise failure(InvalidArgument, "idempotency.inconsistent.key", first=target.key, second=key)
        return replace(target, key=target.key or key)
