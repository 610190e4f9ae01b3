"""Parses the types and constants in the JSON of a filter.

Malformed input raises a plain Python error such as `KeyError` or `ValueError`, which the caller handles. Functions take the
current nesting depth and raise `RecursionError` if it is too large.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from skiway.airport.filters.nodes import Constant, Interval, Value
from skiway.airport.filters.types import INTEGER_RANGES, LogicalType, plain

__all__ = ["parse_constant", "parse_type"]

_MAX_DEPTH: Final = 200  # of types and values, including the depth of the expression
_MAX_DIGITS: Final = 38  # of a DECIMAL
_INT32: Final = INTEGER_RANGES["INTEGER"]
_INT64: Final = INTEGER_RANGES["BIGINT"]
_UINT64: Final = INTEGER_RANGES["UBIGINT"]


def parse_type(raw: dict[str, Any], depth: int = 0) -> LogicalType:
    """Parse a type."""
    if depth > _MAX_DEPTH:
        raise RecursionError
    info = raw["type_info"]
    if info is None and raw["id"] != "DECIMAL":
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
