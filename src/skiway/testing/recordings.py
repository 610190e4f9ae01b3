"""Recorded traffic of DuckDB's Airport extension: the filters it sends, and whole conversations.

A conversation is one SQL statement: its result, and the calls that the client made for it. The requests are those of the
real client; the responses are those of one particular server.
"""

from __future__ import annotations

import base64
import json
import lzma
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skiway.airport.filters import Filter

__all__ = ["Call", "Conversation", "RecordedFilter", "Recordings", "recordings"]


@dataclass(frozen=True)
class RecordedFilter:
    """A WHERE clause, and the filter that DuckDB sent for it; `column_ids` are the columns that it requested."""

    predicate: str
    json_filters: str
    column_ids: tuple[int, ...]

    @cached_property
    def filter(self) -> Filter:
        """The parsed filter. It is falsy if DuckDB sent none."""
        from skiway.airport import filters

        return filters.parse(self.json_filters)


@dataclass(frozen=True, slots=True)
class Call:
    """One call as seen on the wire: serialized messages of Flight. `cut` means that the response is truncated."""

    method: str
    headers: tuple[tuple[str, str], ...]
    requests: tuple[bytes, ...]
    answers: tuple[bytes, ...] = ()
    status: str = ""
    cut: bool = False

    def header(self, name: str) -> str:
        """The first value of a request header, or ""."""
        return next((value for key, value in self.headers if key == name), "")

    @property
    def action(self) -> str:
        """The type of an action, or "" for other calls."""
        from skiway.model import flight_pb2

        return str(flight_pb2.Action.FromString(self.requests[0]).type) if self.method == "DoAction" else ""

    @property
    def name(self) -> str:
        """The type of an action, or the method of other calls."""
        return self.action or self.method


@dataclass(frozen=True, slots=True)
class Conversation:
    """One SQL statement: its result as text, or the client's error, and its calls."""

    number: int
    session: str
    sql: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    error: str
    calls: tuple[Call, ...]

    def __str__(self) -> str:
        readable = re.sub(r"[^\w *.=><]", "", self.sql)
        return f"{self.number:03d} {readable[:60]}"


class Recordings:
    """All recordings, read when they are first used."""

    @cached_property
    def columns(self) -> str:
        """The columns of the table that the recorded filters are about, as in CREATE TABLE."""
        return str(next(_lines("filters"))["columns"])

    @cached_property
    def filters(self) -> tuple[RecordedFilter, ...]:
        """The filters that DuckDB sent, in the order in which they were recorded."""
        sent = (line for line in _lines("filters") if "json_filters" in line)
        return tuple(
            RecordedFilter(line["predicate"], line["json_filters"], tuple(line["column_ids"])) for line in sent
        )

    @cached_property
    def conversations(self) -> tuple[Conversation, ...]:
        """All statements, in the order in which they ran. Those with the same `session` ran on one connection."""
        return tuple(_conversation(number, line) for number, line in enumerate(_lines("conversations")))


@cache
def recordings() -> Recordings:
    """The recordings, which all callers share."""
    return Recordings()


def _lines(name: str) -> Iterator[dict[str, Any]]:
    packed = (files("skiway.testing") / "data" / f"{name}.jsonl.xz").read_bytes()
    return map(json.loads, lzma.decompress(packed).decode().splitlines())


def _conversation(number: int, line: dict[str, Any]) -> Conversation:
    return Conversation(
        number,
        line["session"],
        line["sql"],
        tuple(line.get("columns") or ()),
        tuple(tuple(row) for row in line.get("rows") or ()),
        line.get("error", ""),
        tuple(_call(call) for call in line["calls"]),
    )


def _call(call: dict[str, Any]) -> Call:
    def sent(side: str) -> tuple[bytes, ...]:
        return tuple(base64.b64decode(m["b64"]) for m in call["messages"] if m.get("from") == side and "b64" in m)

    return Call(
        call["method"],
        tuple((key, value) for key, value in call["headers"]),
        sent("client"),
        sent("server"),
        call["status"],
        any("len" in message for message in call["messages"]),
    )
