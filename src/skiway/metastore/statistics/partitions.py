"""Statistics of the partitions of a snapshot, from those of its files: rows, bytes and files, and counts and bounds of columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.metastore.records import keys
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import page_size
from skiway.metastore.resources import hierarchy
from skiway.metastore.statistics.api import file_statistics, refuse_restricted, rename_as_now, snapshot_of
from skiway.metastore.statistics.bounds import bound, logical_type
from skiway.model import v1
from skiway.storage.paging import open_token, seal_token

__all__ = ["list_partitions", "partition_statistics"]

PAGE: Final = 50
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
    page = partitions.slice(first, page_size(request.page, default=PAGE))
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
            yield _merged(parts[number])


def _merged(parts: list[Mapping[str, Any]]) -> v1.ColumnStats:
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
