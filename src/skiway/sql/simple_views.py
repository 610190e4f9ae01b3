"""Simple views: those that select columns of one table, with or without a condition.

Every value of such a view is a value of its table, so bounds of the table are bounds of the view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

__all__ = ["SimpleView", "simple_view"]

_PARTS: Final = {"expressions", "from_", "from", "where"}
"""The parts of a SELECT that a simple view may have."""


@dataclass(frozen=True, slots=True)
class SimpleView:
    """The table that a simple view reads, and its columns. With `all`, the view has all columns of the table."""

    catalog: str
    schema: str
    table: str
    columns: Mapping[str, str]
    all: bool = False

    def source_of(self, column: str, of_table: Sequence[str]) -> str | None:
        """The column of the table that a column of the view shows; None if it shows none, or several differ in case only."""
        wanted = column if self.all else self.columns.get(column.casefold())
        found = [name for name in of_table if wanted is not None and name.casefold() == wanted.casefold()]
        return found[0] if len(found) == 1 else None


@lru_cache(maxsize=2000)
def simple_view(sql: str) -> SimpleView | None:
    """What a view reads, if it is a simple one."""
    try:
        select = parse_one(sql, dialect="duckdb")
    except (SqlglotError, RecursionError):
        return None
    if not isinstance(select, exp.Select) or {name for name, value in select.args.items() if value} - _PARTS:
        return None
    clause = select.args.get("from_") or select.args.get("from")
    table = clause.this if isinstance(clause, exp.From) else None
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        return None  # a table function, a subquery or values
    if {name for name, value in table.args.items() if value} - {"this", "db", "catalog", "alias"}:
        return None  # such as a sample, a pivot, a join or a point in time
    if isinstance(alias := table.args.get("alias"), exp.TableAlias) and alias.columns:
        return None
    place = (table.catalog, table.db, table.name)
    if len(select.expressions) == 1 and isinstance(star := select.expressions[0], exp.Star):
        return None if any(star.args.values()) else SimpleView(*place, {}, all=True)
    names = [each.alias_or_name.casefold() for each in select.expressions]
    if len(set(names)) < len(names) or any(each.find(exp.Star) for each in select.expressions):
        return None  # DuckDB renames columns whose names occur twice
    columns: dict[str, str] = {}
    for name, each in zip(names, select.expressions, strict=True):
        column = each.this if isinstance(each, exp.Alias) else each
        if isinstance(column, exp.Column) and _is_of(column, table.alias_or_name):
            columns[name] = column.name
    return SimpleView(*place, columns)


def _is_of(column: exp.Column, table: str) -> bool:
    """Whether a name is that of a column of the table, and not of a field in one."""
    return not (column.args.get("db") or column.args.get("catalog")) and column.table.casefold() in (
        "",
        table.casefold(),
    )
