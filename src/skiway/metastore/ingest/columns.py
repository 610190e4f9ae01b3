"""How a copied table follows the columns of its source.

Columns are matched by name, whatever its case. A table that follows its source gets new columns and wider types. A column
that the source no longer has stays, and is NULL in new rows. Types that are narrower than those of the table fit anyway. Any
other change, such as a number that became a text, is an error that names the column.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.formats.iceberg.schema_changes import AddColumn, ColumnChange, WidenColumn
from skiway.formats.iceberg.types import arrow_columns, iceberg_schema

__all__ = ["column_changes", "key_fields_of", "stored_columns"]


def stored_columns(source: pa.Schema) -> pa.Schema:
    """The columns as a table stores them: in types of Iceberg, all of them nullable."""
    nullable = pa.schema([pa.field(each.name, each.type, metadata=each.metadata) for each in source])
    return arrow_columns(iceberg_schema(nullable, format_version=3))


def column_changes(table: pa.Schema, source: pa.Schema, *, follows: bool) -> list[ColumnChange]:
    """The changes after which the rows of `source`, in stored types, fit the table.

    Raise `PreconditionFailed` if there are any and the table does not follow its source, or if the rows can never fit.
    """
    changes = list(_changes(list(table), list(source), ()))
    if follows:
        return changes
    missing = [each.name for each in table if _find(each.name, list(source)) is None]
    differences = [*(_shown(each) for each in changes), *(f"column {name!r} is missing" for name in missing)]
    if differences:
        raise PreconditionFailed(
            f"the columns of the source have changed, and the copy rejects changes: {'; '.join(differences)}; change the table "
            "and sync again, or set schema_changes to follow",
            key="ingest.schema.changed",
        )
    return changes


def key_fields_of(table: pa.Schema, keys: tuple[str, ...]) -> pa.Schema:
    """The key columns of a table. Raise `InvalidArgument` if one is missing, or cannot be compared."""
    found = []
    for name in keys:
        field = _find(name, list(table))
        if field is None:
            raise InvalidArgument(
                f"the key column {name!r} does not exist; the columns are {', '.join(table.names)}: correct key_columns",
                key="ingest.key.missing",
                column=name,
            )
        if pa.types.is_nested(field.type) or pa.types.is_floating(field.type):
            raise InvalidArgument(
                f"the key column {name!r} has the type {field.type}, which cannot identify rows: choose another column",
                key="ingest.key.type",
                column=name,
            )
        found.append(field)
    return pa.schema(found)


def _changes(table: list[pa.Field], source: list[pa.Field], above: tuple[str, ...]) -> Iterator[ColumnChange]:
    for own in source:
        known = _find(own.name, table)
        path = (*above, own.name if known is None else known.name)
        if known is None:
            yield AddColumn(path if above else own.name, own.type)
        elif pa.types.is_struct(known.type) and pa.types.is_struct(own.type):
            yield from _changes(list(known.type), list(own.type), path)
        elif _is_wider(own.type, known.type):
            yield WidenColumn(path if above else known.name, own.type)
        elif not _fits(own.type, known.type):
            raise PreconditionFailed(
                f"column {'.'.join(path)!r} is {own.type} in the source, which does not fit into the {known.type} of the table: "
                "convert it in the source, or copy into a new table",
                key="ingest.schema.incompatible",
                column=".".join(path),
            )


def _is_wider(new: pa.DataType, old: pa.DataType) -> bool:
    """Whether Iceberg can change the type `old` to `new`."""
    if (old, new) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        return True
    if not (pa.types.is_decimal(old) and pa.types.is_decimal(new)):
        return False
    return bool(new.scale == old.scale and new.precision > old.precision)


def _fits(given: pa.DataType, into: pa.DataType) -> bool:
    """Whether all values of a type can be stored in a column of another one."""
    return _without_names(given) == _without_names(into) or _is_wider(into, given)


def _without_names(of: pa.DataType) -> str:
    """A type as text, without the ids and the nullability of its fields."""
    if pa.types.is_list(of):
        return f"list<{_without_names(of.value_type)}>"
    if pa.types.is_map(of):
        return f"map<{_without_names(of.key_type)}, {_without_names(of.item_type)}>"
    if pa.types.is_struct(of):
        return f"struct<{', '.join(f'{each.name}: {_without_names(each.type)}' for each in of)}>"
    return str(of)


def _find(name: str, fields: list[pa.Field]) -> pa.Field | None:
    exact = [each for each in fields if each.name == name]
    alike = exact or [each for each in fields if each.name.casefold() == name.casefold()]
    return alike[0] if alike else None


def _shown(change: ColumnChange) -> str:
    path = change.path if isinstance(change.path, str) else ".".join(change.path)
    return f"column {path!r} is new" if isinstance(change, AddColumn) else f"column {path!r} has a wider type"
