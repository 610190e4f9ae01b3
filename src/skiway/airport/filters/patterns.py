"""LIKE patterns taken apart."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import takewhile

from skiway.airport.filters.logic import Unsaid
from skiway.airport.filters.nodes import Constant, Function, Node

__all__ = ["literal_prefix", "match_parts", "regex"]


class _Wild(Enum):
    ANY = "%"
    ONE = "_"


def match_parts(node: Function) -> tuple[Node, str, str]:
    """Text, pattern and escape character of a LIKE; raises `Unsaid` unless pattern and escape are constants."""
    match node:
        case Function("~~", (text, Constant(str() as pattern)), _, True):
            return text, pattern, ""
        case Function("like_escape", (text, Constant(str() as pattern), Constant(str() as escape)), _, True):
            return text, pattern, escape
        case _:
            raise Unsaid


def _tokens(pattern: str, escape: str) -> Iterator[str | _Wild]:
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise Unsaid  # DuckDB refuses such a pattern
            yield escaped
        elif character in "%_":
            yield _Wild(character)
        else:
            yield character


def literal_prefix(pattern: str, escape: str) -> str:
    """What every match begins with."""
    return "".join(takewhile(lambda token: isinstance(token, str), _tokens(pattern, escape)))  # type: ignore[arg-type]


def regex(pattern: str, escape: str) -> str:
    """The regular expression, in RE2's syntax, that matches what the pattern matches."""
    return rf"(?s)\A{''.join(_as_regex(token) for token in _tokens(pattern, escape))}\z"


def _as_regex(token: str | _Wild) -> str:
    match token:
        case _Wild.ANY:
            return ".*"
        case _Wild.ONE:
            return "."
        case _:
            return f"\\x{{{ord(token):X}}}"
