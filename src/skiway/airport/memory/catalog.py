"""The catalog and the schemas of the in-memory database."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from skiway.airport.catalog import (
    UNREACHABLE_SCHEMA,
    Catalog,
    CatalogVersion,
    Schema,
    SharedListing,
    Transactional,
    Versioned,
)
from skiway.airport.conversion import to_column
from skiway.airport.ddl import CreateTable, DynamicCatalog, DynamicSchema
from skiway.airport.memory.ddl import drop_table, rename_table
from skiway.airport.memory.definitions import check_keys, check_rows, define, valid_name
from skiway.airport.memory.sandbox import Sandbox
from skiway.airport.memory.snapshots import Clock, SchemaState, Snapshot, Store, TableState, change_numbers
from skiway.airport.memory.table import MemoryTable
from skiway.airport.memory.transactions import Database, MemoryTransactions, Transaction
from skiway.errors import AlreadyExists, InvalidArgument, NotFound, SchemaNotEmpty

__all__ = ["MemoryCatalog", "MemorySchema"]


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
