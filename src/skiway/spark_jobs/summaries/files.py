"""Reads Parquet files, or some of their row groups, and summarizes their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from skiway.errors import Cancelled, SkiwayError
from skiway.spark_jobs.summaries.columns import ColumnRequest, ColumnSummary, is_text

_BATCH_ROWS: Final = 65_536  # a batch costs about a millisecond, however small it is
_BATCH_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column that is summarized: its path of names in the file, and the type in which its values are processed.

    A column without a path is not in the file: all of its values are the same. Times are numbers in this `unit`. If the path leads to
    a list or a map, `elements` are the names of the values inside of it.
    """

    place: int
    path: tuple[str, ...] | None
    type: pa.DataType
    unit: str
    wanted: ColumnRequest
    elements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file, which is cut into equal parts. `constants` are the values of the columns that are not in the file."""

    number: int
    path: str
    part: int = 0
    parts: int = 1
    constants: Mapping[int, pa.Array] = field(default_factory=dict)


class OpenFile(NamedTuple):
    """A Parquet file, its footer, and a function that is called with numbers of row groups and names of columns before they are read."""

    source: pa.NativeFile
    footer: pq.FileMetaData
    check: Callable[[Sequence[int], Sequence[str]], None] = lambda _groups, _columns: None


@contextmanager
def _on_disk(path: str) -> Iterator[OpenFile]:
    with pa.OSFile(path) as source:
        yield OpenFile(source, pq.read_metadata(source))


def summarized(
    file: FilePart,
    columns: Sequence[FileColumn],
    schema: pa.Schema,
    *,
    open_file: Callable[[str], AbstractContextManager[OpenFile]] = _on_disk,
    on_batch: Callable[[], None] = lambda: None,
) -> pa.RecordBatch:
    """A row of this schema, with the number of the file, its row count, no error, and the figures of all columns.

    If the file cannot be read, the row has only an error. `on_batch` is called for each batch of rows; any
    error of its own ends the scan.
    """
    summaries = {column.place: ColumnSummary(column.wanted) for column in columns}
    rows = 0
    try:
        for batch in _batches(file, columns, open_file):
            on_batch()
            rows += batch.num_rows
            for column in columns:
                summaries[column.place].add(_values(batch, column, file))
        figures = {
            f"{name}{place}": figure for place, each in summaries.items() for name, figure in each.result().items()
        }
        found = {"file": file.number, "rows": rows, "error": None, **figures}
    except Cancelled:
        raise
    except SkiwayError as error:
        return _unread(file, schema, error.message)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        return _unread(file, schema, f"{type(error).__name__}: {error}")
    return pa.record_batch([_single(found.get(each.name), each.type) for each in schema], schema)


def _unread(file: FilePart, schema: pa.Schema, reason: str) -> pa.RecordBatch:
    """The row of a file that cannot be read."""
    found = {"file": file.number, "error": reason}
    return pa.record_batch([pa.array([found.get(each.name)], each.type) for each in schema], schema)


def _single(figure: Any, of: pa.DataType) -> pa.Array:
    """An array with this figure."""
    if isinstance(figure, pa.ListScalar):  # `pa.array` would convert its values one by one
        return pa.ListArray.from_arrays(pa.array([0, len(figure)], pa.int32()), figure.values)
    return pa.array([figure], of)


def _batches(
    file: FilePart, columns: Sequence[FileColumn], open_file: Callable[[str], AbstractContextManager[OpenFile]]
) -> Iterator[pa.RecordBatch]:
    with open_file(file.path) as (source, found, check):
        first, last = (found.num_row_groups * part // file.parts for part in (file.part, file.part + 1))
        groups = [found.row_group(number) for number in range(first, last)]
        rows = max(1, sum(group.num_rows for group in groups))
        per_row = sum(group.total_byte_size for group in groups) / rows
        paths = [column.path for column in columns if column.path is not None]
        check(range(first, last), [name for name, *_ in paths])
        with pq.ParquetFile(source, metadata=found, read_dictionary=_dictionaries(groups, columns)) as opened:
            yield from opened.iter_batches(
                max(1, min(_BATCH_ROWS, int(_BATCH_BYTES / max(per_row, 1)))),
                row_groups=list(range(first, last)),
                columns=[".".join(path) for path in paths],
                use_threads=False,  # Spark runs as many tasks as there are cores
            )


def _dictionaries(groups: Sequence[pq.RowGroupMetaData], columns: Sequence[FileColumn]) -> list[str]:
    """The names of the columns that are read as dictionaries: strings and bytes, unless they are large in the file.

    A file of some kilobytes can have gigabytes of strings, if these are the same. As a dictionary, they need as much memory as in
    the file. A dictionary is that of a whole row group, so if it may be large, batches of plain values need less memory.
    """
    names = [
        ".".join(column.path)
        for column in columns
        if column.path is not None and not column.elements and is_text(column.type)
    ]
    for group in groups if names else ():
        chunks = [group.column(place) for place in range(group.num_columns)]
        if sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema in names) > _BATCH_BYTES:
            return []
    return names


def _values(batch: pa.RecordBatch, column: FileColumn, file: FilePart) -> pa.Array:
    if column.path is None:
        return pa.repeat(file.constants[column.place][0], batch.num_rows)
    name, *inner = column.path
    found = batch.column(name)
    for each in (*inner, *column.elements):
        found = _part(found, each)
    return converted(found, column.type, column.unit)


def _part(values: pa.Array, name: str) -> pa.Array:
    """The field of this name in structs; all values in lists; all keys or values in maps. Lists and maps that are NULL have none."""
    if pa.types.is_map(values.type):
        pair = pa.struct({"key": values.type.key_type, "value": values.type.item_type})
        values = pc.list_flatten(values.cast(pa.list_(pair)))
    if pa.types.is_struct(values.type):
        return pc.struct_field(values, [values.type.get_field_index(name)])
    return pc.list_flatten(values)


def converted(values: pa.Array, of: pa.DataType, unit: str) -> pa.Array:
    """Values of a file in the type in which they are processed. Strings and bytes may be the values of a dictionary."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if isinstance(values, pa.DictionaryArray):
        if is_text(of):
            return pa.DictionaryArray.from_arrays(values.indices, converted(values.dictionary, of, unit))
        values = values.dictionary_decode()
    if pa.types.is_time(values.type):
        values = values.cast(pa.time64("us") if values.type.bit_width == 32 else values.type)
        return values.cast(pa.time64(unit), safe=False).view(of)
    if pa.types.is_timestamp(values.type):
        is_finer = values.type.unit == "ns"
        return values.cast(pa.timestamp(unit, values.type.tz), safe=not is_finer).view(of)
    return values if values.type == of else values.cast(of)
