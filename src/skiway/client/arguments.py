"""Arguments of functions, as DuckDB sends them: of a table function one row, of a scalar function a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from skiway.client.catalog import Function
from skiway.client.outgoing import cast
from skiway.errors import InvalidArgument

__all__ = ["choose_overload", "choose_scalar", "packed_arguments", "scalar_arguments"]


def choose_overload(
    functions: Sequence[Function], given: Sequence[Any], named: Mapping[str, Any], *, over_rows: bool
) -> Function:
    """The first overload that takes so many arguments and these names, and rows or none."""
    for function in functions:
        positional = [field for field in function.parameters if not _is(field, b"is_named_parameter")]
        names = {field.name for field in function.parameters if _is(field, b"is_named_parameter")}
        tables = sum(_is(field, b"is_table_type") for field in positional)
        if bool(tables) == over_rows and len(positional) - tables == len(given) and named.keys() <= names:
            return function
    if not over_rows and any(_is(field, b"is_table_type") for field in functions[0].parameters):
        raise InvalidArgument(f"{functions[0]} works on rows: give them as rows=…")
    told = "; ".join(_signature(function) for function in functions)
    asked = f"{len(given)} arguments" + (f" and {', '.join(named)}" if named else "")
    raise InvalidArgument(f"{functions[0]} takes no {asked}{' over rows' if over_rows else ''}; there is {told}")


def choose_scalar(functions: Sequence[Function], columns: Sequence[Any]) -> Function:
    """The first overload of just these types, or else the first of so many arguments."""
    fitting = [function for function in functions if len(function.parameters) == len(columns)]
    if not fitting:
        told = "; ".join(_signature(function) for function in functions)
        raise InvalidArgument(f"{functions[0]} takes no {len(columns)} arguments; there is {told}")
    types = [getattr(column, "type", None) for column in columns]
    return next((function for function in fitting if function.parameters.types == types), fitting[0])


def scalar_arguments(function: Function, columns: Sequence[Any], rows: int) -> pa.RecordBatch:
    """Arguments of a scalar function as the batch that is sent: in the declared types, if it declares them."""
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    arrays = [
        _column(function, parameter, column) for parameter, column in zip(function.parameters, columns, strict=True)
    ]
    if len({len(array) for array in arrays}) > 1:
        raise InvalidArgument(f"{function}: arguments have {', '.join(str(len(a)) for a in arrays)} rows: as many each")
    return pa.record_batch(arrays, names=function.parameters.names)


def _column(function: Function, parameter: pa.Field, given: Any) -> pa.Array:
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    if not isinstance(given, pa.Array):
        raise InvalidArgument(f"{function}: argument {parameter.name} is a {type(given).__name__}; give an array")
    if _is(parameter, b"is_any_type"):
        return given
    try:
        return cast(given, parameter.type)
    except pa.ArrowException as error:
        raise InvalidArgument(
            f"{function}: parameter {parameter.name} is {parameter.type}, and {given.type} was given: {error}"
        ) from error


def packed_arguments(function: Function, given: Sequence[Any], named: Mapping[str, Any]) -> bytes:
    """The one-row stream. Parameters keep their declared order; named ones that were not given are left out."""
    values = iter(given)
    fields, arrays = [], []
    for parameter in function.parameters:
        if _is(parameter, b"is_table_type"):
            continue
        if _is(parameter, b"is_named_parameter"):
            if parameter.name not in named:
                continue
            value = named[parameter.name]
        else:
            value = next(values)
        arrays.append(_array(function, parameter, value))
        fields.append(pa.field(parameter.name, arrays[-1].type))
    nothing = pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))  # also no arguments are one row of them
    batch = pa.record_batch(arrays, schema=pa.schema(fields)) if fields else nothing
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _array(function: Function, parameter: pa.Field, value: Any) -> pa.Array:
    if isinstance(value, pa.Scalar):
        return pa.array([value.as_py()], value.type)
    wanted = sql_type(value) if _is(parameter, b"is_any_type") else parameter.type
    try:
        return pa.array([value], wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"{function}: {value!r} ({type(value).__name__}) does not fit parameter {parameter.name} {parameter.type}"
        ) from error


def sql_type(value: Any) -> pa.DataType | None:
    """The type of a literal in SQL where Arrow would choose another one; None lets it choose."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return pa.int32() if -(2**31) <= value < 2**31 else pa.int64()
    if isinstance(value, Mapping):
        return pa.struct([pa.field(str(name), sql_type(item) or pa.scalar(item).type) for name, item in value.items()])
    if isinstance(value, list | tuple) and value:
        return pa.list_(sql_type(value[0]) or pa.scalar(value[0]).type)
    return None


def _is(field: pa.Field, mark: bytes) -> bool:
    return bool((field.metadata or {}).get(mark))


def _signature(function: Function) -> str:
    shown = (f"{f.name} => {f.type}" if _is(f, b"is_named_parameter") else f.name for f in function.parameters)
    return f"{function.name}({', '.join(shown)})"
