"""Clients that work at the same time: processes, cursors of one connection, and several DuckDBs in one process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from live.clients import Client, Outcome, Session
from live.servers import TARGETS, LiveServer, serving

WORKERS = 4
Script = Sequence[str]


@dataclass(frozen=True, slots=True)
class Crowd:
    """A server, a client that has attached it, and a way to run scripts at the same time."""

    server: LiveServer
    session: Session
    together: Callable[[Sequence[Script]], list[list[Outcome]]]


@pytest.fixture(scope="module", params=TARGETS)
def served(request: pytest.FixtureRequest, folder: Path) -> Iterator[LiveServer]:
    with serving(TARGETS[request.param].start, folder / f"concurrent-{request.param}") as server:
        yield server


@pytest.fixture(params=["processes", "cursors", "instances"])
def crowd(request: pytest.FixtureRequest, client: Client, served: LiveServer) -> Iterator[Crowd]:
    attach = served.attach()

    def processes(scripts: Sequence[Script]) -> list[list[Outcome]]:
        def run(script: Script) -> list[Outcome]:
            with client.session(attach) as own:
                return [own.run(sql) for sql in script]

        with ThreadPoolExecutor(len(scripts)) as pool:
            return list(pool.map(run, scripts))

    with client.session(attach) as session:

        def cursors(scripts: Sequence[Script]) -> list[list[Outcome]]:
            return session.together(scripts)

        def instances(scripts: Sequence[Script]) -> list[list[Outcome]]:
            opening = [*client.loads, attach]
            found = session.together([[*opening, *script] for script in scripts], separate=True)
            assert all(outcome.status == "ok" for script in found for outcome in script[: len(opening)]), found
            return [script[len(opening) :] for script in found]

        ways = {"processes": processes, "cursors": cursors, "instances": instances}
        yield Crowd(served, session, ways[request.param])


@pytest.fixture
def s(request: pytest.FixtureRequest, crowd: Crowd) -> str:
    """The name of a new schema."""
    name = "db." + re.sub(r"\W", "_", request.node.name)
    crowd.session.need(f"CREATE SCHEMA {name}")
    return name


def _all_ok(outcomes: list[list[Outcome]]) -> None:
    assert [each for script in outcomes for each in script if each.status != "ok"] == []


def test_inserts_at_the_same_time_are_all_kept(crowd: Crowd, s: str) -> None:
    crowd.session.need(f"CREATE TABLE {s}.log (worker INTEGER, i INTEGER)")
    scripts = [
        [
            f"INSERT INTO {s}.log SELECT {worker}, i FROM range({part * 100}, {part * 100 + 100}) AS r(i)"
            for part in range(10)
        ]
        for worker in range(WORKERS)
    ]
    _all_ok(crowd.together(scripts))
    rows = crowd.session.rows(
        f"SELECT worker, count(*), count(DISTINCT i), sum(i) FROM {s}.log GROUP BY ALL ORDER BY ALL"
    )
    assert rows == [[str(worker), "1000", "1000", "499500"] for worker in range(WORKERS)]


def test_no_update_of_the_same_row_is_lost(crowd: Crowd, s: str) -> None:
    crowd.session.need(f"CREATE TABLE {s}.counter AS SELECT 0 AS n")
    outcomes = crowd.together([[f"UPDATE {s}.counter SET n = n + 1"] * 10 for _ in range(WORKERS)])
    every = [outcome for script in outcomes for outcome in script]
    wrong = [
        each
        for each in every
        if each.status != "ok" and not (each.status == "error" and re.search("onflict|retry", each.message))
    ]
    assert wrong == []
    updates = sum(outcome.status == "ok" for outcome in every)
    assert updates > 0
    assert crowd.session.rows(f"SELECT n FROM {s}.counter") == [[str(updates)]]


def test_readers_see_whole_statements(crowd: Crowd, s: str) -> None:
    crowd.session.need(f"CREATE TABLE {s}.pairs AS SELECT 1 AS a, -1 AS b FROM range(5000)")
    read = [f"SELECT sum(a + b), count(*) FROM {s}.pairs"] * 15
    write = [f"UPDATE {s}.pairs SET a = {value}, b = -{value}" for value in range(10)]
    outcomes = crowd.together([read, read, write])
    _all_ok(outcomes)
    assert {tuple(row) for script in outcomes[:2] for each in script for row in each.rows} == {("0", "5000")}


def test_every_worker_has_tables_of_its_own(crowd: Crowd, s: str) -> None:
    def script(worker: int) -> list[str]:
        t = f"{s}.t{worker}"
        return [
            f"CREATE TABLE {t} AS SELECT i, 'row ' || i AS t FROM range(3000) AS r(i)",
            f"SELECT count(*), sum(i), max(t) FROM {t} WHERE i < 2500",
            f"ALTER TABLE {t} ADD COLUMN extra INTEGER",
            f"UPDATE {t} SET extra = i WHERE i % 3 = 0",
            f"DELETE FROM {t} WHERE i >= 1000",
            f"SELECT count(*), count(a.extra), sum(a.i) FROM {t} AS a JOIN {t} AS b USING (i)",
            f"DROP TABLE {t}",
        ]

    outcomes = crowd.together([script(worker) for worker in range(WORKERS)])
    _all_ok(outcomes)
    assert [[script[1].rows, script[5].rows] for script in outcomes] == [
        [[["2500", "3123750", "row 999"]], [["1000", "334", "499500"]]]
    ] * WORKERS
