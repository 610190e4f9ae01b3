"""Bounds that are not exactly those of the values: files that match a filter must not be left out because of them."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from formats.pushed_filters import sent_filter
from skiway.airport import filters
from skiway.client import col
from skiway.client.airport.filters import filter_json
from skiway.client.airport.predicates import Predicate
from skiway.formats import Snapshot, TableHandle, open_source
from skiway.formats.canonical import canonical_columns
from skiway.formats.schemas import leaves


def now(table: TableHandle) -> Snapshot:
    snapshot = table.current()
    assert snapshot is not None
    return snapshot


def parquet_table(folder: Path, *files: pa.Table) -> TableHandle:
    (folder / "t").mkdir()
    for number, rows in enumerate(files):
        pq.write_table(rows, folder / "t" / f"{number}.parquet")
    with open_source("parquet", str(folder)) as source:
        return source.load((), "t")


def planned(table: TableHandle, predicate: Predicate) -> list[int]:
    """The ordinals of the files that may match."""
    condition = sent_filter(predicate, table.schema.arrow)
    return table.plan(now(table), condition)["ordinal"].to_pylist()  # type: ignore[no-any-return]


# --- Delta: timestamps in statistics have milliseconds ---------------------------------------------------------------


@pytest.mark.parametrize("zone", ["UTC", None])
def test_timestamps_of_delta_statistics_may_be_truncated_to_milliseconds(tmp_path: Path, zone: str | None) -> None:
    """Spark writes them so. Truncation towards zero makes those before 1970 greater."""
    moments = [datetime(1969, 12, 31, 23, 59, 59, 999_001), datetime(2026, 1, 1, 0, 0, 0, 123_999)]
    rows = pa.table({"at": pa.array(moments, pa.timestamp("us", zone))})
    deltalake.write_deltalake(str(tmp_path / "t"), rows)
    log = tmp_path / "t" / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            suffix = "Z" if zone else ""
            statistics = json.loads(action["add"]["stats"])
            statistics["minValues"] = {"at": f"1970-01-01T00:00:00.000{suffix}"}
            statistics["maxValues"] = {"at": f"2026-01-01T00:00:00.123{suffix}"}
            action["add"]["stats"] = json.dumps(statistics)
    log.write_text("\n".join(map(json.dumps, actions)))
    with open_source("delta", str(tmp_path)) as source:
        table = source.load((), "t")
    early, late = (each.replace(tzinfo=UTC if zone else None) for each in moments)
    micro, milli = timedelta(microseconds=1), timedelta(milliseconds=1)
    for found in (col("at") > late - micro, col("at") == late, col("at") == early, col("at") <= early):
        assert planned(table, found) == [0], found
    for beyond in (col("at") > late + milli, col("at") < early - milli):
        assert planned(table, beyond) == [], beyond


def test_bounds_of_delta_are_exact_unless_their_type_or_a_deletion_says_otherwise(tmp_path: Path) -> None:
    """Strings and timestamps may be truncated."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    rows = pa.table({"id": [1, 2], "name": ["a", "b"], "at": pa.array([moment] * 2, pa.timestamp("us", "UTC"))})
    deltalake.write_deltalake(str(tmp_path / "t"), rows)
    with open_source("delta", str(tmp_path)) as source:
        table = source.load((), "t")
    (stats,) = table.files(now(table))["stats"].to_pylist()
    by_name = {leaf.path[0]: stats[str(leaf.id)] for leaf in leaves(table.schema.arrow)}
    assert {name: found["exact"] for name, found in by_name.items()} == {"id": True, "name": False, "at": False}
    assert (by_name["id"]["min"], by_name["id"]["max"]) == (1, 2)


def test_delta_commit_without_a_time_has_that_of_its_file(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"id": [1]}))
    log = tmp_path / "t" / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("\n".join(json.dumps(each) for each in actions if "commitInfo" not in each))
    moment = datetime(2020, 2, 3, 4, 5, 6, tzinfo=UTC)
    os.utime(log, (moment.timestamp(), moment.timestamp()))
    with open_source("delta", str(tmp_path)) as source:
        assert now(source.load((), "t")).created_at == moment


# --- other orders ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "files"),
    [
        ({"alias": "", "collation": ""}, []),
        ({"alias": "", "collation": "nocase"}, [0]),
        ({"alias": "JSON", "collation": ""}, []),
        ({"alias": "mood", "collation": ""}, [0]),
    ],
)
def test_values_in_another_order_leave_no_file_out(tmp_path: Path, info: dict[str, str], files: list[int]) -> None:
    table = parquet_table(tmp_path, pa.table({"name": ["B", "C"]}))
    plain = json.loads(filter_json(col("name") == "b", ["name"], {"name": table.schema.arrow.field("name")}))

    def with_info(node: Any) -> Any:
        if isinstance(node, list):
            return [with_info(each) for each in node]
        if isinstance(node, dict):
            found = {key: with_info(each) for key, each in node.items()}
            return (
                found | {"type_info": {"type": "STRING_TYPE_INFO", **info}} if found.get("id") == "VARCHAR" else found
            )
        return node

    condition = filters.parse(json.dumps(with_info(plain)))
    assert table.plan(now(table), condition)["ordinal"].to_pylist() == files


# --- nanoseconds -----------------------------------------------------------------------------------------------------


def test_text_bounds_of_nanoseconds_are_rounded_outwards(tmp_path: Path) -> None:
    """The metastore's bounds have microseconds. Those that are whole microseconds stay as they are."""
    whole, between = [1_000_000, 2_000_000], [1_000_001, 1_999_999]
    table = parquet_table(
        tmp_path,
        pa.table(
            {
                "moment": pa.array(between).view(pa.timestamp("ns")),
                "early": pa.array([-1_999_999, -1_000_001]).view(pa.timestamp("ns")),
                "zoned": pa.array(between).view(pa.timestamp("ns", "UTC")),
                "time": pa.array(between).view(pa.time64("ns")),
                "whole_moment": pa.array(whole).view(pa.timestamp("ns")),
                "whole_time": pa.array(whole).view(pa.time64("ns")),
            }
        ),
    )
    (columns,) = canonical_columns(table.files(now(table)), table.schema.arrow).to_pylist()
    assert {each["column_name"]: (each["min"], each["max"]) for each in columns} == {
        "moment": ("1970-01-01T00:00:00.001000", "1970-01-01T00:00:00.002000"),
        "early": ("1969-12-31T23:59:59.998000", "1969-12-31T23:59:59.999000"),
        "zoned": ("1970-01-01T00:00:00.001000Z", "1970-01-01T00:00:00.002000Z"),
        "time": ("00:00:00.001000", "00:00:00.002000"),
        "whole_moment": ("1970-01-01T00:00:00.001000", "1970-01-01T00:00:00.002000"),
        "whole_time": ("00:00:00.001000", "00:00:00.002000"),
    }


# --- long lists ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("among", "expected"),
    [
        (range(105, 300, 2), [1, 2]),
        (range(-100, 5), [0]),
        (range(110, 200), []),
        (range(209, 400), [2]),
        ([*range(1000, 1100), 0], [0, 1, 2]),
    ],
    ids=["two files", "up to the first", "between files", "from the last value", "on both sides"],
)
def test_files_outside_the_range_of_a_long_list_are_left_out(
    tmp_path: Path, among: list[int], expected: list[int]
) -> None:
    """Of a long list only the least and the greatest value are compared, so files within its range remain."""
    numbers = [
        pa.table({"x": range(start, start + 10), "s": [f"{start + n:05}" for n in range(10)]})
        for start in (0, 100, 200)
    ]
    table = parquet_table(tmp_path, *numbers)
    assert len(among) > 50
    assert planned(table, col("x").isin(among)) == expected
    if min(among) >= 0:
        assert planned(table, col("s").isin(f"{each:05}" for each in among)) == expected


def test_every_value_of_a_short_list_is_compared(tmp_path: Path) -> None:
    table = parquet_table(tmp_path, *(pa.table({"x": range(start, start + 10)}) for start in (0, 100, 200)))
    assert planned(table, col("x").isin([-5, 9, 50, 200, 300])) == [0, 2]
