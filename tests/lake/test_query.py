"""`skiway.query`: SQL on the server, with the rights of the caller, over all kinds of tables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.client import AirportClient, col
from skiway.errors import InvalidArgument, LimitExceeded, NotFound, PermissionDenied, PreconditionFailed
from skiway.lake.reading.table import LakeTable
from skiway.sql import QueryEngine

COUNT = 1000
ROWS = pa.table(
    {
        "id": pa.array(range(COUNT)),
        "v": [math.nan if i % 50 == 0 else i / 3 for i in range(COUNT)],
        "text": [None if i % 7 == 0 else f"t{i % 5}" for i in range(COUNT)],
        "day": [date(2024, 1, 1 + i % 28) for i in range(COUNT)],
        "moment": pa.array([datetime(2024, 1, 1, i % 24, tzinfo=UTC) for i in range(COUNT)], pa.timestamp("us", "UTC")),
    }
)
NESTED = ROWS.append_column(
    "price", pa.array([Decimal(i) / 100 for i in range(COUNT)], pa.decimal128(9, 2))
).append_column("tags", pa.array([[i, None] for i in range(COUNT)]))


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as client:
        client.create_schema("s")
        for name, rows in (("plain", ROWS), ("nested", NESTED)):
            client.create_table(f"s.{name}", rows.schema)
            for part in range(4):
                client.insert(f"s.{name}", rows.slice(part * 250, 250))
        yield client


def query(db: AirportClient, sql: str, **named: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = db.call("skiway.query", sql, named=named).read_all().to_pylist()
    return rows


STATEMENTS = [
    "SELECT count(*) AS n FROM s.{}",
    "SELECT text, count(*) AS n, max(id) AS m FROM managed.s.{} GROUP BY text ORDER BY text NULLS LAST",
    "SELECT count(*) AS n FROM s.{} WHERE v > 100",
    "SELECT id, day, moment, text FROM s.{} WHERE id BETWEEN 260 AND 270 ORDER BY id",
    "SELECT a.id, b.text FROM s.{0} a JOIN s.{0} b ON a.id = b.id + 1 WHERE a.id < 10 ORDER BY a.id",
    "WITH x AS (SELECT * FROM s.{} WHERE id > 990) SELECT count(*) AS n, min(v) AS v FROM x, range(3)",
    "SELECT count(*) AS n FROM s.{} WHERE text IS NULL AND day = '2024-01-08'",
    "SELECT count(*) AS n FROM s.{} WHERE moment IN ('2024-01-01 01:00:00Z'::TIMESTAMPTZ, '2024-01-01 05:00:00Z'::TIMESTAMPTZ)",
    "SELECT id FROM s.{} ORDER BY v DESC, id LIMIT 3",
]


@pytest.mark.parametrize("table", ["plain", "nested"])
def test_results_are_those_of_duckdb_on_the_rows(db: AirportClient, table: str) -> None:
    peer = duckdb.connect()
    peer.execute("ATTACH ':memory:' AS managed; CREATE SCHEMA managed.s; USE managed")
    peer.register("rows", ROWS if table == "plain" else NESTED)
    peer.execute(f"CREATE TABLE managed.s.{table} AS SELECT * FROM rows")
    for statement in STATEMENTS:
        sql = statement.format(table)
        expected = peer.sql(sql).to_arrow_table()
        found = db.call("skiway.query", sql).read_all()
        assert found.schema.names == expected.schema.names, sql
        assert [str(row) for row in found.to_pylist()] == [
            str(row) for row in expected.cast(found.schema).to_pylist()
        ], sql


def test_only_files_that_the_filter_leaves_are_read(db: AirportClient, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = list[Any]()
    original = LakeTable.direct_files

    def watched(self: LakeTable, options: Any) -> Any:
        direct.append(original(self, options))
        return direct[-1]

    monkeypatch.setattr(LakeTable, "direct_files", watched)
    assert query(db, "SELECT count(*) AS n, max(id) AS m FROM s.plain WHERE id < 300") == [{"n": 300, "m": 299}]
    assert [[len(group.files) for group in groups] for groups in direct] == [[2]]


def test_changed_tables_are_read_as_they_are_now(db: AirportClient) -> None:
    db.delete("s.plain", where=col("id") < 100)
    db.update("s.plain", {"text": "changed"}, where=col("id") == 500)
    db.rename_column("s.plain", "text", "label")
    db.add_column("s.plain", pa.field("extra", pa.int64()))
    assert query(db, "SELECT count(*) AS n, count(extra) AS e FROM s.plain") == [{"n": 900, "e": 0}]
    assert query(db, "SELECT label FROM s.plain WHERE id = 500") == [{"label": "changed"}]
    with pytest.raises(InvalidArgument, match="text"):
        query(db, "SELECT text FROM s.plain")


def test_columns_may_change_within_a_transaction(db: AirportClient) -> None:
    with db.transaction():
        assert query(db, "SELECT * FROM s.plain ORDER BY id LIMIT 1")[0]["text"] is None
        db.rename_column("s.plain", "text", "label")
        (row,) = query(db, "SELECT * FROM s.plain ORDER BY id LIMIT 1")
        assert "label" in row


def test_stale_columns_are_noticed_and_forgotten(db: AirportClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client reads a query some time after it was planned."""
    bound = db.call("skiway.query", "SELECT text FROM s.plain WHERE id = 1")
    first = QueryEngine.columns
    monkeypatch.setattr(QueryEngine, "columns", lambda self, asked: pa.schema({"text": pa.int64()}))
    assert bound.read_all().to_pylist() == [{"text": "t1"}]  # it is known
    with pytest.raises(PreconditionFailed, match="the tables of the query have changed since it was planned"):
        query(db, "SELECT text FROM s.plain WHERE id = 2")
    monkeypatch.setattr(QueryEngine, "columns", first)
    assert query(db, "SELECT text FROM s.plain WHERE id = 2") == [{"text": "t2"}]


def test_points_in_time(db: AirportClient) -> None:
    (first,) = query(db, "SELECT snapshot_id FROM skiway.snapshots WHERE table_name = 'plain' AND parent_id IS NULL")
    sql = f"SELECT (SELECT count(*) FROM s.plain AT (VERSION => {first['snapshot_id']})) AS then, count(*) AS now FROM s.plain"
    assert query(db, sql) == [{"then": 250, "now": 1000}]


def test_schema_of_names_without_one(db: AirportClient) -> None:
    assert query(db, "SELECT count(*) AS n FROM plain", schema="s") == [{"n": 1000}]
    with pytest.raises(InvalidArgument, match="plain does not exist"):
        query(db, "SELECT count(*) AS n FROM plain")


def test_system_tables_and_other_catalogs_can_be_joined(db: AirportClient, lake: Lake) -> None:
    lake.catalog("other")
    with lake.client("other") as other:
        other.create_schema("o")
        other.create_table("o.t", pa.schema({"id": pa.int64()}))
        other.insert("o.t", pa.table({"id": [5, 2000]}))
    assert query(db, "SELECT p.id FROM other.o.t JOIN s.plain p USING (id)") == [{"id": 5}]
    assert query(db, "SELECT table_name FROM skiway.tables ORDER BY 1") == [
        {"table_name": "nested"},
        {"table_name": "plain"},
    ]


def test_callers_read_only_what_they_may(db: AirportClient, lake: Lake) -> None:
    with lake.client(token="reader") as reader:
        assert query(reader, "SELECT count(*) AS n FROM s.plain") == [{"n": 1000}]
    with lake.client(token="nothing") as nobody, pytest.raises((PermissionDenied, NotFound)):
        query(nobody, "SELECT count(*) AS n FROM s.plain")


@pytest.mark.parametrize(
    ("sql", "error", "message"),
    [
        ("SELECT * FROM s.missing", NotFound, r"table managed\.s\.missing does not exist"),
        ("SELECT * FROM nowhere.s.plain", NotFound, r"table nowhere\.s\.plain does not exist"),
        ("SELECT nope FROM s.plain", InvalidArgument, "nope"),
        ("DELETE FROM s.plain", InvalidArgument, "DELETE is not a query"),
        (" ", InvalidArgument, "query needs SQL"),
        ("SELECT * FROM read_parquet('/x')", InvalidArgument, "read_parquet cannot be used here"),
        ("x" * 1_100_000, LimitExceeded, "1100000 characters"),
    ],
)
def test_bad_queries_have_clear_errors(db: AirportClient, sql: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        query(db, sql)


def test_reading_stops_when_the_client_does(db: AirportClient, queries: QueryEngine) -> None:
    with db.call("skiway.query", "SELECT range AS n FROM range(100000000000)") as rows:
        assert next(iter(rows)).num_rows
    assert query(db, "SELECT 1 AS one") == [{"one": 1}]


def test_columns_that_are_not_requested_are_not_sent(db: AirportClient) -> None:
    found = db.call("skiway.query", "SELECT id, text FROM s.plain ORDER BY id LIMIT 2", columns=["text"]).read_all()
    assert found.to_pylist() == [{"text": None}, {"text": "t1"}]


def test_commands_are_queries(db: AirportClient) -> None:
    found = db.take_flight(
        "SELECT text, count(*) AS n FROM s.plain WHERE id < 6 GROUP BY text ORDER BY text"
    ).read_all()
    assert found.to_pylist() == [{"text": text, "n": 1} for text in ("t0", "t1", "t2", "t3", "t4", None)]
    with pytest.raises(NotFound, match=r"table managed\.s\.missing does not exist"):
        db.take_flight("SELECT * FROM s.missing")
    with pytest.raises(InvalidArgument, match="syntax error"):
        db.take_flight("{}")


def test_plan_of_a_query(db: AirportClient) -> None:
    """It is DuckDB's, over the files that the filter leaves, and no row is read."""

    def plan(sql: str) -> str:
        (row,) = db.call("skiway.explain", sql).read_all().to_pylist()
        return str(row["plan"])

    text = plan("SELECT text, count(*) AS n FROM s.plain WHERE id < 300 GROUP BY text")
    assert "GROUP_BY" in text.upper().replace(" ", "_")
    assert "PARQUET" in text
    assert "id<300" in text.replace(" ", "")
    assert "error" not in plan("SELECT error('reached') FROM s.plain")[:20]
    with pytest.raises(NotFound, match="unknown"):
        plan("SELECT * FROM s.unknown")
    with pytest.raises(InvalidArgument, match="only SELECT"):
        plan("DELETE FROM s.plain")
