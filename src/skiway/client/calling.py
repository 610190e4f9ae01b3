"""Functions on the server: scalar functions, table functions, and table functions over rows."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from skiway.airport.wire.payloads import InOutParameters, encode, packed
from skiway.client.arguments import choose_overload, choose_scalar, packed_arguments, scalar_arguments
from skiway.client.calls import Trace
from skiway.client.catalog import Table, TableName
from skiway.client.lockstep import LockStep
from skiway.client.outgoing import Batches, batches_of, in_vectors
from skiway.client.reading import Reading
from skiway.client.rows import Rows
from skiway.client.scans import Selection, Where
from skiway.errors import InvalidArgument

__all__ = ["Calling"]


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
