"""The batches of what a scan or a function returned, in any form that can be read as Arrow.

Arrow data streams through. Python values are converted to the announced types: a dict has the columns, and a list, or any
other iterable, of dicts has the rows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from skiway.airport.checks import instead_of
from skiway.airport.tables import ArrowData
from skiway.airport.wire.duckdb_sql import storage_type
from skiway.errors import Internal


@dataclass(frozen=True, slots=True)
class CountedBatches:
    """Batches with the expected number of their rows, which a scan can return for the client's progress bar."""

    batches: Iterator[pa.RecordBatch]
    expected_rows: int

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.batches)

    def close(self) -> None:
        """Close what produces the batches."""
        if hasattr(self.batches, "close"):
            self.batches.close()


_ROWS_PER_BATCH: Final = 4096  # of rows that a generator yields one by one


def record_batches(data: ArrowData, schema: pa.Schema | None = None, what: str = "a scan") -> Generator[pa.RecordBatch]:
    """The batches of `data`, which `what` returned. Closing the generator closes the source.

    `schema` has the types for Python values; other columns of these are left out.
    """
    if isinstance(data, pa.RecordBatch):
        yield data
        return
    if isinstance(data, pa.Table):
        yield from data.to_batches()
        return
    if isinstance(data, Mapping):
        yield _from_columns(data, schema, what)
        return
    source = _iterable(data, what)
    try:
        yield from _batches_of_items(source, schema, what)
    finally:
        if hasattr(source, "close"):
            source.close()


def _iterable(data: ArrowData, what: str) -> Iterable[Any]:
    """An iterable over the batches, or parts, of `data`."""
    if data is None:
        raise Internal(f"{what} returned None: return its rows as Arrow data, such as pa.table({{…}})")
    if hasattr(data, "scanner"):  # a pyarrow Dataset
        data = data.scanner()
    if hasattr(data, "to_reader"):  # a pyarrow Scanner
        return data.to_reader()  # type: ignore[no-any-return]
    if isinstance(data, pa.RecordBatchReader):
        return data  # type: ignore[no-any-return]
    try:
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data)  # type: ignore[no-any-return]
        if hasattr(data, "__arrow_c_array__"):
            return (pa.record_batch(data),)
    except pa.ArrowInvalid as error:  # one column instead of a table
        raise _unreadable(data, what) from error
    if not hasattr(data, "__iter__") or isinstance(data, str | bytes):
        raise _unreadable(data, what)
    return data  # type: ignore[no-any-return]


def _batches_of_items(source: Iterable[Any], schema: pa.Schema | None, what: str) -> Generator[pa.RecordBatch]:
    rows: list[Mapping[str, Any]] = []
    names: dict[str, None] = {}  # a column that only some of the rows have is NULL in the others
    if isinstance(source, list | tuple):
        names |= _names([item for item in source if isinstance(item, Mapping)], schema)
    for item in source:
        if isinstance(item, Mapping):
            rows.append(item)
            if len(rows) < _ROWS_PER_BATCH:
                continue
        if rows:
            names |= _names(rows, schema)
            yield _from_rows(rows, names, schema, what)
            rows = []
        if isinstance(item, pa.RecordBatch):
            yield item
        elif isinstance(item, tuple):
            raise _unreadable(item, what)
        elif not isinstance(item, Mapping):
            yield from record_batches(item, schema, what)
    if rows:
        yield _from_rows(rows, names | _names(rows, schema), schema, what)


def _unreadable(data: object, what: str) -> Internal:
    return Internal(
        f"{what} returned {instead_of(data)}, which cannot be read as Arrow: return a pyarrow table or batches of it, "
        "a dict of columns, or a list of rows as dicts"
    )


# -- Python values ----------------------------------------------------------------------------------------------------


def _from_columns(columns: Mapping[Any, Any], schema: pa.Schema | None, what: str) -> pa.RecordBatch:
    known = {name: values for name, values in columns.items() if schema is None or name in schema.names}
    arrays = {name: _column(name, values, schema, what) for name, values in (known or columns).items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise Internal(f"{what} returned columns of different lengths: {shown}")
    return pa.record_batch(arrays)


def _names(rows: Iterable[Mapping[str, Any]], schema: pa.Schema | None) -> dict[str, None]:
    """The names of all columns in the rows, as far as they are in `schema`, in order."""
    known = None if schema is None else frozenset(schema.names)
    return dict.fromkeys(name for row in rows for name in row if known is None or name in known)


def _from_rows(
    rows: list[Mapping[str, Any]], names: Iterable[str], schema: pa.Schema | None, what: str
) -> pa.RecordBatch:
    if not names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))  # it has rows nevertheless
    return pa.record_batch({name: _column(name, [row.get(name) for row in rows], schema, what) for name in names})


def _column(name: Any, values: Any, schema: pa.Schema | None, what: str) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    if not isinstance(name, str):
        raise Internal(f"{what} returned a dict with the key {name!r}: keys must be the names of columns")
    if not hasattr(values, "__iter__") or isinstance(values, str | bytes | Mapping):
        raise Internal(
            f"{what} returned {instead_of(values)} as column {name!r}: return a list or an array for each column, "
            "or a list of rows as dicts"
        )
    index = -1 if schema is None else schema.get_field_index(name)
    expected = schema.field(index).type if schema is not None and index >= 0 else None
    try:
        return _typed(values, expected)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Internal(
            f"{what} returned values of another type than {expected} for column {name!r}: return values of that type"
            if expected is not None
            else f"{what} returned values of different types for column {name!r}: return values of one type",
            detail=str(error),
        ) from error


def _typed(values: Any, expected: pa.DataType | None) -> pa.Array:
    items = values if isinstance(values, list | tuple) or hasattr(values, "__array__") else list(values)
    try:
        return pa.array(items, expected)
    except pa.ArrowNotImplementedError:
        if expected is None or storage_type(expected) == expected:
            raise
        return pa.array(items, storage_type(expected))  # an extension type that only knows its storage
