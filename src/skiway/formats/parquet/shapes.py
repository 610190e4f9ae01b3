"""The shape of a Parquet file: how many rows it has, and how its columns are stored. Other readers depend on both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa

from skiway.airport.layouts import plain_type
from skiway.cache import Cache
from skiway.formats.files import Files
from skiway.formats.parquet.footers import file_columns
from skiway.formats.parquet.reading import open_file

__all__ = ["FileShape", "read_shape"]

_BYTES_PER_COLUMN = 200  # of a shape in the cache

_schemas: Final = Cache[bytes, pa.Schema](1000)
"""Schemas by their serialized form: files with the same columns share one, and what is derived from it."""


@dataclass(frozen=True)
class FileShape:
    """The columns of a file. `paths` and `physical_types` are those of its leaves, in the order of the file."""

    rows: int
    columns: pa.Schema
    paths: tuple[str, ...]
    physical_types: tuple[str, ...]

    @cached_property
    def has_standard_lists(self) -> bool:
        """Whether lists and maps are stored as the specification defines, which all readers understand alike.

        Older forms lack a level, so the paths of leaves are shorter than their types need.
        """
        depths = [depth for column in self.columns for depth in _depths(column.type)]
        return depths == [path.count(".") for path in self.paths]


def _depths(of: pa.DataType) -> Iterator[int]:
    """How many levels are below a column of this type, for each of its leaves."""
    plain = plain_type(of)
    if not plain.num_fields:
        yield 0
        return
    levels = 1 if pa.types.is_struct(plain) else 2
    fields = (
        [plain.key_field, plain.item_field]
        if pa.types.is_map(plain)
        else [plain.field(i) for i in range(plain.num_fields)]
    )
    for field in fields:
        yield from (levels + depth for depth in _depths(field.type))


def read_shape(files: Files, path: str, *, etag: str | None) -> FileShape:
    """Read the shape of a file from its footer, or return it from the cache; `etag` identifies the content."""

    def load() -> FileShape:
        with open_file(files, path) as parquet:
            stored = [parquet.metadata.schema.column(place) for place in range(len(parquet.metadata.schema))]
            columns = file_columns(parquet)
            return FileShape(
                parquet.metadata.num_rows,
                _schemas.get(columns.serialize().to_pybytes(), lambda: columns),
                tuple(each.path for each in stored),
                tuple(each.physical_type for each in stored),
            )

    return files.cached(
        "parquet shape", path, etag, load=load, size_of=lambda shape: _BYTES_PER_COLUMN * (len(shape.paths) + 1)
    )
