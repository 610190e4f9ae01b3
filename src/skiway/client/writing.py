"""Writing: INSERT, UPDATE and DELETE, each one exchange in lock-step with the server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa

from skiway.client.calls import ALONE, InTransaction, Trace
from skiway.client.catalog import ROWID, Table, TableName
from skiway.client.changes import Assignments, Changes, check_rowid, id_array, updated, with_row_ids
from skiway.client.json_writer import JsonWriter
from skiway.client.lockstep import LockStep
from skiway.client.outgoing import Batches, Outgoing, batches_of, in_vectors
from skiway.client.reading import Reading
from skiway.client.scans import BoundScan, Selection, Where
from skiway.client.written import Written
from skiway.errors import InvalidArgument

__all__ = ["Writing"]


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
