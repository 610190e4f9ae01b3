"""The catalog, the schemas and the tables of the in-memory database."""

from __future__ import annotations

import datetime as dt
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import filters
from skiway.airport.catalog import (
    UNREACHABLE_SCHEMA,
    Catalog,
    CatalogVersion,
    ColumnStatistics,
    CreateTable,
    DynamicCatalog,
    DynamicSchema,
    HasStatistics,
    Schema,
    SharedListing,
    Table,
    TimeTravel,
    Transactional,
    Versioned,
)
from skiway.airport.conversion import to_column
from skiway.airport.memory.ddl import AlterableTable, drop_table, rename_table
from skiway.airport.memory.definitions import Sandbox, check_keys, check_rows, define, valid_name
from skiway.airport.memory.rows import CHUNK_ROWS, Rows
from skiway.airport.memory.statements import DeleteRows, InsertRows, UpdateRows
from skiway.airport.memory.transactions import (
    Clock,
    Database,
    MemoryTransactions,
    SchemaState,
    Snapshot,
    Store,
    TableState,
    Transaction,
    change_numbers,
)
from skiway.airport.tables import Operation, ScanOptions, Statement, TimePoint, Writable, Write, project_schema
from skiway.airport.wire.duckdb_sql import identifier
from skiway.errors import AlreadyExists, InvalidArgument, NotFound, SchemaNotEmpty

_STATEMENTS: Final[dict[Operation, Callable[..., Statement]]] = {
    "insert": InsertRows,
    "update": UpdateRows,
    "delete": DeleteRows,
}
_MAX_COUNTED_ROWS: Final = 1_000_000  # in larger tables distinct values are not counted, which takes most of the time


class _Readable(Table, HasStatistics):
    """What current and past tables have in common."""

    def __init__(self, database: Database, schema_name: str, state: TableState) -> None:
        self.name = state.definition.name
        self.comment = state.definition.comment
        self._database = database
        self._schema_name = schema_name

    @abstractmethod
    def _state(self) -> TableState:
        """The state of the table to read."""

    @property
    def schema(self) -> pa.Schema:
        """All columns with comments and defaults, and the row id as the last one."""
        return self._state().definition.schema

    def scan(self, options: ScanOptions) -> pa.RecordBatchReader:
        """Return the rows in batches, which share the memory of the table unless there is a filter."""
        if options.batch_size is not None and options.batch_size < 1:
            raise InvalidArgument(f"batch_size must be at least 1, not {options.batch_size}")
        rows = self._state().rows
        schema = project_schema(rows.schema, options.columns)
        batches = _scan_batches(
            rows,
            schema.names,
            condition=filters.to_arrow(options.filter, rows.schema) if options.filter else None,
            limit=None if options.filter else options.limit,  # the condition may keep more rows than the filter
            size=min(options.batch_size or CHUNK_ROWS, CHUNK_ROWS),
        )
        return pa.RecordBatchReader.from_batches(schema, batches)

    def row_count(self) -> int:
        """The number of rows."""
        return len(self._state().rows)

    def column_statistics(self, column: str, duckdb_type: str) -> ColumnStatistics:  # noqa: ARG002
        """The exact statistics of a column."""
        state = self._state()
        return _column_statistics(state, state.definition.column(column), self._database.sandbox)

    def to_arrow(self) -> pa.Table:
        """All rows without their row ids, without copying."""
        state = self._state()
        return state.rows.table(state.definition.visible.names)


class PastTable(_Readable):
    """A past version of a table. It is read-only."""

    def __init__(self, database: Database, schema_name: str, state: TableState) -> None:
        super().__init__(database, schema_name, state)
        self._past_state = state

    def _state(self) -> TableState:
        return self._past_state


class MemoryTable(_Readable, TimeTravel, Writable, AlterableTable):
    """A table as the current request sees it: the newest version, or the version in its transaction."""

    def _state(self) -> TableState:
        return self._database.session().snapshot.open_table(self._schema_name, self.name)

    def at(self, point: TimePoint) -> PastTable | None:
        """The table with this name at a version or a timestamp."""
        snapshot = self._database.store.at(point)
        state = snapshot.table(self._schema_name, self.name) if snapshot else None
        return PastTable(self._database, self._schema_name, state) if state else None

    def write(self, write: Write) -> Statement:
        """Begin an INSERT, UPDATE or DELETE."""
        session = self._database.session()
        table = session.snapshot.open_table(self._schema_name, self.name)
        make = _STATEMENTS[write.operation]
        return make(write, schema=self._schema_name, table=table, session=session, sandbox=self._database.sandbox)


def _scan_batches(
    rows: Rows, columns: Sequence[str], *, condition: pc.Expression | None, limit: int | None, size: int
) -> Iterator[pa.RecordBatch]:
    remaining = limit
    for batch in rows.batches():
        part = _matching(batch, condition).select(columns)
        part = part if remaining is None else part.slice(0, remaining)
        for start in range(0, part.num_rows, size):
            yield part.slice(start, size)
        if remaining is not None:
            remaining -= part.num_rows
            if remaining <= 0:
                return


def _matching(batch: pa.RecordBatch, condition: pc.Expression | None) -> pa.RecordBatch:
    if condition is None:
        return batch
    try:
        return batch.filter(condition)
    except pa.ArrowException:  # such as an overflow; the client filters again, so returning more rows is fine
        return batch


# -- statistics -------------------------------------------------------------------------------------------------------


def _column_statistics(table: TableState, field: pa.Field, sandbox: Sandbox) -> ColumnStatistics:
    """The exact statistics of a column, computed once for each state of the table."""
    cached = table.statistics.get(field.name)
    if cached is None:
        cached = table.statistics[field.name] = _compute_statistics(table, field, sandbox)
    return cached


def _compute_statistics(table: TableState, field: pa.Field, sandbox: Sandbox) -> ColumnStatistics:
    if not len(table.rows):  # as in each new table
        return ColumnStatistics(has_null=False, has_not_null=False, distinct_count=0)
    name = identifier(field.name)
    is_text = _is_text(field.type)
    expressions = {
        "low": f"min({name})" if _has_order(field.type) else "NULL",
        "high": f"max({name})" if _has_order(field.type) else "NULL",
        "present": f"count({name})",
        "distinct_count": f"count(DISTINCT {name})" if len(table.rows) <= _MAX_COUNTED_ROWS else "NULL",
        "length": f"max(strlen({name}))" if is_text else "NULL",
        # strings with as many bytes as characters are ASCII
        "wide": f"bool_or(strlen({name}) <> length({name}))" if is_text else "NULL",
    }
    sql = f"SELECT {', '.join(f'{what} AS {alias}' for alias, what in expressions.items())} FROM rows"  # noqa: S608  (quoted)
    result = sandbox.query(sql, rows=table.rows.table([field.name]))
    present = result["present"][0].as_py()
    return ColumnStatistics(
        min=_sendable(result["low"], field),
        max=_sendable(result["high"], field),
        has_null=present < len(table.rows),
        has_not_null=present > 0,
        distinct_count=result["distinct_count"][0].as_py(),
        max_string_length=result["length"][0].as_py(),
        contains_unicode=result["wide"][0].as_py(),
    )


def _is_text(data_type: pa.DataType) -> bool:
    storage = data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type
    return bool(pa.types.is_string(storage) or pa.types.is_large_string(storage))


def _has_order(data_type: pa.DataType) -> bool:
    """Whether DuckDB's optimizer uses bounds of this type."""
    return not (pa.types.is_nested(data_type) or pa.types.is_null(data_type) or pa.types.is_dictionary(data_type))


def _sendable(bound: pa.ChunkedArray, field: pa.Field) -> pa.Scalar | None:
    """The bound, or None if Python cannot represent it, such as an infinite date."""
    if bound.null_count:
        return None
    value = to_column(bound.combine_chunks(), field)[0]
    try:
        round_trip = pa.array([value.as_py()], field.type)[0]
    except (OverflowError, ValueError, TypeError, pa.ArrowException):
        return None
    return value if round_trip.equals(value) else None


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class MemoryCatalog(Catalog, Versioned, SharedListing, DynamicCatalog, Transactional):
    """Schemas and tables in memory, safe to use from many threads.

    Every change creates a version; the newest `history` versions are kept for time travel. Names are case-insensitive
    and case-preserving, as in DuckDB. `memory_limit` and `timeout_s` limit the SQL of callers: checks, defaults and
    type conversions.
    """

    def __init__(
        self,
        name: str = "",
        *,
        schemas: Iterable[str] = (),
        history: int = 1000,
        transaction_ttl: dt.timedelta = dt.timedelta(minutes=10),
        clock: Clock = _now,
        ids: Callable[[], str] | None = None,
        memory_limit: str = "1GB",
        timeout_s: float = 60.0,
    ) -> None:
        self.name = name
        store = Store(clock=clock, keep=history)
        transactions = MemoryTransactions(store, clock=clock, ttl=transaction_ttl, ids=ids)
        self._database = Database(store, transactions, Sandbox(memory_limit=memory_limit, timeout_s=timeout_s))
        for schema in schemas:
            self.create_schema(schema)

    @property
    def transactions(self) -> MemoryTransactions:
        """The transaction manager."""
        return self._database.transactions

    def version(self) -> CatalogVersion:
        """The number of changes so far, including those of the current transaction."""
        session = self._database.session()
        own = session.changes if isinstance(session, Transaction) else 0
        return CatalogVersion(session.snapshot.version + own)

    def visibility_key(self) -> Hashable:
        """The id of a transaction with uncommitted changes; otherwise all callers see the same."""
        session = self._database.session()
        return session.id if isinstance(session, Transaction) and session.changes else ""

    def schemas(self) -> Sequence[MemorySchema]:
        """All schemas."""
        return [MemorySchema(self._database, state) for state in self._database.session().snapshot.schemas.values()]

    def schema(self, name: str) -> MemorySchema | None:
        """The schema called `name`, or None."""
        state = self._database.session().snapshot.schema(name)
        return MemorySchema(self._database, state) if state else None

    def create_schema(self, name: str, *, comment: str = "", tags: Mapping[str, str] | None = None) -> MemorySchema:
        """Create a schema."""
        if name.lower() == UNREACHABLE_SCHEMA:
            raise InvalidArgument(
                f"a schema cannot be named {name!r}, because DuckDB cannot query it: choose another name",
                key="schema.name",
            )
        state = SchemaState(valid_name(name, "schema"), comment, dict(tags or {}))
        shape = next(change_numbers)

        def change(snapshot: Snapshot) -> Snapshot:
            if snapshot.schema(name):
                raise AlreadyExists(f"schema {name!r} already exists", key="schema", schema=name)
            return replace(snapshot.with_schema(state), shape=shape)

        self._database.session().apply(change)
        return MemorySchema(self._database, state)

    def drop_schema(self, name: str, *, if_exists: bool = False) -> None:
        """Drop a schema without tables."""
        shape = next(change_numbers)

        def change(snapshot: Snapshot) -> Snapshot:
            if if_exists and not snapshot.schema(name):
                return snapshot
            tables = snapshot.open_schema(name).tables
            if tables:
                raise SchemaNotEmpty(
                    f"schema {name!r} still contains {len(tables)} tables, such as "
                    f"{next(iter(tables.values())).definition.name!r}: drop them first"
                )
            return replace(snapshot.without_schema(name), shape=shape)

        self._database.session().apply(change)


class MemorySchema(Schema, DynamicSchema):
    """A schema of a `MemoryCatalog`, as the current request sees it."""

    def __init__(self, database: Database, state: SchemaState) -> None:
        self.name = state.name
        self.comment = state.comment
        self.tags = state.tags
        self._database = database

    def tables(self) -> Sequence[MemoryTable]:
        """All tables."""
        state = self._database.session().snapshot.open_schema(self.name)
        return [MemoryTable(self._database, self.name, table) for table in state.tables.values()]

    def table(self, name: str) -> MemoryTable | None:
        """The table called `name`, or None."""
        state = self._database.session().snapshot.table(self.name, name)
        return MemoryTable(self._database, self.name, state) if state else None

    def create_table(self, create: CreateTable) -> MemoryTable:
        """Create an empty table."""
        return self._create(create, ())

    def add_table(
        self,
        name: str,
        data: Any,
        *,
        primary_key: Sequence[str] = (),
        unique: Sequence[Sequence[str]] = (),
        checks: Sequence[str] = (),
        comment: str = "",
    ) -> MemoryTable:
        """Create a table with rows: a pyarrow Table, or any other object with Arrow data."""
        table = data if isinstance(data, pa.Table) else pa.table(data)
        create = CreateTable(
            name,
            table.schema,
            comment=comment,
            primary_key=tuple(primary_key),
            unique=tuple(map(tuple, unique)),
            checks=tuple(checks),
        )
        return self._create(create, table.to_batches())

    def drop_table(self, name: str, *, if_exists: bool = False) -> None:
        """Drop a table. A new table with the same name can still read its history."""
        self._database.session().apply(drop_table(self.name, name, if_exists=if_exists))

    def rename_table(self, name: str, new_name: str, *, if_exists: bool = False) -> None:
        """Rename a table."""
        valid_name(new_name, "table")
        self._database.session().apply(rename_table(self.name, name, new_name, if_exists=if_exists))

    def _create(self, create: CreateTable, batches: Iterable[pa.RecordBatch]) -> MemoryTable:
        table = _new_table(create, batches, self._database.sandbox)

        def change(snapshot: Snapshot) -> Snapshot:
            if snapshot.open_schema(self.name).table(create.name) and create.on_conflict != "replace":
                if create.on_conflict == "ignore":
                    return snapshot
                raise AlreadyExists(f"table {self.name}.{create.name} already exists", key="table", table=create.name)
            return replace(snapshot.with_table(self.name, table), shape=table.revision)

        self._database.session().apply(change)
        created = self.table(create.name)
        if created is None:
            raise NotFound(f"table {self.name}.{create.name} was dropped right after its creation")
        return created


def _new_table(create: CreateTable, batches: Iterable[pa.RecordBatch], sandbox: Sandbox) -> TableState:
    if create.on_conflict not in ("error", "ignore", "replace"):
        raise InvalidArgument(f"on_conflict must be 'error', 'ignore' or 'replace', not {create.on_conflict!r}")
    table = TableState.empty(define(create, sandbox))
    stored = [_stored_batch(table, batch, sandbox) for batch in batches]
    rows = table.rows.append(stored, table.revision)
    check_keys(table.definition, rows, sandbox)
    return table.with_rows(rows)


def _stored_batch(table: TableState, batch: pa.RecordBatch, sandbox: Sandbox) -> pa.RecordBatch:
    definition = table.definition
    columns = [to_column(column, field) for column, field in zip(batch.columns, definition.columns, strict=True)]
    rows = pa.RecordBatch.from_arrays(columns, schema=definition.visible)
    check_rows(definition, rows, sandbox)
    return table.with_row_ids(rows)
