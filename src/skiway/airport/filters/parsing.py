"""Parses the JSON of a pushed-down filter.

Only the outer structure of the JSON must be valid. An expression that is new, malformed or incomplete becomes `Unknown`: the
client applies the filter again, so an unsupported part costs speed but never changes a result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

from skiway.airport.filters.constants import parse_constant, parse_type
from skiway.airport.filters.nodes import (
    Between,
    Case,
    Cast,
    ColumnRef,
    Compare,
    Comparison,
    Conjunction,
    Constant,
    Filter,
    Function,
    Node,
    Operator,
    Unknown,
)
from skiway.errors import InvalidArgument

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_NODES", "MAX_TOTAL_NODES", "parse"]

MAX_DEPTH: Final = 150
"""The maximum depth of expressions: more than anybody writes, and safe for all recursive translations."""

MAX_BYTES: Final = 4 * 1024 * 1024
MAX_NODES: Final = 10_000
"""Larger predicates are left to the client, which filters again. To parse and translate them would take longer than it saves."""
MAX_TOTAL_NODES: Final = 2 * MAX_NODES

_COMPARES: Final = {
    "COMPARE_EQUAL": Compare.EQ,
    "COMPARE_NOTEQUAL": Compare.NE,
    "COMPARE_LESSTHAN": Compare.LT,
    "COMPARE_LESSTHANOREQUALTO": Compare.LE,
    "COMPARE_GREATERTHAN": Compare.GT,
    "COMPARE_GREATERTHANOREQUALTO": Compare.GE,
    "COMPARE_DISTINCT_FROM": Compare.DISTINCT,
    "COMPARE_NOT_DISTINCT_FROM": Compare.NOT_DISTINCT,
}
_CONJUNCTIONS: Final[dict[str, Literal["AND", "OR"]]] = {"CONJUNCTION_AND": "AND", "CONJUNCTION_OR": "OR"}

# operator -> (name, minimum and maximum number of children)
_OPERATORS: Final = {
    "OPERATOR_NOT": ("NOT", 1, 1),
    "OPERATOR_IS_NULL": ("IS NULL", 1, 1),
    "OPERATOR_IS_NOT_NULL": ("IS NOT NULL", 1, 1),
    "COMPARE_IN": ("IN", 2, None),
    "COMPARE_NOT_IN": ("NOT IN", 2, None),
    "OPERATOR_COALESCE": ("COALESCE", 1, None),
    "OPERATOR_NULLIF": ("NULLIF", 2, 2),
    "OPERATOR_TRY": ("TRY", 1, 1),
}

# Errors that malformed expressions may raise.
_MALFORMED: Final = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)


def parse(text: str | bytes) -> Filter:
    """Parse a filter. It is empty if `text` is empty, has no predicates, or is larger than `MAX_BYTES`.

    Predicates with more than `MAX_NODES` nodes are left out, and all that follow `MAX_TOTAL_NODES`.
    Raises `InvalidArgument` if `text` is not the JSON of a filter, or is nested deeper than `MAX_DEPTH`.
    """
    if not text or len(text) > MAX_BYTES:
        return Filter()
    document = _decode(text)
    names = document.get("column_binding_names_by_index", [])
    predicates = document.get("filters")
    if not isinstance(predicates, list) or not all(isinstance(one, dict) for one in predicates):
        raise _malformed('"filters" is not a list of expressions')
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _malformed('"column_binding_names_by_index" is not a list of names')
    return Filter(tuple(_parsed(predicates, names)))


def _parsed(predicates: list[dict[str, Any]], names: list[str]) -> Iterator[Node]:
    left = MAX_TOTAL_NODES
    for one in predicates:
        reader = _Reader(names, most := min(left, MAX_NODES))
        try:
            yield reader.node(one, 1)
        except _TooLarge:
            pass
        except RecursionError:
            raise _too_deep() from None
        left -= most - max(reader.left, 0)
        if not left:
            return


def _decode(text: str | bytes) -> dict[str, Any]:
    try:
        # DuckDB sends unquoted NaN and Infinity, and integers of more than 64 bits, which msgspec rejects.
        document = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise _malformed(f"it is not JSON ({error})") from None
    if not isinstance(document, dict):
        raise _malformed(f"it is a JSON {type(document).__name__}, not an object")
    return document


def _malformed(found: str) -> InvalidArgument:
    return InvalidArgument(
        f"cannot parse the pushed-down filter: {found}; "
        'send {"filters": [...], "column_binding_names_by_index": [...]}, or nothing for no filter',
        key="filter.malformed",
    )


def _too_deep() -> InvalidArgument:
    return InvalidArgument(
        f"the pushed-down filter is nested deeper than {MAX_DEPTH} levels; simplify the predicate",
        key="filter.too_deep",
        limit=str(MAX_DEPTH),
    )


class _TooLarge(Exception):
    """A predicate has too many nodes."""


class _Reader:
    """Parses an expression of up to `left` nodes. `names` maps column numbers to names."""

    def __init__(self, names: list[str], left: int) -> None:
        self.names, self.left = names, left

    def node(self, raw: dict[str, Any], depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise _too_deep()
        self.left -= 1
        if self.left < 0:
            raise _TooLarge
        kind = raw.get("expression_class")
        try:
            return _READERS[kind](self, raw, depth + 1)  # type: ignore[index]  # a missing class is a KeyError
        except _MALFORMED:
            return Unknown(str(kind))

    def nodes(self, raw: list[dict[str, Any]], depth: int) -> tuple[Node, ...]:
        return tuple([self.node(child, depth) for child in raw])

    def comparison(self, raw: dict[str, Any], depth: int) -> Node:
        return Comparison(_COMPARES[raw["type"]], self.node(raw["left"], depth), self.node(raw["right"], depth))

    def conjunction(self, raw: dict[str, Any], depth: int) -> Node:
        return Conjunction(_CONJUNCTIONS[raw["type"]], self.nodes(raw["children"], depth))

    def operator(self, raw: dict[str, Any], depth: int) -> Node:
        name, fewest, most = _OPERATORS[raw["type"]]
        children = self.nodes(raw["children"], depth)
        if len(children) < fewest or (most is not None and len(children) > most):
            raise ValueError(f"{name} has {len(children)} children")
        return Operator(name, children, parse_type(raw["return_type"], depth))

    def between(self, raw: dict[str, Any], depth: int) -> Node:
        return Between(
            self.node(raw["input"], depth),
            self.node(raw["lower"], depth),
            self.node(raw["upper"], depth),
            lower_inclusive=_flag(raw["lower_inclusive"]),
            upper_inclusive=_flag(raw["upper_inclusive"]),
        )

    def function(self, raw: dict[str, Any], depth: int) -> Node:
        # Functions that the optimizer inserts have no catalog; DuckDB's other functions are in system.main.
        home = (raw["catalog_name"], raw["schema_name"])
        return Function(
            _text(raw["name"]),
            self.nodes(raw["children"], depth),
            parse_type(raw["return_type"], depth),
            builtin=home in (("", ""), ("system", "main")),
        )

    def cast(self, raw: dict[str, Any], depth: int) -> Node:
        child = self.node(raw["child"], depth)
        return Cast(child, parse_type(raw["return_type"], depth), try_cast=_flag(raw["try_cast"]))

    def case(self, raw: dict[str, Any], depth: int) -> Node:
        checks = [
            (self.node(check["when_expr"], depth), self.node(check["then_expr"], depth)) for check in raw["case_checks"]
        ]
        otherwise = self.node(raw["else_expr"], depth)
        return Case(tuple(checks), otherwise, parse_type(raw["return_type"], depth))

    def column(self, raw: dict[str, Any], depth: int) -> Node:
        index = raw["binding"]["column_index"]
        if raw.get("depth", 0) != 0 or index < 0:
            raise ValueError("not a column of the scanned table")
        return ColumnRef(_text(self.names[index]), parse_type(raw["return_type"], depth))

    def constant(self, raw: dict[str, Any], depth: int) -> Constant:
        return parse_constant(raw["value"], depth)


_READERS: Final[dict[str, Callable[[_Reader, dict[str, Any], int], Node]]] = {
    "BOUND_COMPARISON": _Reader.comparison,
    "BOUND_CONJUNCTION": _Reader.conjunction,
    "BOUND_OPERATOR": _Reader.operator,
    "BOUND_BETWEEN": _Reader.between,
    "BOUND_FUNCTION": _Reader.function,
    "BOUND_CAST": _Reader.cast,
    "BOUND_CASE": _Reader.case,
    "BOUND_COLUMN_REF": _Reader.column,
    "BOUND_CONSTANT": _Reader.constant,
}


def _flag(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise TypeError("not a flag")
    return raw


def _text(raw: str) -> str:
    raw.encode()  # raises for half a surrogate pair, which is not a valid string
    return raw
