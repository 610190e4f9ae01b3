"""Queries of callers, which run in the sandbox, and MERGE as such a query.

DuckDB's client rejects MERGE on tables of a server, so the server gets its parts: a target, a source, a condition, and the
WHEN clauses of SQL. The query has one row for each target row to change and for each row to insert.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any, Final, Literal

import pyarrow as pa
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from skiway.airport import current_request
from skiway.airport.wire.duckdb_sql import identifier
from skiway.errors import InvalidArgument
from skiway.foundation.cache import Cache
from skiway.foundation.doors import require_at_most
from skiway.sandbox.queries import Queries, QueryProcess
from skiway.sandbox.relations import BoundQuery, Expression, Parsed, Relation, StoredQuery, TableName
from skiway.sql.measures import Measures, current_measures
from skiway.sql.relations import CountsRows, Find, names_in, resolved, row_count, unknown_column

MAX_SQL: Final = 1 << 20
"""The characters of a query."""

MAX_TOKENS: Final = 50_000
"""The names, constants and symbols of a query. DuckDB takes many seconds for more, however few rows they read."""

MAX_PARAMETERS: Final = 1 << 16
"""The bytes of the values of parameters. DuckDB's time to quote them grows with their square."""

_TOKEN: Final = re.compile(r"""'[^']*'|"[^"]*"|\w+|[^\w\s]""")

_SMALLER: Final = "put the values into a table, and join it"

_CACHED_CHARACTERS: Final = 4 << 20
"""Of queries whose tables are known."""

_CACHED_COLUMNS: Final = 100_000
"""Of queries whose columns are known."""

_is_inside: ContextVar[bool] = ContextVar("skiway_query_is_inside", default=False)
"""Whether a query reads the rows: scans of a query run in a copy of its context."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a caller.

    `find` looks up a table or view by catalog, schema and name, with the caller's rights; None if there is none. Names
    without a catalog or a schema are completed with those of the query. `owner` shares the workers fairly with others.
    The result has DuckDB's extension types of Arrow, unless it is `plain`.
    """

    sql: str
    find: Find
    catalog: str
    schema: str = ""
    owner: str = ""
    plain: bool = False


def _weight(parsed: Parsed) -> int:
    """What a query takes in the cache. One with points in time is too heavy: they can depend on the current time."""
    has_times = any(table.unit for table in parsed.tables)
    return _CACHED_CHARACTERS + 1 if has_times else 1000 + 2 * len(parsed.sql)


def _check_size(sql: str) -> None:
    """Raise `LimitExceeded` if DuckDB would take long to parse and plan a query."""
    require_at_most(MAX_SQL, len(sql), "the query has {} characters", remedy=_SMALLER, key="sql.too_large")
    tokens = sum(1 for _ in islice(_TOKEN.finditer(sql), MAX_TOKENS + 1))
    what = "the query has {} or more names, constants and symbols"
    require_at_most(MAX_TOKENS, tokens, what, remedy=_SMALLER, key="sql.too_large")


def _measures() -> Measures:
    """Those of the call, for the query of its caller. The others run while that one does."""
    return Measures() if _is_inside.get() else current_measures()


class QueryEngine:
    """Runs queries in the sandbox."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._expressions = Cache[str, Sequence[Expression]](1000)
        self._parsed = Cache[tuple[str, str], Parsed](_CACHED_CHARACTERS, weigh=_weight)
        self._columns = Cache[bytes, pa.Schema](_CACHED_COLUMNS, weigh=len, max_entries=1000)

    def expressions(self, texts: Sequence[str], claims: Mapping[str, Any], *, owner: str = "") -> Sequence[Expression]:
        """Compile expressions over the columns of a row, in which `caller('name')` is the value of a claim."""

        def find() -> Sequence[Expression]:
            with closing(self._queries.start(owner, inside=_is_inside.get())) as process:
                return process.expressions(texts, claims)

        return self._expressions.get(json.dumps([texts, dict(claims)], sort_keys=True), find) if texts else []

    def columns(self, query: Query) -> pa.Schema:
        """The columns of a query, without running it."""
        if (counted := self._counted(query)) is not None:
            return counted[1]
        with self._started(query) as process:
            parsed, relations, views = self._resolved(process, query, plan=False)

            def find() -> pa.Schema:
                schema, rows = self._run(process, query, parsed, relations, views, describe=True)
                for _ in rows:
                    pass
                return schema

            shapes = [(relation.name, relation.schema.serialize().to_pybytes()) for relation in relations]
            key = repr((parsed.sql, shapes, views, query.catalog, query.schema, query.plain))
            return self._columns.get(sha256(key.encode()).digest(), find)

    def tables(self, query: Query) -> list[TableName]:
        """The names of the tables and views that a query names, without common table expressions."""
        with self._started(query) as process:
            return names_in(self._parse(process, query.sql), query.find, (query.catalog, query.schema))

    def rows(self, query: Query) -> Iterator[pa.RecordBatch]:
        """Run a query. It is cancelled when the iterator is closed, and when the client of the call is gone."""
        with self.result(query) as (_, batches):
            yield from batches

    @contextmanager
    def result(self, query: Query) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        """Run a query within the block: its columns and its rows."""
        if (counted := self._counted(query)) is not None:
            table, schema = counted
            if (rows := table.counted_rows()) is not None:
                yield schema, iter([pa.RecordBatch.from_arrays([pa.array([rows], pa.int64())], schema=schema)])
                return
        measures, began = _measures(), time.perf_counter()
        with self._started(query) as process:
            measures.queue_s += process.waited_s
            found = self._resolved(process, query, plan=True)
            measures.plan_s += time.perf_counter() - began - process.waited_s
            began = time.perf_counter()
            schema, batches = self._run(process, query, *found)
            measures.run_s += time.perf_counter() - began
            yield schema, measures.timed(batches)
            if measures.text:
                measures.profile = process.profile

    def explain(self, query: Query) -> str:
        """DuckDB's plan of a query, over the files that are left after pruning. The query does not run."""
        with self._started(query) as process:
            _, rows = self._run(process, query, *self._resolved(process, query, plan=True), explain=True)
            return "".join(str(text) for batch in rows for text in batch.column("plan").to_pylist())

    def parameters(self, query: Query) -> list[str]:
        """The types that DuckDB expects of the parameters of a query, in their order; empty where it cannot tell."""
        with self._started(query) as process:
            found = self._resolved(process, query, plan=False)
            _, rows = self._run(process, query, *found, describe=True, parameters=True)
            return [str(kind) for batch in rows for kind in batch.column("type").to_pylist()]

    def bound(
        self, sql: str, values: pa.Table | None = None, types: Sequence[str] = (), *, owner: str = ""
    ) -> BoundQuery:
        """A query with the values of one row instead of its parameters; with NULL if there are no values.

        Values are cast to `types`, those of the parameters, if that does not change them.
        """
        size = 0 if values is None else values.nbytes
        require_at_most(MAX_PARAMETERS, size, "the parameters have {} bytes", remedy=_SMALLER, key="sql.too_large")
        with self._start(sql, owner) as process:
            bound = process.bind(sql, values, types)
        _check_size(bound.sql)
        return bound

    def _counted(self, query: Query) -> tuple[CountsRows, pa.Schema] | None:
        """The table whose rows a query only counts, and the column of the query; None for other queries.

        No process is needed to look it up.
        """
        counted = row_count(query.sql)
        if counted is None or not (counted.schema or query.schema):
            return None
        table = query.find(counted.catalog or query.catalog, counted.schema or query.schema, counted.table)
        return (table, pa.schema([(counted.name, pa.int64())])) if isinstance(table, CountsRows) else None

    def _started(self, query: Query) -> closing[QueryProcess]:
        return self._start(query.sql, query.owner)

    def _start(self, sql: str, owner: str) -> closing[QueryProcess]:
        """A process for a query within a block. It is killed if the client of the call leaves before the query has ended."""
        _check_size(sql)
        process = self._queries.start(owner, inside=_is_inside.get())
        current_request().when_ended(process.canceller())
        return closing(process)

    def _parse(self, process: QueryProcess, sql: str, prefix: str = "then") -> Parsed:
        return self._parsed.get((sql, prefix), lambda: process.parse(sql, prefix=prefix))

    def _resolved(
        self, process: QueryProcess, query: Query, *, plan: bool
    ) -> tuple[Parsed, list[Relation], list[StoredQuery]]:
        """The query with its tables and views. Only with `plan`, files are chosen."""
        parse = partial(self._parse, process)
        parsed = parse(query.sql)
        relations, views = resolved(parse, parsed, query.find, (query.catalog, query.schema), plan=plan)
        return parsed, relations, views

    def _run(
        self,
        process: QueryProcess,
        query: Query,
        parsed: Parsed,
        relations: Sequence[Relation],
        views: Sequence[StoredQuery],
        *,
        describe: bool = False,
        explain: bool = False,
        parameters: bool = False,
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        before = _is_inside.set(True)  # for the scans, which the process starts
        try:
            return process.run(
                parsed.sql,
                relations,
                views=views,
                default=[query.catalog, *filter(None, [query.schema])],
                describe=describe,
                plain=query.plain,
                explain=explain,
                parameters=parameters,
            )
        finally:
            _is_inside.reset(before)


DEFAULT_CLAUSES: Final = "WHEN MATCHED THEN UPDATE WHEN NOT MATCHED THEN INSERT"

MERGE_ROWID: Final = "$rowid"
"""The column with the row id of the target row; NULL for rows to insert."""

MERGE_ACTION: Final = "$action"
"""The column with the action: `update`, `delete` or `insert`."""

_PRESENT: Final = "$present"
_CLAUSE: Final = "$clause"

Side = Literal["both", "source", "target"]


@dataclass(frozen=True, slots=True)
class _Clause:
    """A WHEN clause: for which rows it is, its condition, and the values of columns. Without values it uses the source's."""

    side: Side
    condition: exp.Expr | None
    action: str
    values: Mapping[str, exp.Expr] | None = None


class MergeQuery:
    """The parts of a MERGE, checked against the columns of the target, which are names and types of DuckDB.

    `on`, the conditions and the values call the tables `target` and `source`.
    """

    def __init__(self, columns: dict[str, str], source: str, on: str, clauses: str = "") -> None:
        self._columns, self._source, self._on = columns, source, on
        self._clauses = [self._clause(each) for each in _parsed(clauses.strip() or DEFAULT_CLAUSES)]
        for reached, clause in enumerate(self._clauses):
            if any(each.condition is None and each.side == clause.side for each in self._clauses[:reached]):
                raise _invalid("a clause after one without a condition is never reached: order the clauses differently")

    def sql(self, target: str, source_columns: Sequence[str]) -> str:
        """The query. `target` is the name of a relation that has the columns of the table and its row ids."""
        clauses = [
            self._qualified(self._with_values(clause, source_columns), source_columns) for clause in self._clauses
        ]
        join = "FULL" if any(clause.side == "target" for clause in clauses) else "LEFT"
        columns = ", ".join(
            f"{self._value(name, type_, clauses)} AS {identifier(name)}" for name, type_ in self._columns.items()
        )
        action = "CASE " + " ".join(
            f"WHEN {identifier(_CLAUSE)} = {number} THEN '{each.action}'" for number, each in enumerate(clauses)
        )
        select = (
            f"SELECT target.{identifier(MERGE_ROWID)} AS {identifier(MERGE_ROWID)}, "  # noqa: S608 - in the sandbox
            f"CASE {' '.join(_chosen(clauses))} END AS {identifier(_CLAUSE)}, "
            f"{action} END AS {identifier(MERGE_ACTION)}, {columns} FROM "
        )
        source = f"(SELECT *, true AS {identifier(_PRESENT)} FROM ({self._source}\n))"  # noqa: S608
        where = f"WHERE {identifier(_CLAUSE)} IS NOT NULL"
        if self._on.strip(" ()\n").casefold() != "false":
            return f"{select}{source} AS source {join} JOIN {target} AS target ON ({self._on}\n) {where}"
        # DuckDB would compare each row of the source with each row of the target.
        of_source = f"{select}{source} AS source LEFT JOIN (FROM {target} LIMIT 0) AS target ON true {where}"
        of_target = f"{select}(FROM {source} LIMIT 0) AS source RIGHT JOIN {target} AS target ON true {where}"
        return of_source if join == "LEFT" else f"{of_source} UNION ALL {of_target}"

    def _value(self, name: str, type_: str, clauses: Sequence[_Clause]) -> str:
        """The new value of a column, by clause."""
        cases = []
        for number, each in enumerate(clauses):
            values = each.values or {}
            if name in values:
                cases.append(f"WHEN {identifier(_CLAUSE)} = {number} THEN CAST({_sql(values[name])} AS {type_})")
            elif each.action in ("update", "delete"):
                cases.append(f"WHEN {identifier(_CLAUSE)} = {number} THEN target.{identifier(name)}")
        return f"CASE {' '.join(cases)} END" if cases else f"CAST(NULL AS {type_})"

    def _with_values(self, clause: _Clause, source_columns: Sequence[str]) -> _Clause:
        if clause.values is not None or clause.action not in ("update", "insert"):
            return clause
        found = {name.casefold(): name for name in source_columns}
        named = {name: found[name.casefold()] for name in self._columns if name.casefold() in found}
        unknown = [name for name in source_columns if name.casefold() not in map(str.casefold, self._columns)]
        if unknown:
            raise _invalid(
                f"the source has a column {unknown[0]!r}, which the table has not: leave it out, or write "
                f"{clause.action.upper()} with the columns to set"
            )
        return replace(
            clause, values={name: exp.column(its, table="source", quoted=True) for name, its in named.items()}
        )

    def _qualified(self, clause: _Clause, source_columns: Sequence[str]) -> _Clause:
        """The clause with names of its only table, as they are in SQL: without a match there is no other."""
        if clause.side == "both":
            return clause
        known = {name.casefold() for name in (source_columns if clause.side == "source" else self._columns)}

        def qualified(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.Column) and not node.table and node.name.casefold() in known:
                return exp.column(node.this, table=clause.side)
            return node

        condition = None if clause.condition is None else clause.condition.transform(qualified)
        values = {name: value.transform(qualified) for name, value in (clause.values or {}).items()}
        return replace(clause, condition=condition, values=values)

    def _clause(self, when: exp.When) -> _Clause:
        side: Side = "both" if when.args.get("matched") else "target" if when.args.get("source") else "source"
        condition, then = when.args.get("condition"), when.args.get("then")
        if isinstance(then, exp.Update):
            if side == "source":
                raise _invalid("WHEN NOT MATCHED can only INSERT or DO NOTHING: there is no row to update")
            action, values = "update", self._assigned(then)
            if values is None and side == "target":
                raise _invalid("WHEN NOT MATCHED BY SOURCE needs UPDATE SET: there is no source row to copy")
            return _Clause(side, condition, action, values)
        if isinstance(then, exp.Insert):
            if side != "source":
                raise _invalid("only WHEN NOT MATCHED can INSERT")
            return _Clause(side, condition, "insert", self._inserted(then))
        word = then.name.upper() if isinstance(then, exp.Var) else ""
        if word == "DELETE" and side == "source":
            raise _invalid("WHEN NOT MATCHED can only INSERT or DO NOTHING: there is no row to delete")
        if word not in ("DELETE", "DO NOTHING"):
            raise _invalid(f"{_sql(when)} is not supported: use UPDATE, INSERT, DELETE or DO NOTHING")
        return _Clause(side, condition, "delete" if word == "DELETE" else "nothing")

    def _assigned(self, then: exp.Update) -> Mapping[str, exp.Expr] | None:
        values = {}
        for expression in then.expressions:
            if isinstance(expression, exp.Star):
                return None
            if not (isinstance(expression, exp.EQ) and isinstance(expression.this, exp.Column)):
                raise _invalid(f"{_sql(expression)} is not an assignment: write column = value")
            values[self._column(expression.this.name)] = expression.expression
        return values or None

    def _inserted(self, then: exp.Insert) -> Mapping[str, exp.Expr] | None:
        names, given = then.this, then.expression
        if isinstance(names, exp.Star) or not given:
            if isinstance(names, exp.Tuple):
                chosen = [self._column(expression.name) for expression in names.expressions]
                return {name: exp.column(name, table="source", quoted=True) for name in chosen}
            return None
        columns = (
            [expression.name for expression in names.expressions]
            if isinstance(names, exp.Tuple)
            else list(self._columns)
        )
        values = given.expressions if isinstance(given, exp.Tuple) else [given]
        if len(columns) != len(values):
            raise _invalid(f"INSERT has {len(columns)} columns and {len(values)} values")
        return {self._column(name): value for name, value in zip(columns, values, strict=True)}

    def _column(self, name: str) -> str:
        for known in self._columns:
            if known.casefold() == name.casefold():
                return known
        raise unknown_column("the table", name, self._columns)


def _chosen(clauses: Sequence[_Clause]) -> Iterator[str]:
    """The cases that select the clause of a row; rows without one, or with DO NOTHING, have none."""
    source, target = f"source.{identifier(_PRESENT)}", f"target.{identifier(MERGE_ROWID)}"
    is_side = {
        "both": f"{source} AND {target} IS NOT NULL",
        "source": f"{target} IS NULL",
        "target": f"{source} IS NULL",
    }
    for number, each in enumerate(clauses):
        condition = f" AND ({_sql(each.condition)})" if each.condition is not None else ""
        yield f"WHEN {is_side[each.side]}{condition} THEN {'NULL' if each.action == 'nothing' else number}"


def _parsed(clauses: str) -> list[exp.When]:
    # DuckDB's own short forms, which sqlglot knows as those with a star.
    try:
        statement = parse_one(f"MERGE INTO target USING source ON true {_spelled_out(clauses)}", dialect="duckdb")
    except (SqlglotError, RecursionError) as error:
        raise _invalid(f"they cannot be parsed: {str(error).partition(chr(10))[0]}") from error
    whens = statement.args.get("whens") if isinstance(statement, exp.Merge) else None
    if whens is None or not whens.expressions:
        raise _invalid("there is no WHEN clause")
    return list(whens.expressions)


def _spelled_out(clauses: str) -> str:
    """The clauses with `UPDATE SET *` for UPDATE and `INSERT *` for INSERT or INSERT BY NAME."""
    from sqlglot.dialects.duckdb import DuckDB
    from sqlglot.tokenizer_core import TokenType

    try:
        tokens = DuckDB().tokenize(clauses)
    except SqlglotError as error:
        raise _invalid(f"they cannot be parsed: {str(error).partition(chr(10))[0]}") from error
    made, end = [], 0
    for number, token in enumerate(tokens):
        following = [each.text.upper() for each in tokens[number + 1 : number + 3]]
        previous = tokens[number - 1].token_type if number else None
        if previous != TokenType.THEN:
            continue
        is_last = not following or following[0] == "WHEN"
        by_name = following == ["BY", "NAME"]
        if token.token_type == TokenType.UPDATE and (is_last or by_name):
            made.append(f"{clauses[end : token.start]}UPDATE SET *")
        elif token.token_type == TokenType.INSERT and (is_last or by_name):
            made.append(f"{clauses[end : token.start]}INSERT *")
        else:
            continue
        end = tokens[number + 2].end + 1 if by_name else token.end + 1
    return "".join([*made, clauses[end:]])


def _sql(expression: exp.Expr) -> str:
    return expression.sql(dialect="duckdb", comments=False)


def _invalid(reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"the clauses of merge are invalid: {reason}. An example is '{DEFAULT_CLAUSES}'", key="merge.clauses"
    )
