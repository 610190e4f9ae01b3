"""Which rows an UPDATE or DELETE is about, and what becomes of them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from skiway.client.airport.calls import ALONE, InTransaction, Trace
from skiway.client.airport.catalog import ROWID, Table, TableName
from skiway.client.airport.exchange import Batches, LockStep, Outgoing, Written, batches_of, in_vectors
from skiway.client.airport.json_writer import JsonWriter
from skiway.client.airport.reading import Reading
from skiway.client.airport.scans import BoundScan, Selection, Where
from skiway.errors import InvalidArgument, PreconditionFailed

__all__ = ["Changes", "Writing", "check_rowid", "id_array", "updated", "with_row_ids"]

Assignments = Mapping[str, Any]


@dataclass(frozen=True)
class Changes:
    """What an UPDATE by predicate sets: columns it reads for that, and those it keeps but has to send.

    With RETURNING DuckDB sends all columns: the set ones, then the others, which it counts from the last to the first.
    """

    outgoing: Outgoing
    values: Assignments
    reads: list[str]
    kept: list[str]

    @classmethod
    def of(cls, table: Table, values: Assignments, *, returning: bool) -> Changes:
        check_rowid(table, "UPDATE")
        named = {_column(table, name): value for name, value in values.items()}
        if len(named) < len(values) or not named:
            raise InvalidArgument(f"UPDATE of {table}: name columns to set, each once, not {list(values)}")
        read = [_column(table, name) for value in named.values() if callable(value) for name in _parameters(value)]
        kept = [name for name in reversed(table.columns) if name not in named] if returning else []
        return cls(Outgoing.of(table, [*named, *kept, ROWID]), named, list(dict.fromkeys(read)), kept)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows to send for scanned ones, which have the columns read, then those kept, then the row id."""
        found = dict(zip(self.reads, batch.columns, strict=False))
        rest = batch.columns[len(self.reads) :]
        new = [
            self._computed(field, value, found, batch.num_rows)
            for field, value in zip(self.outgoing.fields, self.values.values(), strict=False)
        ]
        return self.outgoing.batch([*new, *rest])

    def _computed(self, field: pa.Field, value: Any, found: Mapping[str, pa.Array], rows: int) -> pa.Array:
        table = self.outgoing.table
        if not callable(value):
            return self.outgoing.cast(_one(table, field, value).take(pa.repeat(0, rows)), field)
        made = value(*(found[_column(table, name)] for name in _parameters(value)))
        if isinstance(made, pa.ChunkedArray):
            made = made.combine_chunks()
        if not isinstance(made, pa.Array) or len(made) != rows:
            raise InvalidArgument(
                f"the function for column {field.name!r} of {table} has to give an array of {rows} values"
            )
        return self.outgoing.cast(made, field)


def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _column(table: Table, name: str) -> str:
    """The name as the table spells it."""
    position = table.position(name)
    if position == table.rowid:
        return ROWID
    found: str = table.schema.field(position).name
    return found


def _one(table: Table, field: pa.Field, value: Any) -> pa.Array:
    if isinstance(value, pa.Scalar):
        return pa.array([value.as_py()], value.type)
    try:
        return pa.array([value], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"{value!r} ({type(value).__name__}) does not fit column {field.name!r} of {table}, which is {field.type}"
        ) from error


def updated(table: Table, given: pa.Schema | None) -> list[str]:
    """The columns that rows by id change, then the row id."""
    check_rowid(table, "UPDATE")
    if given is None:
        return [*table.columns, ROWID]
    names = [_column(table, name) for name in given.names]
    if ROWID not in names:
        raise InvalidArgument(f"UPDATE of {table} needs the ids of the rows: a column 'rowid', or row_ids=")
    changed = [name for name in names if name != ROWID]
    if not changed:
        raise InvalidArgument(f"UPDATE of {table} sets nothing: give columns beside the row ids")
    return [*dict.fromkeys(changed), ROWID]


def check_rowid(table: Table, operation: str) -> None:
    if table.rowid is None:
        raise PreconditionFailed(f"table {table} does not support {operation}: it has no row ids")


def with_row_ids(given: pa.Schema | None, batches: Batches, row_ids: Any) -> tuple[pa.Schema | None, Batches]:
    ids = id_array(row_ids)
    if given is None:
        given = pa.schema([])
    if any(name.lower() == ROWID for name in given.names):
        raise InvalidArgument("row ids are given twice: in the column 'rowid' and in row_ids")
    return given.append(pa.field(ROWID, ids.type)), _identified(batches, ids)


def _identified(batches: Batches, ids: pa.Array) -> Iterator[pa.RecordBatch]:
    seen = 0
    for batch in batches:
        part = ids.slice(seen, batch.num_rows)
        seen += batch.num_rows
        if len(part) < batch.num_rows:
            break
        yield batch.append_column(ROWID, part)
    if seen != len(ids):
        raise InvalidArgument(f"{len(ids)} row ids were given, and {seen} rows or more for them: give one for each")


def id_array(row_ids: Any) -> pa.Array:
    if isinstance(row_ids, pa.ChunkedArray):
        return row_ids.combine_chunks()
    if isinstance(row_ids, pa.Array):
        return row_ids
    if isinstance(row_ids, str | bytes) or not isinstance(row_ids, Iterable):
        raise InvalidArgument(f"row ids are an array or a list of integers, not {type(row_ids).__name__}")
    try:
        return pa.array(row_ids, pa.int64())
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"row ids are integers of 64 bits: {error}") from error


# --------------------
# Writing: INSERT, UPDATE and DELETE, each one exchange in lock-step with the server.


class Writing(Reading):
    """The statements that write."""

    def insert(self, table: TableName, rows: Any, *, returning: bool = False) -> Written:
        """Add rows: anything with `__arrow_c_stream__`, a batch, or an iterable of batches.

        Columns are matched by name and cast to the table's types. A column that is not given is NULL, also one with a
        default: defaults are SQL, which DuckDB evaluates before it sends, and this client does not. With `returning`
        the result has the rows as the server stored them, all visible columns.
        """
        unit, found = self._opened_table(table)
        given, batches = batches_of(rows)
        outgoing = Outgoing.of(found, found.columns)
        self._ask_version()
        fitted = outgoing.fitted(outgoing.schema if given is None else given, batches)
        return self._write("insert", outgoing, unit, lambda: fitted, returning=returning)

    def update(
        self,
        table: TableName,
        rows: Any,
        *,
        row_ids: Any = None,
        where: Where = None,
        returning: bool = False,
    ) -> Written:
        """Change rows, in one of two ways.

        By id: `rows` are Arrow data with the new values of some columns, and the ids of the rows in a column `rowid`
        or apart in `row_ids`. `returning` gives the columns that were sent, in their order.

        By predicate: `rows` is a mapping from columns to what they become wherever `where` holds, in all rows without
        it. That is one value, or a function whose parameters name the columns it is computed from:
        `{"price": lambda price: pc.multiply(price, 2)}`. `returning` gives all visible columns.
        """
        if isinstance(rows, Mapping):
            if row_ids is not None:
                raise InvalidArgument(
                    "row_ids go with rows of values; a mapping changes the rows where a predicate holds"
                )
            return self._update_where(table, rows, where, returning=returning)
        if where is not None:
            raise InvalidArgument("where goes with a mapping from columns to values; rows are named by their ids")
        unit, found = self._opened_table(table)
        given, batches = batches_of(rows)
        if row_ids is not None:
            given, batches = with_row_ids(given, batches, row_ids)
        outgoing = Outgoing.of(found, updated(found, given))
        self._ask_version()
        fitted = outgoing.fitted(outgoing.schema if given is None else given, batches)
        return self._write("update", outgoing, unit, lambda: fitted, returning=returning)

    def delete(self, table: TableName, row_ids: Any = None, *, where: Where = None, returning: bool = False) -> Written:
        """Remove the rows with these ids, or those where the predicate holds; `truncate` removes all.

        `returning` gives the rows as they were, all visible columns.
        """
        if (row_ids is None) == (where is None):
            raise InvalidArgument("delete takes row_ids or where, one of them; truncate() removes all rows")
        if where is not None:
            return self._delete_where(table, where, returning=returning)
        unit, found = self._opened_table(table)
        check_rowid(found, "DELETE")
        outgoing = Outgoing.of(found, [ROWID])
        ids = pa.record_batch([id_array(row_ids)], names=[ROWID])
        self._ask_version()
        return self._write("delete", outgoing, unit, lambda: outgoing.fitted(ids.schema, [ids]), returning=returning)

    def truncate(self, table: TableName) -> Written:
        """Remove all rows; to the server that is a DELETE of each."""
        return self._delete_where(table, None, returning=False)

    @cached_property
    def json(self) -> JsonWriter:
        """The same statements in the JSON contract, over DoPut and the action `delete`."""
        return JsonWriter(self._calls, lambda: self._begin() if self._opened() is not None else ALONE)

    # -- by predicate ---------------------------------------------------------------------------------------------

    def _update_where(self, table: TableName, values: Assignments, where: Where, *, returning: bool) -> Written:
        unit, found = self._opened_table(table)
        changes = Changes.of(found, values, returning=returning)
        selection = Selection(found, changes.reads, where, again=[*changes.kept, ROWID])
        written = self._over_scan("update", changes.outgoing, unit, selection, changes.apply, returning=returning)
        return Written(written.count, None if written.rows is None else written.rows.select(list(found.columns)))

    def _delete_where(self, table: TableName, where: Where, *, returning: bool) -> Written:
        unit, found = self._opened_table(table)
        check_rowid(found, "DELETE")
        outgoing = Outgoing.of(found, [ROWID])
        selection = Selection(found, (), where, again=[ROWID])
        return self._over_scan(
            "delete", outgoing, unit, selection, lambda batch: outgoing.batch(batch.columns), returning=returning
        )

    def _over_scan(
        self,
        operation: str,
        outgoing: Outgoing,
        unit: InTransaction,
        selection: Selection,
        change: Callable[[pa.RecordBatch], pa.RecordBatch],
        *,
        returning: bool,
    ) -> Written:
        """Write what a scan of the same table finds: the exchange is opened first, and open while the scan runs."""
        selection.json_filters()  # mistakes in names and values show before anything is asked for
        self._ask_version()
        self._ask_version()
        scan = BoundScan(self._calls, Trace(self._ids(), outgoing.table.descriptor, unit), selection).plan()

        def changed() -> Batches:
            with scan.read() as rows:
                yield from map(change, rows)

        return self._write(operation, outgoing, unit, changed, returning=returning)

    # -- all alike ------------------------------------------------------------------------------------------------

    def _opened_table(self, table: TableName) -> tuple[InTransaction, Table]:
        unit = self._begin()
        return unit, self._listing().table(table)

    def _write(
        self,
        operation: str,
        outgoing: Outgoing,
        unit: InTransaction,
        batches: Callable[[], Iterable[pa.RecordBatch]],
        *,
        returning: bool,
    ) -> Written:
        trace = Trace(self._ids(), outgoing.table.descriptor, unit)
        step = LockStep(self._calls, trace, operation, schema=outgoing.schema, returning=returning)
        with contextlib.closing(step):
            returned = []
            for batch in in_vectors(batches()):
                if returning:
                    returned.append(step.ask(batch))
                else:
                    step.send(batch)
            count = step.total_changed()
        return Written(count, pa.Table.from_batches(returned, step.schema) if returning else None)
