"""Branches of the lake in SQL: `create_branch`, `diff_branch`, `merge_branch` and `delete_branch`, and the table `branches`.

They are called in the catalog that has the branch, or in one of its branches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from skiway.airport import ScanOptions, TableFunction
from skiway.airport.wire.duckdb_sql import identifier
from skiway.errors import NotFound
from skiway.lake.context import Context
from skiway.lake.reading.columns import ROWID
from skiway.lake.system.effects import ActingFunction, parameters_of, table_name
from skiway.lake.system.tables import Row, SystemScan, arrow_table, enum_name, moment_of, schema_of, system_table
from skiway.lake.writing.inserting import check_auto_commit
from skiway.metastore import Realm, branches
from skiway.metastore.records.names import BRANCH_MARK
from skiway.metastore.statistics import counted_nulls, distinct_count
from skiway.model import v1
from skiway.sql import Find, Query, unknown_column

_CHANGES: Final = (
    "kind text, name text, action text, previous_name text, on_main text, plan text, conflict text, "
    "rows_on_main bigint, rows_on_branch bigint, rows_added bigint, rows_removed bigint, snapshots bigint"
)


def _main_name(catalog: str) -> str:
    return catalog.rpartition(BRANCH_MARK)[0] or catalog


class _BranchFunction(ActingFunction):
    """A function that changes a branch of a catalog."""

    parameters = parameters_of("name text")
    result = schema_of("branch text, state text")

    def __init__(self, context: Context, catalog: v1.Catalog) -> None:
        self._context, self._catalog = context, _main_name(catalog.display_name)

    def full_name(self, given: Mapping[str, Any]) -> str:
        """The name of the branch with that of its catalog, which the argument may have."""
        name = given["name"] or ""
        return name if BRANCH_MARK in name else f"{self._catalog}{BRANCH_MARK}{name}"

    def realm(self) -> Realm:
        """The realm of the caller, who may change something."""
        self._context.callers.require("catalog.read")
        self._context.callers.refuse_query_tokens("change branches")
        check_auto_commit()
        return self._context.callers.realm()

    def shown(self, branch: v1.Branch) -> Row:
        """The row about a branch."""
        return f"{self._catalog}{BRANCH_MARK}{branch.display_name}", enum_name(v1.BranchState, branch.state, "BS_")


class CreateBranchFunction(_BranchFunction):
    """`create_branch(name)`: a branch of the catalog as it is now."""

    name = "create_branch"
    comment = (
        "Creates a branch of the lake: create_branch('dev', tag => true, comment => '…'); attach it as catalog@dev."
    )
    parameters = parameters_of("name text, tag? boolean, comment? text")

    def act(self, given: Mapping[str, Any]) -> Row:
        """Create the branch."""
        request = v1.CreateBranchRequest(
            name=self.full_name(given), is_tag=bool(given["tag"]), description=given["comment"] or ""
        )
        return self.shown(branches.create(self.realm(), request).branch)


class DeleteBranchFunction(_BranchFunction):
    """`delete_branch(name)`: deletes a branch and what only it has."""

    name = "delete_branch"
    comment = "Deletes a branch of the lake, and what only it has: delete_branch('dev')."

    def act(self, given: Mapping[str, Any]) -> Row:
        """Delete the branch."""
        return self.shown(branches.delete(self.realm(), v1.DeleteBranchRequest(name=self.full_name(given))).branch)


class MergeBranchFunction(_BranchFunction):
    """`merge_branch(name)`: publishes all changes of a branch at once."""

    name = "merge_branch"
    comment = (
        "Publishes all changes of a branch of the lake at once, or none: merge_branch('dev', dry_run => true, "
        "ours => ['s.t'], theirs => ['s.u'])."
    )
    parameters = parameters_of("name text, dry_run? boolean, ours? text[], theirs? text[]")
    result = schema_of("branch text, state text, changes bigint, conflicts text[]")

    def act(self, given: Mapping[str, Any]) -> Row:
        """Merge the branch."""
        request = v1.MergeBranchRequest(
            name=self.full_name(given),
            dry_run=bool(given["dry_run"]),
            ours=given["ours"] or (),
            theirs=given["theirs"] or (),
        )
        context = self._context
        done = branches.merge(self.realm(), request, warehouse=context.handles.warehouse)
        (context.main or context).versions.changed(context.callers.realm())
        conflicts = [each.conflict for each in done.changes if each.conflict]
        return *self.shown(done.branch), len(done.changes), conflicts


class DiffBranchFunction(TableFunction):
    """`diff_branch(name)`: what a branch has changed."""

    name = "diff_branch"
    comment = (
        "Shows what a branch of the lake has changed, and which changes are in conflict with main: diff_branch('dev')."
    )
    parameters = parameters_of("name text")
    result = schema_of(_CHANGES)

    def __init__(self, context: Context, catalog: v1.Catalog) -> None:
        self._context, self._catalog = context, _main_name(catalog.display_name)

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:  # noqa: ARG002
        """The columns of the result. Nothing is compared yet."""
        return self.result

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Compare the branch with main."""
        given = arguments["name"].as_py() or ""
        name = given if BRANCH_MARK in given else f"{self._catalog}{BRANCH_MARK}{given}"
        self._context.callers.require("catalog.read")
        request = v1.DiffBranchRequest(name=name, statistics=self.name == DiffStatisticsFunction.name)
        found = branches.diff(self._context.callers.realm(), request, warehouse=self._context.handles.warehouse)
        rows = arrow_table(self.result, self.rows(found.changes))
        yield from rows.select(self.result.names if options.columns is None else options.columns).to_batches()

    def rows(self, changes: Iterable[v1.BranchChange]) -> Iterator[Row]:
        """A row for each change."""
        return map(_change_row, changes)


class DiffStatisticsFunction(DiffBranchFunction):
    """`diff_statistics(name)`: the statistics of the columns of changed tables, on main and on the branch."""

    name = "diff_statistics"
    comment = "Compares the statistics of columns on main and on a branch of the lake: diff_statistics('dev')."
    result = schema_of(
        "name text, column text, nulls_on_main bigint, nulls_on_branch bigint, distinct_on_main bigint, distinct_on_branch bigint, "
        "min_on_main text, min_on_branch text, max_on_main text, max_on_branch text, "
        "quantiles_on_main text->text, quantiles_on_branch text->text"
    )

    def rows(self, changes: Iterable[v1.BranchChange]) -> Iterator[Row]:
        """A row for each column of the changed tables."""
        for change in changes:
            for column in change.columns:
                sides = (getattr(column, side) if column.HasField(side) else None for side in ("main", "branch"))
                yield change.name, column.name, *chain.from_iterable(zip(*map(_figures, sides), strict=True))


def _figures(stats: v1.ColumnStats | None) -> Row:
    if stats is None:
        return (None,) * 5
    distinct = distinct_count(stats)
    bounds = (getattr(stats, name) if stats.HasField(name) else None for name in ("min", "max"))
    quantiles = list(json.loads(stats.properties.get("quantiles", "{}")).items())
    return counted_nulls(stats), None if distinct is None else round(distinct), *bounds, quantiles or None


class DiffRowsFunction(TableFunction):
    """`diff_rows(name, table)`: the rows that a branch and main have in a table, and the other side does not."""

    name = "diff_rows"
    comment = (
        "Compares the rows of a table on main and on a branch of the lake: diff_rows('dev', 's.t', key => ['id']) marks them as "
        "removed, added, before and after."
    )
    parameters = parameters_of("name text, table text, key? text[]")

    def __init__(self, context: Context, catalog: v1.Catalog, find: Find) -> None:
        self._context, self._catalog, self._find = context, _main_name(catalog.display_name), find

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:
        """What happened to each row, and the columns that both sides have."""
        return self._context.queries.columns(self._query(arguments))

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Compare the rows on the server, with the rights of the caller."""
        for batch in self._context.queries.rows(self._query(arguments)):
            yield batch if options.columns is None else batch.select(options.columns)

    def _query(self, arguments: Mapping[str, pa.Scalar]) -> Query:
        given: dict[str, Any] = {name: value.as_py() for name, value in arguments.items()}
        branch = given["name"] or ""
        branch = branch if BRANCH_MARK in branch else f"{self._catalog}{BRANCH_MARK}{branch}"
        named = table_name(given["table"] or "", branch, self.name)
        place = (named.db, named.name)
        sides = [self._find(catalog, *place) for catalog in (self._catalog, branch)]
        found = [each for each in sides if each is not None]
        if not found:
            name = f"{branch}.{named.db}.{named.name}"
            raise NotFound(f"table {name} does not exist, on main neither", key="table", table=name)
        columns = [each for each in found[-1].schema.names if each != ROWID and each in found[0].schema.names]
        key = list(given["key"] or ())
        for each in key:
            if each not in columns:
                raise unknown_column(f"table {given['table']}", each, columns)
        texts = [
            _selected(columns, None if side is None else (catalog, *place))
            for catalog, side in zip((self._catalog, branch), sides, strict=True)
        ]
        owner = self._context.callers.principal.account_id
        return Query(_compared(columns, key, *texts), self._find, catalog=self._catalog, owner=owner)


def _selected(columns: Sequence[str], place: Sequence[str] | None) -> str:
    """The rows of one side, which has none if it has no such table."""
    if place is None:
        return ""
    return f"SELECT {', '.join(map(identifier, columns))} FROM {'.'.join(map(identifier, place))}"  # noqa: S608


def _compared(columns: Sequence[str], key: Sequence[str], main: str, branch: str) -> str:
    """The query for the rows that only one side has. With a key, a row that the other side has in another form is marked so."""
    change = "change"
    while change in columns:
        change += "_"
    names = ", ".join(map(identifier, columns))
    main, branch = (text or f"{other} LIMIT 0" for text, other in ((main, branch), (branch, main)))

    def side(own: str, other: str, alone: str, paired: str) -> str:
        matches = " AND ".join(f"a.{identifier(each)} IS NOT DISTINCT FROM b.{identifier(each)}" for each in key)
        mark = (
            f"CASE WHEN EXISTS (FROM {other} b WHERE {matches}) THEN '{paired}' ELSE '{alone}' END"
            if key
            else f"'{alone}'"
        )
        return f"SELECT {mark} AS {identifier(change)}, {names} FROM {own} a"  # noqa: S608

    order = ", ".join((*map(identifier, key), f"{identifier(change)} DESC"))
    return (
        f"WITH m AS (({main}) EXCEPT ALL ({branch})), n AS (({branch}) EXCEPT ALL ({main})) "
        f"{side('m', 'n', 'removed', 'before')} UNION ALL {side('n', 'm', 'added', 'after')} ORDER BY {order}"
    )


def _change_row(change: v1.BranchChange) -> Row:
    texts = (change.previous_name, change.on_main, change.plan, change.conflict)
    counts: tuple[Any, ...] = ("rows_on_main", "rows_on_branch", "rows_added", "rows_removed")
    numbers = (getattr(change, name) if change.HasField(name) else None for name in counts)
    return (change.kind, change.name, change.action, *(text or None for text in texts), *numbers, change.snapshots)


@system_table(
    "the branches and tags of this catalog",
    "branch text, state text, is_tag boolean, owner text, comment text, created_at timestamp, merged_at timestamp, "
    "merged_by text, damage text",
    name="branches",
)
def branches_table(scan: SystemScan) -> Iterator[Row]:
    """The branches and tags of the lake."""
    catalog = _main_name(scan.catalog)
    for each in branches.list_(scan.realm, v1.ListBranchesRequest(catalog=catalog)).branches:
        state = enum_name(v1.BranchState, each.state, "BS_") if each.state else None
        texts = (each.owner or None, each.description or None)
        merged = (moment_of(each.merged_at), each.merged_by or None)
        name = f"{catalog}{BRANCH_MARK}{each.display_name}"
        yield (name, state, each.is_tag, *texts, moment_of(each.created_at), *merged, each.damage or None)


FUNCTIONS: Final = (
    CreateBranchFunction,
    DeleteBranchFunction,
    MergeBranchFunction,
    DiffBranchFunction,
    DiffStatisticsFunction,
)
