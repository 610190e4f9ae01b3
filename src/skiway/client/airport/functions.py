"""Calls of scalar functions and table functions: overload resolution, arguments and results, as in DuckDB."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from skiway.airport.wire.payloads import InOutParameters, encode, packed
from skiway.client.airport.calls import TransactionContext
from skiway.client.airport.catalog import Function, Table, TableName
from skiway.client.airport.exchange import Batches, Exchange, cast, in_vectors, to_batches
from skiway.client.airport.results import Rows
from skiway.client.airport.scans import BoundScan, check_descriptor, table_at
from skiway.client.airport.selection import Selection, Where, select
from skiway.client.airport.session import Session
from skiway.errors import InvalidArgument

__all__ = ["call_scalar", "call_table_function"]


def call_scalar(session: Session, name: TableName, arguments: Sequence[Any], *, rows: int) -> pa.ChunkedArray:
    """Call a scalar function; return one value for each row of the arguments."""
    transaction = session.begin()
    overloads = session.listing().functions(name, "scalar_function")
    columns = arguments[0].columns if len(arguments) == 1 and isinstance(arguments[0], pa.RecordBatch) else arguments
    function = _choose_scalar(overloads, columns)
    batch = _argument_batch(function, columns, rows)
    trace = session.trace(function.descriptor, transaction)
    exchange = Exchange(session.calls, trace, "scalar_function", schema=batch.schema, returning=True)
    with contextlib.closing(exchange):
        results = [exchange.send_and_receive(part).column(0) for part in in_vectors([batch])]
        exchange.finish()
    return pa.chunked_array(results, exchange.schema.field(0).type)


def call_table_function(
    session: Session,
    name: TableName,
    arguments: Sequence[Any],
    named: Mapping[str, Any],
    *,
    rows: Any,
    columns: Sequence[str] | None,
    where: Where,
    plan: bool,
    transaction: TransactionContext | None = None,
) -> Rows:
    """Call a table function, over the input `rows` unless they are None; return the rows it produces.

    The call is part of the given `transaction`, or of an explicit one that is open.
    """
    if session.open_transaction() is not None:
        session.begin()  # an open transaction begins with its first statement
    overloads = session.listing().functions(name, "table_function")
    function = _choose_overload(overloads, arguments, named, over_rows=rows is not None)
    packed_row = _argument_row(function, arguments, named)
    # Like DuckDB, this sends no transaction with function calls, so it creates none, which saves one call of four. DuckDB has no
    # explicit ones, which functions must know about.
    trace = session.trace(function.descriptor, transaction or session.explicit_context())
    given, batches = (None, iter(())) if rows is None else to_batches(rows)
    if rows is not None and given is None:
        raise InvalidArgument(f"the rows for {function} contain no batch: give at least an empty one")
    input_schema = b"" if given is None else given.serialize().to_pybytes()
    info = session.calls.bind_function(trace, packed_row, input_schema)
    check_descriptor(session, info, function.descriptor)
    output = table_at(session, Table(function.schema_name, function.name, pa.schema([])), info)
    selection = select(output, columns, where)
    if given is not None:
        return Rows(selection.schema, _run_over_rows(session, selection, packed_row, given, batches))
    bound = BoundScan(session.calls, trace, selection, arguments=packed_row)
    return (bound.plan() if plan else bound).read()


def _run_over_rows(
    session: Session, selection: Selection, arguments: bytes, schema: pa.Schema, batches: Batches
) -> Generator[pa.RecordBatch]:
    """Yield the output of a function over input rows, which are sent while the output is read."""
    everything = Selection(selection.table, None, selection.where)  # the function always returns all its columns
    opening = InOutParameters(json_filters=everything.json_filters(), parameters=packed(arguments))
    trace = session.trace(selection.table.descriptor, session.explicit_context())
    exchange = Exchange(
        session.calls, trace, "table_function_in_out", schema=schema, returning=True, opening=encode(opening)
    )
    with contextlib.closing(exchange):
        for batch in in_vectors(batches):
            exchange.send(batch)
            yield from _selected_rows(selection, exchange)
        exchange.half_close()
        yield from _selected_rows(selection, exchange)
        exchange.finish()


def _selected_rows(selection: Selection, exchange: Exchange) -> Generator[pa.RecordBatch]:
    for batch in exchange.receive_chunk():
        if (rows := selection.apply(batch)).num_rows:
            yield rows


# -- overloads ---------------------------------------------------------------------------------------------------------


def _choose_overload(
    functions: Sequence[Function], given: Sequence[Any], named: Mapping[str, Any], *, over_rows: bool
) -> Function:
    """Return the first overload with this number of arguments, these names, and input rows or none."""
    for function in functions:
        positional = [field for field in function.parameters if not _has_mark(field, b"is_named_parameter")]
        names = {field.name for field in function.parameters if _has_mark(field, b"is_named_parameter")}
        tables = sum(_has_mark(field, b"is_table_type") for field in positional)
        if bool(tables) == over_rows and len(positional) - tables == len(given) and named.keys() <= names:
            return function
    if not over_rows and any(_has_mark(field, b"is_table_type") for field in functions[0].parameters):
        raise InvalidArgument(f"{functions[0]} needs input rows: give them as rows=…")
    arguments = f"{len(given)} arguments" + (f" and {', '.join(named)}" if named else "")
    rows = " over rows" if over_rows else ""
    raise InvalidArgument(f"{functions[0]} does not accept {arguments}{rows}; overloads: {_signatures(functions)}")


def _choose_scalar(functions: Sequence[Function], columns: Sequence[Any]) -> Function:
    """Return the overload with exactly these types, else the first with this number of arguments."""
    fitting = [function for function in functions if len(function.parameters) == len(columns)]
    if not fitting:
        raise InvalidArgument(
            f"{functions[0]} does not accept {len(columns)} arguments; overloads: {_signatures(functions)}"
        )
    types = [getattr(column, "type", None) for column in columns]
    return next((function for function in fitting if function.parameters.types == types), fitting[0])


# -- arguments ---------------------------------------------------------------------------------------------------------


def _argument_batch(function: Function, columns: Sequence[Any], rows: int) -> pa.RecordBatch:
    """Return the batch to send for the arguments of a scalar function, cast to the declared types."""
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    arrays = [
        _column(function, parameter, column) for parameter, column in zip(function.parameters, columns, strict=True)
    ]
    if len({len(array) for array in arrays}) > 1:
        raise InvalidArgument(f"{function}: arguments differ in length: {', '.join(str(len(a)) for a in arrays)} rows")
    return pa.record_batch(arrays, names=function.parameters.names)


def _column(function: Function, parameter: pa.Field, given: Any) -> pa.Array:
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    if not isinstance(given, pa.Array):
        raise InvalidArgument(f"{function}: argument {parameter.name} must be an array, not a {type(given).__name__}")
    if _has_mark(parameter, b"is_any_type"):
        return given
    try:
        return cast(given, parameter.type)
    except pa.ArrowException as error:
        raise InvalidArgument(
            f"{function}: cannot cast {given.type} to {parameter.type} for parameter {parameter.name}: {error}"
        ) from error


def _argument_row(function: Function, given: Sequence[Any], named: Mapping[str, Any]) -> bytes:
    """Return the Arrow stream of one row to send for the arguments of a table function.

    Parameters are in their declared order, without named ones that were not given.
    """
    values = iter(given)
    fields, arrays = [], []
    for parameter in function.parameters:
        if _has_mark(parameter, b"is_table_type"):
            continue
        if _has_mark(parameter, b"is_named_parameter"):
            if parameter.name not in named:
                continue
            value = named[parameter.name]
        else:
            value = next(values)
        arrays.append(_array(function, parameter, value))
        fields.append(pa.field(parameter.name, arrays[-1].type))
    no_columns = pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))  # one row, even without arguments
    batch = pa.record_batch(arrays, schema=pa.schema(fields)) if fields else no_columns
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _array(function: Function, parameter: pa.Field, value: Any) -> pa.Array:
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, 1)  # Python does not have all dates
    data_type = _literal_type(value) if _has_mark(parameter, b"is_any_type") else parameter.type
    try:
        return pa.nulls(1, data_type) if value is None else pa.array([value], data_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"{function}: {value!r} ({type(value).__name__}) does not fit parameter {parameter.name} {parameter.type}"
        ) from error


def _literal_type(value: Any) -> pa.DataType | None:
    """Return the type that SQL gives a literal where Arrow would infer another one; None where they agree."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return pa.int32() if -(2**31) <= value < 2**31 else pa.int64()
    if isinstance(value, Mapping):
        return pa.struct(
            [pa.field(str(name), _literal_type(item) or pa.scalar(item).type) for name, item in value.items()]
        )
    if isinstance(value, list | tuple) and value:
        return pa.list_(_literal_type(value[0]) or pa.scalar(value[0]).type)
    return None


def _has_mark(field: pa.Field, mark: bytes) -> bool:
    return bool((field.metadata or {}).get(mark))


def _signatures(functions: Sequence[Function]) -> str:
    return "; ".join(map(_signature, functions))


def _signature(function: Function) -> str:
    parameters = (
        f"{f.name} => {f.type}" if _has_mark(f, b"is_named_parameter") else f.name for f in function.parameters
    )
    return f"{function.name}({', '.join(parameters)})"
