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
