"""The rows of a scan, as a stream."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from skiway.airport.wire.duckdb_sql import duckdb_type, storage_type
from skiway.airport.wire.frames import BatchReader
from skiway.airport.wire.payloads import ROWID_COLUMN, ScanParameters, packed
from skiway.client.airport.calls import NOW, Calls, TimeTravel, Trace
from skiway.client.airport.catalog import ROWID, Table
from skiway.client.airport.connection import Connection
from skiway.client.airport.endpoints import Endpoint, FunctionCall, read_endpoint
from skiway.client.airport.errors import nonsense
from skiway.client.airport.exchange import cast
from skiway.client.airport.filters import filter_json, kept
from skiway.client.airport.predicates import Predicate
from skiway.errors import Internal, InvalidArgument

__all__ = ["BoundScan", "ColumnStatistics", "Rows", "Selection", "Where"]


class Rows:
    """Record batches as they come from the server, one at a time; use it from one thread at a time, and once.

    It reads like a `pyarrow.RecordBatchReader`, and everything that takes Arrow streams takes it: `pyarrow.table(rows)`,
    Polars, DuckDB. Unlike pyarrow's reader it ends the call on the server when it is closed early.
    """

    def __init__(self, schema: pa.Schema, batches: Generator[pa.RecordBatch]) -> None:
        self.schema = schema
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def read_next_batch(self) -> pa.RecordBatch:
        """The next batch; `StopIteration` after the last."""
        return next(self._batches)

    def read_all(self) -> pa.Table:
        """All rows that are left."""
        return pa.Table.from_batches(self._batches, self.schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """The same stream as pyarrow's own reader, for those who insist; it ends the call when it is deleted."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The stream for other libraries."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Stop reading: the server may forget about the rest."""
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# --------------------
# Column statistics as a server answers them.


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What the server says about a column; None where it says nothing.

    `min` and `max` are bounds: values outside do not occur, the bounds themselves need not.
    """

    min: Any
    max: Any
    has_null: bool
    has_not_null: bool
    distinct_count: int | None
    max_string_length: int | None = None
    contains_unicode: bool | None = None


def read_statistics(data: bytes, column: str) -> ColumnStatistics:
    """The one row in an Arrow stream."""
    try:
        with pa.ipc.open_stream(data) as reader:
            batch = reader.read_next_batch()
            batch.validate(full=True)
            row = batch.slice(0, 1).to_pylist()[0]  # one row of single values, not data
    except (pa.ArrowException, OSError, ValueError, StopIteration, IndexError) as error:
        raise InvalidArgument(f"statistics of {column!r} are not an Arrow stream of one row") from error
    missing = {"min", "max", "has_null", "has_not_null", "distinct_count"} - row.keys()
    if missing:
        raise InvalidArgument(f"statistics of {column!r} lack {min(missing)!r}")
    return ColumnStatistics(
        min=row["min"],
        max=row["max"],
        has_null=bool(row["has_null"]),
        has_not_null=bool(row["has_not_null"]),
        distinct_count=row["distinct_count"] or None,  # zero is the protocol's word for "not known"
        max_string_length=row.get("max_string_length"),
        contains_unicode=row.get("contains_unicode"),
    )


# --------------------
# A scan in the steps that DuckDB takes: bound, planned, read.


Where = Predicate | str | None


@dataclass(frozen=True)
class Selection:
    """The columns and the filter of a scan, over the columns that its table has.

    `columns` are those of the result, None for all visible ones. The filter's own columns are asked for before them,
    as DuckDB does, and dropped again. Filter text in JSON goes to the server as it is, and is not applied here.
    Columns in `again` are asked for at the end, each once more even if it is among the others: UPDATE and DELETE do so.
    """

    table: Table
    columns: Sequence[str] | None
    where: Where
    again: Sequence[str] = ()

    @cached_property
    def positions(self) -> list[int]:
        """The columns of the result, as positions in the table's schema."""
        return [*self._chosen, *(self.table.position(name) for name in self.again)]

    @cached_property
    def _chosen(self) -> list[int]:
        names = self.table.columns if self.columns is None else self.columns
        return [self.table.position(name) for name in names]

    @cached_property
    def filtered(self) -> dict[str, int]:
        """The filter's columns as it names them, and their positions."""
        if not isinstance(self.where, Predicate):
            return {}
        return {name: self.table.position(name) for name in self.where.columns()}

    @cached_property
    def referenced(self) -> list[int]:
        """All columns that the scan needs, each once, and then those asked for again."""
        once = dict.fromkeys([*self.filtered.values(), *self._chosen])
        return [*once, *self.positions[len(self._chosen) :]]

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        return pa.schema([self._named(position) for position in self.positions])

    def column_ids(self) -> list[int]:
        """The needed columns by DuckDB's numbers; a scan that needs none still has to ask for one."""
        if not self.referenced:
            return [ROWID_COLUMN] if self.table.rowid is not None else [0] if self.table.columns else []
        return [self._id(position) for position in self.referenced]

    def json_filters(self) -> str:
        """The filter, with the names that its column numbers stand for."""
        if isinstance(self.where, str):
            return _checked(self.where)
        names = [self._named(position).name for position in self.referenced]
        aliases = {name: self._named(position) for name, position in self.filtered.items()}
        return filter_json(self.where, names, aliases)

    def with_statistics(self) -> list[int]:
        """Whose statistics DuckDB asks for, in order: each needed column twice, or once the first one to just count."""
        if not self.referenced:
            return (
                [] if self.table.rowid is not None else [self.table.position(name) for name in self.table.columns[:1]]
            )
        return [position for position in dict.fromkeys(self.referenced) if position != self.table.rowid] * 2

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The result's rows and columns of a batch that has all the table's columns."""
        chosen = batch.select(self.positions)
        if isinstance(self.where, Predicate):
            mask = kept(self.where, batch, self.filtered)
            chosen = chosen.filter(mask) if self.positions else chosen.slice(0, mask.true_count)
        return pa.RecordBatch.from_arrays(chosen.columns, schema=self.schema) if self.positions else chosen

    def _named(self, position: int) -> pa.Field:
        field = self.table.schema.field(position)
        return field.with_name(ROWID) if position == self.table.rowid else field

    def _id(self, position: int) -> int:
        rowid = self.table.rowid
        if position == rowid:
            return ROWID_COLUMN
        return position if rowid is None or position < rowid else position - 1


def _checked(text: str) -> str:
    try:
        document = json.loads(text) if text else {}
    except ValueError as error:
        raise InvalidArgument(f"where= is not a filter in JSON: {error}; build one with col(…)") from error
    if not isinstance(document, dict):
        raise InvalidArgument(f"where= is {type(document).__name__} in JSON, not an object with 'filters'")
    return text


@dataclass(frozen=True)
class BoundScan:
    """A scan whose table is known, with one trace id for all its calls. `scan()` of the client takes all its steps.

    `arguments` are those of a table function. Its steps may be taken apart, for what one scan alone cannot say: DuckDB
    binds all tables of a join before it plans them.
    """

    calls: Calls
    trace: Trace
    selection: Selection
    at: TimeTravel = NOW
    arguments: bytes = b""

    @property
    def table(self) -> Table:
        """What is scanned."""
        return self.selection.table

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self.selection.schema

    def plan(self) -> Self:
        """Ask for the statistics that DuckDB would plan with."""
        if self.table.has_statistics:
            for position in self.selection.with_statistics():
                self.statistics(self.table.schema.field(position).name)
        return self

    def statistics(self, column: str) -> ColumnStatistics:
        """What the server says about a column."""
        field = self.table.schema.field(self.table.position(column))
        data = self.calls.column_statistics(self.trace, field.name, duckdb_type(field))
        with nonsense(self._location, "column_statistics"):
            return read_statistics(data, field.name)

    def endpoints(self) -> list[Endpoint]:
        """Where the rows are."""
        asked = ScanParameters(
            json_filters=self.selection.json_filters(),
            column_ids=self.selection.column_ids(),
            table_function_parameters=packed(self.arguments),
            at_unit=self.at.unit,
            at_value=self.at.value,
        )
        found = self.calls.endpoints(self.trace, asked)
        with nonsense(self._location, "endpoints"):
            return [read_endpoint(message) for message in found]

    def read(self) -> Rows:
        """The rows; endpoints are asked for now, and read one after another."""
        return Rows(self.schema, self._batches(self.endpoints()))

    @property
    def _location(self) -> str:
        return self.calls.connection.location.text

    def _batches(self, endpoints: Sequence[Endpoint]) -> Generator[pa.RecordBatch]:
        for endpoint in endpoints:
            source = self._delegated(endpoint.call) if endpoint.call is not None else self._streamed(endpoint)
            with contextlib.closing(source) as batches:
                for batch in batches:
                    if (rows := self.selection.apply(batch)).num_rows:
                        yield rows

    def _streamed(self, endpoint: Endpoint) -> Generator[pa.RecordBatch]:
        connection = self.calls.connection if endpoint.location is None else self._elsewhere(endpoint.location)
        stream = self.calls.get(self.trace, endpoint.ticket, connection)
        try:
            with nonsense(connection.location.text, "DoGet"):
                reader = BatchReader(stream, trusted=True)  # rows are many, and of a server that was chosen
                self._check(reader.schema)
                yield from reader
        finally:
            stream.close()
            if connection is not self.calls.connection:
                connection.close()

    def _elsewhere(self, uri: str) -> Connection:
        with nonsense(self._location, "endpoints"):
            return self.calls.connection.elsewhere(uri)

    def _check(self, streamed: pa.Schema) -> None:
        """DuckDB trusts positions blindly; we look first."""
        if [_stored(field) for field in streamed] != [_stored(field) for field in self.table.schema]:
            raise InvalidArgument(
                f"the stream has columns {_shown(streamed)}, but {self.table} has {_shown(self.table.schema)}"
            )

    def _delegated(self, call: FunctionCall) -> Generator[pa.RecordBatch]:
        schema = self.table.schema
        wanted = [schema.field(position).name for position in self.selection.referenced]
        with contextlib.closing(call.run(wanted)) as batches:
            for batch in batches:
                found = dict(zip(wanted, batch.columns, strict=False))
                yield _conformed(found, schema, batch.num_rows)


def _stored(field: pa.Field) -> pa.DataType:
    return storage_type(field.type)


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _conformed(found: Mapping[str, pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """A batch with all columns of `schema`: those found, cast, and NULLs for the others."""
    try:
        columns = [
            cast(found[field.name], field.type) if field.name in found else pa.nulls(rows, field.type)
            for field in schema
        ]
    except pa.ArrowException as error:
        raise Internal(f"the file's columns do not fit the table's: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))
