"""A caller under policies, with a DuckDB of its own: `skiway.duckdb` evaluates conditions here, on the server, or on both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pytest

import skiway.duckdb
from lake.policed_lake import CANARY, COUNT, NUMBERS, VISIBLE, PolicedLake, policed_lake
from skiway.errors import SkiwayError
from skiway.sandbox.queries import Queries
from skiway.sql import QueryEngine

Run = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def policed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PolicedLake]:
    pool = Queries(timeout_s=60)
    with policed_lake(tmp_path_factory.mktemp("lake"), QueryEngine(pool)) as made:
        made.filter()
        made.mask()
        yield made
    pool.close()


@pytest.fixture(scope="module", params=["connect", "attach"])
def analyst(request: pytest.FixtureRequest, policed: PolicedLake) -> Iterator[Run]:
    location = policed.lake.location
    if request.param == "connect":
        with skiway.duckdb.connect(location, "managed", token="analyst") as lake:
            yield lambda query: lake.execute(query).fetchall()
    else:
        with (
            duckdb.connect() as connection,
            skiway.duckdb.attach(connection, "managed", location, token="analyst") as attached,
        ):
            yield lambda query: rows.fetchall() if (rows := attached.sql(query)) is not None else []


QUERIES = [
    "SELECT * FROM {table}",
    "SELECT name FROM {table} WHERE region = 'US' OR id % 4 = 0",
    f"SELECT name, email FROM {{table}} WHERE email LIKE '{CANARY}%'",
    f"SELECT id FROM {{table}} WHERE number = {NUMBERS[3]}",
    f"SELECT count(*) FROM {{table}} WHERE number BETWEEN {NUMBERS[0]} AND {NUMBERS[-1]}",
    "SELECT id, email FROM {table} WHERE email IS NOT NULL LIMIT 5",
    "SELECT max(email), min(number), max(name) FROM {table}",
    "SELECT CAST(name AS INTEGER) FROM {table} WHERE id = 0",
    "SELECT id FROM {table} WHERE CAST(email AS INTEGER) = 1",
    f"SELECT id FROM {{table}} WHERE id IN (SELECT id FROM {{table}} WHERE name LIKE '%{CANARY}%')",
    "EXPLAIN ANALYZE SELECT * FROM {table} WHERE email > 'c'",
]


@pytest.mark.parametrize("at", ["", " AT (TIMESTAMP => now()::TIMESTAMP)"], ids=["now", "at"])
@pytest.mark.parametrize("query", QUERIES)
def test_hidden_rows_and_masked_values_are_not_found(analyst: Run, query: str, at: str) -> None:
    try:
        shown = str(analyst(query.format(table=f"managed.s.people{at}")))
    except (SkiwayError, duckdb.Error) as error:
        shown = str(error)
    assert CANARY not in shown.replace(query, "")
    assert not [number for number in NUMBERS if f"({number}," in shown]


def test_rows_are_those_that_the_policies_leave(analyst: Run) -> None:
    [(count,)] = analyst("SELECT count(*) FROM managed.s.people")
    ids = {number for (number,) in analyst("SELECT id FROM managed.s.people")}
    assert ids == set(VISIBLE)
    assert count == len(VISIBLE) < COUNT
    assert analyst("SELECT DISTINCT email, number FROM managed.s.people") == [(None, None)]
    assert analyst(f"SELECT id FROM managed.s.people WHERE number = {NUMBERS[3]}") == []
    assert analyst("SELECT id FROM managed.s.people WHERE name LIKE '%hidden%'") == []


FUNCTIONS = [
    "FROM managed.skiway.query('SELECT * FROM s.people WHERE number > 0 OR email IS NOT NULL')",
    "FROM managed.skiway.column_stats",
    "FROM managed.skiway.histogram('s.people', 'number')",
    "FROM managed.skiway.partitions",
    "FROM managed.skiway.snapshots",
]


@pytest.mark.parametrize("call", FUNCTIONS)
def test_functions_and_tables_about_the_lake_know_the_caller(analyst: Run, call: str) -> None:
    try:
        shown = str(analyst(call))
    except (SkiwayError, duckdb.Error) as error:
        shown = str(error)
    assert CANARY not in shown
    assert not [number for number in NUMBERS if str(number) in shown]
