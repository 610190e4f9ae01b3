"""The layout of a data file: under which name and type Spark finds each column of the table, if at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from skiway.formats import Snapshot, TableHandle
from skiway.formats.conform import widens
from skiway.formats.schemas import Leaf, leaves
from skiway.pipeline.profile.values import storage_type_of, value_kind

__all__ = ["FileSchemas", "Found", "Layout", "file_schemas", "layout_of"]

FileSchemas: TypeAlias = Callable[[str], pa.Schema]
"""Returns the schema of the data file at a path, with the field ids of the table."""

_PLAIN: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.uint8(): "SMALLINT",
    pa.uint16(): "INT",
    pa.uint32(): "BIGINT",
    pa.uint64(): "DECIMAL(20,0)",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
}
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class Found:
    """A column in a file: its path of names, its Spark type, and the SQL that converts it to the table's type."""

    path: tuple[str, ...]
    stored: str
    value: str


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


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return "`" + name.replace("`", "``") + "`"


def file_schemas(handle: TableHandle, snapshot: Snapshot) -> FileSchemas:
    """A function that reads the schemas of data files from their footers; it raises Conflict for changed files."""
    listed = handle.files(snapshot)
    etags = dict(zip(listed["path"].to_pylist(), listed["etag"].to_pylist(), strict=True))
    return lambda path: handle.file_schema(snapshot, path, etag=etags.get(path))


def layout_of(file: pa.Schema, columns: Sequence[Leaf]) -> Layout:
    """The layout of a file with this schema."""
    here = {leaf.id: leaf for leaf in leaves(file)}
    found, refused = [], []
    for column in columns:
        inside = here.get(column.id)
        if inside is None or pa.types.is_null(inside.type):
            continue
        stored, value = _read_as(inside), _value(inside, column)
        if stored is None or value_kind(column.type) is None:
            refused.append((column.id, f"Spark cannot read {inside.type} as {column.type}"))
        elif value is None:
            refused.append((column.id, f"{inside.type} in the file does not widen to {column.type}"))
        else:
            found.append((column.id, Found(inside.path, stored, value)))
    return Layout(tuple(found), tuple(refused))


def _read_as(inside: Leaf) -> str | None:
    """The Spark type to read a column of a file as; times and nanosecond timestamps are read as numbers."""
    of = storage_type_of(inside.type)
    if pa.types.is_decimal(of) and of.precision <= 38:
        return f"DECIMAL({of.precision},{of.scale})"
    if pa.types.is_date(of):
        return "DATE"
    if pa.types.is_timestamp(of) and of.unit != "ns":
        return "TIMESTAMP" if of.tz else "TIMESTAMP_NTZ"
    if pa.types.is_time(of):
        return "INT" if of.bit_width == 32 else "BIGINT"
    if pa.types.is_timestamp(of):
        return "BIGINT"
    return "BINARY" if pa.types.is_fixed_size_binary(of) else _PLAIN.get(of)


def _value(inside: Leaf, column: Leaf) -> str | None:
    """The SQL for the value in the type of the table; None if the types are incompatible."""
    source, target = storage_type_of(inside.type), storage_type_of(column.type)
    if source != target and not widens(source, target):
        return None
    path = ".".join(map(quoted, inside.path))
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
