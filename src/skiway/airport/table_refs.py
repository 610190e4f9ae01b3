"""Table references: tables that DuckDB reads itself. The server returns calls of DuckDB's own table functions."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from skiway.airport.scan import FilterPushdown, TimePoint
from skiway.airport.values import to_array
from skiway.airport.wire.payloads import FunctionCallUri, arrow_stream, encode
from skiway.errors import InvalidArgument, PermissionDenied

__all__ = ["ALLOWED", "DynamicSchemaTableRef", "FunctionCall", "FunctionCallRequest", "SchemaRequest", "TableRef"]

# Functions that work when the client calls them without a binder.
ALLOWED: Final = frozenset(
    {
        "read_parquet",
        "parquet_scan",
        "read_csv",
        "read_csv_auto",
        "read_json",
        "read_json_auto",
        "read_ndjson",
        "read_text",
        "read_blob",
        "iceberg_scan",
        "delta_scan",
    }
)
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

    def location(self, allowed: Iterable[str] = ALLOWED) -> str:
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
