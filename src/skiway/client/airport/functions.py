"""Arguments of functions, as DuckDB sends them: of a table function one row, of a scalar function a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from skiway.airport.wire.payloads import InOutParameters, encode, packed
from skiway.client.airport.calls import Trace
from skiway.client.airport.catalog import Function, Table, TableName
from skiway.client.airport.exchange import Batches, LockStep, batches_of, cast, in_vectors
from skiway.client.airport.reading import Reading
from skiway.client.airport.scans import Rows, Selection, Where
from skiway.errors import InvalidArgument

__all__ = ["Calling", "choose_overload", "choose_scalar", "packed_arguments", "scalar_arguments"]


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


# --------------------
# Functions on the server: scalar functions, table functions, and table functions over rows.


class Calling(Reading):
    """The statements that call functions."""

    def call_scalar(self, function: TableName, *arguments: Any, rows: int = 1) -> pa.ChunkedArray:
        """One value for each row of the arguments: arrays of equal length, or all of them as one batch.

        A function without arguments is called for as many `rows`.
        """
        unit = self._begin()
        overloads = self._listing().functions(function, "scalar_function")
        given = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], pa.RecordBatch) else arguments
        columns = given.columns if isinstance(given, pa.RecordBatch) else list(given)
        chosen = choose_scalar(overloads, columns)
        batch = scalar_arguments(chosen, columns, rows)
        trace = Trace(self._ids(), chosen.descriptor, unit)
        step = LockStep(self._calls, trace, "scalar_function", schema=batch.schema, returning=True)
        with contextlib.closing(step):
            made = [step.ask(part).column(0) for part in in_vectors([batch])]
            step.end()
        return pa.chunked_array(made, step.schema.field(0).type)

    def call(
        self,
        function: TableName,
        *arguments: Any,
        named: Mapping[str, Any] | None = None,
        rows: Any = None,
        columns: Sequence[str] | None = None,
        where: Where = None,
        plan: bool = True,
    ) -> Rows:
        """The rows of a table function; arguments are Python values or pyarrow scalars.

        A function that works on rows gets them as `rows`, in any form that `insert` takes.
        """
        self._begin()
        overloads = self._listing().functions(function, "table_function")
        chosen = choose_overload(overloads, arguments, named or {}, over_rows=rows is not None)
        stream = packed_arguments(chosen, arguments, named or {})
        trace = Trace(self._ids(), chosen.descriptor)  # functions are not told of the transaction
        given, batches = (None, iter(())) if rows is None else batches_of(rows)
        if rows is not None and given is None:
            raise InvalidArgument(f"{chosen} is called over no batch at all: give an empty one, it has the columns")
        schema = b"" if given is None else given.serialize().to_pybytes()
        info = self._echoed(self._calls.bind_function(trace, stream, schema), chosen.descriptor)
        made = self._as_of(Table(chosen.schema_name, chosen.name, pa.schema([])), info)
        if given is not None:
            selection = self._selection(made, columns, where)
            return Rows(selection.schema, self._over_rows(selection, stream, given, batches))
        bound = self._bound(trace, made, columns, where, arguments=stream)
        return (bound.plan() if plan else bound).read()

    def _over_rows(
        self, selection: Selection, arguments: bytes, schema: pa.Schema, batches: Batches
    ) -> Generator[pa.RecordBatch]:
        """What a function makes of rows; these are sent as its output is read."""
        asked = Selection(selection.table, None, selection.where)  # the function has to give all its columns
        opening = InOutParameters(json_filters=asked.json_filters(), parameters=packed(arguments))
        trace = Trace(self._ids(), selection.table.descriptor)
        step = LockStep(
            self._calls,
            trace,
            "table_function_in_out",
            schema=schema,
            returning=True,
            opening=encode(opening),
        )
        with contextlib.closing(step):
            for batch in in_vectors(batches):
                step.send(batch)
                yield from _kept(selection, step)
            step.half_close()
            yield from _kept(selection, step)
            step.end()


def _kept(selection: Selection, step: LockStep) -> Generator[pa.RecordBatch]:
    for batch in step.chunk():
        if (rows := selection.apply(batch)).num_rows:
            yield rows
