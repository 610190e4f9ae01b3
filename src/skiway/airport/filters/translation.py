"""What all translations of filters share.

They leave out what the target language cannot express, without losing a row. Only functions in the lists here are evaluated by
servers. They return the same result for the same arguments in any session: none is volatile, depends on the clock (`age` with
one argument) or on the session's time zone, or differs between versions (`hash`).

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
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from itertools import takewhile
from typing import Final, Literal, TypeVar

from skiway.airport.filters.nodes import (
    BOOLEAN,
    INTEGER_RANGES,
    Between,
    Cast,
    ColumnRef,
    Compare,
    Comparison,
    Conjunction,
    Constant,
    Filter,
    Function,
    LogicalType,
    Node,
    Operator,
    type_of,
    walk,
)

MICROS_PER_SECOND: Final = 10**6

_EPOCH: Final = date(1970, 1, 1)
_FIRST_DAY: Final = (date.min - _EPOCH).days
_LAST_DAY: Final = (date.max - _EPOCH).days


def date_text(days: int) -> str | None:
    """The date so many days after 1970-01-01; None outside of the years 1 to 9999."""
    return str(_EPOCH + timedelta(days=days)) if _FIRST_DAY <= days <= _LAST_DAY else None


def timestamp_text(micros: int) -> str | None:
    """The date and time so many microseconds after 1970-01-01; None outside of the years 1 to 9999."""
    days, rest = divmod(micros, 86400 * MICROS_PER_SECOND)
    if not _FIRST_DAY <= days <= _LAST_DAY:
        return None
    moment = datetime.fromtimestamp(0, UTC) + timedelta(days=days, microseconds=rest)
    return str(moment.replace(tzinfo=None))


def time_text(count: int, per_second: int = MICROS_PER_SECOND) -> str:
    """The time of day after `count` parts of a second."""
    seconds, fraction = divmod(count, per_second)
    digits = len(str(per_second)) - 1
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:0{digits}d}"


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
    matching = [name for name, _ in fields if name.lower() == wanted.lower()]
    if len(matching) != 1:
        raise Inexpressible
    return matching[0]


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


# fmt: off
# Functions that have a result for all arguments.
_TOTAL: Final = frozenset({
    "~~", "~~*", "prefix", "suffix", "contains", "starts_with", "ends_with",
    "lower", "upper", "trim", "ltrim", "rtrim", "reverse", "concat", "||", "length", "len", "strlen", "octet_length", "bit_length",
    "isnan", "isinf", "isfinite", "sign", "greatest", "least", "&", "|", "xor",
    "year", "quarter", "month", "week", "day", "dayofweek", "isodow", "dayofyear", "decade", "century",
    "hour", "minute", "second", "millisecond", "microsecond", "timetz_byte_comparable",
    "list_contains", "array_extract", "list_extract", "struct_extract", "map_extract_value", "map_contains",
})

# Functions that may raise, for instance because of an overflow.
_PARTIAL: Final = frozenset({
    "+", "-", "*", "/", "//", "%", "<<", ">>", "abs", "round", "floor", "ceil", "trunc",
    "substring", "substr", "left", "right", "like_escape", "regexp_matches", "regexp_full_match",
    "date_trunc", "date_part", "date_diff", "datediff", "age", "normalized_interval",
})
# fmt: on

_REPEATABLE: Final = _TOTAL | _PARTIAL

OPERATORS: Final = frozenset({"~~", "~~*", "||", "&", "|", "+", "-", "*", "/", "//", "%", "<<", ">>"})

_DIVISIONS: Final = frozenset({"/", "//", "%"})


def is_repeatable_function(node: Function) -> bool:
    """Whether the call has the same result on the server as on the client, and raises only if it raises there."""
    if not node.builtin or node.name not in _REPEATABLE or not node.children:
        return False
    if node.name in _DIVISIONS:
        return _divides_by_nonzero_constant(node)
    if node.name == "age":
        return len(node.children) == 2 and not _is_zoned(node)
    return node.name == "timetz_byte_comparable" or not _is_zoned(node)


def _divides_by_nonzero_constant(node: Function) -> bool:
    # The result of a division by zero, NULL or infinity, depends on a setting of the client's session.
    match node.children:
        case (_, Constant(value)):
            return bool(value)
        case _:
            return False


def _is_zoned(node: Function) -> bool:
    types = [type_of(child) for child in node.children]
    return node.type.is_zoned or any(of is None or of.is_zoned for of in types)


def is_repeatable_cast(node: Cast) -> bool:
    """Whether the cast has the same result on the server as on the client."""
    source = type_of(node.child)
    if source is None or isinstance(node.child, Constant):
        return False  # DuckDB evaluates casts of constants, unless they fail
    return not source.alias and not source.is_zoned and not node.type.is_zoned


def may_raise(node: Node) -> bool:
    """Whether evaluating `node` may raise for some row."""
    return any(_may_raise_itself(part) for part in walk(node))


def _may_raise_itself(node: Node) -> bool:
    match node:
        case Function(name):
            return name in _PARTIAL
        case Cast(child, target, try_cast):
            return not try_cast and not _always_fits(type_of(child), target)
        case _:
            return False


def _always_fits(source: LogicalType | None, target: LogicalType) -> bool:
    if source is None:
        return False
    if source.id in INTEGER_RANGES and target.id in INTEGER_RANGES:
        low, high = INTEGER_RANGES[source.id]
        least, most = INTEGER_RANGES[target.id]
        return least <= low and high <= most
    if target.id in ("FLOAT", "DOUBLE"):
        return source.id in INTEGER_RANGES
    if target.id == "DECIMAL":
        return (
            source.id == "DECIMAL" and _whole_digits(source) <= _whole_digits(target) and source.scale <= target.scale
        )
    if target.id == "LIST":
        return source.id == "ARRAY" and source.element == target.element
    return target.id == "VARCHAR" and not source.fields


def _whole_digits(of: LogicalType) -> int:
    return of.width - of.scale
