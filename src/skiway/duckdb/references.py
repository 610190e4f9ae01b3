"""What DuckDB cannot resolve by views: conditions that it keeps to itself, LIMIT, `table AT (…)` and functions of the lake."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from skiway.duckdb.engine import Engine, quoted
from skiway.duckdb.rewriting import has_position, position, pushdown_limit
from skiway.duckdb.scans import FunctionCall, LakeScan, Source
from skiway.errors import InvalidArgument
from skiway.sql.pushdown import pushdown_filter

if TYPE_CHECKING:
    from skiway.client import AirportClient

Replacement = tuple[int, int, str]
"""A part of the text of a statement, and what replaces it."""


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
