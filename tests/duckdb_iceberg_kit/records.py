"""Parses test files of DuckDB's sqllogictest: statements, queries with their results, loops and conditions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeAlias

__all__ = ["Directive", "Loop", "Query", "Record", "Statement", "parse"]

LOOPS = ("loop", "foreach", "concurrentloop", "concurrentforeach")


@dataclass(frozen=True)
class Statement:
    """A statement that succeeds, fails, or may do either. A message is a part of its error, or `<REGEX>:` and a pattern."""

    line: int
    outcome: str
    connection: str
    sql: str
    message: str


@dataclass(frozen=True)
class Query:
    """A query and its result, as lines. Queries with the same label have the same result."""

    line: int
    types: str
    sort: str
    connection: str
    label: str
    sql: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Loop:
    """Records that run once for each value of a variable."""

    line: int
    variable: str
    values: Sequence[str]
    is_concurrent: bool
    body: list[Record] = field(default_factory=list)


@dataclass(frozen=True)
class Directive:
    """Any other line: its first word says what it means."""

    line: int
    words: Sequence[str]


Record: TypeAlias = Statement | Query | Loop | Directive


def parse(text: str) -> list[Record]:
    """Parse a file. Raise `ValueError` with the line of what is not understood."""
    lines = enumerate(text.splitlines(), 1)
    blocks: list[list[Record]] = [[]]
    for number, line in lines:
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] == "endloop":
            if len(blocks) == 1:
                raise ValueError(f"line {number}: endloop without a loop")
            blocks.pop()
        elif words[0] in LOOPS:
            loop = _loop(number, words)
            blocks[-1].append(loop)
            blocks.append(loop.body)
        elif words[0] in ("statement", "query"):
            blocks[-1].append(_sql_record(number, words, lines))
        else:
            blocks[-1].append(Directive(number, words))
    if len(blocks) > 1:
        raise ValueError("a loop has no endloop")
    return blocks[0]


def _loop(number: int, words: list[str]) -> Loop:
    values = words[2:]
    if words[0] in ("loop", "concurrentloop"):
        values = [str(value) for value in range(int(words[2]), int(words[3]))]
    return Loop(number, words[1], values, words[0].startswith("concurrent"))


def _sql_record(number: int, words: list[str], lines: Iterator[tuple[int, str]]) -> Statement | Query:
    """The record that begins with these words; its SQL ends at an empty line or at `----`, after which the result follows."""
    sql, has_result = [], False
    for _, line in lines:
        has_result = line.strip() == "----"
        if has_result or not line.strip():
            break
        sql.append(line)
    result = list(takewhile(str.strip, (line for _, line in lines))) if has_result else []
    kind, argument, *names = words
    if kind == "statement":
        return Statement(number, argument, (names or [""])[0], "\n".join(sql), "\n".join(result))
    sort = names.pop(0) if names and names[0] in ("nosort", "rowsort", "valuesort") else ""
    connection = names.pop(0) if names and not sort else ""
    return Query(number, argument, sort, connection, (names or [""])[0], "\n".join(sql), result)
