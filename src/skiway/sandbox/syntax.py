"""DuckDB's SQL as text and as syntax trees, which DuckDB itself makes and turns into text again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import duckdb
from duckdb.sqltypes import DuckDBPyType

__all__ = ["cast_columns", "literal", "nodes", "quoted", "single_value", "type_ids", "type_with"]

_NESTED: Final = ("array", "list", "map", "struct", "union")


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a syntax tree, each before those below it."""
    pending = [tree]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            yield each
            pending += reversed(each.values())
        elif isinstance(each, list):
            pending += reversed(each)


def single_value(database: duckdb.DuckDBPyConnection, sql: str, *parameters: str) -> str:
    """The value in the first column of the first row, as text."""
    found = database.execute(sql, parameters).fetchone()
    assert found is not None
    return str(found[0])


def quoted(name: str) -> str:
    """A name as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: str | Sequence[str]) -> str:
    """A text, or a list of texts, as a constant."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return f"[{', '.join(map(literal, value))}]"


def type_ids(kind: DuckDBPyType) -> set[str]:
    """The ids of a type and of the types nested in it, such as `list` and `integer`."""
    return {kind.id}.union(*(type_ids(part) for _, part in _parts(kind)))


def type_with(kind: DuckDBPyType, names: Mapping[str, str]) -> str:
    """The name of a type in which the types with these ids are replaced, at any depth; its own name if it has none of them.

    `ValueError` if it has fields without names, as those of `row(1, 2)`, which SQL cannot name.
    """
    if kind.id in names:
        return names[kind.id]
    if type_ids(kind).isdisjoint(names):
        return str(kind)
    parts = [(name, type_with(part, names)) for name, part in _parts(kind)]
    match kind.id:
        case "list":
            return f"{parts[0][1]}[]"
        case "array":
            return f"{parts[0][1]}[{kind.children[1][1]}]"
        case "map":
            return f"MAP({parts[0][1]}, {parts[1][1]})"
    if not all(name for name, _ in parts):
        raise ValueError(f"{kind} has fields without names: name them, as in {{'a': 1}}")
    return f"{kind.id}({', '.join(f'{quoted(name)} {part}' for name, part in parts)})"


def _parts(kind: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    if kind.id not in _NESTED:
        return []
    children = kind.children[1:] if kind.id == "union" else kind.children  # the first child of a union is its tag
    return [(name, part) for name, part in children if isinstance(part, DuckDBPyType)]


def cast_columns(relation: duckdb.DuckDBPyRelation, types: Sequence[str]) -> duckdb.DuckDBPyRelation:
    """The relation with its columns cast to these types; the relation itself if it has them."""
    if types == list(map(str, relation.types)):
        return relation
    columns = zip(relation.columns, relation.types, types, strict=True)
    return relation.project(
        ", ".join(
            f"#{number}" if wanted == str(kind) else f"CAST(#{number} AS {wanted}) AS {quoted(name)}"
            for number, (name, kind, wanted) in enumerate(columns, 1)
        )
    )
