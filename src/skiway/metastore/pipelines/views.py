"""Views that queries of pipelines read: the query of the view takes the place of its name.

So a table depends on the tables below its views, and on the text of the views: it is refreshed when one of them changes. A view is
read with the rights of the owner of the pipeline, like the tables below it. So the owner must know its query: it is the one that the
view had when the owner wrote the files of the pipeline, or the owner has changed it since.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Final

from sqlglot import exp

from skiway.errors import PreconditionFailed, SkiwayError, Unsupported
from skiway.formats import TableName
from skiway.metastore.pipelines.inputs import LakeNames
from skiway.metastore.pipelines.projects import DerivedTable, Project, key_of
from skiway.metastore.pipelines.python_files import PythonFunction
from skiway.metastore.pipelines.queries import Query, other_table, parse_query
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.view_dialects import DUCKDB, SPARK, spark_sql
from skiway.model import v1

__all__ = ["bound_views", "with_views"]

MOST_LEVELS: Final = 16
_BELOW: Final = "below a view"
"""The qualifier of tables that a view reads, in the query that the view has become a part of."""


def with_views(table: DerivedTable, project: Project, tables: LakeNames) -> DerivedTable:
    """The table with a query that reads no views, but the tables below them. Raise if a view cannot be read."""
    others = [full for full in table.reads.values() if key_of(full) not in project.tables]
    views = {full: view for full in others if (view := tables.view(full)) is not None}
    if not views:
        return table
    if isinstance(table.query, PythonFunction):
        raise Unsupported(
            f"{next(iter(views))}, which {table.name} reads, is a view, and Python functions read tables only: derive a table "
            "from the view with a .sql file, and read that",
            key="pipeline.input.view",
        )
    expansion = _Expansion(table, project, tables)

    def made(node: exp.Table, name: TableName) -> exp.Expr:
        full = table.reads[name]
        return node if full not in views else _subquery(node, expansion.query(views[full]), views[full])

    tree = table.query.with_tables(made)
    reads = {name: full for name, full in table.reads.items() if full not in views} | expansion.reads
    return replace(table, query=Query(tree, tuple(reads)), reads=reads)


def bound_views(project: Project, names: LakeNames) -> dict[str, str]:
    """The digests of the views that the queries of a project read now, by id. What cannot be read is left out."""
    found: dict[str, str] = {}
    for table in project.tables.values():
        if isinstance(table.query, PythonFunction):
            continue
        expansion = _Expansion(table, project, names)
        for full in table.reads.values():
            with suppress(SkiwayError):
                view = names.view(full)
                if view is not None:
                    expansion.query(view)
        found |= expansion.views
    return found


class _Expansion:
    """Makes queries of views that name their tables by what they are.

    `reads` collects these tables, and `views` the digests of the views by id.
    """

    def __init__(self, table: DerivedTable, project: Project, tables: LakeNames) -> None:
        self._table, self._project, self._tables = table, project, tables
        self.reads: dict[TableName, TableName] = {}
        self.views: dict[str, str] = {}

    def query(self, view: v1.View, above: tuple[str, ...] = ()) -> exp.Query:
        """The query of a view. `above` are the ids of the views that it is a part of."""
        name = f"view {view.display_name}, which {self._table.name} reads,"
        if view.rights == v1.VR_DEFINER:
            raise Unsupported(
                f"{name} has the rights of its definer: a pipeline has those of its owner, so read the tables below the view",
                key="pipeline.input.definer",
            )
        if view.resource_id.id in above or len(above) >= MOST_LEVELS:
            raise PreconditionFailed(
                f"{name} reads itself, or more than {MOST_LEVELS} views below each other", key="pipeline.input.view"
            )
        self._check_known(view, name)
        space = hierarchy.full_path(hierarchy.namespace(self._tables.realm, view.namespace_id).value)
        catalog = hierarchy.catalog(self._tables.realm, view.catalog_id).value.display_name
        query = parse_query(_spark_text(view, space, catalog), file=f"view {view.display_name}")
        searched = [*(tuple(each.split(".")) for each in view.creation_search_path), space]

        def made(node: exp.Table, written: TableName) -> exp.Expr:
            full = self._full(written, catalog, searched)
            below = self._tables.view(full)
            if below is not None:
                return _subquery(node, self.query(below, (*above, view.resource_id.id)), below)
            if key_of(full) in self._project.tables:
                raise PreconditionFailed(
                    f"{name} reads {full} of the same pipeline: read that table instead of the view",
                    key="pipeline.input.view",
                )
            self.reads[TableName((_BELOW,), str(full))] = full
            this, db = (exp.to_identifier(part, quoted=True) for part in (str(full), _BELOW))
            return other_table(node, this, db)

        return query.with_tables(made)

    def _check_known(self, view: v1.View, name: str) -> None:
        """Raise if another user changed the view: its query would read with the rights of the pipeline's owner."""
        digest = self.views[view.resource_id.id] = _digest(view)
        bound, owner = self._tables.bound, self._tables.realm.caller
        if bound is None or bound.get(view.resource_id.id) == digest or (owner and view.editor == owner):
            return
        raise PreconditionFailed(
            f"{name} was replaced, or was changed by {view.editor!r}, since {owner!r} applied the pipeline. The pipeline reads it "
            "with the rights of its owner: the owner has to review the view and apply the pipeline again",
            key="pipeline.input.changed",
        )

    def _full(self, name: TableName, catalog: str, searched: Sequence[tuple[str, ...]]) -> TableName:
        """What a name in a view means: a name without a namespace is looked up along the search path of the view."""
        candidates = [TableName(path, name.name) for path in ([name.namespace] if name.namespace else searched)]
        if catalog.casefold() != self._tables.catalog.casefold():
            candidates = [TableName((catalog, *each.namespace), each.name) for each in candidates] + candidates
        found = next((each for each in candidates if self._tables.exists(each)), candidates[0])
        is_own = len(found.namespace) > 1 and found.namespace[0].casefold() == self._tables.catalog.casefold()
        return TableName(found.namespace[1:], found.name) if is_own else found


def _spark_text(view: v1.View, space: Sequence[str], catalog: str) -> str:
    """The SQL of a view for Spark; translated from that of DuckDB, if it has no other."""
    texts = {each.dialect: each.sql for each in view.sql_definitions}
    if SPARK in texts:
        return texts[SPARK]
    if DUCKDB not in texts:
        raise Unsupported(
            f"view {view.display_name} has no SQL for Spark or DuckDB, only for {', '.join(texts) or 'no dialect'}: add it",
            key="pipeline.input.view",
        )
    return spark_sql(texts[DUCKDB], namespace=space, catalogs=[catalog])


def _digest(view: v1.View) -> str:
    """A digest of what decides what a view reads and shows."""
    parts = v1.View(
        sql_definitions=view.sql_definitions,
        creation_search_path=view.creation_search_path,
        output_columns=view.output_columns,
    )
    return sha256(parts.SerializeToString(deterministic=True)).hexdigest()


def _subquery(node: exp.Table, query: exp.Query, view: v1.View) -> exp.Subquery:
    """The query of a view in the place of its name. Its columns have the names that the view has stored for them."""
    table = other_table(node, node.this)
    alias = table.args["alias"].copy()
    columns = [each.name for each in view.output_columns]
    if not alias.columns and not query.is_star and len(columns) == len(query.selects):
        alias.set("columns", [exp.to_identifier(each, quoted=True) for each in columns])
    others = {key: value for key, value in table.args.items() if key not in ("this", "db", "alias")}
    return exp.Subquery(this=query, alias=alias, **others)
