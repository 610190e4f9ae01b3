"""Statistics over time, by partition, and of many tables at once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import PreconditionFailed
from skiway.metastore.records import keys
from skiway.metastore.records.damage import explaining_damage
from skiway.metastore.records.kinds import SNAPSHOT, Kind
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Repository, page_size, sliced
from skiway.metastore.records.updates import copied, inside, retrying
from skiway.metastore.resources import hierarchy, tables
from skiway.metastore.resources.snapshots import current_id
from skiway.metastore.statistics.api import (
    PROFILE_VERSION,
    defaulted_fields,
    field_names,
    file_statistics,
    is_row_bound,
    named_as_now,
    present_column_statistics,
    refuse_restricted,
    rename_as_now,
    renamed,
    snapshot_of,
    table_statistics,
    without_outdated,
)
from skiway.metastore.statistics.bounds import bound, logical_type
from skiway.model import v1
from skiway.storage.calls import open_token, seal_token

MAX_SNAPSHOTS: Final = 100
MAX_BYTES: Final = 2 << 20
MAX_TOP_VALUES: Final = 8
SNAPSHOTS_PER_PAGE: Final = 20
_KEPT: Final = ("quantiles", "quantiles.rank_error", "counted", "rows.profiled", "rows.total", PROFILE_VERSION)


def add_to_history(realm: Realm, stats: v1.TableStats, columns: Iterable[v1.ColumnStats]) -> None:
    """Add the statistics of a profiled snapshot. If they are there already, nothing changes."""
    table_id, snapshot_id = stats.table_id, stats.snapshot_id
    snapshot = realm.all(SNAPSHOT).named(keys.snapshot(realm.account_id, table_id.id, snapshot_id))
    entry = v1.ProfiledSnapshot(
        snapshot_id=snapshot_id,
        created_at=snapshot.upstream_created_at if snapshot else None,
        profiled_at=realm.now(),
        row_count=stats.row_count,
        row_count_is_bound=is_row_bound(stats),
        columns=map(_shortened, columns),
    )
    retrying(lambda: _add_snapshot(realm, table_id, entry))


def statistics_history(realm: Realm, table_id: str) -> Sequence[v1.ProfiledSnapshot]:
    """The statistics of all profiled snapshots that are known, the newest snapshot first, under the present names of columns."""
    found = _repository(realm, table_id).named(keys.statistics_history(realm.account_id, table_id))
    if found is None:
        return ()
    schema = hierarchy.table(realm, v1.ResourceId(id=table_id)).value.schema_json
    return [_named_as_now(snapshot, schema) for snapshot in reversed(found.snapshots)]


def _named_as_now(snapshot: v1.ProfiledSnapshot, schema_json: str) -> v1.ProfiledSnapshot:
    """The statistics under the present names of the columns, without dropped ones; as they are if no column has an id of the table."""
    names, known = field_names(schema_json), without_outdated(snapshot.columns, defaulted_fields(schema_json))
    if len(known) == len(snapshot.columns) and all(names.get(each.column_id) == each.column_name for each in known):
        return snapshot
    kept = [renamed(each, names) for each in known if each.column_id in names] or list(known)
    shown = copied(snapshot)
    del shown.columns[:]
    shown.columns.extend(kept)
    return shown


def list_history(realm: Realm, request: v1.ListStatisticsHistoryRequest) -> v1.ListStatisticsHistoryResponse:
    """List the statistics of profiled snapshots, the newest first."""
    table_id = hierarchy.table(realm, request.table_id).value.resource_id.id
    refuse_restricted(realm, table_id, by_masks=False)  # the repository leaves out masked columns
    found = statistics_history(realm, table_id)
    places = {id(each): f"{place:06d}" for place, each in enumerate(found)}
    key = keys.statistics_history(realm.account_id, table_id)
    shown, page = sliced(
        found, request.page, listing=key, name=lambda each: places[id(each)], default=SNAPSHOTS_PER_PAGE
    )
    return v1.ListStatisticsHistoryResponse(
        snapshots=[_only(each, request.columns) for each in shown] if request.columns else shown, page=page
    )


def _only(snapshot: v1.ProfiledSnapshot, columns: Iterable[str]) -> v1.ProfiledSnapshot:
    wanted, shown = set(columns), copied(snapshot)
    del shown.columns[:]
    shown.columns.extend(column for column in snapshot.columns if column.column_name in wanted)
    return shown


def _shortened(column: v1.ColumnStats) -> v1.ColumnStats:
    """The statistics of a column without what is large, and without the ids that all columns share."""
    short = copied(column)
    for field in ("table_id", "snapshot_id", "upstream", "histogram", "tdigest", "properties"):
        short.ClearField(field)
    del short.ndv.sketches[:]
    for name, text in column.properties.items():
        if name in _KEPT or name.startswith("quality."):
            short.properties[name] = text
    if top := json.loads(column.properties.get("top_values", "[]")):
        short.properties["top_values"] = json.dumps(top[:MAX_TOP_VALUES], ensure_ascii=False)
    return short


def _add_snapshot(realm: Realm, table_id: v1.ResourceId, entry: v1.ProfiledSnapshot) -> None:
    table = hierarchy.table(realm, table_id)
    repository = _repository(realm, table_id.id)
    current = repository.find(keys.statistics_history(realm.account_id, table_id.id))
    known = list(current.value.snapshots) if current else []
    others = [each for each in known if each.snapshot_id != entry.snapshot_id]
    if any(_same(each, entry) for each in known):
        return
    history = v1.StatisticsHistory(table_id=table.value.resource_id, updated_at=realm.now())
    history.snapshots.extend(
        sorted((*others, entry), key=lambda each: each.created_at.ToNanoseconds())[-MAX_SNAPSHOTS:]
    )
    while len(history.snapshots) > 1 and history.ByteSize() > MAX_BYTES:
        del history.snapshots[0]
    what = f"the statistics of table {table_id.id}"
    repository.save(current, history, what=what, also=lambda _: inside(table.pointer))


def _same(one: v1.ProfiledSnapshot, other: v1.ProfiledSnapshot) -> bool:
    known = copied(one)
    known.profiled_at.CopyFrom(other.profiled_at)
    return known == other


def _repository(realm: Realm, table_id: str) -> Repository[v1.StatisticsHistory]:
    key = keys.statistics_history(realm.account_id, table_id)
    return realm.all(
        Kind("statistics_history", v1.StatisticsHistory, title=lambda of: of.table_id.id, key=lambda _: key)
    )


PARTITIONS_PER_PAGE: Final = 50
_DATA: Final = (v1.FC_UNSPECIFIED, v1.FC_DATA)
_KEY: Final = ("partition_spec_id", "partition_data_json")


def list_partitions(realm: Realm, request: v1.ListPartitionStatsRequest) -> v1.ListPartitionStatsResponse:
    """List the partitions of a snapshot with their statistics, by specification and value."""
    table_id, snapshot_id = snapshot_of(realm, request.table_id, request.snapshot)
    refuse_restricted(realm, table_id.id, by_masks=True)
    files = file_statistics(realm, table_id.id, snapshot_id)
    partitions = partition_statistics(files)
    key = keys.statistics(realm.account_id, table_id.id, snapshot_id, of="partitions")
    first = int(open_token(key, request.page.page_token)) if request.page.page_token else 0
    page = partitions.slice(first, page_size(request.page, default=PARTITIONS_PER_PAGE))
    end = first + page.num_rows
    token = seal_token(key, str(end)) if end < partitions.num_rows else ""
    partitions_shown = list(_messages(page, files))
    table = hierarchy.table(realm, table_id).value
    for each in partitions_shown:
        rename_as_now(realm, table, snapshot_id, each.columns)
    return v1.ListPartitionStatsResponse(
        partitions=partitions_shown,
        page=v1.PageResponse(next_page_token=token, total_size=partitions.num_rows),
    )


def partition_statistics(files: pa.Table) -> pa.Table:
    """A row per partition of a file table: its key, rows and bytes of data files, and the numbers of data and delete files."""
    is_data = pc.is_in(files["file_content"], value_set=pa.array(_DATA, pa.int32()))
    counted = pa.table(
        {
            "partition_spec_id": files["partition_spec_id"],
            "partition_data_json": pc.fill_null(files["partition_data_json"], ""),
            "row_count": pc.if_else(is_data, files["row_count"], 0),
            "size_bytes": pc.if_else(is_data, files["size_bytes"], 0),
            "data_file_count": is_data.cast(pa.int64()),
            "delete_file_count": pc.invert(is_data).cast(pa.int64()),
        }
    )
    figures = counted.column_names[len(_KEY) :]
    found = counted.group_by(list(_KEY)).aggregate([(name, "sum") for name in figures])
    found = found.select([*_KEY, *(f"{name}_sum" for name in figures)]).rename_columns([*_KEY, *figures])
    return found.sort_by([(name, "ascending") for name in _KEY])


def _messages(partitions: pa.Table, files: pa.Table) -> Iterator[v1.PartitionStats]:
    data = files.filter(pc.is_in(files["file_content"], value_set=pa.array(_DATA, pa.int32())))
    texts = pc.fill_null(data["partition_data_json"], "")
    for row in partitions.to_pylist():
        same = pc.and_(
            pc.equal(data["partition_spec_id"], row["partition_spec_id"]), pc.equal(texts, row["partition_data_json"])
        )
        yield v1.PartitionStats(**row, columns=_columns(data.filter(same)["columns"].to_pylist()))


def present_columns(realm: Realm, table: v1.Table) -> list[v1.ColumnStats]:
    """What is known about the columns of a table's current snapshot: its profile or, without one, what its files say. Nothing is large.

    Deleted rows still count in the figures of files.
    """
    current = current_id(realm, table.resource_id.id)
    if current is None:
        return []
    found = present_column_statistics(realm, table, current)
    if not found:
        files = file_statistics(realm, table.resource_id.id, current)
        data = files.filter(pc.is_in(files["file_content"], value_set=pa.array(_DATA, pa.int32())))
        found = named_as_now(realm, table, current, list(_columns(data["columns"].to_pylist())))
    return list(map(_shortened, found))


def _columns(files: Iterable[Iterable[Mapping[str, Any]] | None]) -> Iterator[v1.ColumnStats]:
    """The statistics of the columns in some files. A figure that a file does not have is unknown."""
    parts: dict[int, list[Mapping[str, Any]]] = {}
    count = 0
    for file in files:
        count += 1
        for column in file or ():
            parts.setdefault(column["column_id"], []).append(column)
    for number in sorted(parts):
        if len(parts[number]) == count:
            yield _merged_columns(parts[number])


def _merged_columns(parts: list[Mapping[str, Any]]) -> v1.ColumnStats:
    stats = v1.ColumnStats(
        column_id=parts[-1]["column_id"],
        column_name=parts[-1]["column_name"],
        logical_type=parts[-1]["logical_type"],
        value_count=sum(part["value_count"] for part in parts),
    )
    for name in ("null_count", "nan_count"):
        counts = [part[name] for part in parts]
        if None not in counts:
            setattr(stats, name, sum(counts))
    filled = [part for part in parts if part["null_count"] is None or part["null_count"] < part["value_count"]]
    for name, best in (("min", min), ("max", max)):
        bounds = [part[name] for part in filled]
        if bounds and None not in bounds and stats.logical_type:
            kind = logical_type(stats.logical_type)
            setattr(stats, name, best(bounds, key=lambda text: bound(kind, text).value))
    return stats


def list_tables(realm: Realm, request: v1.ListTablesRequest) -> v1.ListTablesResponse:
    """List the tables of a namespace by name; with their sizes, if the request asks for them."""
    response = tables.list_(realm, request)
    if request.with_sizes:
        response.sizes.extend(_sizes(realm, response.tables))
    return response


def _sizes(realm: Realm, found: Iterable[v1.Table]) -> Iterator[v1.TableSize]:
    """The known sizes."""
    return filter(None, (size_of(realm, table) for table in found))


def size_of(realm: Realm, table: v1.Table) -> v1.TableSize | None:
    """The size of a table, or what is wrong with its statistics; None if it has none.

    A size counts all rows, so the repository hides it from callers under a row filter.
    """
    if table.damage:
        return None
    try:
        with explaining_damage("statistics of table", table.resource_id.id):
            snapshot_id = current_id(realm, table.resource_id.id)
            stats = None if snapshot_id is None else table_statistics(realm, table.resource_id.id, snapshot_id)
    except PreconditionFailed as error:
        if error.key != "resource.damaged":
            raise
        return v1.TableSize(table_id=table.resource_id, damage=error.message)
    if stats is None:
        return None
    return v1.TableSize(
        table_id=table.resource_id,
        snapshot_id=stats.snapshot_id,
        row_count=stats.row_count,
        data_file_count=stats.data_file_count,
        total_size_bytes=stats.total_size_bytes,
        row_count_is_bound=is_row_bound(stats),
    )
