"""Translates filters to the SQL of other databases: PostgreSQL, SQLite, and what most databases have in common.

The databases differ from DuckDB in how they compare text, read numbers and treat NaN, and some functions of the same name
do something else. So only conditions on a column and constants are translated, and only where the result is true for at
least the same rows; sqlglot writes them. The rules for text:

- PostgreSQL and SQLite compare with the collation of the column. With every collation, `=`
  finds at least the equal strings. Other comparisons name the binary collation, which has DuckDB's order.
- A generic database may ignore case, accents and trailing spaces, so only `=`, IN and LIKE are safe.
- A backslash, in a string literal or a pattern, is an ordinary character or not, depending on the database and its settings.
  Only SQLite gets strings that contain one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

from skiway.airport.filters.nodes import Conjunction, Filter, Node, Operator, Unknown
from skiway.airport.filters.translation import translate
from skiway.errors import InvalidArgument
from skiway.foundation.extras import needed

__all__ = ["Dialect", "to_dialect"]

Dialect = Literal["duckdb", "generic", "postgres", "sqlite"]

_MAX_CONDITIONS: Final = 200  # SQLite's parser allows 1000 levels, and each condition is at least one
_MAX_DEPTH: Final = 20  # older versions of SQLite allow about 30 nested parentheses


def to_dialect(
    filter: Filter,  # noqa: A002
    dialect: str,
    columns: Mapping[str, str | None],
    expressions: Mapping[str, str],
) -> str | None:
    """The body of a WHERE clause in `dialect` that keeps at least the rows that `filter` keeps."""
    if dialect not in get_args(Dialect):
        raise InvalidArgument(f"unknown SQL dialect {dialect!r}: use {', '.join(map(repr, get_args(Dialect)))}")
    with needed("sql", f"filters in the SQL of {dialect}"):
        from skiway.airport.filters.dialects.writers import GenericWriter, PostgresWriter, SQLiteWriter, Writer
    kinds: dict[str, type[Writer]] = {"generic": GenericWriter, "postgres": PostgresWriter, "sqlite": SQLiteWriter}
    writer = kinds[dialect](columns, expressions)
    shallow = Filter(tuple(_shallow(predicate, _MAX_DEPTH) for predicate in filter.predicates))
    return translate(shallow, writer.sql, all_of=" AND ".join, any_of=_any_of, limit=_MAX_CONDITIONS)


def _shallow(node: Node, depth: int) -> Node:
    """`node` without the parts that are nested deeper than `depth`."""
    match node:
        case Conjunction() | Operator("NOT") if depth == 0:
            return Unknown("nested too deeply")
        case Conjunction(op, children):
            return Conjunction(op, tuple([_shallow(child, depth - 1) for child in children]))
        case Operator("NOT", (child,), of):
            return Operator("NOT", (_shallow(child, depth - 1),), of)
        case _:
            return node


def _any_of(conditions: Sequence[str]) -> str:
    return conditions[0] if len(conditions) == 1 else f"({' OR '.join(conditions)})"
