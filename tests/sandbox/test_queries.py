"""Queries of callers: they read their relations and nothing else, and stay within their limits."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from duckdb_types import TYPES, Type
from sandbox.running_queries import NAME, ROWS, open_descriptors, result, scanned
from skiway.errors import InvalidArgument, LimitExceeded, NotFound, TimedOut, Unavailable
from skiway.sandbox import Sandbox, processes
from skiway.sandbox import queries as module
from skiway.sandbox.databases import scan_columns
from skiway.sandbox.queries import Queries, QueryProcess
from skiway.sandbox.relations import Relation


def test_query_reads_the_columns_that_it_needs(process: QueryProcess) -> None:
    asked = list[Any]()
    assert result(process, "SELECT count(*) AS n, max(id) AS m FROM s.t WHERE text = 't1'", scanned(asked=asked)) == [
        {"n": 8, "m": 25}
    ]
    assert [sorted(columns) for columns in asked] == [["id", "text"]]


def test_nan_is_the_greatest_number(process: QueryProcess) -> None:
    assert result(process, "SELECT count(*) AS n FROM s.t WHERE v > 1000", scanned()) == [{"n": 3}]


def _conditions(of: Type) -> Iterator[str]:
    values = [of.cast(value) for value in of.values]
    yield from (f"v {operator} {value}" for operator in ("=", "<>", "<", "<=", ">", ">=") for value in values)
    yield from (f"v {word} ({', '.join(values)})" for word in ("IN", "NOT IN"))
    if not of.is_nested:  # for which DuckDB has no BETWEEN
        yield from (f"v {word} {values[0]} AND {values[-1]}" for word in ("BETWEEN", "NOT BETWEEN"))
    yield from ("v IS NULL", "v IS NOT NULL", f"v IS DISTINCT FROM {values[0]}")


SCANNED = [
    each for each in TYPES if each.name not in ("VARIANT", "ENUM")
]  # which Arrow lacks, and DuckDB reads as strings


@pytest.mark.parametrize("of", SCANNED, ids=lambda each: each.name)
def test_conditions_on_scans_select_the_rows_that_duckdb_selects(of: Type) -> None:
    """DuckDB must not leave comparisons to Arrow that Arrow does differently, or that need other Python libraries."""
    with duckdb.connect(config={"arrow_lossless_conversion": True}) as duck:
        duck.execute(f"CREATE VIEW own AS {of.rows()}")
        rows = duck.sql("FROM own").to_arrow_table()
        duck.register("rows", rows)
        duck.execute(f"CREATE VIEW scan AS SELECT {scan_columns(rows.schema)} FROM rows")
        assert duck.view("scan").types == duck.view("own").types
        for condition in _conditions(of):
            own, found = (
                duck.execute(f"SELECT id FROM {name} WHERE {condition} ORDER BY id").fetchall()
                for name in ("own", "scan")
            )
            assert found == own, condition


def test_relation_can_be_read_several_times(process: QueryProcess) -> None:
    sql = "WITH x AS (SELECT id FROM s.t) SELECT count(*) AS n FROM x a, x b, lake.s.t c WHERE a.id = b.id AND b.id = c.id"
    assert result(process, sql, scanned()) == [{"n": 30}]


def test_columns_have_different_names(process: QueryProcess) -> None:
    assert result(process, "SELECT 1 AS a, 2 AS A, 3 AS a") == [{"a": 1, "A_1": 2, "a_2": 3}]


def test_order_of_the_query_is_kept(process: QueryProcess) -> None:
    found = result(process, "SELECT range AS n FROM range(100000) ORDER BY n DESC")
    assert [row["n"] for row in found] == list(range(99_999, -1, -1))


def test_description_reads_no_rows(process: QueryProcess) -> None:
    asked = list[Any]()
    found = process.run(
        "SELECT text, count(*) AS n FROM s.t GROUP BY 1", [scanned(asked=asked)], default=["lake"], describe=True
    )
    assert found is not None
    assert found[0] == pa.schema({"text": pa.string(), "n": pa.int64()})
    assert (list(found[1]), asked) == ([], [])


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELEC 1", "syntax error"),
        ("", "found 0 statements"),
        ("SELECT 1; SELECT 2", "found 2 statements"),
        ("CREATE TABLE x AS SELECT 1", "CREATE is not a query"),
        ("INSERT INTO s.t VALUES (1)", "INSERT is not a query"),
        ("SET threads = 8", "SET is not a query"),
        ("COPY (SELECT 1) TO '/tmp/x'", "COPY is not a query"),
        ("ATTACH '/tmp/x.db'", "ATTACH is not a query"),
        ("LOAD httpfs", "LOAD is not a query"),
        ("PRAGMA database_list", "not a query|cannot be used here|Only SELECT"),
        ("SELECT * FROM read_text('/etc/passwd')", "read_text cannot be used here"),
        ("SELECT (SELECT content FROM read_text('/etc/passwd'))", "read_text cannot be used here"),
        ("WITH x AS (FROM read_csv('/etc/passwd')) FROM x", "read_csv cannot be used here"),
        ("SELECT * FROM parquet_schema('/etc/passwd')", "parquet_schema cannot be used here"),
        ("FROM s.t AT (VERSION => (SELECT content FROM read_text('/etc/passwd')))", "read_text cannot be used here"),
        ("FROM s.t AT (VERSION => (SELECT column0 FROM '/etc/passwd.csv'))", "AT needs a constant"),
        ("SELECT * FROM glob('/*')", "glob cannot be used here"),
        ("SELECT * FROM query('SELECT 1')", "query cannot be used here"),
        ("SELECT * FROM duckdb_settings()", "duckdb_settings cannot be used here"),
        ("SELECT * FROM '/etc/passwd'", "does not exist|disabled by configuration"),
        ("SELECT * FROM '/tmp/x.parquet'", "disabled by configuration"),
        ("SELECT getenv('HOME')", "getenv does not exist"),
        ("SELECT * FROM nowhere", "Table with name nowhere does not exist"),
    ],
)
def test_everything_but_a_query_over_relations_is_rejected(process: QueryProcess, sql: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        result(process, sql)
    assert result(process, "SELECT 1 AS one") == [{"one": 1}]  # the process still works


def test_points_in_time_become_relations_of_their_own(process: QueryProcess) -> None:
    parsed = process.parse("SELECT a.id FROM s.t AS a AT (VERSION => 1 + 2) JOIN s.t USING (id)")
    past, now = parsed.tables
    assert (past.name, past.unit.lower(), past.value) == (("", "s", "t"), "version", "3")
    assert (now.name, now.unit, now.alias) == (("", "s", "t"), "", "")
    then = Relation(("memory", "main", past.alias), ROWS.schema, scanned(ROWS.slice(0, 5)).scan)
    found = process.run(parsed.sql, [then, scanned()], default=["lake"])
    assert found is not None
    assert pa.Table.from_batches(found[1]).num_rows == 5


def test_failure_of_a_scan_is_the_error_of_the_query(process: QueryProcess) -> None:
    def scan(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from ROWS.select(columns).to_batches()
        raise NotFound("a file is gone")

    with pytest.raises(NotFound, match="a file is gone"):
        result(process, "SELECT count(*) FROM s.t", Relation(NAME, ROWS.schema, scan))


def test_context_of_the_caller_is_that_of_its_scans(process: QueryProcess) -> None:
    from contextvars import ContextVar

    caller: ContextVar[str] = ContextVar("caller")
    seen = list[str]()

    def scan(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        seen.append(caller.get())
        yield from ROWS.select(columns).to_batches()

    token = caller.set("ada")
    assert result(process, "SELECT count(*) AS n FROM s.t", Relation(NAME, ROWS.schema, scan)) == [{"n": 30}]
    caller.reset(token)
    assert seen == ["ada"]


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT repeat('x', 4000000000) AS x",
        "SELECT list(range) AS l FROM range(100000000)",
    ],
)
def test_memory_is_limited(queries: Queries, sql: str) -> None:
    process = queries.start()
    try:
        with pytest.raises(LimitExceeded, match="more than 300MB"):
            result(process, sql)
    finally:
        process.close()


@pytest.mark.parametrize(
    "sql", ["SELECT count(*) FROM range(10000000) a, range(10000000) b", "SELECT sum(i) FROM range(9000000000000) t(i)"]
)
def test_time_is_limited(sql: str, queries: Queries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "timeout_s", 0.5)
    process = queries.start()
    try:
        with pytest.raises(TimedOut, match=r"longer than 0\.5 s"):
            result(process, sql)
    finally:
        process.close()
    assert not process.is_alive


def test_one_owner_leaves_a_worker_for_others() -> None:
    queries = Queries(workers=2, wait_s=0.05)
    first = queries.start("a")
    with pytest.raises(LimitExceeded, match="all 1 queries that may run at a time are running"):
        queries.start("a")
    other = queries.start("b")
    first.close()
    again = queries.start("a")
    for process in (other, again):
        process.close()
        process.kill()


def test_query_that_is_not_read_to_its_end_is_cancelled(queries: Queries) -> None:
    process = queries.start()
    found = process.run("SELECT range AS n FROM range(100000000000)", [], default=["lake"])
    assert found is not None
    assert next(found[1]).num_rows
    process.close()
    assert not process.is_alive
    another = queries.start()
    assert result(another, "SELECT 1 AS one") == [{"one": 1}]
    another.close()


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT identity FROM s.t", 'Referenced column "identity" not found in FROM clause! Candidate bindings: "id"'),
        ("SELECT uper(text) FROM s.t", 'Scalar Function with name uper does not exist! Did you mean "upper"?'),
        ("SELECT CAST('x' AS INTEGER)", "Could not convert string 'x' to INT32$"),
        ("SELECT * FROM s.t ORDER BY", 'syntax error at [a-zB-Y" ]+$'),
    ],
)
def test_messages_have_suggestions_but_not_the_query(process: QueryProcess, sql: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        result(process, sql, scanned())
    assert re.search(message.replace("(", r"\(").replace("?", r"\?"), error.value.message)
    assert "\n" not in error.value.message
    assert "LINE" not in error.value.message


def test_scan_ends_with_its_query(queries: Queries) -> None:
    ended = threading.Event()

    def scan(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield ROWS.select(columns).to_batches()[0]
        finally:
            ended.set()

    process = queries.start()
    found = process.run("SELECT * FROM s.t", [Relation(NAME, ROWS.schema, scan)], default=["lake"])
    assert found is not None
    next(found[1])
    process.close()
    assert ended.wait(200)


def test_no_descriptors_are_left_open(queries: Queries) -> None:
    def use() -> None:
        process = queries.start()
        result(process, "SELECT count(*) FROM s.t", scanned())
        process.close()

    use()
    before = open_descriptors()
    for _ in range(3):
        use()
    assert open_descriptors() <= before


def test_process_that_cannot_start_is_no_question_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (processes, module):
        monkeypatch.setattr(each, "WORKER", "skiway.sandbox.no_such_module")
    with pytest.raises(Unavailable, match="could not be started"):
        Sandbox(memory_limit="123MB").run(["SELECT 1"])
    queries = Queries(workers=1, wait_s=0)
    for _ in range(2):  # the failed one does not count as running
        with pytest.raises(Unavailable, match="could not be started"):
            queries.start()


def test_process_does_without_pandas(process: QueryProcess) -> None:
    """It would be a fifth of its memory: pyarrow imports pandas for its first scalar if it can."""
    assert result(process, "SELECT count(*) AS n FROM s.t WHERE id > 3", scanned()) == [{"n": 26}]
    loaded = Path(f"/proc/{process.pid}/maps").read_text()
    assert "/duckdb/" in loaded or "_duckdb" in loaded
    assert "/pandas/" not in loaded


ENDLESS = "SELECT sum(a.range * b.range) FROM range(100_000) a, range(10_000_000_000) b"


@pytest.mark.parametrize("kind", ["query", "expression"])
def test_worker_ends_with_a_server_that_is_killed(kind: str) -> None:
    """It computes when the server dies, so it does not notice the end of its input."""
    server = subprocess.Popen([sys.executable, "-c", _SERVER, kind, ENDLESS], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    with server.stdout:
        worker = int(server.stdout.readline())
    server.kill()
    server.wait()
    deadline = time.monotonic() + 200
    while _computes(worker):
        assert time.monotonic() < deadline, "the worker still computes"
        time.sleep(0.1)


def _computes(pid: int) -> bool:
    """Whether a process exists and is not a zombie: whoever adopts it may not reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


_SERVER = """
import sys, threading, time
from pathlib import Path
from skiway.sandbox import Sandbox
from skiway.sandbox.queries import Queries
kind, sql = sys.argv[1:]
if kind == "query":
    process = Queries(memory_limit="300MB", timeout_s=600, workers=1, threads=1).start()
    run = lambda: process.run(process.parse(sql).sql, (), default=["lake"])
else:
    sandbox = Sandbox(memory_limit="300MB", timeout_s=600)
    run = lambda: sandbox.run([sql])
threading.Thread(target=run, daemon=True).start()
def busy():
    for child in Path(f"/proc/self/task").glob("*/children"):
        for pid in child.read_text().split():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            seen[pid] = seen.get(pid, 0) + (fields[0] == "R")
            if seen[pid] > 20:
                return pid
seen = {}
while not (pid := busy()):
    time.sleep(0.05)
print(pid, flush=True)
time.sleep(600)
"""
