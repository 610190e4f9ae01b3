"""SQL of callers stays within its limits of time and memory, whatever it does, and learns nothing about the server."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from skiway.errors import InvalidArgument, LimitExceeded, SkiwayError, TimedOut
from skiway.foundation.memory_budget import resident_bytes
from skiway.sandbox import Sandbox, processes

ROWS = pa.table({"a": [1, 2, None], "b": ["x", None, "z"]})
MEMORY = "200MB"


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    made = Sandbox(memory_limit=MEMORY, timeout_s=20)
    assert made.select(ROWS, "a").to_pylist() == [1, 2, None]  # starts a worker
    return made


def test_expressions_are_evaluated_for_each_row(sandbox: Sandbox) -> None:
    assert sandbox.select(ROWS, "a + 1", of=["a + 1"]).to_pylist() == [2, 3, None]
    assert sandbox.select(ROWS, "upper(b) || a").to_pylist() == ["X1", None, None]
    assert sandbox.select(ROWS.slice(0, 0), "a").to_pylist() == []


def test_statements_return_their_results(sandbox: Sandbox) -> None:
    _, counted, summed = sandbox.run(
        [
            "CREATE TEMP TABLE t AS SELECT a FROM rows",
            "SELECT count(*) AS n FROM t",
            "SELECT sum(a)::INT AS s FROM rows",
        ],
        rows=ROWS,
    )
    assert counted.to_pylist() == [{"n": 3}]
    assert summed.to_pylist() == [{"s": 3}]
    with pytest.raises(InvalidArgument, match="t does not exist"):
        sandbox.run(["SELECT * FROM t"])


@pytest.mark.parametrize(
    "expression",
    [
        "repeat('x', 4000000000)",
        "list_sum(range(50000000))",
        pytest.param("length(repeat('x', 4000000000))", marks=pytest.mark.full),
        pytest.param("len(range(50000000))", marks=pytest.mark.full),
        pytest.param("(SELECT string_agg(repeat('x', 1000000), '') FROM range(100000))", marks=pytest.mark.full),
        pytest.param(
            "(SELECT count(*) FROM (SELECT DISTINCT a.range * 100000 + b.range FROM range(100000) a, range(100000) b))",
            marks=pytest.mark.full,
        ),
    ],
)
def test_memory_is_limited(sandbox: Sandbox, expression: str) -> None:
    before = resident_bytes()
    with pytest.raises(LimitExceeded, match=f"the SQL expression uses more than {MEMORY} of memory"):
        sandbox.select(ROWS, expression, of=[expression])
    assert resident_bytes() - before < 50_000_000
    assert sandbox.select(ROWS, "a").to_pylist() == [1, 2, None]


def test_time_is_limited() -> None:
    quick = Sandbox(memory_limit=MEMORY, timeout_s=0.3)  # shares the workers
    cross_join = "(SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range + b.range = 3)"
    quick.select(ROWS, "a")
    worker, started = processes._pool(200_000_000, 2)._idle[-1], time.monotonic()
    with pytest.raises(TimedOut, match=r"the SQL expression took longer than 0\.3 s and was cancelled"):
        quick.select(ROWS, cross_join)
    assert time.monotonic() - started < 10
    assert worker.is_alive, "SQL that can be interrupted does not cost a worker"
    assert quick.select(ROWS, "a").to_pylist() == [1, 2, None]


def test_worker_that_cannot_be_interrupted_is_killed_and_replaced(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.select(ROWS, "a")
    idle = processes._pool(200_000_000, 2)._idle
    for worker in idle:
        os.kill(worker._process.pid, signal.SIGSTOP)
    stopped = idle[-1]
    monkeypatch.setattr(processes, "_GRACE_S", 0.1)
    monkeypatch.setattr(sandbox, "timeout_s", 0.1)
    started = time.monotonic()
    with pytest.raises(TimedOut):
        sandbox.select(ROWS, "a")
    assert time.monotonic() - started < 10
    assert stopped._process.poll() == -signal.SIGKILL
    monkeypatch.undo()
    for worker in idle:
        os.kill(worker._process.pid, signal.SIGSEGV)  # the others crash
        os.kill(worker._process.pid, signal.SIGCONT)
        worker._process.wait()
    assert sandbox.select(ROWS, "a").to_pylist() == [1, 2, None]


def test_result_that_is_too_large_is_rejected(sandbox: Sandbox) -> None:
    with pytest.raises(LimitExceeded):
        sandbox.run(["SELECT repeat('x', 100000) AS x FROM range(5000)"])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "COPY (SELECT 1) TO '/tmp/written'",
        "ATTACH '/tmp/other.db'",
        "INSTALL httpfs",
        "SET memory_limit = '100GB'",
        "SET enable_external_access = true",
        "SELECT getenv('SECRET')",
        "SELECT * FROM glob('/*')",
    ],
)
def test_files_extensions_settings_and_the_environment_are_out_of_reach(sandbox: Sandbox, sql: str) -> None:
    with pytest.raises(InvalidArgument):
        sandbox.run([sql])


def test_worker_has_none_of_the_servers_environment(sandbox: Sandbox) -> None:
    sandbox.select(ROWS, "a")
    worker = processes._pool(200_000_000, 2)._idle[-1]
    environment = Path(f"/proc/{worker._process.pid}/environ").read_bytes()
    assert set(dict(item.split(b"=", 1) for item in environment.split(b"\0") if item)) == {b"PATH", b"LC_ALL", b"TZ"}


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("nope", "nope"),
        ("1), (2", "syntax error"),
        ("a; DROP TABLE rows", "single SELECT|more than one statement"),
        ("", "without selection list"),
    ],
)
def test_invalid_expressions_are_rejected(sandbox: Sandbox, expression: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        sandbox.select(ROWS, f"CAST(({expression}) AS INTEGER)", of=[expression])


@pytest.mark.parametrize("text", ["", "SELECT 1; SELECT 2"])
def test_text_that_is_not_one_statement_is_rejected(sandbox: Sandbox, text: str) -> None:
    with pytest.raises(InvalidArgument, match="expected one statement"):
        sandbox.run([text])


def test_calls_of_many_threads_share_the_workers(sandbox: Sandbox) -> None:
    seen: set[int] = set()
    lock = threading.Lock()

    def call(number: int) -> list[int]:
        with lock:
            seen.update(worker._process.pid for worker in processes._pool(200_000_000, 2)._idle)
        found: list[int] = sandbox.select(pa.table({"a": [number]}), "a * 2").to_pylist()
        return found

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(call, range(40))) == [[2 * number] for number in range(40)]
    assert len(seen) <= 2


@pytest.mark.parametrize(("text", "size"), [("1GB", 10**9), ("512MiB", 512 << 20), ("1.5 GB", 1_500_000_000), ("7", 7)])
def test_sizes(text: str, size: int) -> None:
    assert Sandbox(memory_limit=text)._memory_bytes == size


def test_size_that_is_none_is_rejected() -> None:
    with pytest.raises(SkiwayError, match="write a number and a unit, such as 512MB"):
        Sandbox(memory_limit="much")
