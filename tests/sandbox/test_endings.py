"""Processes that end by themselves: errors name the cause, and the log has details without SQL."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from sandbox.running_queries import result
from skiway.errors import LimitExceeded, Unavailable
from skiway.sandbox import Sandbox, processes, query_worker
from skiway.sandbox.processes import OUT_OF_MEMORY
from skiway.sandbox.queries import Queries

Run = Callable[[str], object]
SECRET = "canary-4711"


@pytest.fixture(params=["query", "expression"])
def run_in(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run SQL in a process that runs a shell script after it has received the first byte."""

    def run(script: str) -> object:
        program = tmp_path / "program"
        program.write_text(f"#!/bin/sh\nprintf R\nhead -c 1 > /dev/null\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        if request.param == "expression":
            processes._pool.cache_clear()
            return Sandbox(memory_limit="5GB").run([f"SELECT '{SECRET}'"])
        process = Queries(memory_limit="5GB", workers=1).start()
        try:
            return process.parse(f"SELECT '{SECRET}'")
        finally:
            process.close()

    return run


@pytest.mark.parametrize(
    "script",
    [
        f"exit {OUT_OF_MEMORY}",
        "echo \"terminate called after throwing an instance of 'std::bad_alloc'\" >&2; kill -ABRT $$",
    ],
)
def test_process_without_memory_is_a_question_of_memory(run_in: Run, script: str) -> None:
    with pytest.raises(LimitExceeded, match="uses more than 5GB of memory"):
        run_in(script)


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("exit 3", "exit code 3"),
        ("kill -SEGV $$", "SIGSEGV"),
        ("kill -KILL $$", "SIGKILL"),
        ("kill -ABRT $$", "SIGABRT"),
        ("kill -40 $$", "signal 40"),
        ("echo MemoryError std::bad_alloc >&2; exit 1", "exit code 1"),  # anything can be part of a message
        ("sleep 1 < /dev/null > /dev/null & exit 5", "exit code 5"),  # another process has its standard error
        ("yes | head -c 300000 >&2; exit 4", "exit code 4"),  # more than the pipe holds
    ],
)
def test_other_endings_are_no_question_of_memory(
    run_in: Run, script: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Unavailable, match=f"ended unexpectedly with {how}: try again") as raised:
        run_in(script)
    assert raised.value.key == "sql.ended"
    assert f"a process for SQL ended with {how}" in caplog.text


def test_log_shows_where_a_process_failed_without_sql(run_in: Run, caplog: pytest.LogCaptureFixture) -> None:
    code, written = _failed("ValueError")
    assert (code, SECRET in written) == (1, False)
    others = [f"what():  {SECRET}", f"ValueError: {SECRET}", f'File "{SECRET} x", line 1, in y', f"SELECT {SECRET}"]
    with pytest.raises(Unavailable):
        run_in("cat >&2 << 'END'\n" + "\n".join([written, *others]) + "\nEND\nexit 1")
    assert "builtins.ValueError" in caplog.text
    assert "line 3, in fail" in caplog.text
    assert SECRET not in caplog.text


def test_worker_says_that_it_has_no_memory() -> None:
    assert _failed("MemoryError") == (OUT_OF_MEMORY, "")


def _failed(kind: str) -> tuple[int, str]:
    """The exit code and the standard error of a worker that raises such an error."""
    program = f"""from skiway.sandbox.worker import run_worker
def fail(arguments):
    raise {kind}("SELECT '{SECRET}'")
run_worker(fail)"""
    found = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False)
    return found.returncode, found.stderr.replace("<string>", "program.py")


def test_crash_shows_what_the_process_did(queries: Queries, caplog: pytest.LogCaptureFixture) -> None:
    process = queries.start()
    os.kill(process.pid, signal.SIGSEGV)
    with pytest.raises(Unavailable, match="ended unexpectedly with SIGSEGV"):
        result(process, "SELECT 1 AS one")
    process.close()
    assert "Fatal Python error: Segmentation fault" in caplog.text
    assert "query_worker.py" in caplog.text
    process = queries.start()
    assert result(process, "SELECT 1 AS one") == [{"one": 1}]
    process.close()


def test_watchdog_of_a_query_does_not_stop_the_next_one(queries: Queries) -> None:
    first = queries.start()
    assert first._watchdog is not None
    expire = first._watchdog.function
    first.close()
    second = queries.start()
    assert second is first
    expire()
    assert result(second, "SELECT 1 AS one") == [{"one": 1}]
    second.close()


def test_watchdog_of_a_call_does_not_stop_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    expire: list[Callable[[], None]] = []

    class Timer(threading.Timer):
        def __init__(self, seconds: float, function: Callable[[], None]) -> None:
            super().__init__(seconds, function)
            expire.append(function)

    monkeypatch.setattr(threading, "Timer", Timer)
    sandbox = Sandbox(memory_limit="200MB")
    sandbox.run(["SELECT 1"])
    worker = processes._pool(200_000_000, 2)._idle[-1]
    expire[-1]()
    sandbox.run(["SELECT 1"])
    assert processes._pool(200_000_000, 2)._idle[-1] is worker


def test_internal_error_of_duckdb_is_not_an_error_of_the_query(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those of windows over few rows, which depend on the order of DuckDB's threads."""

    def failing(*_: object) -> None:
        raise duckdb.InternalException("INTERNAL Error: Attempted to access index 0\n\nStack Trace:\n\n0 duckdb")

    sent = io.BytesIO()
    monkeypatch.setattr(query_worker, "_run", failing)
    query_worker._answer(None, {"sql": "SELECT 1"}, [], sent)  # type: ignore[arg-type]
    sent.seek(0)
    frame = processes.read_frame(sent.read, 1 << 20)
    process = queries.start()
    monkeypatch.setattr(process, "_frame", lambda: frame)
    with pytest.raises(Unavailable, match=r"DuckDB failed .*: INTERNAL Error: Attempted to access index 0: try again"):
        result(process, "SELECT 1 AS one")
    process.close()
    assert not process.is_alive
