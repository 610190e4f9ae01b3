"""Functions that DuckDB can call on the server: scalar functions, table functions, and table functions over rows.

They work on whole Arrow batches. A parameter of type `ANY` takes whatever the caller passes; a named parameter is
passed as `name => value`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from skiway.airport.scan import ArrowData, ScanOptions
from skiway.errors import InvalidArgument

__all__ = [
    "ANY",
    "AnyFunction",
    "AnyType",
    "InOutCall",
    "Parameter",
    "ScalarFunction",
    "TableFunction",
    "TableInOutFunction",
    "Volatility",
    "input_schema",
    "read_arguments",
    "signature",
]


class AnyType:
    """The type of a parameter that takes any type."""

    def __repr__(self) -> str:
        return "ANY"


ANY: Final = AnyType()

# DuckDB's client takes these named parameters for itself.
_SWALLOWED: Final = frozenset({"auth_token", "secret", "headers", "ticket", "at_unit", "at_value"})


class Volatility(StrEnum):
    """How far DuckDB may reuse a result."""

    CONSISTENT = "consistent"
    """The same arguments always give the same result; calls on constants are made while planning."""
    CONSISTENT_WITHIN_QUERY = "consistent_within_query"
    """The same within one query."""
    VOLATILE = "volatile"
    """Never the same."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function; `named` ones may be left out by the caller and then are NULL."""

    name: str
    type: pa.DataType | AnyType
    named: bool = False

    def __post_init__(self) -> None:
        if self.named and self.name in _SWALLOWED:
            raise InvalidArgument(
                f"a named parameter may not be called {self.name!r}: DuckDB's client keeps that name for itself"
            )
        if self.named and self.type is ANY:
            raise InvalidArgument(
                f"named parameter {self.name!r} needs a type of its own: the client mistakes ANY there"
            )

    def field(self) -> pa.Field:
        """How the parameter is announced."""
        metadata = {}
        if self.named:
            metadata["is_named_parameter"] = "1"
        if self.type is ANY:
            metadata["is_any_type"] = "1"
        return pa.field(
            self.name, pa.null() if isinstance(self.type, AnyType) else self.type, metadata=metadata or None
        )


class ScalarFunction(ABC):
    """One value out per row in."""

    name: str
    comment: str = ""
    parameters: tuple[Parameter, ...] = ()
    returns: pa.DataType
    volatility: Volatility = Volatility.CONSISTENT

    @abstractmethod
    def execute(self, arguments: pa.RecordBatch) -> pa.Array:
        """The results for a batch of arguments, as many as it has rows. NULLs are the function's to handle."""


class TableFunction(ABC):
    """Rows out of parameters."""

    name: str
    comment: str = ""
    parameters: tuple[Parameter, ...] = ()

    @abstractmethod
    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:
        """The columns that a call with these arguments gives; called when a query is planned."""

    @abstractmethod
    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> ArrowData:
        """The rows of a call; `options` has what the client wants of them, as for tables."""

    def row_count(self, arguments: Mapping[str, pa.Scalar]) -> int | None:  # noqa: ARG002
        """How many rows a call gives, where that is known and cheap."""
        return None


class InOutCall(ABC):
    """One running call of a table function over rows."""

    @abstractmethod
    def process(self, rows: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The output for one input batch: none, one or many batches."""

    def finish(self) -> Iterable[pa.RecordBatch]:
        """What is left when the input has ended."""
        return ()

    def close(self) -> None:  # noqa: B027  (most calls hold nothing)
        """Free what the call holds; called in any case, after `finish` or instead of it."""


class TableInOutFunction(ABC):
    """Rows out of rows: `f(parameters, (SELECT …))`."""

    name: str
    comment: str = ""
    parameters: tuple[Parameter, ...] = ()

    @abstractmethod
    def schema_for(self, arguments: Mapping[str, pa.Scalar], rows: pa.Schema) -> pa.Schema:
        """The output columns for these arguments over input of this schema."""

    @abstractmethod
    def open(self, arguments: Mapping[str, pa.Scalar], rows: pa.Schema) -> InOutCall:
        """Begin a call."""


AnyFunction = ScalarFunction | TableFunction | TableInOutFunction


def input_schema(function: AnyFunction) -> pa.Schema:
    """The parameters as announced; the table that a function takes comes last, as the client demands."""
    fields = [parameter.field() for parameter in function.parameters]
    if isinstance(function, TableInOutFunction):
        fields.append(pa.field("rows", pa.null(), metadata={"is_table_type": "1"}))
    return pa.schema(fields)


def signature(function: AnyFunction) -> str:
    """Text that tells overloads apart."""
    return ", ".join(f"{p.name} => {p.type}" if p.named else str(p.type) for p in function.parameters)


def read_arguments(function: AnyFunction, stream: bytes) -> dict[str, pa.Scalar]:
    """The arguments in a one-row IPC stream, each in its declared type; a parameter left out is NULL."""
    row = _row(function, stream)
    arguments = {}
    for parameter in function.parameters:
        wanted = None if isinstance(parameter.type, AnyType) else parameter.type
        given = row is not None and parameter.name in row.schema.names
        value = row.column(parameter.name)[0] if row is not None and given else pa.scalar(None, wanted)
        arguments[parameter.name] = (
            value if wanted is None or value.type == wanted else _cast(function, parameter.name, value, wanted)
        )
    return arguments


def _row(function: AnyFunction, stream: bytes) -> pa.RecordBatch | None:
    if not stream:
        return None
    try:
        with pa.ipc.open_stream(stream) as reader:
            batch = reader.read_next_batch()
            batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, StopIteration) as error:
        raise InvalidArgument(f"the arguments of {function.name} are not an Arrow stream of one row") from error
    if batch.num_rows != 1:
        raise InvalidArgument(f"the arguments of {function.name} must be one row, not {batch.num_rows}")
    return batch


def _cast(function: AnyFunction, name: str, value: pa.Scalar, wanted: pa.DataType) -> pa.Scalar:
    try:
        return value.cast(wanted)
    except pa.ArrowException as error:
        raise InvalidArgument(
            f"argument {name} of {function.name}: {_shown(value)} does not fit type {wanted}"
        ) from error


def _shown(value: pa.Scalar) -> Any:
    text = repr(value.as_py())
    return text if len(text) <= 80 else text[:79] + "…"
