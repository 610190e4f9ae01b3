"""The shape of a Parquet file: how many rows it has, and how its columns are stored. Other readers depend on both."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from skiway.formats.files import Files
from skiway.formats.parquet.footers import file_columns
from skiway.formats.parquet.reading import open_file

__all__ = ["FileShape", "read_shape"]

_BYTES_PER_COLUMN = 200  # of a shape in the cache


@dataclass(frozen=True, slots=True)
class FileShape:
    """The columns of a file. `paths` and `physical_types` are those of its leaves, in the order of the file."""

    rows: int
    columns: pa.Schema
    paths: tuple[str, ...]
    physical_types: tuple[str, ...]


def read_shape(files: Files, path: str, *, etag: str | None) -> FileShape:
    """Read the shape of a file from its footer, or return it from the cache; `etag` identifies the content."""

    def load() -> FileShape:
        with open_file(files, path) as parquet:
            stored = [parquet.metadata.schema.column(place) for place in range(len(parquet.metadata.schema))]
            return FileShape(
                parquet.metadata.num_rows,
                file_columns(parquet),
                tuple(each.path for each in stored),
                tuple(each.physical_type for each in stored),
            )

    return files.cached(
        "parquet shape", path, etag, load=load, size_of=lambda shape: _BYTES_PER_COLUMN * (len(shape.paths) + 1)
    )
