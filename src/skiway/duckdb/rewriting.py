"""Statements as text: parameters are written into it, it is parsed to find the tables, and changed only where DuckDB cannot resolve
them by views: conditions that it keeps to itself, LIMIT, `table AT (…)` and functions of the lake.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import count
from math import isfinite
from types import FrameType
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from skiway.airport.wire.duckdb_sql import text_literal
from skiway.client import Predicate
from skiway.client.airport.predicates import And
from skiway.duckdb.engine import Engine, Statement, first_paragraph, quoted
from skiway.duckdb.scans import FunctionCall, LakeScan, Source
from skiway.errors import InvalidArgument
from skiway.sql.pushdown import pushdown_filter

if TYPE_CHECKING:
    from skiway.client import AirportClient

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # we report what it cannot parse

CALL: Final = re.compile(r"CALL\b", re.IGNORECASE)
EXPLAIN: Final = re.compile(r"EXPLAIN\b\s*(ANALYZE\b)?\s*(\([^)]*\))?\s*", re.IGNORECASE)
TIMES: Final = ("VERSION", "TIMESTAMP")
NO_LIMIT: Final = ("distinct", "group", "having", "joins", "laterals", "offset", "order", "qualify", "sample", "with_")
"""Clauses with which the first rows of a query are not made from the first rows of its table."""

PLACEHOLDER: Final = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|(\$\w*\$).*?\1|(?P<next>\?)|\$(?P<name>\w+)""", re.DOTALL
)
"""A placeholder, or what may contain a question mark or a dollar that is none."""

Parameters = Sequence[Any] | Mapping[str, Any]

Replacement = tuple[int, int, str]
"""A part of the text of a statement, and what replaces it."""


def with_parameters(text: str, parameters: Parameters | None) -> str:
    """Replace the placeholders `?`, `$1` and `$name`; values of a mapping have names."""
    if parameters is None:
        return text
    values = parameters if isinstance(parameters, Mapping) else dict(enumerate(parameters, start=1))
    names = {str(name): value for name, value in values.items()}
    used: set[str] = set()
    number = 0

    def written(found: re.Match[str]) -> str:
        nonlocal number
        if found["next"]:
            number += 1
        name = str(number) if found["next"] else found["name"]
        if name is None:
            return found[0]
        if name not in names:
            raise InvalidArgument(f"there is no value for parameter {name}: {len(names)} were given")
        used.add(name)
        return literal(names[name])

    result = PLACEHOLDER.sub(written, text)
    if unused := names.keys() - used:
        raise InvalidArgument(f"the SQL has no placeholder for parameter {', '.join(sorted(unused))}")
    return result


def literal(value: Any) -> str:
    """Return a Python value as SQL."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case int():
            return f"({value})" if value < 0 else str(value)
        case float():
            return f"CAST('{value!r}' AS DOUBLE)" if not isfinite(value) else f"CAST({value!r} AS DOUBLE)"
        case Decimal():
            return f"({value:f})"
        case str():
            return text_literal(value)
        case bytes():
            return f"unhex('{value.hex()}')"
        case datetime():
            return f"CAST('{value.isoformat(' ')}' AS {'TIMESTAMP' if value.tzinfo is None else 'TIMESTAMPTZ'})"
        case date() | UUID():
            return f"CAST('{value}' AS {type(value).__name__.upper()})"
        case time():
            return f"CAST('{value.isoformat()}' AS {'TIME' if value.tzinfo is None else 'TIMETZ'})"
        case timedelta():
            microseconds = value // timedelta(microseconds=1)
            return f"to_microseconds({microseconds})"
        case Mapping():
            return f"{{{', '.join(f'{text_literal(str(name))}: {literal(item)}' for name, item in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(map(literal, value))}]"
    raise InvalidArgument(f"{value!r} ({type(value).__name__}) cannot be a parameter: convert it to a type of Python")


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


class References:
    """Replaces references in the text of a statement by scans, as variables that DuckDB finds by their names."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbers = count()

    def table(self, statement: exp.Expr, node: exp.Table, source: Source, text: str) -> Replacement | None:
        """Return a scan for a table; None if the view of the table does the same."""
        when = node.args.get("when")
        if when is not None:
            source = self._at(when, source)
        if has_position(node) and not any(column.args.get("db") for column in statement.find_all(exp.Column)):
            where = pushdown_filter(statement, node, source.schema)
            source = replace(source, where=where, limit=pushdown_limit(statement, node, where))
        if when is None and source.where is None and source.limit is None:
            return None
        return self._scan(node, source, text)

    def call(self, node: exp.Table, client: AirportClient, text: str) -> Replacement:
        """Return a scan for a call of a table function. DuckDB evaluates the arguments, which are constants."""
        arguments: list[Any] = []
        named: dict[str, Any] = {}
        for each in node.this.expressions:
            is_named = isinstance(each, exp.Kwarg | exp.PropertyEQ | exp.EQ)
            value = each.expression if is_named else each
            with self._engine.errors():
                row = self._engine.arrow_table(f"SELECT {value.sql('duckdb')}")
            if is_named:
                named[each.this.name] = row.column(0)[0]
            else:
                arguments.append(row.column(0)[0])
        return self._scan(node, FunctionCall.bind(client, (node.db, node.this.name), arguments, named), text)

    def _scan(self, node: exp.Table, source: Source | FunctionCall, text: str) -> Replacement:
        scan = f"skiway_scan_{next(self._numbers)}"
        self._engine.scope[scan] = LakeScan(source, self._engine.failures)
        given = node.args.get("alias")
        alias = "" if given else f" AS {quoted(node.name or node.this.name)}"
        if given and node.args.get("when"):  # which AT (…) follows
            alias = f" AS {given.sql('duckdb')}"
        return (*position(node, text), f"(SELECT {source.sql} FROM {scan}){alias}")  # noqa: S608 - all quoted

    def _at(self, when: exp.Expr, source: Source) -> Source:
        """Return the source of `table AT (…)`, since DuckDB supports AT for its own tables only."""
        kind, given = str(when.args["kind"]).upper(), when.args["expression"].sql("duckdb")
        if when.find(exp.Query, exp.Column):
            raise InvalidArgument(
                f"AT ({kind} => {given}) is not a constant: compute it first, and pass it as a parameter"
            )
        with self._engine.errors():
            [(moment,)] = self._engine.duckdb.execute(f"SELECT CAST(({given}) AS VARCHAR)").fetchall()
        if moment is None:
            raise InvalidArgument(f"AT ({kind} => {given}) is NULL: give a version or a time")
        at = {"at_version" if kind == "VERSION" else "at_timestamp": str(moment)}
        then = source.client.bind((source.table.schema_name, source.table.name), **at).table
        return replace(source, table=then, at=at)
