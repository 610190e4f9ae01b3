"""The layout of a data file: under which name and type Spark finds each column of the table, if at all.

Values in lists and maps are found by the Spark type of the column that contains them, and the SQL for an array of those of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from skiway.formats import Snapshot, TableHandle
from skiway.formats.readers.conform import widens
from skiway.formats.schemas import Leaf, element_leaves, leaves
from skiway.spark_jobs.profile.values import quoted, spark_type, storage_type_of, value_kind

ELEMENT: Final = "element"
"""The name of a single value, after the arrays are exploded."""


@dataclass(frozen=True, slots=True)
class Elements:
    """A column with lists or maps: its Spark type, reduced to what is needed, and the SQL for an array of the values."""

    stored: str
    array: str


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a column: its Spark type, and the SQL for its value, or for an array of its values."""

    stored: str
    sql: str
    is_array: bool = False


def elements_of(file: pa.Schema, path: tuple[str, ...]) -> Elements | None:
    """The values at a path of names, as in `element_leaves`; None if Spark cannot read them."""
    found = _part(file.field(path[0]).type, path[1:], quoted(path[0]), depth=0)
    return None if found is None else Elements(found.stored, found.sql)


def _part(of: pa.DataType, path: tuple[str, ...], sql: str, *, depth: int) -> _Part | None:
    """The part of a value of this type at a path; `sql` is the value."""
    if not path:
        stored = spark_type(of)
        return None if stored is None else _Part(stored, sql)
    name, *rest = path
    if pa.types.is_struct(of):
        inner = _part(of.field(name).type, tuple(rest), f"{sql}.{quoted(name)}", depth=depth)
        return None if inner is None else _Part(f"STRUCT<{quoted(name)}: {inner.stored}>", inner.sql, inner.is_array)
    variable = f"e{depth}"
    if _is_list(of):
        inner = _part(of.value_type, tuple(rest), variable, depth=depth + 1)
        return None if inner is None else _Part(f"ARRAY<{inner.stored}>", _all(sql, variable, inner), is_array=True)
    if not pa.types.is_map(of):
        return None
    of_keys = name == "key"
    inner = _part(of.key_type if of_keys else of.item_type, tuple(rest), variable, depth=depth + 1)
    other = _any_type(of.item_type if of_keys else of.key_type)
    if inner is None or other is None:
        return None
    stored = f"MAP<{inner.stored}, {other}>" if of_keys else f"MAP<{other}, {inner.stored}>"
    return _Part(stored, _all(f"map_{name}s({sql})", variable, inner), is_array=True)


def _all(array: str, variable: str, inner: _Part) -> str:
    """The SQL for the inner parts of all items of an array, in one array."""
    parts = array if inner.sql == variable else f"transform({array}, {variable} -> {inner.sql})"
    # `flatten` returns NULL if any of the arrays is NULL.
    return f"flatten(filter({parts}, part -> part IS NOT NULL))" if inner.is_array else parts


def _is_list(of: pa.DataType) -> bool:
    return of.num_fields == 1 and not pa.types.is_struct(of) and not pa.types.is_map(of)


def _any_type(of: pa.DataType) -> str | None:
    """A Spark type with which a value of this type can be read that is not needed: a part of it suffices."""
    if pa.types.is_map(of):
        key, item = _any_type(of.key_type), _any_type(of.item_type)
        return None if key is None or item is None else f"MAP<{key}, {item}>"
    if _is_list(of):
        inner = _any_type(of.value_type)
        return None if inner is None else f"ARRAY<{inner}>"
    if pa.types.is_struct(of):
        parts = ((field.name, _any_type(field.type)) for field in of)
        return next((f"STRUCT<{quoted(name)}: {part}>" for name, part in parts if part is not None), None)
    return spark_type(of)


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
