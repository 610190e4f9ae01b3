"""Queries over one table that are answered by its metadata.

Every value of a view that selects columns of one table, with or without a condition, is a value of the table, so bounds of the
table are bounds of the view. The rows of a table are counted without reading them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

__all__ = ["RowCount", "SimpleView", "row_count", "simple_view"]

_PARTS: Final = {"expressions", "from_", "from", "where"}
"""The parts of a SELECT that a simple view may have."""

_MAX_PARSED: Final = 20_000
"""The characters of a query that is parsed here, which takes time in this process, and kept in memory."""


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


@dataclass(frozen=True, slots=True)
class RowCount:
    """The table of `SELECT count(*) FROM …`, and the name of the only column."""

    catalog: str
    schema: str
    table: str
    name: str


def row_count(sql: str) -> RowCount | None:
    """What a query counts, if it counts all rows of one table."""
    return _row_count(sql) if len(sql) <= _MAX_PARSED else None


@lru_cache(maxsize=2000)
def _row_count(sql: str) -> RowCount | None:
    select = _selected(sql)
    table = None if select is None or select.args.get("where") else _only_table(select)
    if select is None or table is None or len(select.expressions) != 1:
        return None
    (counted,) = select.expressions
    count = counted.this if isinstance(counted, exp.Alias) else counted
    if not isinstance(count, exp.Count) or not isinstance(count.this, exp.Star):
        return None
    if any(value for name, value in count.args.items() if name not in ("this", "big_int")) or any(
        count.this.args.values()
    ):
        return None
    name = counted.alias if isinstance(counted, exp.Alias) else "count_star()"
    return RowCount(table.catalog, table.db, table.name, name)


def _selected(sql: str) -> exp.Select | None:
    """A SELECT with nothing but a table and a condition."""
    try:
        select = parse_one(sql, dialect="duckdb")
    except (SqlglotError, RecursionError):
        return None
    if not isinstance(select, exp.Select) or {name for name, value in select.args.items() if value} - _PARTS:
        return None
    return select


def _only_table(select: exp.Select) -> exp.Table | None:
    clause = select.args.get("from_") or select.args.get("from")
    table = clause.this if isinstance(clause, exp.From) else None
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        return None  # a table function, a subquery or values
    if {name for name, value in table.args.items() if value} - {"this", "db", "catalog", "alias"}:
        return None  # such as a sample, a pivot, a join or a point in time
    if isinstance(alias := table.args.get("alias"), exp.TableAlias) and alias.columns:
        return None
    return table


def simple_view(sql: str) -> SimpleView | None:
    """What a view reads, if it is a simple one."""
    return _simple_view(sql) if len(sql) <= _MAX_PARSED else None


@lru_cache(maxsize=2000)
def _simple_view(sql: str) -> SimpleView | None:
    select = _selected(sql)
    table = None if select is None else _only_table(select)
    if select is None or table is None:
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
