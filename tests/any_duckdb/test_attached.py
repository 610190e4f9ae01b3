"""A lake that is attached to an existing connection."""

from __future__ import annotations

import duckdb
import pytest

import skiway.duckdb
from any_duckdb.conftest import Locations
from skiway.duckdb import LakeConnection
from skiway.errors import InvalidArgument


def test_attached_tables_are_read_and_follow_the_lake(lake: LakeConnection, servers: Locations) -> None:
    lake.sql("CREATE TABLE lake.s.t AS SELECT i AS id, DATE '2024-01-01' + i::INTEGER AS day FROM range(100) r(i)")
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE wanted AS SELECT 5 AS id").fetchall()
        with skiway.duckdb.attach(connection, "lake", servers.lake, alias="far") as far:
            assert '"far"."s"."t"' in far.tables
            joined = connection.sql("SELECT id, day::VARCHAR FROM far.s.t JOIN wanted USING (id)")
            assert joined.fetchall() == [(5, "2024-01-06")]
            connection.execute("CREATE TABLE copy AS FROM far.s.t WHERE id IN (3, 50, 99)").fetchall()
            assert connection.sql("SELECT sum(id) FROM copy").fetchall() == [(152,)]
            lake.sql("INSERT INTO lake.s.t VALUES (5, NULL); CREATE TABLE lake.s.new AS SELECT 1 AS x")
            assert len(joined.filter("id = 5").fetchall()) == 2
            far.refresh()
            assert connection.sql("FROM far.s.new").fetchall() == [(1,)]
            lake.sql("DROP TABLE lake.s.new")
            far.refresh()
            assert '"far"."s"."new"' not in far.tables
        with pytest.raises(duckdb.Error, match="far"):
            connection.sql("FROM far.s.t")


def test_attach_needs_a_free_name(servers: Locations) -> None:
    with duckdb.connect() as connection:
        connection.execute("ATTACH ':memory:' AS lake").fetchall()
        with pytest.raises(InvalidArgument, match="lake cannot be attached"):
            skiway.duckdb.attach(connection, "lake", servers.lake)


def test_filters_and_columns_are_sent_to_the_server(seen: LakeConnection, servers: Locations) -> None:
    with duckdb.connect() as connection, skiway.duckdb.attach(connection, "seen", servers.seen):
        before = len(connection.sql("FROM seen.s.scans").fetchall())
        found = connection.sql("SELECT name FROM seen.s.numbers WHERE id = 700 AND name = 'n0'").fetchall()
        [(columns, document)] = connection.sql("FROM seen.s.scans").fetchall()[before:]
    assert found == [("n0",)]
    assert set(columns.split(",")) == {"id", "name"}
    assert "700" in document
