"""Columns of PostgreSQL and their values, which arrive as text, in Arrow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import PreconditionFailed

SETTINGS: Final = {
    "DateStyle": "ISO, MDY",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "IntervalStyle": "postgres",
}
"""Settings of a session in which values have the texts that are read here."""

_PLAIN: Final[dict[str, pa.DataType]] = {
    "int2": pa.int32(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "bytea": pa.binary(),
}
_MOST_DIGITS: Final = 38
_DEFAULT_SCALE: Final = 18
_DATE: Final = r"^[0-9]{4}-[^B]*$"
"""What is not a date between the years 1 and 9999, such as infinity, becomes NULL."""
_NUMBER: Final = re.compile(r"^-?[0-9.]+$").pattern


@dataclass(frozen=True, slots=True)
class LogColumn:
    """A column: its name, and the name and the modifier of its type. The columns of the key of a table are in its `key`."""

    name: str
    type_name: str
    modifier: int
    is_identity: bool = False

    @property
    def field(self) -> pa.Field:
        """The column in Arrow, in the types of copies over JDBC; arrays and all other types are text."""
        if self.type_name == "numeric":
            precision, scale = (self.modifier - 4) >> 16, (self.modifier - 4) & 0x7FF
            if self.modifier < 4:
                precision, scale = _MOST_DIGITS, _DEFAULT_SCALE
            if scale > precision or precision > _MOST_DIGITS:  # also a negative scale
                return pa.field(self.name, pa.string())
            return pa.field(self.name, pa.decimal128(precision, scale))
        return pa.field(self.name, _PLAIN.get(self.type_name, pa.string()))

    def values(self, texts: pa.Array) -> pa.Array:
        """The values of texts. Raise `PreconditionFailed` for one that the type does not have."""
        of = self.field.type
        try:
            if pa.types.is_string(of):
                return texts.cast(of)
            if pa.types.is_boolean(of):
                return pc.equal(texts, "t")
            if pa.types.is_binary(of):
                return pa.array([None if text is None else bytes.fromhex(text[2:]) for text in texts.to_pylist()], of)
            if pa.types.is_temporal(of) or pa.types.is_decimal(of):
                known = pc.match_substring_regex(texts, _DATE if pa.types.is_temporal(of) else _NUMBER)
                texts = pc.if_else(known, texts, None)
            return texts.cast(of)
        except (pa.ArrowInvalid, ValueError) as error:
            raise PreconditionFailed(
                f"column {self.name!r} has values that do not fit into {of}: give it a precision and a scale in PostgreSQL "
                "that fit, or leave it out of the publication",
                key="ingest.log.value",
                column=self.name,
                detail=str(error),
            ) from error


def schema_of(columns: Sequence[LogColumn]) -> pa.Schema:
    """The columns in Arrow."""
    return pa.schema([column.field for column in columns])


def batch_of(columns: Sequence[LogColumn], texts: Sequence[pa.Array]) -> pa.RecordBatch:
    """Rows from the texts of each column."""
    arrays = [column.values(each) for column, each in zip(columns, texts, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))
