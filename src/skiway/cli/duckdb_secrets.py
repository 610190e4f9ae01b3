"""Persistent secrets of DuckDB, with which its Airport extension sends the token of a login.

DuckDB itself stores them, in a process of its own: the format of its files is its own affair, and a secret of type `airport`
needs the extension. Statements go to its standard input, because other users can see the arguments of a process.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

from skiway.errors import Unavailable

__all__ = ["drop_secret", "secret_name", "store_secret"]

TIMEOUT_S: Final = 120.0
"""The first run downloads the extension."""
LOADS: Final = (["LOAD airport;"], ["INSTALL airport FROM community;", "LOAD airport;"])
RUNNER: Final = """
import sys, duckdb
try:
    duckdb.connect().execute(sys.stdin.read())
except duckdb.Error as error:
    sys.exit(str(error))
"""
MAX_QUOTED: Final = 300


def secret_name(location: str) -> str:
    """The name of the secret for a server. It is part of a file name."""
    parts = urlsplit(location)
    return f"skiway_{re.sub('[^A-Za-z0-9.-]', '_', parts.netloc or parts.path)}"


def store_secret(location: str, token: str) -> str:
    """Store the token for all calls of DuckDB to a server, in the place of an earlier one. Returns the secret's name."""
    from skiway.airport.wire.duckdb_sql import secret_statement  # which imports pyarrow

    name = secret_name(location)
    create = secret_statement(location, token, persistent_name=name)
    problem = ""
    for program in _programs():
        for load in LOADS:
            problem = _problem(program, [*load, create], hidden=token)
            if not problem:
                return name
    raise Unavailable(
        f"you are logged in, but DuckDB could not store its secret: {problem}; where DuckDB has its airport extension, run "
        "skiway login --duckdb again, or the statements of skiway attach --show-token",
        key="duckdb.secret",
    )


def drop_secret(location: str) -> None:
    """Remove the secret for a server, if there is one. This works without the extension."""
    from skiway.airport.wire.duckdb_sql import identifier

    statement = f"DROP PERSISTENT SECRET IF EXISTS {identifier(secret_name(location))};"
    problem = ""
    for program in _programs():
        problem = _problem(program, [statement])
        if not problem:
            return
    raise Unavailable(f"DuckDB could not remove its secret: {problem}", key="duckdb.secret")


def _programs() -> Iterator[list[str]]:
    """The `duckdb` on the path, which most likely has the extension, then the installed Python package."""
    if own := shutil.which("duckdb"):
        yield [own, "-batch", "-bail", "-init", "/dev/null"]
    yield [sys.executable, "-c", RUNNER]


def _problem(program: Sequence[str], statements: Sequence[str], *, hidden: str = "") -> str:
    """What went wrong when the program ran the statements; "" if nothing did. DuckDB's errors may quote a statement."""
    try:
        done = subprocess.run(  # noqa: S603 - DuckDB, with statements of ours
            program, input="\n".join(statements), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program[0]} does not run: {type(error).__name__}"
    if not done.returncode:
        return ""
    said = " ".join((done.stderr or done.stdout).split()) or f"it ended with exit code {done.returncode}"
    return (said.replace(hidden, "****") if hidden else said)[:MAX_QUOTED]
