# mypy: disable-error-code="no-any-return"
"""Merge-on-read: delete rows of data files by their positions, without rewriting the files.

Version 3 has deletion vectors: at most one per data file, so a new one includes the positions of the one that it replaces.
Version 2 has position delete files, which add up. Tables select merge-on-read by property; copy-on-write is the default.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from skiway.errors import InvalidArgument
from skiway.formats.iceberg import lib
from skiway.formats.iceberg.deletes import FILE_PATH_ID, OWN_POSITIONS, POSITIONS, Blob, encoded_vector, puffin_file
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.formats.iceberg.writing.data_files import data_folder

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

# PyIceberg is partly untyped.


WritingStatement: TypeAlias = Literal["delete", "merge", "update"]
"""A statement for which a table can select merge-on-read."""

_MODES: Final = ("copy-on-write", "merge-on-read")
_VECTOR: Final = "deletion-vector-v1"
_ROW_POSITION: Final = 2147483645  # the field id of the position of a row
_WRITTEN: Final = pa.schema([field.with_nullable(False) for field in POSITIONS])


def is_merge_on_read(properties: Mapping[str, str], statement: WritingStatement) -> bool:
    """Whether a table with these properties runs a statement by merge-on-read. Raise if the value is invalid."""
    name = f"write.{statement}.mode"
    found = properties.get(name, _MODES[0])
    if found.lower() not in _MODES:
        raise InvalidArgument(
            f"property {name} is {found!r}, but must be {' or '.join(_MODES)}; set it to one of them, or remove it",
            key="property.invalid",
        )
    return found.lower() == _MODES[1]


def check_write_modes(properties: Mapping[str, str]) -> None:
    """Raise if a property that selects merge-on-read or copy-on-write has an invalid value."""
    for statement in get_args(WritingStatement):
        is_merge_on_read(properties, statement)


class DeleteFileWriter:
    """Writes the deleted positions of data files. Not safe to use from several threads."""

    def __init__(self, files: TableFiles, metadata: TableMetadata, *, ids: Callable[[], object] = uuid.uuid4) -> None:
        self._files, self._has_vectors = files, metadata.format_version >= 3
        self._folder, self._name = data_folder(metadata), ids()
        self._vectors: list[tuple[str, bytes, int]] = []  # the data file, its deletion vector, and the number of rows
        self._made: list[DataFile] = []
        self._written: list[str] = []

    def add(self, path: str, positions: np.ndarray, *, before: np.ndarray) -> None:
        """Delete the rows at `positions` of the data file at `path`, in which those at `before` are deleted already."""
        new = np.setdiff1d(positions, before)
        if not len(new):
            return
        if self._has_vectors:
            everything = np.union1d(new, before)
            self._vectors.append((path, encoded_vector(everything), len(everything)))
        else:
            self._write_positions(path, new)

    def close(self) -> list[DataFile]:
        """Finish all files and return them for a commit, which completes them with the partitions of the data files."""
        if self._vectors:
            self._write_vectors()
        return list(self._made)

    def abort(self) -> None:
        """Delete all files that were written."""
        self._files.remove(self._written)
        self._made, self._written, self._vectors = [], [], []

    def __enter__(self) -> DeleteFileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()

    def _write_vectors(self) -> None:
        uri = self._location("-deletes.puffin")
        blobs = [
            Blob(_VECTOR, data, [_ROW_POSITION], properties={"referenced-data-file": path, "cardinality": str(rows)})
            for path, data, rows in self._vectors
        ]
        puffin = puffin_file(blobs)
        self._files.write(uri, puffin.data)
        for (path, _, rows), blob in zip(self._vectors, puffin.blobs, strict=True):
            vector = (blob["offset"], blob["length"])
            self._made.append(delete_entry(uri, path, rows=rows, size=len(puffin.data), vector=vector))
        self._vectors = []

    def _write_positions(self, path: str, positions: np.ndarray) -> None:
        from pyarrow.parquet import write_table

        uri = self._location(OWN_POSITIONS)
        paths = pa.repeat(pa.scalar(path), len(positions))
        rows = pa.Table.from_arrays([paths, pa.array(positions, pa.int64())], schema=_WRITTEN)
        with self._files.translated(uri), self._files.create(uri) as sink:
            write_table(rows, sink, compression="zstd")
            size = sink.tell()
        self._files.seal(uri)
        self._made.append(delete_entry(uri, path, rows=len(positions), size=size))

    def _location(self, suffix: str) -> str:
        uri = f"{self._folder}/{len(self._written):05d}-{self._name}{suffix}"
        self._written.append(uri)
        return uri


def delete_entry(uri: str, path: str, *, rows: int, size: int, vector: tuple[int, int] | None = None) -> DataFile:
    """Describe a delete file for the rows of one data file, at `path`. `vector` is the offset and length of a deletion vector."""
    if vector is None:
        # Readers take a file for the deletes of one data file if the bounds of its paths are equal.
        bound = {FILE_PATH_ID: path.encode()}
        more: dict[str, Any] = {"lower_bounds": bound, "upper_bounds": bound}
    else:
        more = {"content_offset": vector[0], "content_size_in_bytes": vector[1]}
    return lib.manifest.DataFile.from_args(
        _table_format_version=3,
        content=lib.manifest.DataFileContent.POSITION_DELETES,
        file_path=uri,
        file_format=lib.manifest.FileFormat.PARQUET if vector is None else lib.manifest.FileFormat.PUFFIN,
        partition=None,
        record_count=rows,
        file_size_in_bytes=size,
        referenced_data_file=path,
        **more,
    )
