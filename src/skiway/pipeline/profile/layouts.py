"""The layout of a data file: under which name and type Spark finds each column of the table, if at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from skiway.formats import Snapshot, TableHandle
from skiway.formats.conform import widens
from skiway.formats.schemas import Leaf, element_leaves, leaves
from skiway.pipeline.profile.elements import ELEMENT, elements_of
from skiway.pipeline.profile.values import quoted, spark_type, storage_type_of, value_kind

__all__ = ["FileSchemas", "Found", "Layout", "file_schemas", "layout_of"]

FileSchemas: TypeAlias = Callable[[str], pa.Schema]
"""Returns the schema of the data file at a path, with the field ids of the table."""

_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class Found:
    """A column in a file: its path of names, its Spark type, and the SQL that converts it to the table's type.

    For values in lists and maps, `array` is the SQL for all of them in a row; `path` and `stored` are those of the whole column,
    and `value` converts a single one, which is named `ELEMENT`.
    """

    path: tuple[str, ...]
    stored: str
    value: str
    array: str | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of the table, by id, that are `found` in a file, and the reasons why others are `refused`.

    All other columns are not in the file. Files with the same layout are read together.
    """

    found: tuple[tuple[int, Found], ...]
    refused: tuple[tuple[int, str], ...]

    def schema(self, numbers: Sequence[int]) -> str:
        """The read schema of the columns with these ids, as DDL."""
        tree: dict[str, object] = {}
        for number, found in self.found:
            if number in numbers:
                *above, name = found.path
                inner = tree
                for each in above:
                    inner = inner.setdefault(each, {})  # type: ignore[assignment]
                inner[name] = found.stored
        return ", ".join(f"{quoted(name)} {_ddl(part)}" for name, part in tree.items())


def _ddl(part: object) -> str:
    if isinstance(part, dict):
        return f"STRUCT<{', '.join(f'{quoted(name)}: {_ddl(inner)}' for name, inner in part.items())}>"
    return str(part)


def file_schemas(handle: TableHandle, snapshot: Snapshot) -> FileSchemas:
    """A function that reads the schemas of data files from their footers; it raises Conflict for changed files."""
    listed = handle.files(snapshot)
    etags = dict(zip(listed["path"].to_pylist(), listed["etag"].to_pylist(), strict=True))
    return lambda path: handle.file_schema(snapshot, path, etag=etags.get(path))


def layout_of(file: pa.Schema, columns: Sequence[Leaf]) -> Layout:
    """The layout of a file with this schema."""
    here = {leaf.id: leaf for leaf in leaves(file)}
    inside_lists = {leaf.id: leaf for leaf in element_leaves(file)}
    found, refused = [], []
    for column in columns:
        inside = here.get(column.id) or inside_lists.get(column.id)
        if inside is None or pa.types.is_null(inside.type):
            continue
        read = _read_elements(file, inside, column) if column.id in inside_lists else _read(inside, column)
        if isinstance(read, Found):
            found.append((column.id, read))
        else:
            refused.append((column.id, read))
    return Layout(tuple(found), tuple(refused))


def _read(inside: Leaf, column: Leaf) -> Found | str:
    """How Spark reads a column, or the reason why it cannot."""
    stored, value = spark_type(inside.type), _value(".".join(map(quoted, inside.path)), inside, column)
    if stored is None or value_kind(column.type) is None:
        return f"Spark cannot read {inside.type} as {column.type}"
    if value is None:
        return f"{inside.type} in the file does not widen to {column.type}"
    return Found(inside.path, stored, value)


def _read_elements(file: pa.Schema, inside: Leaf, column: Leaf) -> Found | str:
    """How Spark reads values in lists or maps, or the reason why it cannot."""
    read, elements = _read(inside, column), elements_of(file, inside.path)
    if isinstance(read, str) or elements is None:
        return read if isinstance(read, str) else f"Spark cannot read {inside.type} in {inside.path[0]}"
    value = _value(ELEMENT, inside, column)
    assert value is not None
    return Found((inside.path[0],), elements.stored, value, elements.array)


def _value(path: str, inside: Leaf, column: Leaf) -> str | None:
    """The SQL for the value at a path in the type of the table; None if the types are incompatible."""
    source, target = storage_type_of(inside.type), storage_type_of(column.type)
    if source != target and not widens(source, target):
        return None
    if pa.types.is_time(target) or (pa.types.is_timestamp(target) and target.unit == "ns"):
        return _time_as_number(path, source, target)
    if pa.types.is_timestamp(source) and source.unit == "ns":
        path = f"timestamp_micros({path} DIV 1000)"
    kind = value_kind(target)
    return None if kind is None else f"CAST({path} AS {kind.sql})"


def _time_as_number(path: str, source: pa.DataType, target: pa.DataType) -> str:
    """The SQL for a number of nanoseconds if the table has these, otherwise of microseconds."""
    unit = source.unit
    if pa.types.is_timestamp(source) and unit != "ns":
        path, unit = f"unix_micros(CAST({path} AS TIMESTAMP))", "us"
    wanted, given = _PER_SECOND["ns" if target.unit == "ns" else "us"], _PER_SECOND[unit]
    scale = f"* {wanted // given}L" if wanted >= given else f"DIV {given // wanted}L"
    return f"CAST({path} AS BIGINT) {scale}"
