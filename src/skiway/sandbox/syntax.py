"""DuckDB's SQL as text and as syntax trees, which DuckDB itself makes and turns into text again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import duckdb

__all__ = ["literal", "nodes", "quoted", "single_value"]


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a syntax tree."""
    if isinstance(tree, dict):
        yield tree
        for each in tree.values():
            yield from nodes(each)
    elif isinstance(tree, list):
        for each in tree:
            yield from nodes(each)


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
