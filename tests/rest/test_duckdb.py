"""DuckDB's iceberg extension attaches the server, reads and writes, without credentials."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from formats.oracles import extended
from rest.rest_server import RestServer

PEOPLE = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["Ada", "Grace", "Edsger"]})


@pytest.fixture
def duck(rest_server: RestServer, tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with extended(tmp_path / "extensions") as duck:
        duck.execute(f"ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT '{rest_server.uri}', AUTHORIZATION_TYPE 'none')")
        yield duck


def test_duckdb_reads_what_pyiceberg_wrote(rest_server: RestServer, duck: duckdb.DuckDBPyConnection) -> None:
    catalog = rest_server.pyiceberg()
    catalog.create_namespace("sales")
    table = catalog.create_table("sales.people", PEOPLE.schema)
    table.append(PEOPLE)
    first = table.metadata.current_snapshot_id
    table.delete("id = 1")
    assert duck.execute("SELECT table_schema, table_name FROM information_schema.tables").fetchall() == [
        ("sales", "people")
    ]
    assert duck.execute("SELECT name FROM lake.sales.people ORDER BY id").fetchall() == [("Grace",), ("Edsger",)]
    then = duck.execute(f"SELECT count(*) FROM lake.sales.people AT (VERSION => {first})").fetchall()
    assert then == [(3,)]


def test_pyiceberg_reads_what_duckdb_wrote(rest_server: RestServer, duck: duckdb.DuckDBPyConnection) -> None:
    for statement in (
        "CREATE SCHEMA lake.sales",
        "CREATE TABLE lake.sales.people (id BIGINT, name VARCHAR)",
        "INSERT INTO lake.sales.people VALUES (1, 'Ada'), (2, 'Grace'), (3, 'Edsger')",
        "UPDATE lake.sales.people SET name = 'Hopper' WHERE id = 2",
        "DELETE FROM lake.sales.people WHERE id = 3",
        "CREATE TABLE lake.sales.made AS SELECT 42 AS answer",
    ):
        duck.execute(statement)
    catalog = rest_server.pyiceberg()
    rows = sorted(catalog.load_table("sales.people").scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert rows == [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Hopper"}]
    assert catalog.load_table("sales.made").scan().to_arrow().to_pylist() == [{"answer": 42}]
    for statement in ("DROP TABLE lake.sales.made", "DROP TABLE lake.sales.people", "DROP SCHEMA lake.sales"):
        duck.execute(statement)
    assert catalog.list_namespaces() == []


def test_defaults_of_columns_are_stored_for_duckdb(rest_server: RestServer, duck: duckdb.DuckDBPyConnection) -> None:
    columns = "id BIGINT, n INTEGER DEFAULT 5, s VARCHAR DEFAULT 'x', moment TIMESTAMP_NS DEFAULT '2020-01-02 03:04:05.000000006'"
    duck.execute("CREATE SCHEMA lake.sales")
    duck.execute(f"CREATE TABLE lake.sales.defaults ({columns}) WITH ('format-version' = 3)")
    duck.execute("INSERT INTO lake.sales.defaults (id) VALUES (1)")
    found = duck.execute("SELECT id, n, s, moment::VARCHAR FROM lake.sales.defaults").fetchall()
    assert found == [(1, 5, "x", "2020-01-02 03:04:05.000000006")]
    with pytest.raises(duckdb.Error, match=r"default values require format version 3|DEFAULT"):
        duck.execute(f"CREATE TABLE lake.sales.older ({columns.partition(', moment')[0]}) WITH ('format-version' = 2)")


def test_partitions_of_nanoseconds_are_read(rest_server: RestServer, duck: duckdb.DuckDBPyConnection) -> None:
    duck.execute("CREATE SCHEMA lake.sales")
    duck.execute(
        "CREATE TABLE lake.sales.times (moment TIMESTAMP_NS) PARTITIONED BY (moment) WITH ('format-version' = 3)"
    )
    for second in (5, 6):
        duck.execute(f"INSERT INTO lake.sales.times VALUES ('2020-01-02 03:04:0{second}.000000007')")
    found = duck.execute("SELECT moment::VARCHAR FROM lake.sales.times ORDER BY moment").fetchall()
    assert found == [("2020-01-02 03:04:05.000000007",), ("2020-01-02 03:04:06.000000007",)]
    planned = rest_server.call("POST", "/v1/lake/namespaces/sales/tables/times/plan", {}).json()
    assert len(planned["file-scan-tasks"]) == 2
