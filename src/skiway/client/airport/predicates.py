"""Predicates over columns, written in Python: `(col("age") > 30) & ~col("name").is_null()`.

They are plain values. `filters.filter_json` translates them to DuckDB's filter JSON for the server, and
`filters.filter_mask` applies them to the rows that come back, since a server may send more rows than requested.
"""

from __future__ import annotations

import decimal
import enum
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from skiway.airport.wire.duckdb_sql import duckdb_type, storage_type
from skiway.errors import InvalidArgument, Unsupported


class Op(enum.Enum):
    """A comparison operator, by DuckDB's name."""

    EQUAL = "COMPARE_EQUAL"
    NOT_EQUAL = "COMPARE_NOTEQUAL"
    LESS = "COMPARE_LESSTHAN"
    GREATER = "COMPARE_GREATERTHAN"
    LESS_OR_EQUAL = "COMPARE_LESSTHANOREQUALTO"
    GREATER_OR_EQUAL = "COMPARE_GREATERTHANOREQUALTO"


OPPOSITE: Final = {
    Op.EQUAL: Op.NOT_EQUAL,
    Op.NOT_EQUAL: Op.EQUAL,
    Op.LESS: Op.GREATER_OR_EQUAL,
    Op.GREATER: Op.LESS_OR_EQUAL,
    Op.LESS_OR_EQUAL: Op.GREATER,
    Op.GREATER_OR_EQUAL: Op.LESS,
}


class Predicate:
    """A condition that is true, false or NULL for a row; a filter selects the rows for which it is true."""

    __slots__ = ()

    def __and__(self, other: Predicate) -> Predicate:
        return And((*_parts(self, And), *_parts(other, And)))

    def __or__(self, other: Predicate) -> Predicate:
        return Or((*_parts(self, Or), *_parts(other, Or)))

    def __invert__(self) -> Predicate:
        return Not(self)

    def __bool__(self) -> bool:
        raise InvalidArgument(
            "a predicate has no truth value: combine predicates with &, | and ~, and put parentheses around each part"
        )

    def columns(self) -> Iterator[str]:
        """Yield the columns that the predicate refers to, in order; a column may occur more than once."""
        match self:
            case Column(name):
                yield name
            case Comparison(column=name) | Between(column=name) | In(column=name) | IsNull(column=name):
                yield name
            case Not(part):
                yield from part.columns()
            case And(parts) | Or(parts):
                for part in parts:
                    yield from part.columns()


@dataclass(frozen=True, slots=True, eq=False)
class Column(Predicate):
    """A column. Comparing it with a value gives a predicate; a BOOLEAN column is itself a predicate."""

    name: str

    def __eq__(self, value: object) -> Predicate:  # type: ignore[override]
        return _compared(self, Op.EQUAL, value)

    def __ne__(self, value: object) -> Predicate:  # type: ignore[override]
        return _compared(self, Op.NOT_EQUAL, value)

    def __lt__(self, value: Any) -> Predicate:
        return _compared(self, Op.LESS, value)

    def __gt__(self, value: Any) -> Predicate:
        return _compared(self, Op.GREATER, value)

    def __le__(self, value: Any) -> Predicate:
        return _compared(self, Op.LESS_OR_EQUAL, value)

    def __ge__(self, value: Any) -> Predicate:
        return _compared(self, Op.GREATER_OR_EQUAL, value)

    __hash__ = None  # type: ignore[assignment]

    def between(self, low: Any, high: Any) -> Predicate:
        """Match values from `low` to `high`, both included."""
        return Between(self.name, _value(self.name, low), _value(self.name, high))

    def isin(self, values: Iterable[Any]) -> Predicate:
        """Match values that equal one of `values`, which must not be empty."""
        members = tuple(_value(self.name, value) for value in values)
        if not members:
            raise InvalidArgument(f"col({self.name!r}).isin() needs at least one value")
        return In(self.name, members)

    def is_null(self) -> Predicate:
        """Match NULL. The opposite is `~col(…).is_null()`."""
        return IsNull(self.name)


def col(name: str) -> Column:
    """Return the column called `name`; `rowid` is the row id of a table that has one."""
    return Column(name)


@dataclass(frozen=True, slots=True)
class Comparison(Predicate):
    """A comparison of a column with a value."""

    op: Op
    column: str
    value: Any

    def __invert__(self) -> Predicate:
        return Comparison(OPPOSITE[self.op], self.column, self.value)


@dataclass(frozen=True, slots=True)
class Between(Predicate):
    """A column between two values, both included."""

    column: str
    low: Any
    high: Any

    def __invert__(self) -> Predicate:
        lower = Comparison(Op.GREATER_OR_EQUAL, self.column, self.low)
        return Not(And((lower, Comparison(Op.LESS_OR_EQUAL, self.column, self.high))))


@dataclass(frozen=True, slots=True)
class In(Predicate):
    """A column that equals one of several values, or none of them."""

    column: str
    values: tuple[Any, ...]
    negated: bool = False

    def __invert__(self) -> Predicate:
        return In(self.column, self.values, not self.negated)


@dataclass(frozen=True, slots=True)
class IsNull(Predicate):
    """A column that is NULL, or that is not NULL."""

    column: str
    negated: bool = False

    def __invert__(self) -> Predicate:
        return IsNull(self.column, not self.negated)


@dataclass(frozen=True, slots=True)
class Not(Predicate):
    """The negation of a predicate; the negation of NULL is NULL."""

    part: Predicate

    def __invert__(self) -> Predicate:
        return self.part


@dataclass(frozen=True, slots=True)
class And(Predicate):
    """True if all parts are true."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or(Predicate):
    """True if at least one part is true."""

    parts: tuple[Predicate, ...]


def _parts(predicate: Predicate, kind: type[And] | type[Or]) -> tuple[Predicate, ...]:
    if not isinstance(predicate, Predicate):
        raise InvalidArgument(
            f"&, | and ~ combine predicates, not {predicate!r}: put parentheses around each comparison"
        )
    return predicate.parts if isinstance(predicate, kind) else (predicate,)


def _compared(column: Column, op: Op, value: object) -> Predicate:
    return Comparison(op, column.name, _value(column.name, value))


def _value(column: str, value: object) -> object:
    if value is None:
        raise InvalidArgument(
            f"comparisons with NULL are never true: use col({column!r}).is_null() or ~col({column!r}).is_null()"
        )
    if isinstance(value, Predicate):
        raise InvalidArgument(f"col({column!r}) can be compared with values only, not with another column")
    return value


# -- constants ---------------------------------------------------------------------------------------------------------

_WIDE: Final = decimal.Context(prec=77)  # the default context would round a DECIMAL of 38 digits

# Scalar types that Arrow and DuckDB order alike. For other types (lists, structs, intervals, DuckDB's own) only IS NULL
# is supported.
_COMPARABLE: Final = frozenset(
    {
        *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
        *("FLOAT", "DOUBLE", "VARCHAR", "JSON", "BLOB", "UUID", "DATE", "TIME", "TIME_NS"),
        *("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"),
    }
)


def literal(field: pa.Field, value: Any) -> pa.Scalar:
    """Convert `value` to a scalar of the storage type of `field`; raise if that would round or truncate it."""
    type_name = duckdb_type(field)
    if type_name not in _COMPARABLE and not type_name.startswith("DECIMAL"):
        raise Unsupported(
            f"comparisons are not supported: column {field.name!r} is {type_name}; read it and filter the rows yourself"
        )
    wanted = value_type(field.type)
    if isinstance(value, pa.Scalar) and value.type == wanted and value.is_valid:
        return value  # Python does not have all dates
    plain = _plain(type_name, wanted, value)
    try:
        scalar = pa.scalar(plain, wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _misfit(field, type_name, value) from error
    if not pa.types.is_floating(wanted) and scalar.as_py() != plain:
        raise _misfit(field, type_name, value)
    return scalar


def value_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of the plain values, without extension types and dictionaries."""
    stored = storage_type(data_type)
    encoded = pa.types.is_dictionary(stored) or pa.types.is_run_end_encoded(stored)
    return value_type(stored.value_type) if encoded else stored


def _plain(type_name: str, wanted: pa.DataType, value: Any) -> Any:
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if type_name == "UUID":
        return _uuid(value).bytes if pa.types.is_fixed_size_binary(wanted) else str(_uuid(value))
    if type_name == "BOOLEAN" and pa.types.is_integer(wanted) and isinstance(value, bool):
        return int(value)  # arrow.bool8
    return value


def _uuid(value: Any) -> uuid.UUID:
    if isinstance(value, uuid.UUID):
        return value
    try:
        return uuid.UUID(bytes=value) if isinstance(value, bytes) else uuid.UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise InvalidArgument(f"{value!r} is not a UUID: write one as 123e4567-e89b-12d3-a456-426614174000") from None


def _misfit(field: pa.Field, type_name: str, value: Any) -> InvalidArgument:
    return InvalidArgument(
        f"column {field.name!r} is {type_name}, and {value!r} ({type(value).__name__}) is no value of that type: "
        "give a value that fits exactly"
    )


def json_value(field: pa.Field, scalar: pa.Scalar) -> Any:
    """Return a constant as DuckDB writes it into filter JSON."""
    type_name = duckdb_type(field)
    if type_name.startswith("DECIMAL"):
        unscaled = int(scalar.as_py().scaleb(scalar.type.scale, _WIDE))
        return _halves(unscaled) if scalar.type.precision > 18 else unscaled
    if type_name == "UUID":
        raw = scalar.as_py()
        number = (uuid.UUID(bytes=raw) if isinstance(raw, bytes) else uuid.UUID(raw)).int
        return _halves((number ^ 1 << 127) - ((number ^ 1 << 127) >> 127 << 128))
    if type_name == "BLOB":
        return "".join(_escaped(byte) for byte in scalar.as_py())
    if type_name == "BOOLEAN":
        return bool(scalar.as_py())
    if type_name.startswith(("DATE", "TIME")):
        return _ticks(scalar)
    return scalar.as_py()


def _halves(number: int) -> dict[str, int]:
    return {"upper": number >> 64, "lower": number & 0xFFFF_FFFF_FFFF_FFFF}


def _escaped(byte: int) -> str:
    """Escape one byte of a BLOB, unless it is printable ASCII without a special meaning."""
    return chr(byte) if 32 <= byte < 127 and byte not in b"\\\"'" else f"\\x{byte:02X}"


def _ticks(scalar: pa.Scalar) -> int:
    """Return days for DATE, microseconds for TIME, and otherwise the unit of the type."""
    if pa.types.is_date64(scalar.type):
        return int(scalar.value) // 86_400_000
    if pa.types.is_time32(scalar.type):
        return int(scalar.value) * (1_000_000 if scalar.type.unit == "s" else 1_000)
    return int(scalar.value)
