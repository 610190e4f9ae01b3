"""`skiway.histogram`: the distribution of values of a column."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.client import AirportClient
from skiway.errors import InvalidArgument, NotFound, PermissionDenied, SkiwayError

ROWS = pa.table(
    {
        "n": pa.array([*range(100), None, None], pa.int64()),
        "f": pa.array([*(number / 10 for number in range(98)), float("nan"), float("inf"), None, None]),
        "d": pa.array([Decimal(number) for number in range(102)], pa.decimal128(9, 2)),
        "day": pa.array([dt.date(2026, 1, 1) + dt.timedelta(number) for number in range(102)]),
        "text": pa.array(["x"] * 50 + ["y"] * 30 + [f"v{number}" for number in range(20)] + [None, None]),
        "Two Words": pa.nulls(102, pa.int32()),
    }
)


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as client:
        client.create_schema("s")
        client.create_table("s.t", ROWS.schema)
        client.insert("s.t", ROWS)
        yield client


def histogram(db: AirportClient, *arguments: Any, **named: Any) -> list[dict[str, Any]]:
    return list(db.call("skiway.histogram", *arguments, named=named).read_all().to_pylist())


@pytest.mark.parametrize("column", ["n", "F", "d", "day"])
def test_numbers_and_dates_are_counted_by_range(db: AirportClient, column: str) -> None:
    found = histogram(db, "s.t", column, bins=5)
    ranges = [row for row in found if row["kind"] == "range"]
    assert 4 <= len(ranges) <= 7
    assert [row["lower"] for row in ranges][1:] == [row["upper"] for row in ranges][:-1]
    assert sum(row["count"] for row in found) == 102
    assert sum(row["share"] for row in found) == pytest.approx(1)
    special = {row["kind"]: row["count"] for row in found if row["kind"] != "range"}
    assert special == {"n": {"null": 2}, "F": {"not finite": 2, "null": 2}}.get(column, {})
    assert max(ranges, key=lambda row: len(row["bar"]))["count"] == max(row["count"] for row in ranges)


def test_texts_are_counted_by_value(db: AirportClient) -> None:
    found = histogram(db, "managed.s.t", "text", bins=2)
    shown = [(row["kind"], row["lower"], row["upper"], row["count"]) for row in found]
    assert shown == [
        ("value", "x", "x", 50),
        ("value", "y", "y", 30),
        ("other", None, None, 20),
        ("null", None, None, 2),
    ]


def test_column_without_values_has_one_row(db: AirportClient) -> None:
    assert [(row["kind"], row["count"]) for row in histogram(db, "s.t", "two words")] == [("null", 102)]


@pytest.mark.parametrize(
    ("arguments", "bins", "error", "message"),
    [
        (("s.t", "nope"), 5, InvalidArgument, "has no column 'nope'"),
        (("s.nothing", "n"), 5, NotFound, r"managed\.s\.nothing does not exist"),
        (("t", "n"), 5, InvalidArgument, r"write schema\.name"),
        (("s.t", "n"), 0, InvalidArgument, "use 1 to 1000"),
        (("s.t", "n"), 1001, InvalidArgument, "use 1 to 1000"),
    ],
)
def test_invalid_calls_are_rejected(
    db: AirportClient, arguments: tuple[str, str], bins: int, error: type[SkiwayError], message: str
) -> None:
    with pytest.raises(error, match=message):
        histogram(db, *arguments, bins=bins)


def test_histogram_needs_the_right_to_read(lake: Lake, db: AirportClient) -> None:
    assert histogram(db, "s.t", "n")
    with lake.client(token="nothing") as other, pytest.raises((PermissionDenied, NotFound)):
        histogram(other, "s.t", "n")
