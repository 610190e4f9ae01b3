"""Functions that DuckDB can call on the server: scalar functions, table functions, and table functions over rows.

Functions work on whole Arrow batches. A parameter of type `ANY` accepts values of any type. A named parameter is passed
as `name => value`.

`DecoratedScalar` and `DecoratedTable` wrap plain Python functions and take the types from the annotations:
`pa.Int64Array`, `pa.StringScalar` and the like stand for their Arrow type, `pa.Array` and `pa.Scalar` for any type. If no
class is precise enough, annotate with a pyarrow type (`prices: pa.decimal128(10, 2)`). Table functions may also use `int`,
`float`, `str`, `bool` and `bytes` and then get plain Python values.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from skiway.airport.tables import ArrowData, ScanOptions
from skiway.airport.wire.frames import check_names
from skiway.airport.wire.sizes import check_stream
from skiway.errors import Internal, InvalidArgument


class AnyType:
    """The type of a parameter that accepts values of any type."""

    def __repr__(self) -> str:
        return "ANY"


ANY: Final = AnyType()

# DuckDB's client consumes these named parameters itself and never sends them.
_RESERVED_NAMES: Final = frozenset({"auth_token", "secret", "headers", "ticket", "at_unit", "at_value"})


class Volatility(StrEnum):
    """When DuckDB may reuse the result of a call."""

    CONSISTENT = "consistent"
    """The same arguments always give the same result. Calls with constant arguments are evaluated at planning time."""
    CONSISTENT_WITHIN_QUERY = "consistent_within_query"
    """The same arguments give the same result within a query."""
    VOLATILE = "volatile"
    """Every call may give another result."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function. A `named` parameter is optional; it is NULL if the caller leaves it out."""

    name: str
    type: pa.DataType | AnyType
    named: bool = False

    def __post_init__(self) -> None:
        if self.named and self.name in _RESERVED_NAMES:
            raise InvalidArgument(
                f"a named parameter must not be called {self.name!r}: DuckDB's client reserves that name"
            )
        if self.named and self.type is ANY:
            raise InvalidArgument(
                f"named parameter {self.name!r} must have a type: DuckDB's client does not support ANY there"
            )

    def field(self) -> pa.Field:
        """The Arrow field that announces the parameter to clients."""
        metadata = {}
        if self.named:
            metadata["is_named_parameter"] = "1"
        if self.type is ANY:
            metadata["is_any_type"] = "1"
        return pa.field(
            self.name, pa.null() if isinstance(self.type, AnyType) else self.type, metadata=metadata or None
        )


class ScalarFunction(ABC):
    """A function that returns one value per row."""

    name: str
    comment: str = ""
    parameters: tuple[Parameter, ...] = ()
    returns: pa.DataType
    volatility: Volatility = Volatility.CONSISTENT

    @abstractmethod
    def execute(self, arguments: pa.RecordBatch) -> pa.Array:
        """Return one result per row of `arguments`. The function must handle NULLs itself."""


class TableFunction(ABC):
    """A function that returns rows: `SELECT * FROM f(parameters)`."""

    name: str
    comment: str = ""
    parameters: tuple[Parameter, ...] = ()

    @abstractmethod
    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:
        """The columns of the result for these arguments. Called when a query is planned."""

    @abstractmethod
    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> ArrowData:
        """Return the rows. `options` has the columns and the filter of the query, as for tables."""

    def row_count(self, arguments: Mapping[str, pa.Scalar]) -> int | None:  # noqa: ARG002
        """The number of rows, if it is known and cheap to compute."""
        return None


class InOutCall(ABC):
    """A call of a table function over rows, while it runs."""

    @abstractmethod
    def process(self, rows: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Return the output for one input batch: any number of batches."""

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Return the remaining output after the last input batch."""
        return ()

    def close(self) -> None:  # noqa: B027  (most calls have nothing to release)
        """Release resources. Always called, after `finish` or after a failure."""


class TableInOutFunction(ABC):
    """A function from rows to rows: `f(parameters, (SELECT …))`."""

    name: str
    comment: str = ""
    parameters: tuple[Parameter, ...] = ()

    @abstractmethod
    def schema_for(self, arguments: Mapping[str, pa.Scalar], rows: pa.Schema) -> pa.Schema:
        """The columns of the result for these arguments and an input with the schema `rows`."""

    @abstractmethod
    def open(self, arguments: Mapping[str, pa.Scalar], rows: pa.Schema) -> InOutCall:
        """Start a call."""


AnyFunction = ScalarFunction | TableFunction | TableInOutFunction


def signature(function: AnyFunction) -> str:
    """The parameter types as text, which distinguishes overloads."""
    return ", ".join(f"{p.name} => {p.type}" if p.named else str(p.type) for p in function.parameters)


# -- functions from decorated Python functions ------------------------------------------------------------------------

_TYPES: Final[dict[str, pa.DataType]] = {
    type(pa.nulls(0, kind)).__name__.removesuffix("Array"): kind
    for kind in (
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(), pa.time64("us"), pa.timestamp("us")),
        *(pa.month_day_nano_interval(), pa.uuid(), pa.json_()),
    )
}
"""The types of pyarrow's classes of arrays and scalars, by the stems of their names."""
_PYTHON: Final[dict[type, pa.DataType]] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
    bytes: pa.binary(),
}


def arrow_type(annotation: Any, where: str) -> pa.DataType | AnyType:
    """The Arrow type for an annotation."""
    if isinstance(annotation, pa.DataType) or annotation is ANY:
        return annotation
    if annotation in (pa.Array, pa.Scalar):
        return ANY
    if isinstance(annotation, type):
        if annotation in _PYTHON:
            return _PYTHON[annotation]
        stem = annotation.__name__.removesuffix("Array").removesuffix("Scalar")
        if annotation.__module__.startswith("pyarrow") and stem in _TYPES:
            return _TYPES[stem]
    raise InvalidArgument(
        f"{where}: cannot derive an Arrow type from {annotation!r}; annotate it with pa.Int64Array, pa.StringScalar, … "
        "or with a pyarrow type such as pa.decimal128(10, 2)"
    )


class DecoratedScalar(ScalarFunction):
    """A scalar function that calls a Python function with arrays."""

    def __init__(
        self,
        call: Callable[..., Any],
        *,
        name: str | None = None,
        comment: str | None = None,
        returns: pa.DataType | None = None,
        volatility: Volatility | str = Volatility.CONSISTENT,
    ) -> None:
        self.name = name or call.__name__
        self.comment = comment if comment is not None else inspect.getdoc(call) or ""
        if volatility not in list(Volatility):
            raise InvalidArgument(
                f"the volatility of {self.name} is {volatility!r}: use {', '.join(map(repr, map(str, Volatility)))}"
            )
        if returns is not None and not isinstance(returns, pa.DataType):
            raise InvalidArgument(f"returns= of {self.name} is {returns!r}, not a pyarrow type: write pa.int64(), …")
        self.volatility = Volatility(volatility)
        self._call = self.__wrapped__ = call
        hints = inspect.get_annotations(call, eval_str=True)
        self.parameters = tuple(
            Parameter(p.name, arrow_type(hints.get(p.name), f"parameter {p.name!r} of {self.name}"))
            for p in inspect.signature(call).parameters.values()
        )
        result = returns or arrow_type(hints.get("return"), f"the result of {self.name}")
        if isinstance(result, AnyType):
            raise InvalidArgument(f"the result of {self.name} must have one type; annotate it, or pass returns=")
        self.returns = result

    def execute(self, arguments: pa.RecordBatch) -> Any:
        """Call the function with one array per argument, or without arguments if it has no parameters."""
        if not self.parameters:
            return _repeated(self._call(), arguments.num_rows, self.returns)
        return self._call(*arguments.columns)


def _repeated(value: Any, rows: int, data_type: pa.DataType) -> Any:
    """Repeat the single value that a function without parameters returned."""
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value
    return pa.repeat(value if isinstance(value, pa.Scalar) else pa.scalar(value, data_type), rows)


class DecoratedTable(TableFunction):
    """A table function that calls a Python function with scalars.

    Keyword-only parameters are named parameters in DuckDB, with their Python defaults.
    """

    def __init__(
        self,
        call: Callable[..., ArrowData],
        schema: pa.Schema | Callable[..., pa.Schema],
        *,
        name: str | None = None,
        comment: str | None = None,
    ) -> None:
        self.name = name or call.__name__
        self.comment = comment if comment is not None else inspect.getdoc(call) or ""
        self._call = self.__wrapped__ = call
        self._schema = schema
        hints = inspect.get_annotations(call, eval_str=True)
        parameters = [p for p in inspect.signature(call).parameters.values() if not _is_scan(p.name, hints)]
        self._scan = next((name for name in inspect.signature(call).parameters if _is_scan(name, hints)), None)
        self._plain = {p.name for p in parameters if hints.get(p.name) in _PYTHON}
        self._defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
        self.parameters = tuple(
            Parameter(
                p.name,
                arrow_type(hints.get(p.name), f"parameter {p.name!r} of {self.name}"),
                named=p.kind is inspect.Parameter.KEYWORD_ONLY,
            )
            for p in parameters
        )

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:
        """The fixed schema, or the result of the schema function for these arguments."""
        schema = self._schema if isinstance(self._schema, pa.Schema) else self._schema(**self._values(arguments))
        if not isinstance(schema, pa.Schema):
            raise Internal(
                f"the schema function of {self.name} returned a {type(schema).__name__}: return a pyarrow schema, pa.schema({{…}})"
            )
        return schema

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> ArrowData:
        """Call the function with pyarrow scalars, or with Python values for annotations such as `int`."""
        values = self._values(arguments)
        if self._scan is not None:
            values[self._scan] = options
        return self._call(**values)

    def _values(self, arguments: Mapping[str, pa.Scalar]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, scalar in arguments.items():
            if not scalar.is_valid and name in self._defaults:
                values[name] = self._defaults[name]
            else:
                values[name] = scalar.as_py() if name in self._plain else scalar
        return values


def _is_scan(name: str, hints: Mapping[str, Any]) -> bool:
    return hints.get(name) is ScanOptions or (name == "scan" and name not in hints)


# -- arguments of calls -----------------------------------------------------------------------------------------------

_SMALL: Final = 16 << 10
"""Bytes of a row of arguments that is kept."""


def read_arguments(function: AnyFunction, stream: bytes) -> dict[str, pa.Scalar]:
    """Decode the arguments in a one-row IPC stream and cast them to their declared types. Missing arguments are NULL."""
    row = read_row(stream, f"the arguments of {function.name}") if stream else None
    arguments = {}
    for parameter in function.parameters:
        declared = None if isinstance(parameter.type, AnyType) else parameter.type
        is_passed = row is not None and parameter.name in row.schema.names
        value = row.column(parameter.name)[0] if row is not None and is_passed else pa.scalar(None, declared)
        arguments[parameter.name] = (
            value if declared is None or value.type == declared else _cast(function, parameter.name, value, declared)
        )
    return arguments


def read_row(stream: bytes, what: str) -> pa.RecordBatch:
    """Decode an IPC stream of one row."""
    try:
        small = _small_row(stream) if len(stream) <= _SMALL else None
        batch = _decoded(stream) if small is None else small
    except (pa.ArrowException, OSError, ValueError, StopIteration) as error:
        raise InvalidArgument(f"{what} are not an Arrow stream of one row") from error
    if batch.num_rows != 1:
        raise InvalidArgument(f"{what} must be one row, not {batch.num_rows}")
    return batch


def _decoded(stream: bytes) -> pa.RecordBatch:
    check_stream(stream)
    with pa.ipc.open_stream(stream) as reader:
        batch = reader.read_next_batch()
        check_names(batch.schema)
        batch.validate(full=True)
        return batch


@lru_cache(maxsize=256)
def _small_row(stream: bytes) -> pa.RecordBatch | None:
    """The row, unless it is large once it is decompressed.

    DuckDB sends the arguments of a function three times: to plan the call, for its endpoints, and with the ticket. To decode
    them takes 0.1 ms.
    """
    batch = _decoded(stream)
    return batch if batch.nbytes <= _SMALL else None


def _cast(function: AnyFunction, name: str, value: pa.Scalar, declared: pa.DataType) -> pa.Scalar:
    try:
        return value.cast(declared)
    except pa.ArrowException as error:
        raise InvalidArgument(
            f"argument {name} of {function.name}: {_abbreviated(value)} does not fit type {declared}"
        ) from error


def _abbreviated(value: pa.Scalar) -> str:
    text = repr(value.as_py())
    return text if len(text) <= 80 else text[:79] + "…"
