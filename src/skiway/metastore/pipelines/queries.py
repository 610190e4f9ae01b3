"""One query of a caller, in the dialect of Spark: what it reads, what it may not do, and whether it works row by row.

Spark gets the text that is generated from the tree that was checked here, never the text of the caller. So a construct that the
parser does not understand is an error, and cannot pass the checks by being read differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NoReturn

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from skiway.errors import InvalidArgument
from skiway.formats import TableName

__all__ = ["Query", "parse_query"]

_UNSAFE_FUNCTIONS: Final = frozenset(
    (
        *("reflect", "java_method", "try_reflect", "identifier"),  # they call code, or functions by computed names
        *("read_files", "read_kafka", "input_file_name", "input_file_block_start", "input_file_block_length"),
        *("current_user", "user", "session_user", "current_catalog", "current_database", "current_schema", "version"),
    )
)
_UNSAFE_NODES: Final = (exp.QueryTransform, exp.Command, exp.Into, exp.Parameter, exp.Placeholder, exp.SessionParameter)
_CHANGING_FUNCTIONS: Final = frozenset(
    (
        *("rand", "random", "randn", "uuid", "now", "curdate", "current_date", "current_timestamp", "localtimestamp"),
        *("shuffle", "monotonically_increasing_id", "spark_partition_id", "unix_timestamp", "current_timezone"),
        *("randstr", "uniform", "current_time", "current_datetime"),
    )
)
_ROW_WISE: Final = (
    *(exp.Select, exp.From, exp.Where, exp.Table, exp.TableAlias, exp.Identifier, exp.Star, exp.Column, exp.Alias),
    *(exp.Literal, exp.Null, exp.Boolean, exp.DataType, exp.DataTypeParam, exp.Var, exp.Paren, exp.Interval),
    *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.Is),
    *(exp.Between, exp.In, exp.Tuple, exp.Like, exp.RegexpLike, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg),
    *(exp.DPipe, exp.Concat, exp.Upper, exp.Lower, exp.Trim, exp.Substring, exp.Length, exp.Abs, exp.Round, exp.Floor),
    *(exp.Ceil, exp.Coalesce, exp.Nullif, exp.Case, exp.If, exp.Cast, exp.TryCast, exp.Year, exp.Month, exp.Day),
    *(exp.TimestampTrunc, exp.DateTrunc, exp.TsOrDsToDate, exp.Dot, exp.Bracket, exp.Greatest, exp.Least),
)
"""What may occur in a query whose rows each depend on one row of its table. Everything else is refreshed in full."""


@dataclass(frozen=True)
class Query:
    """A query that has been checked. `reads` are the names of its tables, as they are written in it."""

    tree: exp.Query
    reads: tuple[TableName, ...]

    @cached_property
    def text(self) -> str:
        """The query in one spelling: equal for queries that differ only in comments, white space or case of keywords."""
        return self.tree.sql("spark", comments=False)

    def reading(self, views: Mapping[TableName, str]) -> str:
        """The query that reads these views instead of the tables. Each view has the name of its table as an alias."""
        made = self.tree.copy()
        for node in [each for each in made.find_all(exp.Table) if not _is_local(each)]:
            name = _name(node)
            alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(name.name, quoted=True))
            others = {key: value for key, value in node.args.items() if key not in ("this", "db", "catalog", "alias")}
            node.replace(exp.Table(this=exp.to_identifier(views[name], quoted=True), alias=alias, **others))
        qualified = {(each.namespace[-1].casefold(), each.name.casefold()) for each in views if each.namespace}
        for column in made.find_all(exp.Column):
            if (column.db.casefold(), column.table.casefold()) in qualified:
                column.set("db", None)
                column.set("catalog", None)
        return made.sql("spark", comments=False)

    @property
    def why_not_row_wise(self) -> str:
        """Why new rows of the input cannot just be added to the result; empty if they can."""
        if not isinstance(self.tree, exp.Select) or len(list(self.tree.find_all(exp.Select))) > 1:
            return "the query has more than one SELECT"
        if len(list(self.tree.find_all(exp.Table))) != 1:
            return "the query does not read exactly one table"
        for node in self.tree.walk():
            if type(node) not in _ROW_WISE:
                return f"the query has {node.sql('spark', comments=False)[:60]!r}, which may depend on several rows"
        return ""

    @property
    def changes_by_itself(self) -> bool:
        """Whether the result can differ although all tables are the same: it depends on the time or on chance."""
        if self.tree.find(exp.TableSample) is not None:
            return True
        return any(_functions(each) & _CHANGING_FUNCTIONS for each in self.tree.find_all(exp.Func))


def parse_query(sql: str, *, file: str = "") -> Query:
    """Parse and check a SELECT, which may be in a file. Raise `InvalidArgument` if it is not one, or may leave the lake."""
    if "${" in sql:
        _refuse(file, "it contains '${', which Spark replaces by settings of the server: write it in another way")
    try:
        statements = [each for each in sqlglot.parse(sql, dialect="spark") if each is not None]
    except SqlglotError as error:
        first = str(error).splitlines()[0] if str(error) else "syntax error"
        _refuse(file, f"it cannot be parsed as SQL of Spark: {first}")
    except RecursionError:
        _refuse(file, "it is nested too deeply")
    if len(statements) != 1:
        _refuse(file, f"it has {len(statements)} statements: write one SELECT")
    tree = statements[0]
    if not isinstance(tree, exp.Select | exp.SetOperation):
        _refuse(file, "it is not a SELECT")
    for node in tree.walk():
        _check(node, file)
    reads = {_name(node): None for node in tree.find_all(exp.Table) if not _is_local(node)}
    return Query(tree, tuple(reads))


def _check(node: exp.Expr, file: str) -> None:
    if isinstance(node, _UNSAFE_NODES):
        _refuse(file, f"{node.sql('spark')[:60]!r} is not allowed")
    if isinstance(node, exp.Func) and (found := _functions(node) & _UNSAFE_FUNCTIONS):
        _refuse(file, f"the function {min(found)} is not allowed")
    if isinstance(node, exp.Table):
        if not isinstance(node.this, exp.Identifier | exp.Dot):
            _refuse(file, f"{node.sql('spark')[:60]!r} is not a table: name a table of the lake")
        if node.args.get("version") is not None or node.args.get("when") is not None:
            _refuse(file, f"{node.sql('spark')[:60]!r} reads a fixed version: only current tables can be read")


def _functions(node: exp.Func) -> frozenset[str]:
    """The names of a function, in lower case."""
    names = [node.name] if isinstance(node, exp.Anonymous) else node.sql_names()
    return frozenset(name.lower() for name in names)


def _is_local(node: exp.Table) -> bool:
    """Whether the name is that of a common table expression of the query."""
    if node.args.get("db") is not None:
        return False
    above: exp.Expr | None = node
    while above is not None:
        clause = above.args.get("with_") or above.args.get("with")
        names = [each.alias.casefold() for each in clause.expressions] if clause is not None else []
        if node.name.casefold() in names:
            own = node.find_ancestor(exp.CTE)
            if own is None or own.alias.casefold() != node.name.casefold():
                return True
        above = above.parent
    return False


def _name(node: exp.Table) -> TableName:
    parts = [each.name for each in node.parts]
    return TableName(tuple(parts[:-1]), parts[-1])


def _refuse(file: str, why: str) -> NoReturn:
    if not file:
        raise InvalidArgument(f"the query cannot be used: {why}", key="spark.query")
    raise InvalidArgument(f"the query in {file} cannot be used: {why}", key="pipeline.query", file=file)
