"""Statistics are exact, follow the rows, and are omitted where no safe answer exists."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import duckdb
import pytest

from airport.memory.tables import delete, insert, people
from skiway.airport import ColumnStatistics
from skiway.airport.memory import MemoryCatalog, MemoryTable
from skiway.airport.server.discovery import can_announce, statistics_batch
from skiway.airport.wire.duckdb_sql import duckdb_type
from skiway.errors import NotFound


def loaded(query: str) -> MemoryTable:
    duck = duckdb.connect(config={"arrow_lossless_conversion": "true"})
    public = MemoryCatalog(schemas=["public"]).schema("public")
    assert public
    return public.add_table("t", duck.execute(query).to_arrow_table())


def statistics_of(table: MemoryTable, column: str = "v") -> ColumnStatistics:
    return table.column_statistics(column, duckdb_type(table.schema.field(column)))


def bounds(query: str) -> tuple[Any, Any]:
    statistics = statistics_of(loaded(query))
    return tuple(None if bound is None else bound.as_py() for bound in (statistics.min, statistics.max))  # type: ignore[return-value]


def test_statistics_of_text() -> None:
    table = loaded("SELECT unnest(['b', 'ä', NULL, 'abc', 'b']) AS v")
    statistics = statistics_of(table)
    assert (statistics.min.as_py(), statistics.max.as_py()) == ("abc", "ä")
    assert (statistics.has_null, statistics.has_not_null, statistics.distinct_count) == (True, True, 3)
    assert (statistics.max_string_length, statistics.contains_unicode) == (3, True)
    assert statistics_of(loaded("SELECT 'b' AS v")).contains_unicode is False


def test_statistics_follow_the_rows() -> None:
    table = people()
    assert statistics_of(table, "id") == ColumnStatistics(has_null=False, has_not_null=False, distinct_count=0)
    insert(table, {"id": [3, 9], "name": ["x", None]})
    assert (statistics_of(table, "id").min.as_py(), statistics_of(table, "id").max.as_py()) == (3, 9)
    delete(table, [1])
    assert (statistics_of(table, "id").max.as_py(), statistics_of(table, "name").has_null) == (3, False)


def test_statistics_are_computed_once_per_state() -> None:
    table = people()
    insert(table, {"id": [1], "name": ["x"]})
    assert statistics_of(table, "id") is statistics_of(table, "id")
    before = statistics_of(table, "id")
    insert(table, {"id": [2], "name": ["x"]})
    assert statistics_of(table, "id") is not before


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT unnest([true, false]) AS v", (False, True)),
        ("SELECT unnest([1.5, -2.25])::DECIMAL(9,2) AS v", None),
        ("SELECT unnest([DATE '2025-01-31', DATE '1900-01-01']) AS v", (dt.date(1900, 1, 1), dt.date(2025, 1, 31))),
        ("SELECT unnest(['ff', 'a'])::BLOB AS v", (b"a", b"ff")),
        ("SELECT UUID '123e4567-e89b-12d3-a456-426614174000' AS v", (uuid.UUID("123e4567-e89b-12d3-a456-426614174000"),) * 2),
        ("SELECT unnest([-1, 1])::HUGEINT AS v", (b"\xff" * 16, b"\x01" + bytes(15))),
        ("SELECT unnest([DATE 'infinity', DATE '2025-01-31']) AS v", (dt.date(2025, 1, 31), None)),
        ("SELECT TIMESTAMP '290000-01-01' AS v", (None, None)),
        ("SELECT TIME_NS '10:00:00.123456789' AS v", (None, None)),
        ("SELECT unnest(['nan', '1.5'])::DOUBLE AS v", (1.5, None)),
        ("SELECT [1, 2] AS v", (None, None)),
        ("SELECT {'a': 1} AS v", (None, None)),
        ("SELECT NULL::INTEGER AS v", (None, None)),
    ],
)  # fmt: skip
def test_bounds_are_exact_or_omitted(query: str, expected: tuple[Any, Any] | None) -> None:
    found = bounds(query)
    assert found == expected if expected else None not in found


@pytest.mark.parametrize(
    "kind",
    ["BOOLEAN", "BIGINT", "HUGEINT", "UHUGEINT", "DOUBLE", "DECIMAL(9,2)", "VARCHAR", "BLOB", "UUID", "JSON", "DATE",
     "TIMETZ", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMPTZ", "INTEGER[]", "STRUCT(a INTEGER)"],
)  # fmt: skip
def test_every_answer_can_be_sent(kind: str) -> None:
    values = {"BOOLEAN": "true", "VARCHAR": "'x'", "BLOB": "'x'", "UUID": "uuid()", "JSON": "'1'", "DATE": "'2025-01-31'",
              "TIMETZ": "'10:00:00+01'", "INTEGER[]": "[1]", "STRUCT(a INTEGER)": "{'a': 7}"}  # fmt: skip
    value = "'2025-01-31 10:00:00'" if kind.startswith("TIMESTAMP") else values.get(kind, "7")
    table = loaded(f"SELECT CAST({value} AS {kind}) AS v")
    field = table.schema.field("v")
    assert can_announce([field], table.column_statistics)
    batch = statistics_batch(field, statistics_of(table))
    assert batch.schema.field("min").type == field.type


def test_missing_column_is_rejected() -> None:
    with pytest.raises(NotFound, match="'nope'"):
        people().column_statistics("nope", "BIGINT")
