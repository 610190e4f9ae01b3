"""Parses the JSON of a pushed-down filter.

Malformed input raises a plain Python error such as `KeyError` or `ValueError`, which the caller handles. Functions take the
current nesting depth and raise `RecursionError` if it is too large.

Only the outer structure of the JSON must be valid. An expression that is new, malformed or incomplete becomes `Unknown`: the
client applies the filter again, so an unsupported part costs speed but never changes a result.
"""

from __future__ import annotations

import json
import re
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from decimal import Decimal
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from skiway.airport.filters.nodes import (
    INTEGER_RANGES,
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
    Interval,
    LogicalType,
    Node,
    Operator,
    Unknown,
    Value,
    plain,
)
from skiway.errors import InvalidArgument

_MAX_DEPTH: Final = 200  # of types and values, including the depth of the expression
_MAX_DIGITS: Final = 38  # of a DECIMAL
_TYPES_WITH_PARAMETERS: Final = ("DECIMAL", "LIST", "ARRAY")
_INT32: Final = INTEGER_RANGES["INTEGER"]
_INT64: Final = INTEGER_RANGES["BIGINT"]
_UINT64: Final = INTEGER_RANGES["UBIGINT"]


def parse_type(raw: dict[str, Any], depth: int = 0) -> LogicalType:
    """Parse a type."""
    if depth > _MAX_DEPTH:
        raise RecursionError
    info = raw["type_info"]
    if info is None and raw["id"] not in _TYPES_WITH_PARAMETERS:
        return plain(_name(raw["id"]))
    width, scale = _size(info.get("width", 0)), _size(info.get("scale", 0))
    if raw["id"] == "DECIMAL" and not (1 <= width <= _MAX_DIGITS and scale <= width):
        raise ValueError("not a DECIMAL")  # its values would be written with as many digits as its scale
    return LogicalType(
        _name(raw["id"]),
        alias=_name(info["alias"]),
        width=width,
        scale=scale,
        fields=_fields(raw["id"], info, depth + 1),
        size=_size(info.get("size", 0)),
        members=tuple([_name(member) for member in info.get("values", ())]),
        collation=_name(info.get("collation", "")),
    )


def _fields(type_id: str, info: dict[str, Any], depth: int) -> tuple[tuple[str, LogicalType], ...]:
    if type_id in ("LIST", "ARRAY"):
        return (("", parse_type(info["child_type"], depth)),)
    if "child_types" in info:
        return tuple([(_name(child["first"]), parse_type(child["second"], depth)) for child in info["child_types"]])
    if "child_type" in info:
        child = parse_type(info["child_type"], depth)
        return child.fields if type_id == "MAP" else (("", child),)
    return ()


def _name(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError("not a name")
    raw.encode()  # raises for half a surrogate pair, which is not a valid string
    return raw


def _size(raw: Any) -> int:
    if type(raw) is not int or raw < 0:
        raise TypeError("not a size")
    return raw


def parse_constant(raw: dict[str, Any], depth: int = 0) -> Constant:
    """Parse a constant with its type."""
    of = parse_type(raw["type"], depth)
    if raw["is_null"] is True:
        return Constant(None, of)
    return Constant(_value(raw["value"], of, depth), of)


def _value(raw: Any, of: LogicalType, depth: int) -> Value:
    if of.id in ("LIST", "ARRAY", "STRUCT", "MAP"):
        return _nested(raw["children"], of, depth + 1)
    return _VALUES[of.id](raw, of)


def _nested(raw: list[dict[str, Any]], of: LogicalType, depth: int) -> Value:
    children = [parse_constant(child, depth) for child in raw]
    match of.id:
        case "STRUCT":
            expected = [part for _, part in of.fields]
        case "MAP":
            expected = [LogicalType("STRUCT", fields=of.fields)] * len(children)
        case "ARRAY" if of.size != len(children):
            raise ValueError("not as many elements as the type has")
        case _:
            expected = [of.element] * len(children)
    if [child.type for child in children] != expected:
        raise ValueError("the children do not match the type")
    return tuple([child.value for child in children])


def _integer(low: int, high: int) -> Callable[[Any, LogicalType], int]:
    def read(raw: Any, _of: LogicalType) -> int:
        if type(raw) is not int or not low <= raw <= high:
            raise ValueError("not an integer of this type")
        return raw

    return read


def _integer128(signed: bool) -> Callable[[Any, LogicalType], int]:
    upper = _integer(*(_INT64 if signed else _UINT64))
    lower = _integer(*_UINT64)

    def read(raw: Any, of: LogicalType) -> int:
        return (upper(raw["upper"], of) << 64) + lower(raw["lower"], of)

    return read


_int64 = _integer(*_INT64)
_int128 = _integer128(signed=True)


def _boolean(raw: Any, _of: LogicalType) -> bool:
    if not isinstance(raw, bool):
        raise TypeError("not a BOOLEAN")
    return raw


def _float(raw: Any, _of: LogicalType) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise TypeError("not a number")
    return float(raw)


def _decimal(raw: Any, of: LogicalType) -> Decimal:
    unscaled = _int128(raw, of) if of.width > 18 else _int64(raw, of)
    # Built from digits, because arithmetic would round to the precision of the context.
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -of.scale))


def _uuid(raw: Any, of: LogicalType) -> UUID:
    flipped = _int128(raw, of) & ((1 << 128) - 1)
    return UUID(int=flipped ^ (1 << 127))  # DuckDB flips the top bit so that UUIDs sort like signed integers


def _interval(raw: Any, of: LogicalType) -> Interval:
    int32 = _integer(*_INT32)
    return Interval(int32(raw["months"], of), int32(raw["days"], of), _int64(raw["micros"], of))


def _text(raw: Any, _of: LogicalType) -> str:
    return _name(raw)


_BLOB: Final = re.compile(r"(?:[\x20-\x5b\x5d-\x7e]|\\x[0-9A-Fa-f]{2})*")


def _blob(raw: Any, _of: LogicalType) -> bytes:
    if not _BLOB.fullmatch(raw):
        raise ValueError("not an escaped BLOB")
    return str(raw).encode("ascii").decode("unicode_escape").encode("latin-1")


def _internal(raw: Any) -> bytes:
    """The internal bytes of a value: sent as a string if they are valid UTF-8, otherwise in base64."""
    return raw.encode() if isinstance(raw, str) else b64decode(raw["base64"], validate=True)


def _bit(raw: Any, _of: LogicalType) -> str:
    padding, *octets = _internal(raw)
    if padding > 7 or not octets:
        raise ValueError("not a BIT")
    return "".join(f"{octet:08b}" for octet in octets)[padding:]


def _bignum(raw: Any, _of: LogicalType) -> int:
    data = _internal(raw)
    negative = data[0] < 0x80
    if negative:
        data = bytes(byte ^ 0xFF for byte in data)
    magnitude = data[3:]
    if not magnitude or int.from_bytes(data[:3]) != 0x800000 + len(magnitude):
        raise ValueError("not a BIGNUM")
    return -int.from_bytes(magnitude) if negative else int.from_bytes(magnitude)


def _member(raw: Any, of: LogicalType) -> str:
    return of.members[_integer(0, len(of.members) - 1)(raw, of)]


_VALUES: Final[dict[str, Callable[[Any, LogicalType], Value]]] = {
    **{name: _integer(*INTEGER_RANGES[name]) for name in INTEGER_RANGES if "HUGE" not in name},
    "HUGEINT": _int128,
    "UHUGEINT": _integer128(signed=False),
    "BOOLEAN": _boolean,
    "FLOAT": _float,
    "DOUBLE": _float,
    "DECIMAL": _decimal,
    "UUID": _uuid,
    "DATE": _integer(*_INT32),
    "TIME": _int64,
    "TIME_NS": _int64,
    "TIME WITH TIME ZONE": _integer(*_UINT64),
    "TIMESTAMP": _int64,
    "TIMESTAMP_S": _int64,
    "TIMESTAMP_MS": _int64,
    "TIMESTAMP_NS": _int64,
    "TIMESTAMP WITH TIME ZONE": _int64,
    "INTERVAL": _interval,
    "VARCHAR": _text,
    "BLOB": _blob,
    "BIT": _bit,
    "BIGNUM": _bignum,
    "ENUM": _member,
}


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


FEW: Final = 8
LARGE: Final = 64 * 1024
"""Python computes on one thread at a time. So that short calls do not wait for large filters, these are parsed one at a time and
in pieces of this size, which take 0.3 ms, with pauses."""
_PAUSE_S: Final = 0.0002
_PIECE: Final = 1000  # nodes
_one_at_a_time: Final = threading.Lock()


def parse(text: str | bytes) -> Filter:
    """Parse a filter. It is empty if `text` is empty, has no predicates, or is larger than `MAX_BYTES`.

    Predicates with more than `MAX_NODES` nodes are left out, all that follow `MAX_TOTAL_NODES`, and large filters with NaN.
    Raises `InvalidArgument` if `text` is not the JSON of a filter, or is nested deeper than `MAX_DEPTH`.
    """
    if not text or len(text) > MAX_BYTES:
        return Filter()
    with _one_at_a_time if len(text) > LARGE else nullcontext():
        return _parse(text)


def _parse(text: str | bytes) -> Filter:
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
        document = _document(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise _malformed(f"it is not JSON ({error})") from None
    if not isinstance(document, dict):
        raise _malformed(f"it is a JSON {type(document).__name__}, not an object")
    return document


def _document(text: str | bytes) -> Any:
    try:
        return _decode_pieces(text, 0)
    except (msgspec.MsgspecError, UnicodeError):  # such as NaN and Infinity, which DuckDB does not quote
        return json.loads(text) if len(text) <= LARGE else {"filters": []}


_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_LEVELS: Final = 6  # that are decoded in pieces: those of the predicates, and of their children


def _decode_pieces(text: str | bytes | memoryview, level: int) -> Any:
    """Decode JSON, with a pause after each piece of `LARGE` bytes. msgspec takes half the time of Python's module."""
    if len(text) <= LARGE or level == _LEVELS:
        return msgspec.json.decode(text)
    if text[0] in ("{", ord("{")):
        return {key: _decode_pieces(memoryview(part), level + 1) for key, part in _OBJECT.decode(text).items()}
    parts = _ARRAY.decode(text)
    size = len(parts) * LARGE // len(text) or 1
    decoded: list[Any] = []
    for start in range(0, len(parts), size):
        piece = parts[start : start + size]
        decoded += (
            msgspec.json.decode(b"[%b]" % b",".join(piece))
            if size > 1
            else [_decode_pieces(memoryview(piece[0]), level + 1)]
        )
        time.sleep(_PAUSE_S)
    return decoded


def _malformed(problem: str) -> InvalidArgument:
    return InvalidArgument(
        f"cannot parse the pushed-down filter: {problem}; "
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
        if len(raw) > self.left:
            self.left = -1
            raise _TooLarge
        if len(raw) > FEW:
            before = self.left
            first, literals = self.node(raw[0], depth), self._literals(raw[1:], depth + 1)
            if literals is not None:
                return (first, *literals)
            self.left = before
        return tuple([self.node(child, depth) for child in raw])

    def _literals(self, raw: list[dict[str, Any]], depth: int) -> list[Constant] | None:
        """Literals of one type, as in the list of an IN; None for anything else. This takes a fifth of the time of `node`."""
        try:
            kind = raw[0]["value"]["type"]
            of = parse_type(kind, depth)
            read = _VALUES[of.id]
            found = []
            for start in range(0, len(raw), _PIECE):
                found += [
                    Constant(read(value["value"], of), of)
                    for child in raw[start : start + _PIECE]
                    if child["expression_class"] == "BOUND_CONSTANT"
                    and (value := child["value"])["type"] == kind
                    and value["is_null"] is not True
                ]
                if start:
                    time.sleep(_PAUSE_S)
        except _MALFORMED:
            return None
        if len(found) < len(raw):
            return None
        self.left -= len(raw)
        return found

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
            _valid_text(raw["name"]),
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
        return ColumnRef(_valid_text(self.names[index]), parse_type(raw["return_type"], depth))

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


def _valid_text(raw: str) -> str:
    raw.encode()  # raises for half a surrogate pair, which is not a valid string
    return raw
