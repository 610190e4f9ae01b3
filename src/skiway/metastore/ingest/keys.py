"""Keys of rows with the places of these rows, as tasks read them for joins. They never pass through the process of the worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from skiway.errors import ConstraintViolation
from skiway.formats import FILE_ORDINAL, ROW_POSITION
from skiway.formats.iceberg.writing.data_files import conformed
from skiway.metastore.ingest.rows import Distribute, FilePart, Target

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

PLACE: Final = pa.schema({"part": pa.int32(), "file": pa.int32(), "position": pa.int64()})
"""Where a row is: the number of its file, of the part of the work that the file is in, and the position of the row in the file."""

Places: TypeAlias = Iterator[tuple[int, np.ndarray]]
"""Numbers of files with positions of rows in them. Each file occurs once, and its positions are ascending."""


class KeyRows(Protocol):
    """Reads keys in a task."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The keys as columns k0, k1, ..., and the places of their rows."""


class KeyJoins(Distribute, Protocol):
    """What distributes work on rows, and joins them by their keys."""

    def last_rows(self, rows: Sequence[KeyRows], keys: pa.Schema, parts: Sequence[int], each: EachPlace[R]) -> list[R]:
        """Call `each` with the rows of files whose keys occur again in a later row: in a later file, or below in the same file.

        `parts` has the part of each file, by number. The files of a part are in the same call, also those without such rows.
        """

    def matches(
        self, rows: Sequence[KeyRows], of: Sequence[KeyRows], keys: pa.Schema, each: EachPlace[R], *, are_few: bool
    ) -> list[R]:
        """Call `each` with the rows whose keys are among those `of` other rows, which may be few. A file is in one call only."""


class EachPlace(Protocol[R_co]):
    """What is called in tasks with places of rows."""

    def __call__(self, places: Places, /) -> R_co: ...


def joined_columns(keys: pa.Schema) -> pa.Schema:
    """The columns of the batches of `KeyRows`."""
    return pa.schema([*(pa.field(f"k{place}", _compared(key.type)) for place, key in enumerate(keys)), *PLACE])


def _compared(of: pa.DataType) -> pa.DataType:
    """The type in which engines compare keys: numbers for dates and times, and bytes for UUIDs."""
    if pa.types.is_temporal(of):
        return pa.int32() if of.bit_width == 32 else pa.int64()
    if isinstance(of, pa.BaseExtensionType):
        of = of.storage_type
    return pa.binary() if pa.types.is_fixed_size_binary(of) else of


@dataclass(frozen=True, slots=True)
class FileKeys:
    """The keys of rows in files of a table. `numbers` are those of the files, by their ordinals."""

    part: FilePart
    keys: pa.Schema
    number: int
    numbers: Mapping[int, int]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The keys, in the types of `keys`."""
        part, own = self.part, {name.casefold(): name for name in self.part.columns.names}
        columns = [own.get(name.casefold(), name) for name in self.keys.names]
        rows = part.handle.read(part.snapshot, files=part.files, schema=part.columns, columns=columns, positions=True)
        for batch in rows:
            ordinals = batch.column(FILE_ORDINAL).to_numpy()
            files = np.full(len(ordinals), self.numbers[int(ordinals[0])], np.int32)
            for ordinal in np.unique(ordinals) if ordinals[0] != ordinals[-1] else ():
                files[ordinals == ordinal] = self.numbers[int(ordinal)]
            found = batch.select(columns).rename_columns(self.keys.names)
            yield _batch(found, self.keys, self.number, files, batch.column(ROW_POSITION))


@dataclass(frozen=True, slots=True)
class NewFileKeys:
    """The keys in a data file of the target that is not committed yet."""

    target: Target
    file: DataFile
    keys: pa.Schema
    number: int = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The keys, in the types of `keys`."""
        from pyarrow.parquet import ParquetFile

        start = 0
        with self.target.files.open(self.file.file_path) as opened:
            for batch in ParquetFile(opened).iter_batches(columns=self.keys.names, use_threads=False):
                positions = pa.array(np.arange(start, start + batch.num_rows))
                files = np.full(batch.num_rows, self.number, np.int32)
                yield _batch(batch.select(self.keys.names), self.keys, self.number, files, positions)
                start += batch.num_rows


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """Keys that are not in files: those of rows that are gone. There are few of them."""

    rows: pa.Table
    keys: pa.Schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The keys, in the types of `keys`."""
        for batch in self.rows.to_batches():
            positions = pa.array(np.arange(batch.num_rows))
            yield _batch(batch, self.keys, 0, np.zeros(batch.num_rows, np.int32), positions)


def _batch(rows: pa.RecordBatch, keys: pa.Schema, part: int, files: np.ndarray, positions: pa.Array) -> pa.RecordBatch:
    plain = pa.schema([pa.field(key.name, key.type) for key in keys])
    found = conformed(rows, plain)
    schema = joined_columns(keys)
    arrays = [comparable(found[key.name].combine_chunks(), of.type) for key, of in zip(keys, schema, strict=False)]
    parts = np.full(len(files), part, np.int32)
    return pa.RecordBatch.from_arrays([*arrays, pa.array(parts), pa.array(files), positions], schema=schema)


def comparable(values: pa.Array, of: pa.DataType) -> pa.Array:
    """Values of a key in the type in which engines compare them."""
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks)
    values = values.storage if isinstance(values, pa.ExtensionArray) else values
    if values.type == of:
        return values
    return values.view(of) if pa.types.is_temporal(values.type) else values.cast(of)


@dataclass(frozen=True, slots=True)
class WithoutNulls:
    """Keys of a source, none of which may be NULL."""

    rows: KeyRows
    keys: pa.Schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The keys. Raise `ConstraintViolation` if one is NULL."""
        for batch in self.rows.batches():
            for name, column in zip(self.keys.names, batch.columns, strict=False):
                if column.null_count:
                    raise ConstraintViolation(
                        f"the key column {name!r} is NULL in {column.null_count} rows of the source, so they cannot be told "
                        "apart: correct the rows, or choose other key_columns",
                        key="ingest.key.null",
                        column=name,
                    )
            yield batch


def new_keys(target: Target, files: Sequence[DataFile], keys: pa.Schema) -> list[KeyRows]:
    """The keys in data files of the target that are not committed yet."""
    return [WithoutNulls(NewFileKeys(target, file, keys, number), keys) for number, file in enumerate(files)]


def count_repeated(joins: KeyJoins, rows: Sequence[KeyRows], keys: pa.Schema) -> int:
    """How many rows have a key that another, later row has, too. There is one of `rows` for each file."""
    return sum(joins.last_rows(rows, keys, range(len(rows)), _count))


def _count(places: Places) -> int:
    return sum(len(positions) for _, positions in places)


def by_file(batches: Iterable[pa.RecordBatch]) -> Places:
    """The places in batches with columns `file` and `position` that are sorted by both. A position of -1 is only there for its file."""
    number, found = -1, [np.array([], np.int64)]
    for batch in batches:
        files, positions = (batch.column(name).to_numpy() for name in ("file", "position"))
        cuts = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(files)]
        for first, end in pairwise(cuts):
            if first == end:
                continue
            if files[first] != number:
                if number >= 0:
                    yield number, np.concatenate(found)
                number, found = int(files[first]), [np.array([], np.int64)]
            some = positions[first:end]
            found.append(some[some >= 0])
    if number >= 0:
        yield number, np.concatenate(found)
