"""Statements as text: they are parsed to find their tables, and changed only where a table must be read in another way."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from skiway.client import Predicate
from skiway.client.airport.predicates import And
from skiway.duckdb.engine import Statement, first_paragraph
from skiway.errors import InvalidArgument

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # we report what it cannot parse

CALL: Final = re.compile(r"CALL\b", re.IGNORECASE)
EXPLAIN: Final = re.compile(r"EXPLAIN\b\s*(ANALYZE\b)?\s*(\([^)]*\))?\s*", re.IGNORECASE)
TIMES: Final = ("VERSION", "TIMESTAMP")
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


def called(given: Statement) -> str:
    """Return the text of a statement; CALL is FROM, which the parser understands."""
    return CALL.sub("FROM ", given.text, count=1) if given.kind == "CALL" else given.text


def explained(given: Statement) -> tuple[str, str]:
    """Return the parts of an EXPLAIN: its beginning and the query."""
    prefix = EXPLAIN.match(given.text)
    assert prefix is not None
    return prefix[0], given.text[prefix.end() :]


def seen_from(caller: FrameType) -> Mapping[str, Any]:
    """Return the variables that code in this frame can name."""
    return {**caller.f_globals, **caller.f_locals}


def named_in(statement: exp.Expr, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects that have the name of a table of the statement."""
    names = {each.name for each in statement.find_all(exp.Table) if not each.db}
    return {name: known[name] for name in names if name in known}


def position(table: exp.Table, text: str) -> tuple[int, int]:
    """Return where the name of a table begins and ends in the text of a statement, with its AT (…) or the arguments of a function."""
    is_call = isinstance(table.this, exp.Anonymous)
    parts = [
        part
        for part in (table.args.get("catalog"), table.args.get("db"), table.this)
        if part is not None and "start" in part.meta
    ]
    start, end = parts[0].meta["start"], parts[-1].meta["end"] + 1
    if is_call or table.args.get("when"):
        end = _end_of_parentheses(text, end, table)
    return start, end


def _end_of_parentheses(text: str, start: int, table: exp.Table) -> int:
    """Return where the arguments of a function or AT (…) end, the first of them after `start`."""
    tokens = [token for token in sqlglot.tokenize(text, dialect="duckdb") if token.start >= start]
    words = [token.text.upper() for token in tokens]
    at = 0
    if table.args.get("when"):  # the alias comes before it
        at = next(i for i in range(len(words)) if words[i : i + 2] == ["AT", "("] and words[i + 2] in TIMES)
    depth = 0
    for token in tokens[at:]:
        kind = token.token_type.name  # the text could be that of a string
        depth += {"L_PAREN": 1, "R_PAREN": -1}.get(kind, 0)
        if kind == "R_PAREN" and not depth:
            return token.end + 1
    raise InvalidArgument(f"cannot find the parentheses of {table.sql('duckdb')}")


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
