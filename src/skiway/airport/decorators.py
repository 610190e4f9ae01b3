"""Functions made from plain Python functions: types come from annotations.

`pa.Int64Array`, `pa.StringScalar` and the like name their Arrow type; `pa.Array` and `pa.Scalar` take any type. A
pyarrow type itself may stand as the annotation where no class says enough (`prices: pa.decimal128(10, 2)`), and in
table functions `int`, `float`, `str`, `bool` and `bytes` give plain Python values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from skiway.airport.functions import ANY, AnyType, Parameter, ScalarFunction, TableFunction, Volatility
from skiway.airport.scan import ArrowData, ScanOptions
from skiway.errors import InvalidArgument

__all__ = ["DecoratedScalar", "DecoratedTable"]


_TYPES: Final[dict[str, pa.DataType]] = {
    "Boolean": pa.bool_(),
    "Int8": pa.int8(),
    "Int16": pa.int16(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "UInt8": pa.uint8(),
    "UInt16": pa.uint16(),
    "UInt32": pa.uint32(),
    "UInt64": pa.uint64(),
    "Float": pa.float32(),
    "Double": pa.float64(),
    "String": pa.string(),
    "Binary": pa.binary(),
    "Date32": pa.date32(),
    "Time64": pa.time64("us"),
    "Timestamp": pa.timestamp("us"),
    "MonthDayNanoInterval": pa.month_day_nano_interval(),
    "Uuid": pa.uuid(),
    "Json": pa.json_(),
}
_PYTHON: Final[dict[type, pa.DataType]] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
    bytes: pa.binary(),
}


def arrow_type(annotation: Any, where: str) -> pa.DataType | AnyType:
    """The Arrow type that an annotation stands for."""
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
        f"{where}: no Arrow type follows from {annotation!r}; annotate it with pa.Int64Array, pa.StringScalar, … "
        "or with a pyarrow type such as pa.decimal128(10, 2)"
    )


class DecoratedScalar(ScalarFunction):
    """A scalar function over arrays."""

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
        self.volatility = Volatility(volatility)
        self._call = call
        hints = inspect.get_annotations(call, eval_str=True)
        self.parameters = tuple(
            Parameter(p.name, arrow_type(hints.get(p.name), f"parameter {p.name!r} of {self.name}"))
            for p in inspect.signature(call).parameters.values()
        )
        result = returns or arrow_type(hints.get("return"), f"the result of {self.name}")
        if isinstance(result, AnyType):
            raise InvalidArgument(f"the result of {self.name} must have one type; annotate it, or give returns=")
        self.returns = result

    def execute(self, arguments: pa.RecordBatch) -> Any:
        """Call with one array per argument; a function without parameters is given the number of rows to make."""
        if not self.parameters:
            return _repeated(self._call(), arguments.num_rows, self.returns)
        return self._call(*arguments.columns)


def _repeated(value: Any, rows: int, data_type: pa.DataType) -> Any:
    """One value for all rows, where a function without arguments gave just one."""
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value
    return pa.repeat(value if isinstance(value, pa.Scalar) else pa.scalar(value, data_type), rows)


class DecoratedTable(TableFunction):
    """A table function over scalars. Keyword-only parameters are DuckDB's named ones, with their Python defaults."""

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
        self._call = call
        self._schema = schema
        hints = inspect.get_annotations(call, eval_str=True)
        given = [p for p in inspect.signature(call).parameters.values() if not _is_scan(p.name, hints)]
        self._scan = next((name for name in inspect.signature(call).parameters if _is_scan(name, hints)), None)
        self._plain = {p.name for p in given if hints.get(p.name) in _PYTHON}
        self._defaults = {p.name: p.default for p in given if p.default is not inspect.Parameter.empty}
        self.parameters = tuple(
            Parameter(
                p.name,
                arrow_type(hints.get(p.name), f"parameter {p.name!r} of {self.name}"),
                named=p.kind is inspect.Parameter.KEYWORD_ONLY,
            )
            for p in given
        )

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:
        """The given schema, or what the given function makes of the arguments."""
        return self._schema if isinstance(self._schema, pa.Schema) else self._schema(**self._values(arguments))

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> ArrowData:
        """Call with scalars, or plain values where the annotation is a Python type."""
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
