"""The outcome of a statement that writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.wire.duckdb_sql import storage_type
from skiway.airport.wire.frames import BatchReader, FrameWriter, metadata_frame
from skiway.airport.wire.payloads import TotalChanged, decode
from skiway.client.airport.calls import Calls, Trace
from skiway.client.airport.catalog import ROWID, Table
from skiway.client.airport.errors import nonsense
from skiway.errors import ConstraintViolation, Internal, InvalidArgument, NullRowId

__all__ = ["Batches", "LockStep", "Outgoing", "Written", "batches_of", "cast", "in_vectors"]


@dataclass(frozen=True, slots=True)
class Written:
    """What a statement did: how many rows it affected, and with `returning` these rows."""

    count: int
    rows: pa.Table | None = None


# --------------------
# An exchange in lock-step: the server's schema before the first batch, then one batch back for each where asked for.


FINISHED: Final = b"chunk_finished"
MARKS: Final = (b"chunk_continues", FINISHED)


class LockStep:
    """One exchange, opened by making it: it waits until the server has sent its schema. Close it in any case.

    An exchange that is closed before its end is taken back: the server is to undo what was done.
    """

    def __init__(
        self, calls: Calls, trace: Trace, operation: str, *, schema: pa.Schema, returning: bool, opening: bytes = b""
    ) -> None:
        self._location = calls.connection.location.text
        self._what = f"DoExchange ({operation})"
        self._stream = calls.exchange(trace, operation, returning=returning)
        self._writer = FrameWriter(schema)
        self._reader = BatchReader(iter(self._stream))
        self._answers = self._reader.with_metadata()
        try:
            self._begin(trace.descriptor.SerializeToString(), opening)
        except BaseException:
            self.close()
            raise

    def _begin(self, descriptor: bytes, opening: bytes) -> None:
        self._stream.send(metadata_frame(descriptor=descriptor))
        if opening:
            self._stream.send(metadata_frame(opening))
        self._stream.send(self._writer.begin(descriptor=descriptor))
        with nonsense(self._location, self._what):
            self.schema = self._reader.schema

    def send(self, batch: pa.RecordBatch) -> None:
        """Send rows."""
        for frame in self._writer.batch(batch):
            self._stream.send(frame)

    def ask(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Send rows and wait for the ones that answer them, as many."""
        self.send(batch)
        answer, _ = self._next()
        if answer is None or answer.num_rows != batch.num_rows:
            came = "none" if answer is None else str(answer.num_rows)
            raise Internal(f"{self._location} was sent {batch.num_rows} rows and has to return as many: {came} came")
        return answer

    def chunk(self) -> Iterator[pa.RecordBatch]:
        """All that a function over rows says to what it was sent last."""
        mark = b""
        while mark != FINISHED:
            answer, mark = self._next()
            if answer is None or mark not in MARKS:
                raise Internal(f"{self._location} answered with a batch marked {mark!r}; the protocol has {MARKS}")
            yield answer

    def half_close(self) -> None:
        """All rows were sent."""
        self._stream.half_close()

    def end(self) -> None:
        """Let the call come to its end; a server may say nothing more."""
        self._stream.half_close()
        for _ in self._stream:
            pass

    def total_changed(self) -> int:
        """End a statement: the number of rows that it affected, by then for good."""
        self._stream.half_close()
        answer, metadata = self._next()
        if answer is not None:
            raise Internal(f"{self._location} answered with rows where the number of changed ones has to be")
        with nonsense(self._location, self._what):
            changed = decode(metadata, TotalChanged, "the end of an exchange").total_changed
        self.end()
        return changed

    def close(self) -> None:
        """Take the exchange back, unless it has come to its end."""
        self._stream.close()

    def _next(self) -> tuple[pa.RecordBatch | None, bytes]:
        with nonsense(self._location, self._what):
            found = next(self._answers, None)
        if found is None:
            raise Internal(f"{self._location} ended {self._what} before its answer was complete", key="answer.missing")
        return found


# --------------------
# Rows on their way to the server: taken from the caller, fitted to a table's columns, cut to DuckDB's size.


VECTOR: Final = 2048  # rows that DuckDB has in one batch at most

_KEPT_METADATA: Final = (b"ARROW:extension:name", b"ARROW:extension:metadata")

Batches = Iterator[pa.RecordBatch]


def batches_of(rows: Any) -> tuple[pa.Schema | None, Batches]:
    """Schema and batches of anything with `__arrow_c_stream__`, a batch, or an iterable of batches; None if empty."""
    if isinstance(rows, pa.RecordBatch):
        return rows.schema, iter([rows])
    if hasattr(rows, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(rows)
        return reader.schema, iter(reader)
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise InvalidArgument(f"rows are Arrow data or batches of it, not {_kind(rows)}: try pyarrow.table(…)")
    batches = _checked(iter(rows))
    first = next(batches, None)
    return (None, iter(())) if first is None else (first.schema, chain([first], batches))


def _checked(batches: Iterator[Any]) -> Batches:
    schema = None
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            raise InvalidArgument(f"rows are Arrow data or batches of it, but there is a {_kind(batch)} among them")
        schema = schema or batch.schema
        if not batch.schema.equals(schema):
            raise InvalidArgument(
                f"all batches need the same columns: {', '.join(schema.names)} came first, "
                f"and {', '.join(batch.schema.names)} after it, or in other types"
            )
        yield batch


def _kind(value: Any) -> str:
    return type(value).__name__


def in_vectors(batches: Iterable[pa.RecordBatch]) -> Batches:
    """The same rows in batches as small as DuckDB's."""
    for batch in batches:
        for start in range(0, batch.num_rows, VECTOR):
            yield batch.slice(start, VECTOR)


@dataclass(frozen=True)
class Outgoing:
    """Columns of a table that a statement sends: `fields` as the table has them, `schema` as the wire does.

    The wire knows no NOT NULL and no comments, so all that is left of a field's metadata is its extension type.
    """

    table: Table
    fields: tuple[pa.Field, ...]

    @classmethod
    def of(cls, table: Table, names: Iterable[str]) -> Outgoing:
        """These columns, in this order; `rowid` is the row id."""
        positions = [table.position(name) for name in names]
        return cls(
            table,
            tuple(
                table.schema.field(position).with_name(ROWID)
                if position == table.rowid
                else table.schema.field(position)
                for position in positions
            ),
        )

    @property
    def schema(self) -> pa.Schema:
        """What is announced to the server."""
        return pa.schema([_on_the_wire(field) for field in self.fields])

    def fitted(self, given: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Batches:
        """The caller's batches in these columns, found by name; what is missing is NULL."""
        sources = self._sources(given)  # now: mistakes in names show before anything is sent
        return (self._fit({name: batch.column(i) for name, i in sources.items()}, batch.num_rows) for batch in batches)

    def _fit(self, found: Mapping[str, pa.Array], rows: int) -> pa.RecordBatch:
        return self.batch(
            [
                self.cast(found[field.name], field) if field.name in found else pa.nulls(rows, field.type)
                for field in self.fields
            ]
        )

    def batch(self, columns: list[pa.Array]) -> pa.RecordBatch:
        """One batch of these columns; refuses NULLs where the table or the row id has none, as DuckDB does."""
        for field, column in zip(self.fields, columns, strict=True):
            if field.name == ROWID and column.null_count:
                raise NullRowId
            if not field.nullable and column.null_count:
                raise ConstraintViolation(
                    f"NOT NULL constraint failed: {self.table.name}.{field.name}",
                    key="not_null",
                    table=self.table.name,
                    column=field.name,
                )
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        """A column's values in its type; `InvalidArgument` if one does not fit."""
        try:
            return cast(column, field.type)
        except pa.ArrowException as error:
            raise InvalidArgument(
                f"column {field.name!r} of {self.table} is {field.type}, and {column.type} was given: {error}"
            ) from error

    def _sources(self, given: pa.Schema) -> dict[str, int]:
        """Where in the input each column is."""
        sources: dict[str, int] = {}
        for index, name in enumerate(given.names):
            position = self.table.position(name)
            known = ROWID if position == self.table.rowid else self.table.schema.field(position).name
            if known in sources:
                raise InvalidArgument(f"column {name!r} of {self.table} is given twice")
            if all(field.name != known for field in self.fields):
                raise InvalidArgument(f"column {name!r} of {self.table} cannot be given: the server numbers the rows")
            sources[known] = index
        return sources


def cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """An array in another type; extension types go by what is stored below them."""
    if column.type == wanted:
        return column
    plain = column.storage if isinstance(column, pa.ExtensionArray) else column
    stored = _laid_out(plain).cast(storage_type(wanted))
    return pa.ExtensionArray.from_storage(wanted, stored) if isinstance(wanted, pa.BaseExtensionType) else stored


def _laid_out(column: pa.Array) -> pa.Array:
    """Views of lists as lists. Arrow's own cast makes arrays of them whose offsets lead outside of their buffers."""
    of = column.type
    if pa.types.is_list_view(of) or pa.types.is_large_list_view(of):
        lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64())
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
        values = _laid_out(column.flatten())
        return pa.LargeListArray.from_arrays(offsets, values, mask=column.is_null() if len(column) else None)
    if any(_is_view(of.field(place).type) for place in range(of.num_fields)):
        raise pa.ArrowInvalid("views of lists within other types cannot be converted: give lists")
    return column


def _is_view(of: pa.DataType) -> bool:
    inside = [of.field(place).type for place in range(of.num_fields)]
    return pa.types.is_list_view(of) or pa.types.is_large_list_view(of) or any(map(_is_view, inside))


def _on_the_wire(field: pa.Field) -> pa.Field:
    kept = {key: field.metadata[key] for key in _KEPT_METADATA if key in (field.metadata or {})}
    return pa.field(field.name, field.type, metadata=kept or None)
