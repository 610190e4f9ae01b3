"""INSERT, UPDATE, DELETE and CREATE TABLE AS, and transactions of such statements.

Each statement is one exchange in lock-step with the server. All statements of a transaction take effect together when its block
ends, or none does.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from skiway.client.airport import scans
from skiway.client.airport.calls import ROWID, Table, TableName, TransactionContext
from skiway.client.airport.ddl import OnConflict, create_table_for_rows
from skiway.client.airport.exchange import Batches, Exchange, OutgoingColumns, Written, in_vectors, to_batches
from skiway.client.airport.filters import Selection, Where
from skiway.client.airport.results import Rows
from skiway.client.airport.scans import BoundScan
from skiway.client.airport.session import OpenTransaction, Session
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed, Unsupported


class Statement:
    """An INSERT, UPDATE or DELETE of a table, in a given transaction or that of the session."""

    def __init__(
        self,
        session: Session,
        name: TableName,
        *,
        returning: bool = False,
        transaction: TransactionContext | None = None,
    ) -> None:
        self._session, self._name, self._returning, self._transaction = session, name, returning, transaction

    def insert(self, rows: Any) -> Written:
        """Insert the caller's rows."""
        transaction, table = self._begin()
        schema, batches = to_batches(rows)
        outgoing = OutgoingColumns.of(table, table.columns)
        self._session.poll_version()
        return self._write("insert", transaction, outgoing, outgoing.conform(schema, batches))

    def create(self, rows: Any, on_conflict: OnConflict) -> Written:
        """Create the table with the columns of the caller's rows, and insert them."""
        transaction = self._transaction or self._session.begin()
        schema, batches = to_batches(rows)
        if schema is None:
            raise InvalidArgument("rows contain no batch: give at least an empty one, which defines the columns")
        if on_conflict == "ignore" and self._is_listed():
            return Written(0, None)
        table = create_table_for_rows(self._session, self._name, schema, on_conflict)
        outgoing = OutgoingColumns.of(table, table.columns)
        written = self._write("insert", transaction, outgoing, outgoing.conform(schema, batches))
        self._session.reload()
        return written

    def update(self, rows: Any, row_ids: Any, where: Where) -> Written:
        """Update rows by id, if `rows` is Arrow data, or by predicate, if it maps columns to values."""
        if isinstance(rows, Mapping):
            if row_ids is not None:
                raise InvalidArgument("row_ids need Arrow data; a mapping updates the rows that match where=")
            return self._update_where(rows, where)
        if where is not None:
            raise InvalidArgument("where= needs a mapping from columns to values; Arrow data is matched by row id")
        return self._update_by_id(rows, row_ids)

    def delete(self, row_ids: Any, where: Where) -> Written:
        """Delete rows by id or by predicate."""
        if (row_ids is None) == (where is None):
            raise InvalidArgument("delete needs either row_ids or where; truncate() deletes all rows")
        return self._delete_by_id(row_ids) if where is None else self.delete_where(where)

    def delete_where(self, where: Where) -> Written:
        """Delete the rows that match `where`; all rows if it is None."""
        transaction, table = self._begin()
        outgoing = _row_ids_of(table)
        selection = Selection(table, (), where, repeated=[ROWID])
        return self._write_scanned(
            "delete", transaction, outgoing, selection, lambda batch: outgoing.batch(batch.columns)
        )

    def _delete_by_id(self, row_ids: Any) -> Written:
        """Delete the rows with these ids."""
        transaction, table = self._begin()
        outgoing = _row_ids_of(table)
        ids = pa.record_batch([_id_array(row_ids)], names=[ROWID])
        self._session.poll_version()
        return self._write("delete", transaction, outgoing, outgoing.conform(ids.schema, [ids]))

    def _update_by_id(self, rows: Any, row_ids: Any) -> Written:
        """Update the rows whose ids are in `row_ids`, or in a column `rowid` of `rows`."""
        transaction, table = self._begin()
        schema, batches = to_batches(rows)
        if row_ids is not None:
            schema, batches = _with_row_ids(schema, batches, row_ids)
        outgoing = OutgoingColumns.of(table, _updated_columns(table, schema))
        self._session.poll_version()
        return self._write("update", transaction, outgoing, outgoing.conform(schema, batches))

    def _update_where(self, values: Mapping[str, Any], where: Where) -> Written:
        """Set columns to values, or to what functions compute, in the rows that match `where`."""
        transaction, table = self._begin()
        assignments = Assignments.of(table, values, returning=self._returning)
        selection = Selection(table, assignments.reads, where, repeated=[*assignments.unchanged, ROWID])
        written = self._write_scanned("update", transaction, assignments.outgoing, selection, assignments.apply)
        return Written(written.count, None if written.rows is None else written.rows.select(list(table.columns)))

    # -- the exchange --------------------------------------------------------------------------------------------------

    def _begin(self) -> tuple[TransactionContext, Table]:
        return self._transaction or self._session.begin(), self._session.listing().table(self._name)

    def _write(
        self, operation: str, transaction: TransactionContext, outgoing: OutgoingColumns, batches: Batches
    ) -> Written:
        """Run the statement: open the exchange, compute and send the batches, and commit."""
        session, returning = self._session, self._returning
        trace = session.trace(outgoing.table.descriptor, transaction)
        exchange = Exchange(session.calls, trace, operation, schema=outgoing.schema, returning=returning)
        with contextlib.closing(exchange):
            returned = []
            for batch in in_vectors(batches):
                if returning:
                    returned.append(exchange.send_and_receive(batch))
                else:
                    exchange.send(batch)
            count = exchange.commit()
        return Written(count, pa.Table.from_batches(returned, exchange.schema) if returning else None)

    def _write_scanned(
        self,
        operation: str,
        transaction: TransactionContext,
        outgoing: OutgoingColumns,
        selection: Selection,
        change: Callable[[pa.RecordBatch], pa.RecordBatch],
    ) -> Written:
        """Scan the table and write the changed rows back. As in DuckDB, the exchange stays open while the scan runs."""
        session = self._session
        selection.json_filters()  # errors in names and values surface before any request is sent
        session.poll_version()
        session.poll_version()
        scan = BoundScan(session.calls, session.trace(outgoing.table.descriptor, transaction), selection).plan()

        def changed() -> Batches:
            with scan.read() as rows:
                yield from map(change, rows)

        return self._write(operation, transaction, outgoing, changed())

    def _is_listed(self) -> bool:
        try:
            self._session.listing().table(self._name)
        except NotFound:
            return False
        return True


# -- UPDATE by predicate -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assignments:
    """The columns that an UPDATE sets, the columns its functions read, and those it sends back `unchanged`.

    For RETURNING, DuckDB sends all columns: first those that are set, then the others from the last to the first.
    """

    outgoing: OutgoingColumns
    values: Mapping[str, Any]
    reads: list[str]
    unchanged: list[str]

    @classmethod
    def of(cls, table: Table, values: Mapping[str, Any], *, returning: bool) -> Assignments:
        """Resolve the names of `values` in `table`."""
        _check_rowid(table, "UPDATE")
        named = {_column(table, name): value for name, value in values.items()}
        if len(named) < len(values) or not named:
            raise InvalidArgument(f"UPDATE of {table} needs columns to change, each once, not {list(values)}")
        reads = [_column(table, name) for value in named.values() if callable(value) for name in _parameters(value)]
        unchanged = [name for name in reversed(table.columns) if name not in named] if returning else []
        outgoing = OutgoingColumns.of(table, [*named, *unchanged, ROWID])
        return cls(outgoing, named, list(dict.fromkeys(reads)), unchanged)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows to send for a scanned batch, which has the columns read, the unchanged ones and the row id."""
        inputs = dict(zip(self.reads, batch.columns, strict=False))
        rest = batch.columns[len(self.reads) :]
        new = [
            self._compute(field, value, inputs, batch.num_rows)
            for field, value in zip(self.outgoing.fields, self.values.values(), strict=False)
        ]
        return self.outgoing.batch([*new, *rest])

    def _compute(self, field: pa.Field, value: Any, inputs: Mapping[str, pa.Array], rows: int) -> pa.Array:
        table = self.outgoing.table
        if not callable(value):
            return self.outgoing.cast(_single_value(table, field, value).take(pa.repeat(0, rows)), field)
        computed = value(*(inputs[_column(table, name)] for name in _parameters(value)))
        if isinstance(computed, pa.ChunkedArray):
            computed = computed.combine_chunks()
        if not isinstance(computed, pa.Array) or len(computed) != rows:
            raise InvalidArgument(
                f"the function for column {field.name!r} of {table} must return an array of {rows} values"
            )
        return self.outgoing.cast(computed, field)


def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _column(table: Table, name: str) -> str:
    """The name as the table spells it."""
    position = table.position(name)
    if position == table.rowid:
        return ROWID
    spelled: str = table.schema.field(position).name
    return spelled


def _single_value(table: Table, field: pa.Field, value: Any) -> pa.Array:
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, 1)  # Python does not have all dates
    try:
        return pa.nulls(1, field.type) if value is None else pa.array([value], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"{value!r} ({type(value).__name__}) does not fit column {field.name!r} of {table}, which is {field.type}"
        ) from error


# -- row ids -----------------------------------------------------------------------------------------------------------


def _check_rowid(table: Table, operation: str) -> None:
    if table.rowid is None:
        raise PreconditionFailed(f"table {table} does not support {operation}: it has no row ids")


def _row_ids_of(table: Table) -> OutgoingColumns:
    """The columns of a DELETE."""
    _check_rowid(table, "DELETE")
    return OutgoingColumns.of(table, [ROWID])


def _updated_columns(table: Table, schema: pa.Schema | None) -> list[str]:
    """The columns that rows with ids update, followed by the row id."""
    _check_rowid(table, "UPDATE")
    if schema is None:
        return [*table.columns, ROWID]
    names = [_column(table, name) for name in schema.names]
    if ROWID not in names:
        raise InvalidArgument(f"UPDATE of {table} needs row ids: give a column 'rowid', or row_ids=")
    updated = [name for name in names if name != ROWID]
    if not updated:
        raise InvalidArgument(f"UPDATE of {table} sets no column: give columns in addition to the row ids")
    return [*dict.fromkeys(updated), ROWID]


def _with_row_ids(schema: pa.Schema | None, batches: Batches, row_ids: Any) -> tuple[pa.Schema | None, Batches]:
    """Append `row_ids` to the batches as a column."""
    ids = _id_array(row_ids)
    if schema is None:
        schema = pa.schema([])
    if any(name.lower() == ROWID for name in schema.names):
        raise InvalidArgument("row ids are given twice: in the column 'rowid' and in row_ids")
    return schema.append(pa.field(ROWID, ids.type)), _append_ids(batches, ids)


def _append_ids(batches: Batches, ids: pa.Array) -> Iterator[pa.RecordBatch]:
    seen = 0
    for batch in batches:
        part = ids.slice(seen, batch.num_rows)
        seen += batch.num_rows
        if len(part) < batch.num_rows:
            break
        yield batch.append_column(ROWID, part)
    if seen != len(ids):
        raise InvalidArgument(f"{len(ids)} row ids were given for {seen} rows or more: give one for each row")


def _id_array(row_ids: Any) -> pa.Array:
    if isinstance(row_ids, pa.ChunkedArray):
        return row_ids.combine_chunks()
    if isinstance(row_ids, pa.Array):
        return row_ids
    if isinstance(row_ids, str | bytes) or not isinstance(row_ids, Iterable):
        raise InvalidArgument(f"row ids must be an array or a list of integers, not {type(row_ids).__name__}")
    try:
        return pa.array(row_ids, pa.int64())
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"row ids must be 64-bit integers: {error}") from error


class Transaction(OpenTransaction):
    """A transaction of one thread.

    What its methods write becomes visible at the end of the block, all at once, or never. They take the same arguments as the
    methods of the same name of the client, which commit at once, unless the transaction is explicit.
    """

    def __init__(self, session: Session, *, explicit: bool, release: bool) -> None:
        super().__init__(session.calls, explicit=explicit, release=release)
        self._session = session

    def insert(self, table: TableName, rows: Any) -> int:
        """Insert rows, and return their number."""
        return self._statement(table).insert(rows).count

    def update(self, table: TableName, rows: Any, *, row_ids: Any = None, where: Where = None) -> int:
        """Update rows by id or by predicate, and return their number. Row ids are those of the transaction's own `scan`."""
        return self._statement(table).update(rows, row_ids, where).count

    def delete(self, table: TableName, row_ids: Any = None, *, where: Where = None) -> int:
        """Delete rows by id or by predicate, and return their number. Row ids are those of the transaction's own `scan`."""
        return self._statement(table).delete(row_ids, where).count

    def scan(self, table: TableName, *, columns: Sequence[str] | None = None, where: Where = None) -> Rows:
        """Stream the rows of a table as the transaction has changed it."""
        return scans.bind(self._session, table, columns=columns, where=where, transaction=self._staging()).read()

    def call(self, function: TableName, *arguments: Any, named: Mapping[str, Any] | None = None) -> Rows:
        """Call a table function that reads tables as the transaction has changed them, or stages what it writes."""
        return scans.call_table_function(
            self._session,
            function,
            arguments,
            named or {},
            transaction=self._staging(),
        )

    def _statement(self, table: TableName) -> Statement:
        return Statement(self._session, table, transaction=self._staging())

    def _staging(self) -> TransactionContext:
        if not self.id:
            raise Unsupported(
                f"catalog {self._calls.catalog!r} has no transactions: use the methods of the client, which commit at once"
            )
        self._must_end = True
        return TransactionContext(self.id, explicit=True)
