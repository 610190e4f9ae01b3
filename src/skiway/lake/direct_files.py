"""Files that DuckDB reads itself in a query on the server, because it reads in them exactly what a scan returns.

DuckDB finds columns by the names that they have in each file, so files with other names, missing columns or partition values
are read as well: files that are alike form a group. Tables with types that other readers convert differently are scanned.

Inside of nested columns, DuckDB finds fields by name, too, and tables by id. So files in which the fields of such a column have
other names or ids, are missing, or have another order or type, are scanned. A map with a key that occurs twice, which scans
reject, is returned as it is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from skiway.airport.layouts import plain_type
from skiway.airport.wire.duckdb_sql import castable_type
from skiway.formats import WholeFile, field_id
from skiway.sandbox.relations import FileColumn, FileGroup

__all__ = ["DIRECT_TYPES", "MAX_FILES", "MAX_REMOTE_FILES", "file_groups", "is_direct", "is_nested"]

MAX_FILES: Final = 1000
"""How many files of a table DuckDB reads itself: each is an open file of its process."""

MAX_REMOTE_FILES: Final = 64
"""How many files of a table in an object store DuckDB reads itself: their footers are read before the query starts."""

_MAX_GROUPS: Final = 200
"""How many groups of files a table may have, each of which is a part of the query."""

DIRECT_TYPES: Final = frozenset(
    {
        *(pa.bool_(), pa.string(), pa.binary(), pa.float32(), pa.float64(), pa.date32()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
    }
)
"""The types, besides decimals, that DuckDB reads from Parquet files exactly as the readers of table formats do."""

_WIDENED: Final[Mapping[pa.DataType, frozenset[pa.DataType]]] = {
    pa.int32(): frozenset({pa.int8(), pa.int16(), pa.uint8(), pa.uint16()}),
    pa.int64(): frozenset({pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()}),
    pa.float64(): frozenset({pa.float32()}),
}
"""The types in files, by the type in their table, that DuckDB converts without a loss."""

_AS_TEXT: Final[Sequence[Callable[[pa.DataType], bool]]] = (
    *(pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_date32, pa.types.is_decimal),
)
"""The types of partition values that DuckDB reads from their text."""


def is_direct(column: pa.Field) -> bool:
    """Whether DuckDB reads a column as a scan does. In the files of geometries, it ignores their coordinate system."""
    of = column.type
    if b"ARROW:extension:name" in (column.metadata or {}):
        return False
    if is_nested(of):
        fields = _fields(of)
        names = {field.name.casefold() for field in fields}
        return bool(fields) and len(names) == len(fields) and all(each.name and is_direct(each) for each in fields)
    return pa.types.is_decimal128(of) or of in DIRECT_TYPES


def is_nested(of: pa.DataType) -> bool:
    """Whether values of this type have values inside."""
    return bool(pa.types.is_struct(of) or pa.types.is_list(of) or pa.types.is_map(of))


def _fields(of: pa.DataType) -> Sequence[pa.Field]:
    """The fields of a nested type: those of a struct, the element of a list, or the key and the value of a map."""
    if pa.types.is_struct(of):
        return list(of)
    return [of.key_field, of.item_field] if pa.types.is_map(of) else [of.value_field]


def _is_alike(column: pa.DataType, stored: pa.DataType) -> bool:
    """Whether a column of a file has exactly the type of the table, and the ids of its fields, which are found by name."""
    if not is_nested(column):
        return bool(column == stored)
    if column.id != stored.id or column.num_fields != stored.num_fields:
        return False
    pairs = zip(_fields(column), _fields(stored), strict=True)
    has_names = pa.types.is_struct(column)
    return all(
        field_id(one) == field_id(other)
        and (one.name == other.name or not has_names)
        and _is_alike(one.type, other.type)
        for one, other in pairs
    )


def file_groups(schema: pa.Schema, files: Sequence[WholeFile]) -> list[FileGroup] | None:
    """The files, for DuckDB to read them as a table with these columns; None if it would return something else."""
    if not files or len(files) > MAX_FILES or not all(map(is_direct, schema)):
        return None
    groups: dict[tuple[FileColumn, ...], list[WholeFile]] = {}
    known: dict[int, tuple[FileColumn, ...] | None] = {}  # of files without constants, by the identity of their columns
    for file in files:
        if file.constants:
            found = _file_columns(schema, file)
        else:
            if id(file.columns) not in known:
                known[id(file.columns)] = _file_columns(schema, file)
            found = known[id(file.columns)]
        if found is None:
            return None
        groups.setdefault(found, []).append(file)
        if len(groups) > _MAX_GROUPS:
            return None
    return [_group(columns, alike) for columns, alike in groups.items()]


def _file_columns(schema: pa.Schema, file: WholeFile) -> tuple[FileColumn, ...] | None:
    """How DuckDB gets all columns of the table from a file; None if it cannot."""
    columns = [_column(each, file) for each in schema]
    found = tuple(each for each in columns if each is not None)
    if len(found) < len(columns) or not _is_unambiguous(file.columns, found):
        return None
    if any(each.is_widened for each in found) and any(is_nested(column.type) for column in schema):
        return None  # the schema that converts types would have to describe nested columns, too
    return found


def _group(columns: Sequence[FileColumn], files: Sequence[WholeFile]) -> FileGroup:
    local = [file.open for file in files if file.open_remote is None]
    return FileGroup(local, columns, [file.open_remote for file in files if file.open_remote is not None])


def _column(column: pa.Field, file: WholeFile) -> FileColumn | None:
    """How DuckDB gets a column of the table from a file; None if it cannot."""
    kind, number = castable_type(column), field_id(column)
    stored = None if number is None else file.columns.get(number)
    if stored is not None:
        there = None if isinstance(stored.type, pa.BaseExtensionType) else plain_type(stored.type)
        is_widened = not is_nested(column.type) and there in _WIDENED.get(column.type, ())
        if there is None or not (is_widened or _is_alike(column.type, there)):
            return None
        return FileColumn(column.name, kind, stored_as=stored.name, is_widened=is_widened)
    value = None if number is None else file.constants.get(number)
    if value is None or not value.is_valid:
        return FileColumn(column.name, kind) if column.nullable else None
    if not any(is_kind(column.type) for is_kind in _AS_TEXT):
        return None
    return FileColumn(column.name, kind, value=str(value.cast(column.type).cast(pa.string()).as_py()))


def _is_unambiguous(stored: Mapping[int, pa.Field], columns: Sequence[FileColumn]) -> bool:
    """Whether each name is that of one column only, and some column is read: DuckDB does not distinguish the cases of names."""
    names = [field.name.casefold() for field in stored.values()]
    return len(set(names)) == len(names) and any(each.stored_as is not None for each in columns)
