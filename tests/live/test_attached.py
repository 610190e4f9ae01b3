"""What an attached client sees when something happens to its server: restarts, kills, and the DDL of other clients."""

from __future__ import annotations

import re
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from live.clients import Client, Outcome, Session
from live.servers import TARGETS, LiveServer, example, serving

Rows = list[list[str | None]]

PEOPLE = (
    "CREATE SCHEMA db.s",
    "CREATE TABLE db.s.people (id INTEGER, name VARCHAR, score DOUBLE)",
    "INSERT INTO db.s.people VALUES (1, 'Ada', 9.5), (2, 'Grace', 8.5), (3, NULL, NULL)",
)
ROWS: Rows = [["1", "Ada", "9.5"], ["2", "Grace", "8.5"], ["3", None, None]]
ALL = "SELECT * FROM db.s.people ORDER BY id"
RECONNECT_S = 120.0


@pytest.fixture
def attached(client: Client, server: LiveServer) -> Iterator[Session]:
    """A client that has attached a server of its own and created a table."""
    with client.session(server.attach(), *PEOPLE) as session:
        yield session


# -- the server ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_client_goes_on_after_a_restart(attached: Session, server: LiveServer, number: int) -> None:
    assert attached.rows(ALL) == ROWS
    server.stop(number)
    down = attached.run(ALL)
    assert down.status == "error", down
    server.start()
    if server.catalog == "scratch":  # its tables are gone with the memory
        assert _connected(attached, "CREATE SCHEMA db.s2").status == "ok"
        assert attached.run(ALL).status == "error"
    else:
        assert _connected(attached, ALL).rows == ROWS
        attached.need("INSERT INTO db.s.people (id) VALUES (4)")
        assert attached.rows("SELECT count(*) FROM db.s.people") == [["4"]]


@pytest.mark.parametrize("server", ["file"], indirect=True)
@pytest.mark.parametrize("asked_meanwhile", [False, True], ids=["nobody asks meanwhile", "a statement meanwhile"])
def test_so_many_statements_fail_after_a_kill(attached: Session, server: LiveServer, asked_meanwhile: bool) -> None:
    """As docs/airport.md says. The errors are those of the connection: no call arrives at the new server before."""
    server.stop(signal.SIGKILL)
    killed = time.monotonic()
    if asked_meanwhile:
        time.sleep(6)  # the client looks every five seconds whether its connection has ended
        assert "unavailable" in attached.run(ALL).message
    server.start()
    outage_s, failed = time.monotonic() - killed, 0
    while (outcome := attached.run(ALL)).status != "ok":
        assert "unavailable" in outcome.message
        failed += 1
    assert outcome.rows == ROWS
    assert failed <= (4 + outage_s / 3 if asked_meanwhile else 1)


def _connected(session: Session, sql: str) -> Outcome:
    """The outcome of a statement after a restart: gRPC waits longer after every failed attempt before it connects again."""
    deadline = time.monotonic() + RECONNECT_S
    while True:
        outcome = session.run(sql)
        if "unavailable" not in outcome.message or time.monotonic() > deadline:
            return outcome
        time.sleep(0.5)


@pytest.mark.parametrize("server", ["file", "lake"], indirect=True)
def test_an_insert_into_a_killed_server_is_all_or_nothing(attached: Session, server: LiveServer) -> None:
    attached.need("CREATE TABLE db.s.big (i BIGINT, t VARCHAR)")
    with ThreadPoolExecutor() as pool:
        insert = pool.submit(
            attached.run, "INSERT INTO db.s.big SELECT i, 'row ' || i FROM range(20000000) AS r(i)", 600
        )
        time.sleep(2)  # in the middle of the rows
        server.stop(signal.SIGKILL)
        assert insert.result().status == "error", insert.result()
    server.start()
    assert _connected(attached, "SELECT count(*) FROM db.s.big").rows == [["0"]]
    assert attached.rows(ALL) == ROWS


def test_a_scan_of_a_killed_server_is_an_error(attached: Session, server: LiveServer) -> None:
    attached.need("CREATE TABLE db.s.big AS SELECT i, 'row ' || i AS t FROM range(2000000) AS r(i)")
    with ThreadPoolExecutor() as pool:
        rows = "SELECT count(DISTINCT a.t || b.t) FROM db.s.big AS a JOIN db.s.big AS b ON a.i = b.i + 1"
        scan = pool.submit(attached.run, rows, 600)
        time.sleep(0.5)
        server.stop(signal.SIGKILL)
        outcome = scan.result()
    assert outcome.status == "error" or outcome.rows == [["1999999"]], outcome


FUNCTIONS = {
    "SELECT * FROM db.demo.series(5, step => 10) WHERE n > 20 ORDER BY n": [["30"], ["40"]],
    "SELECT db.demo.twice(i) FROM range(3) AS r(i)": [["0"], ["2"], ["4"]],
    "SELECT total FROM db.demo.running_total('fare', (SELECT fare FROM db.demo.rides WHERE fare > 0))": [
        ["12.5"],
        ["19.5"],
        ["19.5"],
    ],
}


def test_a_function_call_that_was_planned_before_a_restart_runs(client: Client, folder: Path) -> None:
    path = Path(tempfile.mkdtemp(dir=folder))
    with (
        serving(lambda place: example("functions", "tools", place), path) as server,
        client.session(server.attach()) as session,
    ):
        for number, query in enumerate(FUNCTIONS):
            session.need(f"PREPARE p{number} AS {query}")
        server.stop(signal.SIGKILL)
        server.start()
        for number, rows in enumerate(FUNCTIONS.values()):
            outcome = _connected(session, f"EXECUTE p{number}")
            assert outcome.status == "ok", outcome
            assert outcome.rows == rows


# -- a statement fails ---------------------------------------------------------------------------------------------------

FAILING = {
    "INSERT INTO db.s.people VALUES (1, 'x', 'y')": "Could not convert string 'y' to DOUBLE",
    "INSERT INTO db.s.people SELECT i, error('no more ' || i), 1 FROM range(10) AS r(i)": "no more 0",
    "UPDATE db.s.people SET name = error('not ' || name)": "not Ada",
    "INSERT INTO db.s.strict VALUES (NULL)": "NOT NULL constraint failed: strict.i",
    "INSERT INTO db.s.strict SELECT nullif(i, 99999)::INTEGER FROM range(100000) AS r(i)": "NOT NULL constraint failed",
    "INSERT INTO db.s.times SELECT CASE WHEN i > 50000 THEN TIME '24:00:00' END FROM range(200000) AS r(i)": "not within a day",
    "INSERT INTO db.s.times SELECT TIME '24:00:00' FROM db.s.people RETURNING *": "not within a day",
    "UPDATE db.s.times SET t = TIME '24:00:00'": "not within a day",
    "CREATE TABLE db.s.made AS SELECT TIME '24:00:00' AS t": "not within a day",
    "SELECT error('no ' || name) FROM db.s.people": "no Ada",
}


def test_a_failing_statement_reports_its_own_cause(attached: Session) -> None:
    """By itself and within a transaction, and never that its transaction is aborted."""
    attached.need("CREATE TABLE db.s.strict (i INTEGER NOT NULL)")
    attached.need("CREATE TABLE db.s.times (t TIME)")
    attached.need("INSERT INTO db.s.times VALUES ('12:00:00')")
    for statement, cause in FAILING.items():
        alone = attached.run(statement)
        assert alone.status == "error", f"{statement}: {alone}"
        assert cause in alone.message
        attached.run("DROP TABLE db.s.made")
        attached.need("BEGIN")
        attached.need("SELECT count(*) FROM db.s.people")
        within = attached.run(statement)
        assert cause in within.message, f"{statement}: {within}"
        assert "aborted" not in within.message
        attached.need("ROLLBACK")


def test_create_table_as_can_be_repeated_after_it_failed(attached: Session) -> None:
    """Also where the failed statement leaves a table behind, which DuckDB lists in any case."""
    create = "CREATE TABLE db.s.made AS SELECT TIME '{}' AS t"
    assert "not within a day" in attached.run(create.format("24:00:00")).message
    assert re.search("already exists|run DROP TABLE", attached.run(create.format("12:00:00")).message)
    attached.need("DROP TABLE db.s.made")
    attached.need(create.format("12:00:00"))
    assert attached.rows("SELECT * FROM db.s.made") == [["12:00:00"]]


# -- the client ends -----------------------------------------------------------------------------------------------------


def test_a_killed_client_leaves_nothing(client: Client, attached: Session, server: LiveServer) -> None:
    with client.session(server.attach()) as other, ThreadPoolExecutor() as pool:
        insert = "INSERT INTO db.s.people SELECT i, 'x', 1 FROM range(20000000) AS r(i)"
        pool.submit(other.run, insert, 600)
        time.sleep(2)  # in the middle of the rows
        other.kill()
    assert attached.rows(ALL) == ROWS
    attached.need("UPDATE db.s.people SET score = 1 WHERE id = 1")


# -- DDL by another client -----------------------------------------------------------------------------------------------


class Attached:
    """A client that attaches again for each test, in the same process while it lives."""

    def __init__(self, client: Client, server: LiveServer) -> None:
        self._client, self._server = client, server
        self._session = client.session(server.attach())

    def again(self) -> Session:
        """The session, with a new listing of the catalog."""
        if self._session.run("DETACH db").ended:
            self.close()
            self._session = self._client.session()
        self._session.need(self._server.attach())
        return self._session

    def close(self) -> None:
        self._session.close()


@pytest.fixture(scope="module", params=TARGETS)
def clients(request: pytest.FixtureRequest, client: Client, folder: Path) -> Iterator[tuple[Attached, Attached]]:
    """Two clients of one server."""
    with serving(TARGETS[request.param].start, folder / f"ddl-{request.param}") as server:
        both = Attached(client, server), Attached(client, server)
        yield both
        for each in both:
            each.close()


@dataclass(frozen=True, slots=True)
class Change:
    """DDL of another client, and what the columns of the known table may contain afterwards, if they can be read.

    `rejected` says which targets reject it, on purpose, and with what.
    """

    statements: tuple[str, ...]
    rows: Rows | None = None
    rejected: Mapping[str, str] = field(default_factory=dict)


def dropped(column: int) -> Rows:
    return [[None if i == column else value for i, value in enumerate(row)] for row in ROWS]


ALTER, DROP, CREATE = "ALTER TABLE {t}", "DROP TABLE {t}", "CREATE TABLE {t}"
CHANGES = {
    "add a column": Change((f"{ALTER} ADD COLUMN extra INTEGER",), ROWS),
    "drop the first column": Change((f"{ALTER} DROP COLUMN id",), dropped(0)),
    "drop the second column": Change((f"{ALTER} DROP COLUMN name",), dropped(1)),
    "drop the last column": Change((f"{ALTER} DROP COLUMN score",), dropped(2)),
    "rename a column": Change((f"{ALTER} RENAME COLUMN name TO title",), ROWS),
    "swap two names": Change(
        (
            f"{ALTER} RENAME COLUMN name TO x",
            f"{ALTER} RENAME COLUMN score TO name",
            f"{ALTER} RENAME COLUMN x TO score",
        ),
        ROWS,
    ),
    "drop a column and add it again": Change(
        (f"{ALTER} DROP COLUMN name", f"{ALTER} ADD COLUMN name VARCHAR"), dropped(1)
    ),
    "add a column of another type again": Change(
        (f"{ALTER} DROP COLUMN name", f"{ALTER} ADD COLUMN name BIGINT"), dropped(1)
    ),
    "widen a column": Change((f"{ALTER} ALTER COLUMN id TYPE BIGINT",), ROWS),
    "make a number text": Change(
        (f"{ALTER} ALTER COLUMN id TYPE VARCHAR",), ROWS, rejected={"lake": "Cannot change column type"}
    ),
    "create it with a list": Change((DROP, f"{CREATE} (id INTEGER, name VARCHAR[], score DOUBLE)"), []),
    "create it again": Change((DROP, f"{CREATE} (id INTEGER, name VARCHAR, score DOUBLE)"), []),
    "create it with rows": Change(
        (DROP, f"{CREATE} AS SELECT 7 AS id, 'x' AS name, 1.5::DOUBLE AS score"), [["7", "x", "1.5"]]
    ),
    "create it with other types": Change(
        (DROP, f"{CREATE} AS SELECT 'a' AS id, 1 AS name, DATE '2024-01-01' AS score")
    ),
    "create it in another order": Change(
        (DROP, f"{CREATE} AS SELECT 1.5::DOUBLE AS score, 'x' AS name, 7 AS id"), [["7", "x", "1.5"]]
    ),
    "create it with fewer columns": Change((DROP, f"{CREATE} AS SELECT 7 AS id")),
    "create it with other columns": Change((DROP, f"{CREATE} AS SELECT 1 AS a, 2 AS b, 3 AS c")),
    "drop the table": Change((DROP,)),
    "rename the table": Change((f"{ALTER} RENAME TO folks",)),
    "drop the schema": Change((DROP, "DROP SCHEMA {s}")),
    "delete the rows": Change(("DELETE FROM {t}",), []),
}

STATEMENTS = (
    "SELECT id FROM {t} WHERE score > 8 ORDER BY id",
    "SELECT name, count(*) FROM {t} GROUP BY ALL",
    "SELECT min(id), max(id), min(score), max(name) FROM {t}",
    "UPDATE {t} SET name = 'new' WHERE id = 10 RETURNING *",
    "DELETE FROM {t} WHERE id = 10 RETURNING *",
    "INSERT INTO {t} (id) VALUES (11) RETURNING *",
    "SELECT * FROM {t} AT (TIMESTAMP => TIMESTAMP '2020-01-01')",
    "ALTER TABLE {t} ADD COLUMN more VARCHAR",
    "SELECT * FROM {t}",
    "DROP TABLE {t}",
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_client_survives_the_ddl_of_another(
    clients: tuple[Attached, Attached], request: pytest.FixtureRequest, change: str
) -> None:
    target = request.node.callspec.params["clients"]
    schema = "db." + "".join(letter for letter in change if letter.isalpha())
    first, other = (each.again() for each in clients)

    def filled(sql: str) -> str:
        return sql.replace("db.s", schema).replace("{t}", f"{schema}.people").replace("{s}", schema)

    for statement in PEOPLE:
        first.need(filled(statement))
    other = clients[1].again()
    rejected = CHANGES[change].rejected.get(target)
    if rejected is not None:
        assert rejected in other.run(filled(CHANGES[change].statements[0])).message
        assert first.rows(filled(ALL)) == ROWS
        return
    for statement in CHANGES[change].statements:
        other.need(filled(statement))
    _check_rows(first.run(filled(ALL)), CHANGES[change].rows)
    insert = first.run(filled("INSERT INTO {t} VALUES (10, 'ten', 10.5)"))
    assert insert.status in ("ok", "error"), insert
    if insert.status == "ok":
        found = clients[1].again().need(filled("SELECT * FROM {t}"))
        _check_inserted(found, swapped=change == "swap two names")
    for statement in STATEMENTS:
        outcome = first.run(filled(statement))
        assert outcome.status in ("ok", "error"), f"{statement}\n{outcome}"
    assert clients[1].again().run(filled(ALL)).status in ("ok", "error")


def _check_rows(outcome: Outcome, rows: Rows | None) -> None:
    """The rows in the columns that the client knows, or an error that says what to do."""
    if outcome.status == "ok":
        assert rows is not None, f"must fail, but returns {outcome.rows}"
        assert outcome.rows == rows
        assert outcome.types == ["INTEGER", "VARCHAR", "DOUBLE"]
    else:
        assert outcome.status == "error", outcome
        assert re.search("DETACH|does not exist|schema .* not found", outcome.message), outcome.message


def _check_inserted(found: Outcome, *, swapped: bool) -> None:
    """The values are in the columns that the client meant."""
    expected = {"id": "10", "name": "ten", "score": "10.5", "title": "ten"}
    if swapped:
        expected = {"id": "10", "name": "10.5", "score": "ten"}
    (row,) = [row for row in found.rows if {"10", "ten", "10.5"} & set(row)]
    wrong = {name: value for name, value in zip(found.names, row, strict=True) if value != expected.get(name)}
    assert not wrong


def test_a_table_of_another_client_is_visible_after_attaching_again(clients: tuple[Attached, Attached]) -> None:
    first = clients[0].again()
    first.need("SHOW ALL TABLES")  # DuckDB loads the listing when it needs it
    other = clients[1].again()
    other.need("CREATE SCHEMA db.later")
    other.need("CREATE TABLE db.later.t AS SELECT 1 AS i")
    assert first.run("SELECT * FROM db.later.t").status == "error"
    assert clients[0].again().rows("SELECT * FROM db.later.t") == [["1"]]
