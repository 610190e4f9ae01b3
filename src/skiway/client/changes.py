"""Which rows an UPDATE or DELETE is about, and what becomes of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from skiway.client.catalog import ROWID, Table
from skiway.client.outgoing import Batches, Outgoing
from skiway.errors import InvalidArgument, PreconditionFailed

__all__ = ["Changes", "check_rowid", "id_array", "updated", "with_row_ids"]

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
