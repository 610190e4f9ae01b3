"""The SQL of views, in other dialects and as DuckDB reads it.

A view has its SQL in one or more dialects. DuckDB reads a view that was created in Spark, and the other way around, by a
translation. In it, names of tables are written as the other engine needs them:

- DuckDB knows a namespace by its schema name, `"sales.eu".orders`; Spark by its levels, `sales.eu.orders`; Trino has them in one name.
- A name without a namespace is completed with that in which the view was created.
- The catalog of the view itself is left out, because engines attach it by different names. Trino insists on one, and gets its own name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from skiway.errors import InvalidArgument
from skiway.foundation.resources import namespace_path, schema_name
from skiway.model import v1

DUCKDB: Final = "duckdb"
SPARK: Final = "spark"
TRINO: Final = "trino"
TRANSLATIONS: Final = 2000

QUERY_NAMES: Final = "spark.query-column-names"
"""The property in which Spark keeps the names of the columns of the query, separated by commas."""

Parts = tuple[str, ...]


def is_translated(definitions: Sequence[v1.ViewSql]) -> bool:
    """Whether DuckDB reads the view by a translation, because it has no definition for DuckDB."""
    return all(definition.dialect != DUCKDB for definition in definitions)


def view_sql(view: v1.View, catalog: str) -> str:
    """The query of a view in a catalog, in DuckDB's dialect."""
    catalogs = {catalog, default_catalog(view) or ""}
    return duckdb_sql(view.sql_definitions, namespace=view.creation_search_path, catalogs=catalogs)


def default_catalog(view: v1.View) -> str | None:
    """The name by which the creator of a view knows its catalog, if that is known."""
    if not view.iceberg_metadata:
        return None
    metadata = json.loads(view.iceberg_metadata)  # not as a model, which would take longer for each view of a listing
    current = (each for each in metadata["versions"] if each["version-id"] == metadata["current-version-id"])
    found: str | None = next(current).get("default-catalog")
    return found


def duckdb_sql(
    definitions: Sequence[v1.ViewSql], *, namespace: Sequence[str] = (), catalogs: Collection[str] = ()
) -> str:
    """The SQL of a view for DuckDB, translated from the first other dialect if there is none.

    The view was created in `namespace`, and `catalogs` are the names of its own catalog.
    """
    for definition in definitions:
        if definition.dialect == DUCKDB:
            return definition.sql
    first = definitions[0]
    return _translated_for_duckdb(first.sql, first.dialect, tuple(namespace), frozenset(catalogs))


@lru_cache(maxsize=TRANSLATIONS)  # a view is translated for every column of which DuckDB requests statistics
def _translated_for_duckdb(sql: str, dialect: str, namespace: Parts, catalogs: frozenset[str]) -> str:
    def renamed(levels: Parts) -> Parts:
        *path, name = levels[1:] if len(levels) > 1 and levels[0] in catalogs else levels
        inside = path or namespace
        return (schema_name(inside), name) if inside else (name,)

    return _translated(sql, dialect, DUCKDB, renamed)


def spark_sql(sql: str, *, namespace: Sequence[str], catalogs: Collection[str]) -> str:
    """DuckDB's SQL of a view, translated for Spark; raises `InvalidArgument` if that is not possible."""

    def renamed(levels: Parts) -> Parts:
        *others, name = levels[1:] if len(levels) > 2 and levels[0] in catalogs else levels
        if not others:
            return (*namespace, name)
        return (*others[:-1], *namespace_path(others[-1]), name)

    return _translated(sql, DUCKDB, SPARK, renamed)


def translations(sql: str, *, namespace: Sequence[str], catalog: str) -> dict[str, str]:
    """DuckDB's SQL of a view, translated for Spark and for Trino, as far as that is possible."""

    def renamed(levels: Parts) -> Parts:
        *others, name = levels
        path = namespace_path(others[-1]) if others else namespace
        return (others[0] if len(others) > 1 else catalog, ".".join(path), name)

    found = {}
    with suppress(InvalidArgument):
        found[SPARK] = spark_sql(sql, namespace=namespace, catalogs={catalog})
    with suppress(InvalidArgument):
        found[TRINO] = _translated(sql, DUCKDB, TRINO, renamed)
    return found


def tables_in(definition: v1.ViewSql, *, namespace: Sequence[str], catalogs: Collection[str]) -> list[Parts]:
    """The tables and views that a query in another dialect than DuckDB's names, each once, as levels of names.

    There are none if the query cannot be parsed.
    """
    try:
        parsed = sqlglot.parse_one(definition.sql, read=definition.dialect)
    except (SqlglotError, ValueError, RecursionError):
        return []
    found: dict[Parts, None] = {}
    for _, levels in _named_tables(parsed):
        own = levels[1:] if len(levels) > 2 and levels[0] in catalogs else levels
        found[own if len(own) > 1 else (*namespace, *own)] = None
    return list(found)


def duckdb_names(sql: str) -> dict[Parts, bool]:
    """The names in DuckDB's SQL, and whether each may be that of a common table expression. Raise if it cannot be parsed."""
    try:
        parsed = sqlglot.parse_one(sql, read=DUCKDB)
    except (SqlglotError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"its tables cannot be determined: {_reason(error)}", key="view.sql") from error
    common = _common(parsed)
    tables = (tuple(part.name for part in table.parts) for table in parsed.find_all(exp.Table) if _is_named(table))
    return {levels: len(levels) == 1 and levels[0].casefold() in common for levels in tables}


def _translated(sql: str, read: str, write: str, renamed: Callable[[Parts], Parts]) -> str:
    try:
        parsed = [each for each in sqlglot.parse(sql, read=read) if each is not None]
        if len(parsed) == 1:
            _rename(parsed[0], renamed)
            return parsed[0].sql(dialect=write, unsupported_level=sqlglot.ErrorLevel.RAISE)
    except (SqlglotError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"its SQL in the dialect {read} cannot be translated to that of {write}: {_reason(error)}; add a definition in the dialect "
            f"{write}",
            key="view.dialect",
        ) from error
    raise InvalidArgument(f"it has {len(parsed)} statements: a view is one query", key="view.sql")


def _named_tables(query: exp.Expr) -> Iterator[tuple[exp.Table, Parts]]:
    """The tables that a query names, with the levels of their names."""
    common = _common(query)
    for table in list(query.find_all(exp.Table)):
        levels = tuple(part.name for part in table.parts)
        if _is_named(table) and (len(levels) > 1 or levels[0].casefold() not in common):
            yield table, levels


def _common(query: exp.Expr) -> set[str]:
    """The names of the common table expressions of a query."""
    return {each.alias_or_name.casefold() for each in query.find_all(exp.CTE)}


def _is_named(table: exp.Table) -> bool:
    """Whether it has a name, and is not a table function."""
    return all(isinstance(part, exp.Identifier) for part in table.parts)


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _rename(query: exp.Expr, renamed: Callable[[Parts], Parts]) -> None:
    for table, levels in _named_tables(query):
        names = [exp.to_identifier(part, quoted=True) for part in renamed(levels)]
        if not table.args.get("alias"):
            table.set("alias", exp.TableAlias(this=exp.to_identifier(levels[-1], quoted=True)))
        table.set("this", names[-1] if len(names) < 4 else exp.Dot.build(names))
        table.set("db", names[-2] if 1 < len(names) < 4 else None)
        table.set("catalog", names[-3] if len(names) == 3 else None)
