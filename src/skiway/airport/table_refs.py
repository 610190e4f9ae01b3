"""Table references: tables that DuckDB reads itself. The server returns calls of DuckDB's own table functions.

Arguments of the calls are Python values. Their Arrow types follow from whole values: numbers of different types are promoted to
a type that holds all of them exactly, and what has no common type is an error.
"""

from __future__ import annotations

import base64
import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import pyarrow as pa

from skiway.airport.tables import FilterPushdown, TimePoint
from skiway.airport.wire.duckdb_sql import FILE_READERS, ascii_lower
from skiway.airport.wire.protocol import FunctionCallUri, arrow_stream, encode
from skiway.errors import InvalidArgument, PermissionDenied

_NULL: Final = pa.null()
_MAX_DIGITS: Final = 38  # of DuckDB's DECIMAL


def to_array(value: Any) -> pa.Array:
    """An array with `value` as its only element; `TypeError`, `ValueError` or an Arrow error if that is impossible."""
    return pa.repeat(value, 1) if isinstance(value, pa.Scalar) else pa.array([value], type_of(value))


def type_of(value: Any) -> pa.DataType:
    """The Arrow type of a Python value: a dict is a struct, and a list or tuple is a list of its common type."""
    match value:
        case None:
            return _NULL
        case pa.Scalar():
            return value.type
        case bool():
            return pa.bool_()
        case int():
            return _integer_type(value)
        case dt.datetime():
            return pa.timestamp("us", tz="UTC" if value.tzinfo else None)
        case Mapping():
            return _struct_type(value)
        case list() | tuple():
            return pa.list_(_common_type([type_of(item) for item in value]))
        case _:
            return pa.scalar(value).type


def _integer_type(value: int) -> pa.DataType:
    if -(2**63) <= value < 2**63:
        return pa.int64()
    return pa.uint64() if 0 <= value < 2**64 else pa.decimal128(_MAX_DIGITS, 0)


def _struct_type(value: Mapping[Any, Any]) -> pa.DataType:
    if not value:
        raise TypeError("a struct needs at least one field")
    if not all(isinstance(name, str) for name in value):
        raise TypeError("the keys of a dict are the field names of a struct and must be strings")
    if len({ascii_lower(name) for name in value}) < len(value):
        raise TypeError("field names of a struct must differ in more than case")
    return pa.struct([(name, type_of(item)) for name, item in value.items()])


def _common_type(types: Iterable[pa.DataType]) -> pa.DataType:
    return reduce(_promoted, types, _NULL)


def _promoted(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds the values of both types."""
    types = pa.types
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if _is_exact(one) and _is_exact(other):
        return _exact_type(one, other)
    if (types.is_integer(one) or types.is_floating(one)) and (types.is_integer(other) or types.is_floating(other)):
        return pa.float64()  # the conversion fails for integers that a double cannot hold
    if types.is_list(one) and types.is_list(other):
        return pa.list_(_promoted(one.value_type, other.value_type))
    if types.is_struct(one) and types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = _promoted(fields.get(field.name, _NULL), field.type)
        return pa.struct(list(fields.items()))
    raise TypeError(f"it mixes {one} and {other}")


def _is_exact(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(data_type) or pa.types.is_decimal(data_type))


def _exact_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(one) and pa.types.is_integer(other) and pa.uint64() not in (one, other):
        return pa.int64()
    (whole, scale), (other_whole, other_scale) = _digits(one), _digits(other)
    whole, scale = max(whole, other_whole), max(scale, other_scale)
    if whole + scale > _MAX_DIGITS:
        raise TypeError(f"it mixes {one} and {other}, which together have more than {_MAX_DIGITS} digits")
    return pa.decimal128(whole + scale, scale)


def _digits(data_type: pa.DataType) -> tuple[int, int]:
    """The digits before and after the decimal point."""
    if pa.types.is_decimal(data_type):
        return data_type.precision - data_type.scale, data_type.scale
    return (20 if data_type == pa.uint64() else 19), 0


# These functions replace themselves at bind time, which crashes the client. No allow-list can permit them.
FATAL: Final = frozenset({"query", "query_table"})

_WKB: Final = {"ARROW:extension:name": "geoarrow.wkb", "ARROW:extension:metadata": "{}"}


@dataclass(frozen=True)
class FunctionCallRequest(FilterPushdown):
    """A scan of a table reference."""

    columns: list[str] | None = None
    json_filters: str = ""
    parameters: tuple[Any, ...] = ()
    time_point: TimePoint | None = None


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """The parameters and the point in time that a schema may depend on."""

    parameters: tuple[Any, ...] = ()
    time_point: TimePoint | None = None


class FunctionCall:
    """One call of a DuckDB table function: `FunctionCall("read_csv", "people.csv", header=True)`.

    Arguments are Python values: str, bool, int, float, Decimal, datetime, date, bytes, a shapely geometry, lists of
    these, and dicts with string keys (a STRUCT). Numbers of different types in a list are promoted, and never truncated.
    Pass a pyarrow scalar for any other type, such as a MAP, or to choose the exact type.
    """

    def __init__(self, name: str, /, *args: Any, **named: Any) -> None:
        self.name = name
        self.args = args
        self.named = named

    def __repr__(self) -> str:
        shown = [repr(value) for value in self.args] + [f"{key}={value!r}" for key, value in self.named.items()]
        return f"FunctionCall({', '.join([repr(self.name), *shown])})"

    def arguments(self) -> pa.RecordBatch:
        """The arguments as a one-row batch, the wire format."""
        if any(name.startswith("arg_") for name in self.named):
            raise InvalidArgument(
                f"{self.name}: a named argument must not start with 'arg_', the prefix of positional arguments"
            )
        columns = {f"arg_{position}": value for position, value in enumerate(self.args)} | self.named
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))
        fields, arrays = zip(*(_column(self.name, name, value) for name, value in columns.items()), strict=True)
        return pa.record_batch(list(arrays), schema=pa.schema(fields))

    def location(self, allowed: Iterable[str] = FILE_READERS) -> str:
        """The `data:` URI that makes the client run the call. Only functions in `allowed` are permitted."""
        if self.name in FATAL or self.name not in allowed:
            raise PermissionDenied(
                f"function {self.name!r} is not allowed in table references; allowed are {', '.join(sorted(set(allowed) - FATAL))}"
            )
        batch = self.arguments()
        body = encode(FunctionCallUri(function_name=self.name, data=arrow_stream(batch.schema, [batch])))
        return "data:application/x-msgpack-duckdb-function-call;base64," + base64.b64encode(body).decode()


class TableRef(ABC):
    """A read-only table whose rows DuckDB reads itself. `schema` has all columns that the calls return.

    Set `name` and `schema` in the class or in `__init__`, or define them as properties.
    """

    name: str
    schema: pa.Schema
    comment: str = ""

    @abstractmethod
    def function_calls(self, request: FunctionCallRequest) -> Sequence[FunctionCall]:
        """Return at least one call. DuckDB runs several calls in parallel and combines their rows."""


class DynamicSchemaTableRef(TableRef):
    """A table reference whose columns depend on the parameters or the point in time."""

    @abstractmethod
    def schema_for(self, request: SchemaRequest) -> pa.Schema:
        """The columns for `request`."""


def _column(function: str, argument: str, value: Any) -> tuple[pa.Field, pa.Array]:
    """One argument as a column of one row."""
    try:
        if hasattr(value, "__geo_interface__") and hasattr(value, "wkb"):
            return pa.field(argument, pa.binary(), metadata=_WKB), pa.array([value.wkb], pa.binary())
        array = to_array(value)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"{function}: argument {argument} = {value!r} cannot be converted to Arrow "
            f"({str(error).splitlines()[0]}); pass a pyarrow scalar of the type you mean"
        ) from error
    return pa.field(argument, array.type), array
