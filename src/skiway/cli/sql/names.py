"""Tables as SQL names them, and as the server does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlglot import exp

from skiway.errors import InvalidArgument

__all__ = ["LakeName", "lake_name", "lake_tables", "spoken"]


class LakeName(NamedTuple):
    """A table by its catalog, its schema and its own name."""

    catalog: str
    schema: str
    table: str

    def __str__(self) -> str:
        return ".".join(quoted(part) for part in self)


def lake_name(table: exp.Table, default_catalog: str) -> LakeName:
    """What a statement means that changes `table`; it must name a schema."""
    if not table.db or not table.name:
        raise InvalidArgument(f"{table.sql('duckdb')} is no table of the lake: write catalog.schema.table")
    return LakeName(table.catalog or default_catalog, table.db, table.name)


def lake_tables(statement: exp.Expr) -> list[exp.Table]:
    """The tables of the lake that a statement reads: those with a schema. Files and what WITH defines have none."""
    return [
        each
        for each in statement.find_all(exp.Table)
        if each.db and each.name and isinstance(each.this, exp.Identifier)
    ]


def spoken(path: Sequence[str]) -> LakeName:
    """A table of the metastore as DuckDB names it."""
    from skiway.lake.names import schema_name

    return LakeName(path[0], schema_name(path[1:-1]), path[-1])


def quoted(name: str) -> str:
    """An identifier, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'
