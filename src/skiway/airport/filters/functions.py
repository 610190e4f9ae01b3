"""The DuckDB functions that a server may evaluate instead of the client.

Only functions in these lists are evaluated. They return the same result for the same arguments in any session: none is
volatile, depends on the clock (`age` with one argument) or on the session's time zone, or differs between versions (`hash`).
"""

from __future__ import annotations

from typing import Final

from skiway.airport.filters.nodes import Cast, Constant, Function, Node, type_of, walk
from skiway.airport.filters.types import INTEGER_RANGES, LogicalType

__all__ = ["OPERATORS", "is_repeatable_cast", "is_repeatable_function", "may_raise"]

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
