"""Shared by all translations of filters: leave out what the target language cannot express, without losing a row.

A translation must be true for *at least* the rows for which the filter is true. Widening a part of an expression widens the
whole only if the part is not negated. NOT is therefore first pushed down to single conditions, which is exact in
three-valued logic and leaves only AND and OR above the conditions. Then:

- AND leaves out the children that cannot be expressed,
- OR is left out if one child cannot be expressed,
- a condition that cannot be expressed (`Inexpressible`), negated or not, is left out,

and if nothing is left, there is no filter.
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

__all__ = [
    "AnyPart",
    "Inexpressible",
    "column_path",
    "constant_right",
    "like_parts",
    "like_regex",
    "like_tokens",
    "literal_prefix",
    "push_down_not",
    "translate",
]

T = TypeVar("T")

_OPPOSITE: Final = {"IS NULL": "IS NOT NULL", "IS NOT NULL": "IS NULL", "IN": "NOT IN", "NOT IN": "IN"}
_DUAL: Final[dict[str, Literal["AND", "OR"]]] = {"AND": "OR", "OR": "AND"}

# DuckDB has separate functions for negated matches.
_NEGATED_FUNCTIONS: Final = {"!~~": "~~", "!~~*": "~~*", "not_like_escape": "like_escape"}


class Inexpressible(Exception):
    """The target language cannot express this part of the filter."""


def translate(
    filter: Filter,  # noqa: A002
    condition: Callable[[Node], T],
    *,
    all_of: Callable[[Sequence[T]], T],
    any_of: Callable[[Sequence[T]], T],
    limit: int = sys.maxsize,
) -> T | None:
    """Translate `filter` to another language; None if no part of it can be expressed.

    `condition` translates a single condition to one that is true for at least the same rows, or raises `Inexpressible`.
    `all_of` and `any_of` combine conditions with AND and OR. Conditions beyond `limit` are left out.
    """
    remaining = limit

    def translate_condition(node: Node) -> T | None:
        nonlocal remaining
        remaining -= 1
        try:
            return condition(node) if remaining >= 0 else None
        except Inexpressible:
            return None

    def widen(node: Node) -> T | None:
        match node:
            case Conjunction("AND", children):
                parts = _expressible([widen(child) for child in children])
                return all_of(parts) if parts else None
            case Conjunction(_, children):
                parts = _expressible([widen(child) for child in children])
                return any_of(parts) if parts and len(parts) == len(children) else None
            case _:
                return translate_condition(node)

    return widen(push_down_not(Conjunction("AND", filter.predicates)))


def _expressible(parts: Iterable[T | None]) -> list[T]:
    return [part for part in parts if part is not None]


def push_down_not(node: Node) -> Node:
    """Push every NOT down to single conditions, and replace BETWEEN by two comparisons."""
    match node:
        case Conjunction(op, children):
            return Conjunction(op, tuple([push_down_not(child) for child in children]))
        case Operator("NOT", (child,)):
            return _negate(child)
        case Function(name, children, of, builtin) if name in _NEGATED_FUNCTIONS:
            return _not(Function(_NEGATED_FUNCTIONS[name], children, of, builtin))
        case Between():
            return Conjunction("AND", _bounds(node))
        case _:
            return node


def _negate(node: Node) -> Node:
    match node:
        case Conjunction(op, children):
            return Conjunction(_DUAL[op], tuple([_negate(child) for child in children]))
        case Operator("NOT", (child,)):
            return push_down_not(child)
        case Operator(op, children, of) if op in _OPPOSITE:
            return Operator(_OPPOSITE[op], children, of)
        case Function(name, children, of, builtin) if name in _NEGATED_FUNCTIONS:
            return Function(_NEGATED_FUNCTIONS[name], children, of, builtin)
        case Comparison(op, left, right):
            return Comparison(op.negated, left, right)
        case Between():
            return _negate(Conjunction("AND", _bounds(node)))
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


def constant_right(node: Comparison) -> Comparison:
    """Swap the sides of a comparison if only the left side is a constant."""
    if isinstance(node.left, Constant) and not isinstance(node.right, Constant):
        return Comparison(node.op.flipped, node.right, node.left)
    return node


def column_path(node: Node) -> tuple[str, ...]:
    """The path of the column or struct field that `node` reads; `Inexpressible` for other nodes."""
    match node:
        case ColumnRef(name):
            return (name,)
        case Function("struct_extract", (struct, Constant(str() as wanted)), _, True):
            return *column_path(struct), _field_name(struct, wanted)
        case _:
            raise Inexpressible


def _field_name(struct: Node, wanted: str) -> str:
    # Field names are case-insensitive in DuckDB, which sends the name as the user typed it.
    fields = struct.type.fields if isinstance(struct, ColumnRef | Function) else ()
    found = [name for name, _ in fields if name.lower() == wanted.lower()]
    if len(found) != 1:
        raise Inexpressible
    return found[0]


# -- LIKE patterns ----------------------------------------------------------------------------------------------------


class AnyPart(Enum):
    """A part of a pattern that matches any text, or any character."""

    ANY = "%"
    ONE = "_"


def like_parts(node: Function) -> tuple[Node, str, str]:
    """The text, pattern and escape character of a LIKE; `Inexpressible` unless pattern and escape are constants."""
    match node:
        case Function("~~", (text, Constant(str() as pattern)), _, True):
            return text, pattern, ""
        case Function("like_escape", (text, Constant(str() as pattern), Constant(str() as escape)), _, True):
            return text, pattern, escape
        case _:
            raise Inexpressible


def like_tokens(pattern: str, escape: str) -> Iterator[str | AnyPart]:
    """The characters and the variable parts of a pattern."""
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise Inexpressible  # DuckDB rejects such a pattern
            yield escaped
        elif character in "%_":
            yield AnyPart(character)
        else:
            yield character


def literal_prefix(pattern: str, escape: str) -> str:
    """The literal prefix of every string that matches the pattern."""
    return "".join(takewhile(lambda token: isinstance(token, str), like_tokens(pattern, escape)))  # type: ignore[arg-type]


def like_regex(pattern: str, escape: str) -> str:
    """The regular expression for a LIKE pattern, in the syntax of RE2."""
    return rf"(?s)\A{''.join(_as_regex(token) for token in like_tokens(pattern, escape))}\z"


def _as_regex(token: str | AnyPart) -> str:
    match token:
        case AnyPart.ANY:
            return ".*"
        case AnyPart.ONE:
            return "."
        case _:
            return f"\\x{{{ord(token):X}}}"
