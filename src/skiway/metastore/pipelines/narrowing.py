"""The part of its inputs that a query needs: columns by name, and rows by simple conditions.

Both are found in the text of the query, and may be more than Spark would read: a column is needed if its name occurs anywhere. A
condition counts if it is part of the WHERE of the only SELECT that reads the table, and is never true for NULL, so that rows
without it cannot get into the result, whatever the joins.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from skiway.errors import SkiwayError
from skiway.formats import Filter, TableName
from skiway.formats.iceberg.types import iceberg_schema
from skiway.metastore.pipelines.inputs import Input
from skiway.metastore.pipelines.spark_sql import Query, table_name

_WHOLE_ROWS: Final = (exp.Pivot, exp.TableSample)
_COMPARISONS: Final[Mapping[type[exp.Expr], str]] = {
    exp.EQ: "eq",
    exp.LT: "lt",
    exp.LTE: "lt-eq",
    exp.GT: "gt",
    exp.GTE: "gt-eq",
}
_FLIPPED: Final = {"eq": "eq", "lt": "gt", "lt-eq": "gt-eq", "gt": "lt", "gt-eq": "lt-eq"}


def narrowed(query: Query, inputs: Mapping[TableName, Input]) -> dict[TableName, Input]:
    """The inputs with only the columns and rows that the query needs."""
    tree = query.tree
    names = None if _needs_all_columns(tree) else {each.name.casefold() for each in tree.find_all(exp.Identifier)}
    found = {}
    for name, read in inputs.items():
        columns = read.columns
        chosen = None
        if names is not None:
            chosen = tuple(column for column in columns.names if column.casefold() in names) or (_narrowest(columns),)
        found[name] = replace(read, selected=chosen, where=_filter(tree, name, columns))
    return found


def _needs_all_columns(tree: exp.Query) -> bool:
    """Whether columns may be used that are not named: by a star, by position, or by a join or pivot over all of them."""
    if any(not _is_count(star.parent) for star in tree.find_all(exp.Star)):
        return True
    if any(alias.args.get("columns") for alias in tree.find_all(exp.TableAlias)):
        return True
    is_natural = any(str(join.args.get("method") or "").upper() == "NATURAL" for join in tree.find_all(exp.Join))
    return is_natural or tree.find(*_WHOLE_ROWS) is not None


def _is_count(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.Count) or (isinstance(node, exp.Anonymous) and node.name.lower() == "count")


def _narrowest(columns: pa.Schema) -> str:
    """The column that is read for rows without columns."""
    plain = [each.name for each in columns if pa.types.is_integer(each.type) or pa.types.is_boolean(each.type)]
    return str([*plain, *columns.names][0])


def _filter(tree: exp.Query, name: TableName, columns: pa.Schema) -> Filter | None:
    """What is true for all rows of a table that the query uses; None if nothing is known."""
    from skiway.formats.iceberg.planning.expressions import filter_in

    nodes = [node for node in tree.find_all(exp.Table) if table_name(node) == name]
    if len(nodes) != 1 or tree.find(*_WHOLE_ROWS) is not None:
        return None
    (node,) = nodes
    select = node.parent_select
    if not isinstance(select, exp.Select) or node.find_ancestor(exp.Subquery, exp.Select) is not select:
        return None
    where = select.args.get("where")
    is_alone = not (select.args.get("joins") or select.args.get("laterals") or node.args.get("joins"))
    types = {each.name.casefold(): each for each in columns}
    conditions = list(_conditions(where.this, node.alias_or_name, types, is_alone=is_alone)) if where else []
    if not conditions:
        return None
    expression = conditions[0]
    for each in conditions[1:]:
        expression = {"type": "and", "left": expression, "right": each}
    try:
        used = {each["term"] for each in conditions}
        return filter_in(expression, iceberg_schema(pa.schema([each for each in columns if each.name in used])))
    except SkiwayError:
        return None


def _conditions(
    node: exp.Expr, alias: str, types: Mapping[str, pa.Field], *, is_alone: bool
) -> Iterator[dict[str, Any]]:
    """The conditions on columns of a table, in the JSON of Iceberg, that an expression consists of."""
    if isinstance(node, exp.And | exp.Paren):
        for side in (node.this, node.expression) if isinstance(node, exp.And) else (node.this,):
            yield from _conditions(side, alias, types, is_alone=is_alone)
        return

    def column(each: exp.Expr) -> pa.Field | None:
        if not isinstance(each, exp.Column) or not isinstance(each.this, exp.Identifier) or each.db:
            return None
        is_own = each.table.casefold() == alias.casefold() if each.table else is_alone
        return types.get(each.name.casefold()) if is_own else None

    left, right = node.this, node.expression
    if type(node) in _COMPARISONS and (field := column(left) or column(right)) is not None:
        is_left = column(left) is not None
        kind, value = _COMPARISONS[type(node)], _value(right if is_left else left, field.type)
        if value is not None:
            yield {"type": kind if is_left else _FLIPPED[kind], "term": field.name, "value": value}
    elif isinstance(node, exp.Between) and (field := column(left)) is not None:
        for kind, side in (("gt-eq", "low"), ("lt-eq", "high")):
            if (value := _value(node.args[side], field.type)) is not None and not node.args.get("symmetric"):
                yield {"type": kind, "term": field.name, "value": value}
    elif isinstance(node, exp.In) and (field := column(left)) is not None:
        values = [_value(each, field.type) for each in node.expressions]
        if values and None not in values and not node.args.get("query"):
            yield {"type": "in", "term": field.name, "values": values}


def _value(node: exp.Expr, of: pa.DataType) -> int | str | None:
    """The value of a literal that Spark compares with a column of this type as it is; None for others."""
    if isinstance(node, exp.Cast) and pa.types.is_date(of) and node.to.is_type("date"):
        node = node.this
    if not isinstance(node, exp.Literal):
        return None
    if not node.is_string:
        is_small = node.this.isdecimal() and len(node.this) < 10
        return int(node.this) if is_small and pa.types.is_integer(of) else None
    if pa.types.is_string(of):
        return str(node.this)
    if pa.types.is_date(of):
        try:
            return datetime.date.fromisoformat(node.this).isoformat() if len(node.this) == 10 else None
        except ValueError:
            return None
    return None
