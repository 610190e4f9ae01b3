"""Incremental models: which rows of a table have to be made again after an input has changed, and the SQL that makes them.

    -- @incremental: key(id)              rows with the keys of changed rows are made again and replace those that the table has
    -- @incremental: range(day, 7 days)   rows from the first changed time on; the query looks back 7 days in its input
    -- @incremental: group                aggregates: new rows of the input are added to their groups

A model can be incremental if the rows with one key depend on the rows of one input with the same key, and on nothing else of that
input. `Increment.of` proves that from the query, or says why not. So the table always equals a full refresh.

Changes are the rows of data files that one snapshot has and the other does not, without the rows that both have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, Final, Literal, NoReturn

import pyarrow as pa
from sqlglot import exp

from skiway.errors import InvalidArgument
from skiway.formats import TableName
from skiway.foundation.clock import parse_duration
from skiway.metastore.pipelines.models.declarations import literal
from skiway.metastore.pipelines.models.expectations import quoted
from skiway.metastore.pipelines.spark_sql import AGGREGATES, Query, sql_text

Kind = Literal["key", "range", "group"]

_FORM: Final = re.compile(r"(?P<kind>key|range|group)\s*(?:\((?P<inside>.*)\))?")
_LENGTH: Final = re.compile(r"(\d+)\s*(day|hour|minute|week)s?")
_COMBINED: Final[Mapping[type[exp.Expr], str]] = {exp.Sum: "sum", exp.Count: "sum", exp.Min: "min", exp.Max: "max"}
"""Aggregates whose values for two sets of rows can be combined, and how."""

ADDED, REMOVED, KEPT, REWRITTEN, ASIDE = (
    TableName(("$changes",), name) for name in ("added", "removed", "kept", "rewritten", "aside")
)
"""Inputs besides those of the query: rows that its input got and lost, the rows of the table, those of the files that lose rows, and
those of its quarantine."""

FILE: Final = "$file"
"""The column of `KEPT` with the number of the data file."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What a file says about how its table is refreshed."""

    kind: Kind
    columns: tuple[str, ...] = ()
    look_back: timedelta = field(default_factory=timedelta)

    @classmethod
    def parsed(cls, text: str) -> Declared:
        """Parse the value of `@incremental`. Raise `ValueError` with what is wrong."""
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"it is {text!r}; write key(column, …), range(column), range(column, 7 days) or group")
        kind: Any = found["kind"]
        parts = [part.strip().strip("`") for part in (found["inside"] or "").split(",") if part.strip()]
        if kind == "group":
            if parts:
                raise ValueError("group has no columns: they are those of GROUP BY")
            return cls("group")
        if not parts:
            raise ValueError(f"{kind} needs the name of a column of the table")
        if kind == "key":
            return cls("key", tuple(parts))
        if len(parts) > 2:
            raise ValueError("range has one column and the time to look back")
        return cls("range", (parts[0],), _length(parts[1]) if len(parts) == 2 else timedelta())


def _length(text: str) -> timedelta:
    found = _LENGTH.fullmatch(text.lower())
    try:
        return timedelta(**{f"{found[2]}s": int(found[1])}) if found else parse_duration(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time to look back: write 7 days or 12 hours") from None


@dataclass(frozen=True, slots=True)
class Increment:
    """How a table is refreshed after changes of its input `driving`, as the query is written.

    `keys` are the columns of the table that decide which rows belong together, with the expressions on the input that they are. If the
    query `is_row_wise`, the new rows come from the changed rows alone. `combined` says how the values of the other columns of a group
    are combined; None if they cannot be.
    """

    kind: Kind
    driving: TableName
    alias: str
    keys: Mapping[str, exp.Expr]
    is_row_wise: bool
    look_back: timedelta
    combined: Mapping[str, str] | None = None

    @classmethod
    def of(cls, query: Query, declared: Declared, *, place: str) -> Increment:
        """Prove that a query is incremental as its file says. Raise `InvalidArgument` with the reason if it is not."""
        return _Proof(query, declared, place).increment()

    # --- SQL ----------------------------------------------------------------------------------------------------------

    def changes(self, views: Mapping[TableName, str], *, compares: bool) -> str:
        """Common table expressions with the rows that the input got (`a`) and lost (`d`), and the keys of both (`c`).

        If it `compares`, a row that was in both snapshots is none of them.
        """
        added, removed = (f"SELECT * FROM {quoted(views[name])}" for name in (ADDED, REMOVED))
        keys = ", ".join(f"{sql_text(each)} AS `$k{number}`" for number, each in enumerate(self.keys.values()))
        both = [f"SELECT DISTINCT {keys} FROM {rows} AS {quoted(self.alias)}" for rows in ("`$a`", "`$d`")]
        return (
            f"`$a` AS ({added}{f' EXCEPT ALL {removed}' if compares else ''}), "
            f"`$d` AS ({removed}{f' EXCEPT ALL {added}' if compares else ''}), "
            f"`$gone` AS ({both[1]}), `$c` AS ({both[0]} UNION {both[1]})"
        )

    def has_key(self, rows: str, keys: str, columns: Sequence[str] = ()) -> str:
        """A condition: the row of a relation has one of the keys."""
        values = [f"{rows}.{quoted(name)}" for name in columns or self.keys]
        same = " AND ".join(f"k.`$k{number}` <=> {value}" for number, value in enumerate(values))
        return f"EXISTS (SELECT 1 FROM {keys} AS k WHERE {same})"

    @property
    def replaced(self) -> str:
        """The relation with the keys of the rows that are replaced."""
        return "`$gone`" if self.is_row_wise else "`$c`"

    def new_rows(self, query: Query, views: Mapping[TableName, str]) -> str:
        """The query over the rows that matter: the changed ones, or those that have a key of a changed row."""
        if self.is_row_wise:
            return sql_text(query.renamed({**views, self.driving: "$a"}))
        tree = query.renamed(views)
        assert isinstance(tree, exp.Select)
        same = " AND ".join(
            f"`$keys`.`$k{number}` <=> {sql_text(each)}" for number, each in enumerate(self.keys.values())
        )
        return _restricted(tree, f"EXISTS (SELECT 1 FROM `$c` AS `$keys` WHERE {same})")

    def rows_from(self, query: Query, views: Mapping[TableName, str], bound: date | None) -> str:
        """The query over the rows from a time on; those without a time always count. It sees earlier rows, as it looks back."""
        ((name, value),) = self.keys.items()
        tree = query.renamed(views)
        assert isinstance(tree, exp.Select)
        if bound is None:
            return _restricted(tree, f"{sql_text(value)} IS NULL")
        found = _restricted(tree, since(sql_text(value), bound - self.look_back))
        return f"SELECT * FROM ({found}) WHERE {since(quoted(name), bound)}" if self.look_back else found

    def combined_rows(self, query: Query, views: Mapping[TableName, str], columns: pa.Schema) -> str:
        """The groups of new rows of the input, combined with the same groups of the table, which has these columns."""
        assert self.combined is not None
        fresh = sql_text(query.renamed({**views, self.driving: "$a"}))
        names = ", ".join(map(quoted, columns.names))
        by_name = {name.casefold(): how for name, how in self.combined.items()}
        made = [
            f"CAST({how}({quoted(each.name)}) AS {sql_type(each.type)}) AS {quoted(each.name)}"
            if (how := by_name.get(each.name.casefold()))
            else quoted(each.name)
            for each in columns
        ]
        kept = f"SELECT {names} FROM {quoted(views[KEPT])} AS e WHERE {self.has_key('e', '`$c`')}"
        groups = ", ".join(map(quoted, self.keys))
        return f"SELECT {', '.join(made)} FROM (SELECT {names} FROM ({fresh}) UNION ALL {kept}) GROUP BY {groups}"

    def can_combine(self, columns: pa.Schema) -> bool:
        """Whether groups can be combined. Sums of floating-point numbers would depend on the order."""
        if self.combined is None:
            return False
        by_name = {name.casefold(): how for name, how in self.combined.items()}
        return all(
            sql_type(each.type)
            if (how := by_name.get(each.name.casefold())) == "sum"
            else how is None or sql_type(each.type)
            for each in columns
        )


def since(value: str, bound: date) -> str:
    """A condition: a time is not before a bound, or is missing."""
    kind, text = "DATE", bound.isoformat()
    if isinstance(bound, datetime):
        kind, text = "TIMESTAMP" if bound.tzinfo else "TIMESTAMP_NTZ", bound.isoformat(" ")
    return f"({value} >= CAST({literal(text)} AS {kind}) OR {value} IS NULL)"


def sql_type(of: pa.DataType) -> str:
    """The type of a column that can be combined, in the SQL of Spark; empty for other types."""
    plain = {pa.int32(): "INT", pa.int64(): "BIGINT", pa.string(): "STRING", pa.date32(): "DATE", pa.bool_(): "BOOLEAN"}
    if pa.types.is_decimal(of):
        return f"DECIMAL({of.precision}, {of.scale})"
    if pa.types.is_timestamp(of):
        return "TIMESTAMP" if of.tz else "TIMESTAMP_NTZ"
    return plain.get(of, "STRING" if pa.types.is_large_string(of) else "")


def _restricted(tree: exp.Select, condition: str) -> str:
    """The text of a query with a further condition, which was made here and not checked."""
    before = tree.args.get("where")
    marker = exp.EQ(this=exp.to_identifier("$where", quoted=True), expression=exp.to_identifier("$here", quoted=True))
    parts = marker if before is None else exp.And(this=exp.Paren(this=before.this.copy()), expression=marker)
    tree.set("where", exp.Where(this=parts))
    return sql_text(tree).replace(sql_text(marker), condition)


class _Proof:
    """The proof that the rows of a query with one key only depend on rows of one input with the same key."""

    def __init__(self, query: Query, declared: Declared, place: str) -> None:
        self._query, self._declared, self._place = query, declared, place
        self._tree = query.tree

    def increment(self) -> Increment:
        tree = self._tree
        if not isinstance(tree, exp.Select):
            self._refuse("its query is a UNION or the like: write it as one SELECT, or as several tables")
        for clause in ("limit", "offset", "windows", "distinct"):
            found = tree.args.get(clause)
            if found and (clause != "distinct" or found.args.get("on")):
                self._refuse(f"its query has {clause.upper()}, which is about all rows")
        source = tree.args.get("from_")
        table = source.this if source is not None else None
        names = [
            TableName(tuple(part.name for part in node.parts[:-1]), node.name) for node in tree.find_all(exp.Table)
        ]
        driving = None
        if isinstance(table, exp.Table):
            driving = TableName(tuple(part.name for part in table.parts[:-1]), table.name)
        if driving is None or table is None or driving not in self._query.reads:
            self._refuse("its query must read a table in FROM, and not a subquery or a common table expression")
        if names.count(driving) != 1:
            self._refuse(f"its query reads {driving} more than once")
        for join in tree.args.get("joins") or ():
            if join.side.upper() in ("RIGHT", "FULL"):
                self._refuse(f"its query has a {join.side.upper()} JOIN, whose rows do not only depend on {driving}")
        alias = table.alias_or_name
        keys = self._keys(tree, alias)
        self._check_aggregates(tree, keys)
        declared = self._declared
        is_row_wise = declared.kind == "key" and not self._query.why_not_row_wise
        combined = self._combined(tree) if declared.kind == "group" else None
        return Increment(declared.kind, driving, alias, keys, is_row_wise, declared.look_back, combined)

    def _keys(self, tree: exp.Select, alias: str) -> dict[str, exp.Expr]:
        """The columns that decide, with the expressions on the input that they are."""
        if self._declared.kind == "group":
            return self._groups(tree)
        found: dict[str, exp.Expr] = {}
        for name in self._declared.columns:
            value = next((each for each in tree.selects if each.alias_or_name.casefold() == name.casefold()), None)
            if value is None and any(isinstance(each, exp.Star) or each.is_star for each in tree.selects):
                value = exp.column(exp.to_identifier(name, quoted=True), exp.to_identifier(alias, quoted=True))
            if value is None:
                self._refuse(
                    f"its query has no column {name!r}; it has {', '.join(x.alias_or_name for x in tree.selects)}"
                )
            found[name] = self._on_input(value.unalias().copy(), name, tree)
        return found

    def _groups(self, tree: exp.Select) -> dict[str, exp.Expr]:
        group = tree.args.get("group")
        if group is None:
            self._refuse("its query has no GROUP BY: use key(…) or range(…)")
        found: dict[str, exp.Expr] = {}
        for each in group.expressions:
            value = self._group_value(each, tree)
            shown = next((select for select in tree.selects if select.unalias() == value), None)
            if shown is None:
                self._refuse(f"the table has no column with {sql_text(value)!r}, by which the query groups")
            found[shown.alias_or_name] = self._on_input(value.copy(), shown.alias_or_name, tree)
        return found

    @staticmethod
    def _group_value(each: exp.Expr, tree: exp.Select) -> exp.Expr:
        """What a part of GROUP BY stands for: a number or an alias names a column of the query."""
        if isinstance(each, exp.Literal) and not each.is_string and each.name.isdigit():
            place = int(each.name) - 1
            return tree.selects[place].unalias() if 0 <= place < len(tree.selects) else each
        if isinstance(each, exp.Column) and not each.table:
            aliased = (
                x for x in tree.selects if isinstance(x, exp.Alias) and x.alias.casefold() == each.name.casefold()
            )
            return next(aliased, each).unalias()
        return each

    def _on_input(self, value: exp.Expr, name: str, tree: exp.Select) -> exp.Expr:
        """The expression behind a column, if it only depends on the row of the first table."""
        table = tree.args["from_"].this
        alias = table.alias_or_name.casefold()
        has_joins = bool(tree.args.get("joins") or tree.args.get("laterals"))
        for column in value.find_all(exp.Column):
            if column.table.casefold() != alias and (column.table or has_joins):
                if not has_joins and column.table:
                    continue  # a field of a column
                self._refuse(f"column {name!r} must come from {table.name}: write {table.alias_or_name}.{column.name}")
        alone = Query(exp.Select(expressions=[value.copy()]).from_(table.copy()), self._query.reads)
        if alone.why_not_row_wise or alone.changes_by_itself:
            self._refuse(
                f"column {name!r} is {sql_text(value)[:60]!r}, which does not depend on one row of {table.name} only"
            )
        return value

    def _check_aggregates(self, tree: exp.Select, keys: Mapping[str, exp.Expr]) -> None:
        values = list(keys.values())
        group = tree.args.get("group")
        if group is not None:
            if any(group.args.get(each) for each in ("rollup", "cube", "grouping_sets", "all", "totals")):
                self._refuse("its query has ROLLUP, CUBE or GROUPING SETS, whose totals are about all rows")
            parts = [self._group_value(each, tree) for each in group.expressions]
            for name, value in keys.items():
                if value not in parts:
                    self._refuse(
                        f"its query does not group by {name}, so a row depends on rows with other values of it"
                    )
        looks_back = self._declared.kind == "range" and self._declared.look_back
        for node in _own_nodes(tree):
            if isinstance(node, exp.Window) and not looks_back:
                if any(value not in node.args.get("partition_by", []) for value in values):
                    names = ", ".join(keys)
                    self._refuse(
                        f"the window {sql_text(node)[:60]!r} is not partitioned by {names}, so it sees other rows"
                    )
            elif group is None and _is_aggregate(node) and node.find_ancestor(exp.Window) is None:
                self._refuse(f"its query has {sql_text(node)[:60]!r} without GROUP BY, which depends on all rows")

    def _combined(self, tree: exp.Select) -> dict[str, str] | None:
        if tree.args.get("having") or tree.args.get("distinct") or tree.args.get("qualify") or tree.find(exp.Window):
            return None
        values = list(self._groups(tree).values())
        found = {}
        for each in tree.selects:
            value = each.unalias()
            if value in values:
                continue
            how = _COMBINED.get(type(value))
            if how is None or value.find(exp.Distinct) is not None or not each.alias_or_name:
                return None
            found[each.alias_or_name] = how
        return found

    def _refuse(self, why: str) -> NoReturn:
        raise InvalidArgument(
            f"{self._place}: the table cannot be incremental by {self._declared.kind}, because {why}",
            key="pipeline.file",
            file=self._place.partition(",")[0],
        )


def _own_nodes(tree: exp.Select) -> Iterator[exp.Expr]:
    """The nodes of a query without those of its subqueries."""
    inner = {id(node) for query in tree.find_all(exp.Query) if query is not tree for node in query.walk()}
    return (node for node in tree.walk() if id(node) not in inner)


def _is_aggregate(node: exp.Expr) -> bool:
    return isinstance(node, exp.AggFunc) or (isinstance(node, exp.Anonymous) and node.name.lower() in AGGREGATES)
