"""Statements as text: they are parsed to find their tables, and changed only where a table must be read in another way."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from skiway.client import Predicate
from skiway.client.airport.predicates import And
from skiway.duckdb.engine import first_paragraph
from skiway.errors import InvalidArgument

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # we report what it cannot parse

AT: Final = re.compile(r"\s*AT\s*\(", re.IGNORECASE)
CALL: Final = re.compile(r"""(\s*\.\s*("(?:[^"]|"")*"|\w+))?\s*\(""")
QUOTED_OR_PARENTHESIS: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[()]""")
NO_LIMIT: Final = ("distinct", "group", "having", "joins", "laterals", "offset", "order", "qualify", "sample", "with_")
"""Clauses with which the first rows of a query are not made from the first rows of its table."""


def parse(text: str) -> exp.Expr:
    """Parse one statement."""
    try:
        found = sqlglot.parse(text, dialect="duckdb")
    except SqlglotError as error:
        raise InvalidArgument(f"cannot parse the SQL: {first_paragraph(error)}") from error
    statement = next(each for each in found if each is not None)  # the others are comments: DuckDB found one statement
    for node in list(statement.find_all(exp.ToMap)):
        if not node.this.expressions:  # MAP {}, which sqlglot writes as MAP MAP()
            node.replace(exp.Anonymous(this="map"))
    return statement


def position(table: exp.Table, text: str) -> tuple[int, int]:
    """Return where the name of a table begins and ends in the text of a statement, with its AT (…) or the arguments of a function."""
    is_call = isinstance(table.this, exp.Anonymous)
    parts = [
        part
        for part in (table.args.get("catalog"), table.args.get("db"), table.this)
        if part is not None and "start" in part.meta
    ]
    start, end = parts[0].meta["start"], parts[-1].meta["end"] + 1
    if not is_call and not table.args.get("when"):
        return start, end
    opening, depth = (CALL if is_call else AT).match(text, end), 0
    if opening:
        for found in QUOTED_OR_PARENTHESIS.finditer(text, opening.end() - 1):
            depth += {"(": 1, ")": -1}.get(found[0], 0)
            if not depth:
                return start, found.end()
    raise InvalidArgument(f"cannot find the parentheses of {table.sql('duckdb')}: write no comments before them")


def has_position(table: exp.Table) -> bool:
    """Whether the parser has recorded where the name of a table is."""
    return all("start" in part.meta for part in table.parts)


def with_replacements(text: str, replacements: Iterable[tuple[int, int, str]]) -> str:
    """Return the text with parts of it replaced."""
    for start, end, by in sorted(replacements, reverse=True):
        text = f"{text[:start]}{by}{text[end:]}"
    return text


def pushdown_limit(statement: exp.Expr, node: exp.Table, where: Predicate | None) -> int | None:
    """Return how many rows of a table suffice for a statement, of which `where` has been pushed down; None if there is no limit."""
    select = node.find_ancestor(exp.Select)
    if select is None or select is not statement or node.args.get("sample") or node.args.get("joins"):
        return None
    if any(select.args.get(clause) for clause in NO_LIMIT) or node.args.get("pivots"):
        return None
    plain = all(isinstance(each.unalias(), exp.Column | exp.Star | exp.Literal) for each in select.expressions)
    limit = select.args.get("limit")
    if not plain or not isinstance(limit, exp.Limit) or not isinstance(limit.expression, exp.Literal):
        return None
    if (conditions := select.args.get("where")) and _count(conditions.this) != (0 if where is None else _parts(where)):
        return None
    return int(limit.expression.this) if str(limit.expression.this).isdigit() else None


def _count(condition: exp.Expr) -> int:
    whole = condition.unnest()
    return len(list(whole.flatten())) if isinstance(whole, exp.And) else 1


def _parts(where: Predicate) -> int:
    return len(where.parts) if isinstance(where, And) else 1
