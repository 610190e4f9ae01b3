"""The SQL of views in other dialects, and their columns as an Iceberg schema.

A view has its SQL in one or more dialects. DuckDB reads a view that was created in Spark, and the other way around, by a
translation. In it, names of tables are written as the other engine needs them:

- DuckDB knows a namespace by its schema name, `"sales.eu".orders`; Spark by its levels, `sales.eu.orders`.
- A name without a namespace is completed with that in which the view was created.
- The catalog of the view itself is left out, because engines attach it by different names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from skiway.errors import InvalidArgument
from skiway.metastore.records.schema_names import namespace_path, schema_name
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

__all__ = ["DUCKDB", "SPARK", "duckdb_sql", "iceberg_columns", "spark_sql", "tables_in"]

DUCKDB: Final = "duckdb"
SPARK: Final = "spark"
TRANSLATIONS: Final = 2000

Parts = tuple[str, ...]


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


def _translated(sql: str, read: str, write: str, renamed: Callable[[Parts], Parts]) -> str:
    try:
        parsed = [each for each in sqlglot.parse(sql, read=read) if each is not None]
        if len(parsed) == 1:
            _rename(parsed[0], renamed)
            return parsed[0].sql(dialect=write, unsupported_level=sqlglot.ErrorLevel.RAISE)
    except (SqlglotError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidArgument(
            f"its SQL in the dialect {read} cannot be translated to that of {write}: {reason}; add a definition in the dialect "
            f"{write}",
            key="view.dialect",
        ) from error
    raise InvalidArgument(f"it has {len(parsed)} statements: a view is one query", key="view.sql")


def _named_tables(query: exp.Expr) -> Iterator[tuple[exp.Table, Parts]]:
    """The tables that a query names, with the levels of their names."""
    common = {each.alias_or_name.casefold() for each in query.find_all(exp.CTE)}
    for table in list(query.find_all(exp.Table)):
        levels = tuple(part.name for part in table.parts)
        if not all(isinstance(part, exp.Identifier) for part in table.parts):
            continue  # a table function
        if len(levels) > 1 or levels[0].casefold() not in common:
            yield table, levels


def _rename(query: exp.Expr, renamed: Callable[[Parts], Parts]) -> None:
    for table, levels in _named_tables(query):
        names = [exp.to_identifier(part, quoted=True) for part in renamed(levels)]
        if not table.args.get("alias"):
            table.set("alias", exp.TableAlias(this=exp.to_identifier(levels[-1], quoted=True)))
        table.set("this", names[-1] if len(names) < 4 else exp.Dot.build(names))
        table.set("db", names[-2] if 1 < len(names) < 4 else None)
        table.set("catalog", names[-3] if len(names) == 3 else None)


# --- columns ----------------------------------------------------------------------------------------------------------

_PRIMITIVES: Final = {
    exp.DataType.Type.BOOLEAN: "boolean",
    exp.DataType.Type.TINYINT: "int",
    exp.DataType.Type.UTINYINT: "int",
    exp.DataType.Type.SMALLINT: "int",
    exp.DataType.Type.USMALLINT: "int",
    exp.DataType.Type.INT: "int",
    exp.DataType.Type.UINT: "long",
    exp.DataType.Type.BIGINT: "long",
    exp.DataType.Type.UBIGINT: "decimal(20, 0)",
    exp.DataType.Type.INT128: "decimal(38, 0)",
    exp.DataType.Type.UINT128: "decimal(38, 0)",
    exp.DataType.Type.FLOAT: "float",
    exp.DataType.Type.DOUBLE: "double",
    exp.DataType.Type.DATE: "date",
    exp.DataType.Type.TIME: "time",
    exp.DataType.Type.TIMESTAMP: "timestamp",
    exp.DataType.Type.TIMESTAMPNTZ: "timestamp",
    exp.DataType.Type.TIMESTAMP_S: "timestamp",
    exp.DataType.Type.TIMESTAMP_MS: "timestamp",
    exp.DataType.Type.TIMESTAMP_NS: "timestamp",
    exp.DataType.Type.TIMESTAMPTZ: "timestamptz",
    exp.DataType.Type.UUID: "uuid",
    exp.DataType.Type.VARBINARY: "binary",
    exp.DataType.Type.BLOB: "binary",
}


def iceberg_columns(columns: Sequence[v1.SchemaColumn]) -> Schema:
    """The columns of a view, which have DuckDB's types, as an Iceberg schema. Types that Iceberg lacks become strings."""
    from pyiceberg.schema import Schema

    numbers = count(1)
    fields = [_field(next(numbers), each.name, _parsed_type(each.logical_type), numbers) for each in columns]
    return Schema.model_validate({"type": "struct", "schema-id": 0, "fields": fields})


def _parsed_type(text: str) -> exp.DataType | None:
    try:
        return exp.DataType.build(text, dialect=DUCKDB)
    except (SqlglotError, ValueError):
        return None


def _field(number: int, name: str, of: exp.DataType | None, numbers: count[int]) -> dict[str, Any]:
    return {"id": number, "name": name, "required": False, "type": _type(of, numbers)}


def _type(of: exp.DataType | None, numbers: count[int]) -> Any:
    kinds, kind = exp.DataType.Type, None if of is None else of.this
    inner = [] if of is None else list(of.expressions)
    if kind in (kinds.LIST, kinds.ARRAY) and inner:
        return {
            "type": "list",
            "element-id": next(numbers),
            "element-required": False,
            "element": _type(inner[0], numbers),
        }
    if kind == kinds.MAP and len(inner) == 2:
        key, value = next(numbers), next(numbers)
        return {
            "type": "map",
            "key-id": key,
            "key": _type(inner[0], numbers),
            "value-id": value,
            "value-required": False,
            "value": _type(inner[1], numbers),
        }
    if kind == kinds.STRUCT and inner and all(isinstance(each, exp.ColumnDef) for each in inner):
        own = [next(numbers) for _ in inner]
        fields = [_field(number, each.name, each.kind, numbers) for number, each in zip(own, inner, strict=True)]
        return {"type": "struct", "fields": fields}
    if kind == kinds.DECIMAL:
        precision, scale = (
            [*(int(each.name) for each in inner), 18, 3][:2] if len(inner) != 1 else (int(inner[0].name), 0)
        )
        return f"decimal({precision}, {scale})"
    return "string" if kind is None else _PRIMITIVES.get(kind, "string")
