"""Helpers for the tests of the in-memory catalog."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from skiway.airport.catalog import CreateTable
from skiway.airport.memory import MemoryCatalog, MemoryTable
from skiway.airport.request import Request, enter
from skiway.airport.tables import DmlOptions, Operation, Statement, Write

PEOPLE = pa.schema({"id": pa.int64(), "name": pa.string()})
NOON = dt.datetime(2025, 1, 31, 12, tzinfo=dt.UTC)


@dataclass
class StillClock:
    """A clock that only moves when a test advances it."""

    now: dt.datetime = NOON

    def __call__(self) -> dt.datetime:
        return self.now

    def advance(self, **duration: float) -> None:
        self.now += dt.timedelta(**duration)


def people(catalog: MemoryCatalog | None = None, **rules: Any) -> MemoryTable:
    """A table `public.people` of ids and names."""
    catalog = catalog or MemoryCatalog("scratch", schemas=["public"])
    schema = catalog.schema("public")
    assert schema
    return schema.create_table(CreateTable("people", rules.pop("schema", PEOPLE), **rules))


def catalog_of(table: MemoryTable) -> MemoryCatalog:
    """A catalog over the same database as the table's own catalog."""
    catalog = MemoryCatalog("scratch")
    catalog._database = table._database
    return catalog


def begin(table: MemoryTable, operation: Operation, schema: pa.Schema, *, returning: bool = False) -> Statement:
    visible = tuple(name for name in table.schema.names if name != "rowid")
    return table.write(Write(operation, schema, DmlOptions(returning, visible)))


def write(table: MemoryTable, operation: Operation, batches: Sequence[pa.RecordBatch]) -> tuple[int, list[Any]]:
    """Run a statement with RETURNING; returns the number of affected rows and the response to each batch."""
    statement = begin(table, operation, batches[0].schema, returning=True)
    returned = [statement.apply(batch) for batch in batches]
    return statement.commit(), returned


def insert(table: MemoryTable, columns: Mapping[str, Any] | pa.RecordBatch) -> int:
    batch = columns if isinstance(columns, pa.RecordBatch) else pa.record_batch(dict(columns))
    return write(table, "insert", [batch])[0]


def update(table: MemoryTable, columns: Mapping[str, Any]) -> int:
    return write(table, "update", [pa.record_batch(dict(columns))])[0]


def delete(table: MemoryTable, row_ids: Sequence[int]) -> int:
    return write(table, "delete", [pa.record_batch({"rowid": pa.array(row_ids, pa.int64())})])[0]


def content(table: MemoryTable) -> list[tuple[Any, ...]]:
    """All rows as tuples."""
    return [tuple(row.values()) for row in table.to_arrow().to_pylist()]


@contextmanager
def in_transaction(transaction_id: str) -> Iterator[None]:
    """Run the requests of the block with this transaction id."""
    enter(Request(transaction_id=transaction_id))
    try:
        yield
    finally:
        enter(Request())
