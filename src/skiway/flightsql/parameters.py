"""The types in which a client should send the values of parameters.

Drivers convert a value to the type that the server names, and some convert carelessly: that for JDBC writes milliseconds into
microseconds, cuts numbers that are too long, and takes a decimal only with the scale of its type. So each type here is one that can
hold whatever the usual calls of JDBC set. The server then casts the value to the type that the query expects.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

_EXACT_DIGITS: Final = 15
"""The largest number of digits of decimals that a float keeps."""

_SENT: Final = {
    "BOOLEAN": pa.bool_(),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"), pa.int64()),
    "UBIGINT": pa.decimal128(20, 0),
    "HUGEINT": pa.decimal128(38, 0),
    "UHUGEINT": pa.decimal128(38, 0),
    "FLOAT": pa.float64(),
    "DOUBLE": pa.float64(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    **dict.fromkeys(("TIME", "TIME_NS"), pa.time32("ms")),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"), pa.timestamp("ms")),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("ms", "UTC"),
}
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")


class Parameter(NamedTuple):
    """A parameter: its name, and DuckDB's name of the type that the query expects; empty if it expects none."""

    name: str
    type: str

    @property
    def sent(self) -> pa.DataType:
        """The type in which a client should send a value. Types that drivers cannot send are text, and so are unknown ones."""
        return _sent(self.type)


def _sent(kind: str) -> pa.DataType:
    if decimal := _DECIMAL.fullmatch(kind):
        digits, scale = int(decimal[1]), int(decimal[2])
        return pa.float64() if digits <= _EXACT_DIGITS else pa.decimal128(digits, scale)
    if kind.endswith("[]") and not kind.endswith("][]"):
        item = kind.removesuffix("[]")
        return pa.list_(_sent(item)) if item in _SENT or item == "VARCHAR" or _DECIMAL.fullmatch(item) else pa.string()
    return _SENT.get(kind, pa.string())


def parameter_schema(parameters: Sequence[Parameter]) -> pa.Schema:
    """What a client should send."""
    return pa.schema([(each.name, each.sent) for each in parameters])


def casts(parameters: Sequence[Parameter], sent: pa.Schema) -> list[str]:
    """The types to which the server casts the values; empty for a value that was not sent in the type that the server asked for."""
    by_name = len(set(sent.names)) == len(parameters) and set(sent.names) == {each.name for each in parameters}
    if len(sent) != len(parameters):
        return []
    fields = [sent.field(each.name if by_name else number) for number, each in enumerate(parameters)]
    return [
        each.type if _is_like(field.type, each.sent) else "" for field, each in zip(fields, parameters, strict=True)
    ]


def _is_like(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether types are the same, apart from the names of fields in them."""
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return _is_like(found.value_type, wanted.value_type)
    return bool(found == wanted)
