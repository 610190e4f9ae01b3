"""What every encoder shares: how to drop what cannot be said without losing a row.

An encoder is asked for conditions that are true on *at least* the rows where the filter is true. Widening a part
widens the whole only where nothing negates it, so NOT is first pushed down until it stands on single conditions. That
is exact in three-valued logic, and leaves AND and OR alone above the conditions. Then

- AND drops the children that cannot be said,
- OR is dropped whole when one child cannot be said,
- a condition that cannot be said (`Unsaid`), negated or not, is dropped,

and nothing left means no filter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import takewhile
from typing import Final, Literal, TypeVar

from skiway.airport.filters.nodes import (
    Between,
    ColumnRef,
    Compare,
    Comparison,
    Conjunction,
    Constant,
    Filter,
    Function,
    Node,
    Operator,
)
from skiway.airport.filters.types import BOOLEAN

__all__ = ["Unsaid", "column_path", "encode", "literal_prefix", "match_parts", "positive", "regex", "sided"]

T = TypeVar("T")

_OPPOSITE: Final = {"IS NULL": "IS NOT NULL", "IS NOT NULL": "IS NULL", "IN": "NOT IN", "NOT IN": "IN"}
_DUAL: Final[dict[str, Literal["AND", "OR"]]] = {"AND": "OR", "OR": "AND"}

# DuckDB has functions of their own for negated matches.
_NEGATED_FUNCTIONS: Final = {"!~~": "~~", "!~~*": "~~*", "not_like_escape": "like_escape"}


class Unsaid(Exception):
    """The target language has no words for this part."""


def encode(
    filter: Filter,  # noqa: A002
    say: Callable[[Node], T],
    *,
    every: Callable[[Sequence[T]], T],
    some: Callable[[Sequence[T]], T],
    limit: int = sys.maxsize,
) -> T | None:
    """`filter` in another language, or None when nothing of it can be said.

    `say` speaks one condition, true on at least the rows where the condition is true, or raises `Unsaid`. `every` and
    `some` join what was said by AND and OR. After `limit` conditions nothing more is said.
    """
    left = limit

    def condition(node: Node) -> T | None:
        nonlocal left
        left -= 1
        try:
            return say(node) if left >= 0 else None
        except Unsaid:
            return None

    def widen(node: Node) -> T | None:
        match node:
            case Conjunction("AND", children):
                said = _known([widen(child) for child in children])
                return every(said) if said else None
            case Conjunction(_, children):
                said = _known([widen(child) for child in children])
                return some(said) if said and len(said) == len(children) else None
            case _:
                return condition(node)

    return widen(positive(Conjunction("AND", filter.predicates)))


def _known(said: Iterable[T | None]) -> list[T]:
    return [one for one in said if one is not None]


def positive(node: Node) -> Node:
    """`node` with every NOT pushed down to single conditions, and BETWEEN spelled as two comparisons."""
    match node:
        case Conjunction(op, children):
            return Conjunction(op, tuple([positive(child) for child in children]))
        case Operator("NOT", (child,)):
            return _negative(child)
        case Function(name, children, of, builtin) if name in _NEGATED_FUNCTIONS:
            return _not(Function(_NEGATED_FUNCTIONS[name], children, of, builtin))
        case Between():
            return Conjunction("AND", _bounds(node))
        case _:
            return node


def _negative(node: Node) -> Node:
    match node:
        case Conjunction(op, children):
            return Conjunction(_DUAL[op], tuple([_negative(child) for child in children]))
        case Operator("NOT", (child,)):
            return positive(child)
        case Operator(op, children, of) if op in _OPPOSITE:
            return Operator(_OPPOSITE[op], children, of)
        case Function(name, children, of, builtin) if name in _NEGATED_FUNCTIONS:
            return Function(_NEGATED_FUNCTIONS[name], children, of, builtin)
        case Comparison(op, left, right):
            return Comparison(op.negated, left, right)
        case Between():
            return _negative(Conjunction("AND", _bounds(node)))
        case Constant(bool() as value, of):
            return Constant(not value, of)
        case _:
            return _not(node)


def _not(node: Node) -> Node:
    return Operator("NOT", (node,), BOOLEAN)


def _bounds(node: Between) -> tuple[Node, Node]:
    low = Compare.GE if node.lower_inclusive else Compare.GT
    high = Compare.LE if node.upper_inclusive else Compare.LT
    return Comparison(low, node.input, node.lower), Comparison(high, node.input, node.upper)


def sided(node: Comparison) -> Comparison:
    """`node` with its constant, if it has one, on the right."""
    if isinstance(node.left, Constant) and not isinstance(node.right, Constant):
        return Comparison(node.op.flipped, node.right, node.left)
    return node


def column_path(node: Node) -> tuple[str, ...]:
    """The names from a column down to the field of a struct that `node` reads; else raises `Unsaid`."""
    match node:
        case ColumnRef(name):
            return (name,)
        case Function("struct_extract", (struct, Constant(str() as wanted)), _, True):
            return *column_path(struct), _field_name(struct, wanted)
        case _:
            raise Unsaid


def _field_name(struct: Node, wanted: str) -> str:
    # DuckDB finds fields in any case and sends the name as the user typed it.
    fields = struct.type.fields if isinstance(struct, ColumnRef | Function) else ()
    found = [name for name, _ in fields if name.lower() == wanted.lower()]
    if len(found) != 1:
        raise Unsaid
    return found[0]


# --------------------
# LIKE patterns taken apart.


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
