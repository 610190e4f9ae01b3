"""One query of a caller, in the dialect of Spark: what it reads, and whether it works row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from sqlglot import exp

from skiway.formats import TableName
from skiway.metastore.pipelines.functions import CHANGING_FUNCTIONS, ROW_WISE_FUNCTIONS
from skiway.metastore.pipelines.spark_sql import called_functions, checked_select, sql_text

__all__ = ["Query", "other_table", "parse_query"]

_ROW_WISE: Final = (
    *(exp.Select, exp.From, exp.Where, exp.Table, exp.TableAlias, exp.Identifier, exp.Star, exp.Column, exp.Alias),
    *(exp.Literal, exp.HexString, exp.RawString, exp.Null, exp.Boolean, exp.DataType, exp.DataTypeParam, exp.ColumnDef),
    *(exp.Var, exp.Paren, exp.Interval, exp.IntervalSpan, exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE),
    *(exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Is, exp.Between, exp.In, exp.Tuple, exp.Like, exp.ILike),
    *(exp.RegexpLike, exp.Escape, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe),
    *(exp.Concat, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.Case, exp.If, exp.Cast),
    *(exp.TryCast, exp.Extract, exp.Trim, exp.Substring, exp.Overlay, exp.StrPosition, exp.Array, exp.Dot),
    *(exp.Bracket, exp.Transform, exp.Lambda, exp.Kwarg, exp.PropertyEQ),
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
        return sql_text(self.tree)

    def reading(self, views: Mapping[TableName, str]) -> str:
        """The text of the query that reads these views instead of the tables."""
        return sql_text(self.renamed(views))

    def renamed(self, views: Mapping[TableName, str]) -> exp.Query:
        """The query that reads these views instead of the tables. Each view has the name of its table as an alias.

        Common table expressions get other names, too. So Spark sees no name that could be one of its own tables.
        """

        def view(node: exp.Table, name: TableName) -> exp.Expr:
            return other_table(node, exp.to_identifier(views[name], quoted=True))

        made = self.with_tables(view)
        for node in [each for each in made.find_all(exp.Table) if _is_local(each)]:
            node.replace(other_table(node, exp.to_identifier(f"cte {node.name.casefold()}", quoted=True)))
        for expression in made.find_all(exp.CTE):
            expression.args["alias"].set("this", exp.to_identifier(f"cte {_cte_name(expression)}", quoted=True))
        return made

    def with_tables(self, made: Callable[[exp.Table, TableName], exp.Expr]) -> exp.Query:
        """The query with other nodes in the places of the tables. Columns are not qualified by namespaces any more."""
        tree = self.tree.copy()
        for node in [each for each in tree.find_all(exp.Table) if not _is_local(each)]:
            node.replace(made(node, _name(node)))
        qualified = {(each.namespace[-1].casefold(), each.name.casefold()) for each in self.reads if each.namespace}
        for column in tree.find_all(exp.Column):
            if (column.db.casefold(), column.table.casefold()) in qualified:
                column.set("db", None)
                column.set("catalog", None)
        return tree

    @property
    def why_not_row_wise(self) -> str:
        """Why new rows of the input cannot just be added to the result; empty if they can."""
        if not isinstance(self.tree, exp.Select) or len(list(self.tree.find_all(exp.Select))) > 1:
            return "the query has more than one SELECT"
        if len(list(self.tree.find_all(exp.Table))) != 1:
            return "the query does not read exactly one table"
        for node in self.tree.walk():
            is_known = (
                node.name.lower() in ROW_WISE_FUNCTIONS if isinstance(node, exp.Anonymous) else type(node) in _ROW_WISE
            )
            if not is_known:
                return f"the query has {sql_text(node)[:60]!r}, which may depend on several rows"
        return ""

    @property
    def changes_by_itself(self) -> bool:
        """Whether the result can differ although all tables are the same: it depends on the time or on chance."""
        if self.tree.find(exp.TableSample) is not None:
            return True
        return bool(called_functions(self.tree) & CHANGING_FUNCTIONS)


def parse_query(sql: str, *, file: str = "") -> Query:
    """Parse and check a SELECT, which may be in a file. Raise `InvalidArgument` if it is not one, or may leave the lake."""
    tree = checked_select(sql, file=file)
    reads = {_name(node): None for node in tree.find_all(exp.Table) if not _is_local(node)}
    return Query(tree, tuple(reads))


def other_table(node: exp.Table, this: exp.Expr, db: exp.Expr | None = None) -> exp.Table:
    """A table for the place of another one, whose name it has as an alias."""
    alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(node.name, quoted=True))
    others = {key: value for key, value in node.args.items() if key not in ("this", "db", "catalog", "alias")}
    return exp.Table(this=this, db=db, alias=alias, **others)


def _is_local(node: exp.Table) -> bool:
    """Whether the name is that of a common table expression of the query, before which Spark has read it."""
    if node.args.get("db") is not None:
        return False
    name = node.name.casefold()
    below: exp.Expr = node
    above = node.parent
    while above is not None:
        clause = above.args.get("with_")
        visible = clause.expressions if clause is not None and clause is not below else []
        if isinstance(above, exp.With):
            visible = above.expressions[: above.expressions.index(below)]
        if name in map(_cte_name, visible):
            return True
        below, above = above, above.parent
    return False


def _cte_name(node: exp.CTE) -> str:
    return node.alias.casefold()


def _name(node: exp.Table) -> TableName:
    parts = [each.name for each in node.parts]
    return TableName(tuple(parts[:-1]), parts[-1])
