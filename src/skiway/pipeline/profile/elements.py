"""Values in lists and maps: the Spark type of the column that contains them, and the SQL for an array of those of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from skiway.pipeline.profile.values import quoted, spark_type

__all__ = ["ELEMENT", "Elements", "elements_of"]

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
