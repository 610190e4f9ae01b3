"""The real client: DuckDB with its Airport extension, found on this machine and run as separate processes.

A client that crashes is a result of a test, so no client shares a process with the tests or with a server.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = [
    "Client",
    "ClientMissing",
    "Outcome",
    "Session",
    "client_environment",
    "client_python",
    "find_client",
    "plain_session",
    "server_environment",
]

PROGRAM = Path(__file__).with_name("session.py")
TIMEOUT_S = 200.0

HOW_TO_GET_IT = """\
The live tests need DuckDB's Airport extension, and `INSTALL airport FROM community` failed:
  {error}
With network access to DuckDB's extension repositories this works by itself. Without it, build the extension from source
and set
  AIRPORT_EXTENSION   the path of airport.duckdb_extension
  HTTPFS_EXTENSION    the path of httpfs.duckdb_extension, which it depends on
  DUCKDB_PYTHON       a Python with the version of duckdb that both were built for
If the extension is linked to shared libraries, set LD_LIBRARY_PATH and LD_PRELOAD for it, too; `make live` passes them to
clients and not to servers."""

Status = Literal["ok", "error", "fatal", "crash", "hang"]


class ClientMissing(Exception):
    """There is no client on this machine; the message says how to get one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out of a statement: rows as text with their names and types, or why there are none.

    `fatal` is an internal error, after which DuckDB is unusable; `crash` is the end of the process, and `hang` means
    that it was killed because it did not answer.
    """

    status: Status
    message: str = ""
    names: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    rows: list[list[str | None]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the session cannot run another statement."""
        return self.status in ("fatal", "crash", "hang")


class Session:
    """A DuckDB in a process of its own, which runs one statement at a time."""

    def __init__(
        self,
        python: str,
        environment: dict[str, str],
        preamble: tuple[str, ...] = (),
        folder: Path | None = None,
        program: Path = PROGRAM,
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe that nobody reads could fill up
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [python, str(program)], stdin=pipe, stdout=pipe, stderr=self._errors, env=environment, cwd=folder
        )
        self._buffer = b""
        try:
            for statement in preamble:
                self.need(statement)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kill(self) -> None:
        """End the process with SIGKILL, whatever it does."""
        self._process.kill()

    def close(self) -> None:
        """End the process and free its pipes."""
        self.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):  # a statement that the process has not read
                    file.close()

    def run(self, sql: str, timeout_s: float = TIMEOUT_S) -> Outcome:
        """The outcome of a statement, also if the client dies or does not answer."""
        answer = self._ask(sql, timeout_s)
        return answer if isinstance(answer, Outcome) else Outcome(**answer)

    def together(
        self, scripts: Sequence[Sequence[str]], *, separate: bool = False, timeout_s: float = 300.0
    ) -> list[list[Outcome]]:
        """The outcomes of scripts that run at the same time in threads of this client.

        They are cursors of its connection or, if `separate`, each has a DuckDB of its own, in which nothing is attached.
        """
        answer = self._ask({"scripts": scripts, "separate": separate}, timeout_s)
        if isinstance(answer, Outcome):  # the client has ended, with all of them
            return [[answer] for _ in scripts]
        return [[Outcome(**each) for each in script] for script in answer]

    def need(self, sql: str) -> Outcome:
        """The outcome of a statement that has to succeed."""
        outcome = self.run(sql)
        if outcome.status != "ok":
            raise AssertionError(f"{sql}\n{outcome.status}: {outcome.message}")
        return outcome

    def timed(self, sql: str, timeout_s: float = 600.0) -> float:
        """The seconds that a statement takes in the client, with its result as an Arrow table. It has to succeed."""
        answer = self._ask({"timed": sql}, timeout_s)
        if isinstance(answer, Outcome) or "seconds" not in answer:
            raise AssertionError(f"{sql[:500]}\n{answer}")
        return float(answer["seconds"])

    def rows(self, sql: str) -> list[list[str | None]]:
        """The rows of a query that has to succeed."""
        return self.need(sql).rows

    def _ask(self, asked: object, timeout_s: float) -> Any:
        """The answer of the process, or the outcome that says how it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(timeout_s):
                    self._process.kill()
                    return Outcome("hang", f"no answer in {timeout_s:.0f} s")
                part = os.read(self._process.stdout.fileno(), 1 << 20)
                if not part:
                    return self._crash()
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _crash(self) -> Outcome:
        code = self._process.wait()
        self._errors.seek(0)
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return Outcome("crash", ": ".join([cause, *lines[-1:]]))


def server_environment() -> dict[str, str]:
    """Variables for servers: without the libraries that only clients may load."""
    return {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}


def client_environment() -> dict[str, str]:
    """Variables for processes of the client, with the libraries that it needs."""
    preload = {
        name: os.environ.get(f"CLIENT_{name}") or os.environ.get(name) for name in ("LD_PRELOAD", "LD_LIBRARY_PATH")
    }
    libraries = {name: value for name, value in preload.items() if value}
    return {**server_environment(), **libraries, "TZ": "UTC", "QUERY_FARM_TELEMETRY_OPT_OUT": "1"}


def client_python() -> str:
    """The interpreter with the client's version of DuckDB."""
    return os.environ.get("DUCKDB_PYTHON", sys.executable)


def plain_session() -> Session:
    """A DuckDB of the client's version, without extensions."""
    return Session(client_python(), client_environment(), ("SET TimeZone = 'UTC'",))


@dataclass(frozen=True, slots=True)
class Client:
    """A way to open sessions of the real client."""

    loads: tuple[str, ...]

    def session(
        self, *preamble: str, folder: Path | None = None, variables: Mapping[str, str] | None = None
    ) -> Session:
        """A DuckDB with the extension that has run `preamble`, in a folder and with environment variables."""
        environment = {**client_environment(), **(variables or {})}
        return Session(client_python(), environment, (*self.loads, "SET TimeZone = 'UTC'", *preamble), folder)

    def version(self) -> str:
        with self.session() as session:
            ((duckdb, airport),) = session.rows(
                "SELECT version(), (SELECT extension_version FROM duckdb_extensions() WHERE extension_name = 'airport')"
            )
        return f"DuckDB {duckdb}, airport {airport}"


@functools.cache
def find_client() -> Client:
    """The client of this machine; raises `ClientMissing` if there is none."""
    if extension := os.environ.get("AIRPORT_EXTENSION"):
        needed = os.environ.get("HTTPFS_EXTENSION")
        loads = (*((f"LOAD '{needed}'",) if needed else ()), f"LOAD '{extension}'")
    else:
        loads = ("LOAD airport",)
        with plain_session() as session:
            installed = session.run("INSTALL airport FROM community")
        if installed.status != "ok":
            raise ClientMissing(HOW_TO_GET_IT.format(error=installed.message.strip()))
    try:
        with Session(client_python(), client_environment(), loads):
            return Client(loads)
    except AssertionError as error:
        raise ClientMissing(f"DuckDB does not load the Airport extension:\n{error}") from None
