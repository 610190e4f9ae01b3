"""The layout of a data file: under which name it has each column of the table, if at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from skiway.formats import Snapshot, TableHandle
from skiway.formats.readers.conform import widens
from skiway.formats.schemas import Leaf, Path, element_leaves, leaves
from skiway.spark_jobs.profile.values import storage_type_of, value_kind

FileSchemas: TypeAlias = Callable[[str], pa.Schema]
"""Returns the schema of the data file at a path, with the field ids of the table."""


class Found(NamedTuple):
    """A column in a file: its path of names, and for values in lists and maps the rest of the path, from the first list or map on."""

    path: Path
    elements: Path = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of the table, by id, that are `found` in a file, and the reasons why others are `refused`.

    All other columns are not in the file. Files with the same layout are read together.
    """

    found: tuple[tuple[int, Found], ...]
    refused: tuple[tuple[int, str], ...]


def file_schemas(handle: TableHandle, snapshot: Snapshot) -> FileSchemas:
    """A function that reads the schemas of data files from their footers; it raises Conflict for changed files."""
    listed = handle.files(snapshot)
    etags = dict(zip(listed["path"].to_pylist(), listed["etag"].to_pylist(), strict=True))
    return lambda path: handle.file_schema(snapshot, path, etag=etags.get(path))


def layout_of(file: pa.Schema, columns: Sequence[Leaf]) -> Layout:
    """The layout of a file with this schema."""
    in_file = {leaf.id: leaf for leaf in (*leaves(file), *element_leaves(file))}
    found, refused = [], []
    for column in columns:
        stored = in_file.get(column.id)
        if stored is None or pa.types.is_null(stored.type):
            continue
        if reason := _refusal(stored.type, column.type):
            refused.append((column.id, reason))
        else:
            found.append((column.id, _found(file, stored.path)))
    return Layout(tuple(found), tuple(refused))


def _refusal(stored: pa.DataType, column: pa.DataType) -> str:
    """Why values of a file are not profiled; empty if they are."""
    if value_kind(stored) is None or value_kind(column) is None:
        return f"{stored} cannot be profiled as {column}"
    source, target = storage_type_of(stored), storage_type_of(column)
    return "" if source == target or widens(source, target) else f"{stored} in the file does not widen to {column}"


def _found(file: pa.Schema, path: Path) -> Found:
    """Where the values at a path are: names of structs up to the first list or map, and the names inside of it."""
    of, depth = file.field(path[0]).type, 1
    while depth < len(path) and pa.types.is_struct(of):
        of, depth = of.field(path[depth]).type, depth + 1
    return Found(path[:depth], path[depth:])
