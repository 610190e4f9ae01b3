"""The columns that Spark or another engine declared for a view, which DuckDB reads by a translation of its query.

The declared names and types can differ from those of the query: `CREATE VIEW v (a, b) AS SELECT id, name …` has other names, and
a function can return another type in DuckDB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from skiway.airport.wire.duckdb_sql import identifier
from skiway.metastore.resources.view_dialects import QUERY_NAMES, is_translated
from skiway.model import v1

__all__ = ["DeclaredColumns", "declared_columns"]

_REMEMBERED: Final = 2000


@dataclass(frozen=True, slots=True)
class DeclaredColumns:
    """Names and types in DuckDB's spelling, and for each the column of the query that it shows.

    Columns correspond to each other `by_place`, unless the query selects `*`: then by name, because the tables can get
    further columns anywhere.
    """

    names: Sequence[str]
    types: Sequence[str]
    sources: Sequence[str]
    by_place: bool

    def of(self, query: str) -> str:
        """The query, with the declared columns."""
        inner = [f"c{place}" for place in range(len(self.names))] if self.by_place else self.sources
        shown = ", ".join(
            f"CAST({identifier(source)} AS {kind}) AS {identifier(name)}"
            for source, kind, name in zip(inner, self.types, self.names, strict=True)
        )
        aliases = f" AS q({', '.join(inner)})" if self.by_place else ""
        return f"SELECT {shown} FROM (\n{query}\n){aliases}"  # noqa: S608 - quoted

    def source_of(self, name: str) -> str:
        """The column of the query that a declared column shows."""
        return self.sources[list(self.names).index(name)]


def declared_columns(view: v1.View, sql: str) -> DeclaredColumns | None:
    """The declared columns of a view, and `sql` is its query for DuckDB. None if DuckDB's own columns are valid."""
    columns = view.output_columns
    if not columns or not is_translated(view.sql_definitions):
        return None
    names, types = [each.name for each in columns], [each.logical_type for each in columns]
    selected = _selected(sql)
    if selected is not None:
        return DeclaredColumns(names, types, selected, by_place=True) if len(selected) == len(names) else None
    known = list(filter(None, view.properties.get(QUERY_NAMES, "").split(",")))
    is_unique = len({each.casefold() for each in known}) == len(names) == len(known)
    return DeclaredColumns(names, types, known if is_unique else names, by_place=False)


@lru_cache(maxsize=_REMEMBERED)
def _selected(sql: str) -> tuple[str, ...] | None:
    """The names of the columns that a query selects, empty for expressions without one; None if it selects `*`."""
    try:
        query = parse_one(sql, dialect="duckdb")
    except (SqlglotError, RecursionError):
        return None
    if not isinstance(query, exp.Query) or query.is_star:
        return None
    return tuple(each.output_name for each in query.selects)
