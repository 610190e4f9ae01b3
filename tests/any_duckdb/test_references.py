"""`AT (…)` and functions of the lake, on a connection to a lake and on one that it is attached to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import duckdb
import pyarrow as pa
import pytest

import skiway.duckdb
from any_duckdb.conftest import Locations
from skiway.client import AirportClient
from skiway.duckdb import AttachedLake, LakeConnection
from skiway.errors import InvalidArgument, NotFound, Unsupported


@pytest.fixture
def version(lake: LakeConnection, servers: Locations) -> int:
    """A version of the lake in which the ids of `lake.s.t` are 0 to 4; later, all of them are greater by 10."""
    lake.sql("CREATE TABLE lake.s.t AS SELECT i AS id, DATE '2024-01-01' + i::INTEGER AS day FROM range(5) r(i)")
    with AirportClient(servers.lake, "lake") as client:
        found = client.version().version
    lake.sql("UPDATE lake.s.t SET id = id + 10; INSERT INTO lake.s.t VALUES (99, NULL)")
    return found


@pytest.fixture(params=["connect", "attach"])
def either(request: pytest.FixtureRequest, servers: Locations, version: int) -> Iterator[LakeConnection | AttachedLake]:
    if request.param == "connect":
        with skiway.duckdb.connect(servers.lake) as connection:
            yield connection
    else:
        with duckdb.connect() as plain, skiway.duckdb.attach(plain, "lake", servers.lake) as attached:
            yield attached


def rows(lake: LakeConnection | AttachedLake, query: str) -> list[tuple[object, ...]]:
    found = lake.sql(query)
    assert found is not None
    return found.fetchall()


QUERIES: Final = (
    ("SELECT sum(id) FROM lake.s.t AT (VERSION => {v})", 10),
    ("SELECT sum(id) FROM lake.s.t at(version=>'{v}')", 10),
    ("SELECT sum(x.id) FROM lake.s.t AS x AT (VERSION => {v}) WHERE x.id > 2", 7),
    ("SELECT sum(a) FROM lake.s.t x(a, b) AT (VERSION => {v}) WHERE b >= DATE '2024-01-04'", 7),
    ("SELECT sum(id) FROM lake.s.t /* AT (1 */ AT /* ) */ (VERSION => {v} + 0) TABLESAMPLE 100%", 10),
    ("SELECT count(*) FROM lake.s.t now JOIN lake.s.t before AT (VERSION => {v}) ON now.id = before.id + 10", 5),
    ("WITH old AS (FROM lake.s.t AT (VERSION => {v})) SELECT sum(id) FROM old", 10),
    ("SELECT (SELECT sum(id) FROM lake.s.t AT (VERSION => {v})) - (SELECT count(*) FROM lake.s.t)", 4),
    ("SELECT count(*) FROM (SELECT id FROM lake.s.t AT (VERSION => {v}) LIMIT 3)", 3),
    ("SELECT sum(id) FROM lake.s.t AT (TIMESTAMP => now() + INTERVAL 1 hour) WHERE id < 99", 60),
)


def test_tables_are_read_at_a_version_or_time(either: LakeConnection | AttachedLake, version: int) -> None:
    for query, expected in QUERIES:
        assert rows(either, query.replace("{v}", str(version))) == [(expected,)], query


def test_wrong_times_are_explained(either: LakeConnection | AttachedLake, version: int) -> None:
    for query, error, message in (
        ("FROM lake.s.t AT (VERSION => NULL)", InvalidArgument, "is NULL: give a version"),
        ("FROM lake.s.t AT (VERSION => (SELECT max(id) FROM lake.s.t))", InvalidArgument, "compute it first"),
        ("FROM lake.s.nope AT (VERSION => 1)", NotFound, "nope"),
        ("FROM lake.s.t AT (VERSION => -1)", NotFound, "-1"),
    ):
        with pytest.raises(error, match=message):
            either.sql(query)


def test_past_rows_are_stored_in_local_tables(either: LakeConnection | AttachedLake, version: int) -> None:
    assert either.sql(f"CREATE TEMP TABLE old AS FROM lake.s.t AT (VERSION => {version})") is None
    assert rows(either, "SELECT sum(id) FROM old") == [(10,)]
    with pytest.raises(Unsupported, match=r"CREATE (TEMP )?TABLE … AS"):
        either.sql(f"CREATE TEMP VIEW v AS FROM lake.s.t AT (VERSION => {version})")


def test_names_may_be_those_of_use(either: LakeConnection | AttachedLake, version: int) -> None:
    either.sql("USE lake.s")
    assert rows(either, f"SELECT sum(id) FROM t AT (VERSION => {version})") == [(10,)]
    assert rows(either, "WITH t AS (SELECT 1 AS id) SELECT id FROM t WHERE id = 1") == [(1,)]
    assert rows(either, "SELECT sum(id) FROM t") == [(159,)]


def test_attached_connections_keep_their_own_tables_variables_and_settings(servers: Locations, version: int) -> None:
    mine = pa.table({"id": [13, 99]})  # noqa: F841 - which DuckDB finds by its name
    with duckdb.connect() as plain:
        plain.execute("SET arrow_lossless_conversion = true; CREATE TABLE t AS SELECT 13 AS id").fetchall()
        with skiway.duckdb.attach(plain, "lake", servers.lake, alias="far") as far:
            found = far.sql("SELECT day FROM far.s.t JOIN mine USING (id) LEFT JOIN t USING (id) WHERE id = ?", [99])
            assert found is not None
            assert found.fetchall() == [(None,)]
            assert rows(far, "SELECT id FROM far.s.t JOIN t USING (id)") == [(13,)]
            assert far.sql("CREATE VIEW kept AS SELECT id FROM far.s.t WHERE id = 99; INSERT INTO t VALUES (1)") is None
            assert rows(far, "SELECT count(*) FROM kept, t") == [(2,)]
            assert len(rows(far, "EXPLAIN FROM far.s.t")) == 1
            assert plain.sql("SELECT current_setting('arrow_lossless_conversion')").fetchall() == [(True,)]
            for text in ("INSERT INTO far.s.t VALUES (1, NULL)", "DELETE FROM far.s.t WHERE id = 99", "SELEC 1", ""):
                with pytest.raises(InvalidArgument):
                    far.sql(text)


def test_functions_are_called_on_attached_connections(servers: Locations) -> None:
    with duckdb.connect() as plain, skiway.duckdb.attach(plain, "seen", servers.seen, alias="far") as far:
        assert rows(far, "SELECT sum(n) FROM far.s.upto(2 + 2) f WHERE f.n > 1") == [(5,)]
        assert rows(far, "CALL far.s.upto(2)") == [(0,), (1,)]
        assert rows(far, "CALL pragma_version()") != []
        with pytest.raises(NotFound, match="nope"):
            far.sql("FROM far.s.nope(1)")


def test_more_filters_and_limits_are_sent_than_by_views(servers: Locations) -> None:
    with duckdb.connect() as plain, skiway.duckdb.attach(plain, "seen", servers.seen) as seen:
        before = len(rows(seen, "FROM seen.s.scans"))
        assert len(rows(seen, "SELECT id FROM seen.s.numbers WHERE day = DATE '1970-01-05'")) == 34
        assert len(rows(seen, "FROM seen.s.endless LIMIT 10")) == 10
        [(_, document)] = rows(seen, "FROM seen.s.scans")[before:]
    assert "day" in str(document)
