"""Bounds as typed arrays: what is kept as text, made comparable for all files at once.

Where text cannot be read as the type it is said to be of, there is no bound, and nothing is concluded.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.metastore.bounds import LogicalType, bound, logical_type

__all__ = ["Ordered", "ordered"]

_DIGITS: Final = pa.decimal256(76, 38)


class Ordered:
    """A type whose values have an order: how its texts become values."""

    def __init__(self, kind: LogicalType) -> None:
        self._kind = kind

    @property
    def has_nan(self) -> bool:
        """Whether there may be values that no bound tells of."""
        return self._kind.name in ("FLOAT", "DOUBLE")

    def values(self, texts: pa.Array) -> pa.Array:
        """The values of canonical texts."""
        return _READERS[self._kind.name](texts)

    def literals(self, texts: Sequence[str]) -> list[pa.Scalar] | None:
        """The values that texts of a caller stand for; None if one of them is none of this type, or not a number."""
        try:
            # Without the column's precision: a finer literal must not be moved to where the column has a value.
            found = [bound(LogicalType(self._kind.name), text) for text in texts]
        except (ValueError, OverflowError):
            return None
        if any(each.value is None for each in found):
            return None
        values = self.values(pa.array([each.text for each in found], pa.string()))
        return None if values.null_count else list(values)

    def around(self, value: pa.Scalar) -> list[pa.Scalar]:
        """All that an engine may make of a literal when it compares it with the column.

        A column of floats is compared by some with the nearest float, by others with the number as it was written.
        """
        if self._kind.name != "FLOAT":
            return [value]
        return [value, value.cast(pa.float32(), safe=False).cast(pa.float64())]


def ordered(text: str) -> Ordered | None:
    """The type of this name, if its values have an order."""
    try:
        kind = logical_type(text)
    except ValueError:
        return None
    return Ordered(kind) if kind.ordered else None


def _cast(of: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """All at once; where one text is out of the ordinary, one by one."""

    def read(texts: pa.Array) -> pa.Array:
        try:
            return texts.cast(of)
        except pa.ArrowInvalid:
            return pa.concat_arrays([_one(texts[place : place + 1], of) for place in range(len(texts))])

    return read


def _one(text: pa.Array, of: pa.DataType) -> pa.Array:
    try:
        return text.cast(of)
    except pa.ArrowInvalid:
        return pa.nulls(1, of)


def _floats(texts: pa.Array) -> pa.Array:
    values = _cast(pa.float64())(pc.replace_substring(texts, "Infinity", "inf"))
    return pc.if_else(pc.fill_null(pc.is_nan(values), False), pa.scalar(None, pa.float64()), values)


def _booleans(texts: pa.Array) -> pa.Array:
    return _cast(pa.bool_())(texts).cast(pa.int8())  # which have an order


def _times(texts: pa.Array) -> pa.Array:
    return _cast(pa.timestamp("us"))(pc.binary_join_element_wise("1970-01-01T", texts, ""))


def _bytes(texts: pa.Array) -> pa.Array:
    return pa.array([None if text is None else _decoded(text) for text in texts.to_pylist()], pa.binary())


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None


_READERS: Final[dict[str, Callable[[pa.Array], pa.Array]]] = {
    "BOOLEAN": _booleans,
    "INT": _cast(pa.decimal128(38, 0)),
    "FLOAT": _floats,
    "DOUBLE": _floats,
    "DECIMAL": _cast(_DIGITS),
    "DATE": _cast(pa.date32()),
    "TIME": _times,
    "TIMESTAMP": _cast(pa.timestamp("us")),
    "TIMESTAMPTZ": _cast(pa.timestamp("us", tz="UTC")),
    "STRING": lambda texts: texts,
    "UUID": lambda texts: texts,  # lower-case hexadecimal sorts as the bytes do
    "BINARY": _bytes,
}
