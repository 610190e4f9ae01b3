"""How many calls of a lake DuckDB's client makes for typical statements, which `calls.toml` lists with their limits."""

from __future__ import annotations

import re
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from live.clients import Session
from skiway.client import Metastore

__all__ = ["STATEMENTS", "Statement", "counted", "prepare", "total_calls"]

_FINISHED = re.compile(
    r'^skiway_core_rpc_requests_total\{.*component="([^"]+)".*operation="([^"]+)".*\} (\S+)$', re.MULTILINE
)
_QUIET_S = 0.1
_WIDE = "SELECT range AS id, " + ", ".join(f"range % {n + 7} AS {name}" for n, name in enumerate("abcdefghi"))


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, and how many calls it may take."""

    name: str
    sql: str
    calls: int


def _read() -> list[Statement]:
    text = Path(__file__).with_name("calls.toml").read_text()
    return [Statement(**each) for each in tomllib.loads(text)["statement"]]


STATEMENTS = _read()


def prepare(session: Session, attach: str, address: str) -> None:
    """Create the tables with another attachment of the session, which ends."""
    session.need(attach)
    for schema in ("s", "offered"):
        session.need(f"CREATE SCHEMA db.{schema}")
    session.need(f"CREATE TABLE db.s.wide AS {_WIDE} FROM range(10000)")
    session.need(f"CREATE TABLE db.offered.asked AS {_WIDE} FROM range(10000)")
    session.need("CREATE TABLE db.s.small AS SELECT range AS id FROM range(100)")
    session.need("CALL db.skiway.create_view('s.shown', 'SELECT a, count(*) AS n FROM s.wide GROUP BY a')")
    with Metastore(address) as lake:
        lake.namespaces.update("lake.offered", properties={"statistics.offer": "always"})
    session.need("DETACH db")


def counted(session: Session, attach: str, metrics: str) -> Iterator[tuple[Statement, Counter[str]]]:
    """Run the statements, and yield the calls that each one made by their names. `metrics` is where the server shows them."""
    before = total_calls(metrics)
    session.need(attach)
    for statement in STATEMENTS:
        session.timed(statement.sql)
        after = total_calls(metrics)
        yield statement, after - before
        before = after


def total_calls(metrics: str, component: str = "Airport") -> Counter[str]:
    """The calls that the server has finished, as soon as their number is the same for a moment."""
    found = _finished(metrics, component)
    while True:
        time.sleep(_QUIET_S)
        if (again := _finished(metrics, component)) == found:
            return found
        found = again


def _finished(metrics: str, component: str) -> Counter[str]:
    with urlopen(metrics) as answer:
        text = answer.read().decode()
    calls = Counter[str]()
    for of, operation, number in _FINISHED.findall(text):
        if of == component:
            calls[operation] += int(float(number))
    return calls
