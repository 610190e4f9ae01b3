"""The tables and views that a pipeline reads, and the tables that it writes, with the rights of its owner."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final, Protocol, cast

import pyarrow as pa
from sqlglot import exp

from skiway.errors import NotFound, PermissionDenied, PreconditionFailed, SkiwayError, Unsupported
from skiway.formats import Filter, Snapshot, TableHandle, TableName, data_files
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.managed.states import ManagedTable, load
from skiway.metastore.pipelines.lineage import InputState
from skiway.metastore.pipelines.projects import DerivedTable, Project, key_of
from skiway.metastore.pipelines.python_files import PythonFunction
from skiway.metastore.pipelines.spark_sql import Query, other_table, parse_query
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.records.access import AccessDecision, grantees_of
from skiway.metastore.records.branches import branch_of
from skiway.metastore.records.names import BRANCH_MARK
from skiway.metastore.records.policies import CallerPolicies, Subject
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import copied
from skiway.metastore.resources import catalogs, hierarchy, namespaces, snapshots, tables, views
from skiway.metastore.resources.view_dialects import DUCKDB, SPARK, spark_sql
from skiway.metastore.statistics.file_table import DIGEST
from skiway.model import v1
from skiway.security import Roles

CurrentRoles = Callable[[str, str], frozenset[str] | None]
"""The roles that a user has now, by the id of the account and the name; None for one who has no access any more."""


def current_owner(realm: Realm, pipeline: v1.Pipeline, current_roles: CurrentRoles | None) -> v1.PipelineOwner:
    """The owner of a pipeline, with its roles of now if they are known. Raise if it has lost its access."""
    owner, name = copied(pipeline.owner), pipeline.display_name
    if not owner.subject:
        raise PreconditionFailed(f"pipeline {name} has no owner: apply its files again", key="pipeline.owner.missing")
    if current_roles is not None:
        roles = current_roles(realm.account_id, owner.subject)
        if roles is None:
            raise PreconditionFailed(
                f"the owner of pipeline {name}, {owner.subject}, has no valid token any more, so it runs no longer: "
                "let another user apply its files",
                key="pipeline.owner.revoked",
            )
        owner.roles[:] = sorted(roles)
    return owner


def owner_realm(realm: Realm, owner: v1.PipelineOwner) -> Realm:
    """The realm of an account, as the owner sees it."""
    permissions = Roles().permissions(owner.roles)
    claims = json.loads(owner.claims_json or "{}")
    subject = Subject(owner.subject, frozenset(owner.roles), frozenset(owner.groups), claims)
    policies = CallerPolicies(lambda: realm.stores, realm.account_id, subject)
    access = AccessDecision(
        lambda: realm.stores,
        realm.account_id,
        allows=permissions.__contains__,
        grantees=grantees_of(owner.subject, sorted(owner.roles)),
        policies=policies,
    )
    return replace(realm, access=access, policies=policies, caller=owner.subject, administers=False)


WHOLE_TABLES = "a pipeline reads whole tables, and its results would show the rest"


class RowPart(Protocol):
    """Reads rows in a task."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows."""


@dataclass(frozen=True, slots=True)
class RowParts:
    """Rows that several tasks read."""

    schema: pa.Schema
    parts: Sequence[RowPart]


@dataclass(frozen=True, slots=True)
class Input:
    """A table that a query or function reads: its state, the data files that are read, and its full name with its catalog.

    If only some columns are read, `selected` has their names. Rows for which `where` is not true may be left out.
    """

    handle: TableHandle
    snapshot: Snapshot | None
    files: pa.Table | None
    state: InputState
    path: tuple[str, ...] = ()
    selected: tuple[str, ...] | None = None
    where: Filter | None = None
    is_numbered: bool = False
    """Whether the rows also have the numbers of their files."""
    rows: pa.Table | RowParts | None = None
    """The rows, if they are not in files of a snapshot."""

    @classmethod
    def of_rows(cls, rows: pa.Table | RowParts) -> Input:
        """An input whose rows are given."""
        return cls(cast("TableHandle", None), None, None, InputState("", 0, ""), rows=rows)

    @property
    def is_empty(self) -> bool:
        """Whether there is no file to read."""
        return self.files is None or not self.files.num_rows

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table."""
        if self.rows is not None:
            return self.rows.schema
        return self.handle.schema.arrow if self.snapshot is None else self.handle.schema_at(self.snapshot).arrow

    def changed_since(self, before: InputState) -> tuple[Input, Input] | None:
        """The input with only the files that it has now, and with only those that it had in an earlier state; None if that is not known.

        A file whose rows were partly deleted since is in both. Files of Iceberg tables never change. In other formats they can, so those
        tables are read again as a whole.
        """
        if before.table != self.state.table or before.columns != self.state.columns:
            return None
        if not isinstance(self.handle, IcebergTable):
            return None
        if not before.snapshot:
            return self, replace(self, snapshot=None, files=None)
        earlier = next((snapshot for snapshot in self.handle.snapshots() if snapshot.id == before.snapshot), None)
        if earlier is None or self.snapshot is None:
            return None
        now, then = self.handle.files(self.snapshot), self.handle.files(earlier)
        added, removed = _without(now, then), _without(then, now)
        return replace(self, files=added), replace(self, snapshot=earlier, files=removed)


def _without(files: pa.Table, others: pa.Table) -> pa.Table:
    """The data files that the others do not have with the same deletes."""
    known = set(_states(others))
    return data_files(files).filter(pa.array([state not in known for state in _states(files)], pa.bool_()))


def _states(files: pa.Table) -> list[tuple[object, ...]]:
    """What tells a data file from others, and from itself with other deletes."""
    names = dict(zip(files["ordinal"].to_pylist(), files["path"].to_pylist(), strict=True))
    columns = (data_files(files)[name].to_pylist() for name in ("path", "deleted_rows", "deletes"))
    return [
        (path, rows, *(names[each] for each in deletes or ())) for path, rows, deletes in zip(*columns, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class LakeNames:
    """What names mean in a pipeline in `catalog`. `realm` has the rights of its owner.

    `bound` has the digests of the views that the owner has seen, by id; None if any view may be read. If `realm` is that of a branch
    of the catalog, other catalogs are read `elsewhere`.
    """

    realm: Realm
    catalog: str
    bound: Mapping[str, str] | None = field(default=None, kw_only=True)
    elsewhere: Realm | None = field(default=None, kw_only=True)

    def realm_of(self, catalog_id: str) -> Realm:
        """The realm in which the contents of a catalog are read."""
        branch = branch_of(self.realm.stores)
        is_on_it = branch is None or branch.branch.catalog_id.id == catalog_id
        return self.realm if is_on_it or self.elsewhere is None else self.elsewhere

    def view(self, name: TableName) -> v1.View | None:
        """The view with this name, which the owner may read completely; None if there is none."""
        for catalog, space in self._places(name):
            realm = self.realm_of(catalog.resource_id.id)
            found = views.find_any_case(realm, catalog, space.resource_id.id, name.name)
            if found is not None and tables.find_any_case(realm, catalog, space.resource_id.id, name.name) is None:
                realm.require("view.read", found)
                realm.require_unrestricted(found, why=WHOLE_TABLES)
                return found
        return None

    def exists(self, name: TableName) -> bool:
        """Whether the owner sees a table or view with this name."""
        return self._find(self._places(name), name) is not None or self.view(name) is not None

    def _namespaces(self, catalog_name: str, path: Sequence[str]) -> Iterator[tuple[v1.Catalog, v1.Namespace]]:
        """The namespace at a path that the owner sees, if there is one, with its catalog."""
        catalog = catalogs.find(self.realm, catalog_name) if path else None
        if catalog is not None:
            space = namespaces.find_any_case(self.realm_of(catalog.value.resource_id.id), catalog.value, path)
            if space is not None:
                yield catalog.value, space

    def _places(self, name: TableName) -> Iterator[tuple[v1.Catalog, v1.Namespace]]:
        """Where a name can mean a table: in the catalog of the pipeline, and then in the catalog that it begins with."""
        yield from self._namespaces(self.catalog, name.namespace)
        yield from self._namespaces(name.namespace[0], name.namespace[1:])

    def _find(self, places: Iterable[tuple[v1.Catalog, v1.Namespace]], name: TableName) -> v1.Table | None:
        tables_there = (self._table(catalog, space, name.name) for catalog, space in places)
        return next((table for table in tables_there if table is not None), None)

    def _table(self, catalog: v1.Catalog, space: v1.Namespace, name: str) -> v1.Table | None:
        try:
            return tables.find_any_case(self.realm_of(catalog.resource_id.id), catalog, space.resource_id.id, name)
        except PermissionDenied:
            return None


@dataclass(frozen=True, slots=True)
class LakeTables(LakeNames):
    """The tables of an account, as the owner of a pipeline sees them.

    `opening` is a realm that may open the sources of connectors. `allows_python` says whether the operator allows Python functions.
    """

    reconciler: Reconciler
    opening: Realm
    allows_python: bool = False
    is_own_branch: bool = False
    """Whether the run is on a branch of its own, whose tables are soon those of main."""

    def shown(self, read: Input) -> str:
        """The full name of an input in events of lineage."""
        catalog, *others = read.path
        return ".".join((catalog.rpartition(BRANCH_MARK)[0] if self.is_own_branch else catalog, *others))

    @property
    def warehouse(self) -> Warehouse:
        """The warehouse of managed tables."""
        if self.reconciler.warehouse is None:
            raise Unsupported("this server has no warehouse, so it has no tables to derive", key="warehouse.missing")
        return self.reconciler.warehouse

    def input(self, name: TableName, *, reader: TableName, opened: ExitStack) -> Input:
        """The current state of a table that `reader` reads. Raise if the owner may not read it completely.

        The table can be read until `opened` is closed.
        """
        table = self._readable(name, reader)
        if table.metadata_location:
            return replace(self._managed(table), path=self._path(table))
        state = self._mirrored_state(table, name, reader)
        handle, snapshot = opened.enter_context(self.reconciler.opened(self.opening, table, state.snapshot))
        return Input(handle, snapshot, data_files(handle.files(snapshot)), state, self._path(table))

    def state(self, name: TableName, *, reader: TableName) -> InputState:
        """The current state of a table that `reader` reads, without opening its source."""
        table = self._readable(name, reader)
        return self._managed(table).state if table.metadata_location else self._mirrored_state(table, name, reader)

    def output(self, name: TableName) -> ManagedTable | None:
        """The derived table with this name; None if it does not exist yet. Raise if the owner may not write it."""
        table = self._find(self._namespaces(self.catalog, name.namespace), name)
        if table is None:
            return None
        self.realm.require("table.write", table)
        return load(self.realm, self.warehouse, table.resource_id)

    def namespace(self, path: Sequence[str], *, of: TableName) -> v1.Namespace:
        """The namespace that a new table is created in."""
        for _, space in self._namespaces(self.catalog, path):
            return space
        raise NotFound(
            f"table {of} cannot be created: catalog {self.catalog} has no namespace {'.'.join(path)} that {self._owner} may "
            "see; create it first",
            key="pipeline.namespace.missing",
        )

    def require_python(self, table: TableName) -> None:
        """Raise if the code of a Python function, which makes `table`, may not run."""
        if not self.allows_python:
            raise Unsupported(
                f"table {table} is made by a Python function, and this server runs none: its operator can allow them with the "
                "setting pipelines.python.enabled=true",
                key="pipeline.python.disabled",
            )
        if self.realm.policies is not None and self.realm.policies.restrict_anything:
            raise PermissionDenied(
                f"a policy restricts what {self._owner} sees, and Python functions of such owners do not run: write the query "
                f"of table {table} in a .sql file, or let another user apply the pipeline",
                key="pipeline.python.policies",
            )

    def _path(self, table: v1.Table) -> tuple[str, ...]:
        """The names of the catalog, the namespaces and the table."""
        realm = self.realm_of(table.catalog_id.id)
        space = hierarchy.namespace(realm, table.namespace_id).value
        catalog = hierarchy.catalog(realm, table.catalog_id).value.display_name
        branch = branch_of(realm.stores)
        if branch is not None:
            catalog = f"{catalog}{BRANCH_MARK}{branch.branch.display_name}"
        return catalog, *hierarchy.full_path(space), table.display_name

    @property
    def _owner(self) -> str:
        return f"the owner of the pipeline, {self.realm.caller or 'the server'},"

    def _readable(self, name: TableName, reader: TableName) -> v1.Table:
        table = self._find(self._places(name), name)
        if table is None:
            raise NotFound(
                f"table {name}, which {reader} reads, does not exist in catalog {self.catalog}, or {self._owner} may not see it",
                key="pipeline.input.missing",
                table=str(name),
            )
        realm = self.realm_of(table.catalog_id.id)
        realm.require("table.read", table)
        realm.require_unrestricted(table, why=WHOLE_TABLES)
        return table

    def _managed(self, table: v1.Table) -> Input:
        found = load(self.realm_of(table.catalog_id.id), self.warehouse, table.resource_id)
        handle = found.handle
        snapshot = handle.current()
        files = None if snapshot is None else data_files(handle.files(snapshot))
        columns = [(each.name, str(each.type), _without_doc(each)) for each in handle.schema.arrow]
        digest = sha256(repr(columns).encode()).hexdigest()[:16]
        return Input(handle, snapshot, files, InputState(found.id, 0 if snapshot is None else snapshot.id, digest))

    def _mirrored_state(self, table: v1.Table, name: TableName, reader: TableName) -> InputState:
        found = snapshots.current(self.realm_of(table.catalog_id.id), table.resource_id.id)
        if found is None:
            raise PreconditionFailed(
                f"table {name}, which {reader} reads, is a mirrored table without a snapshot: synchronise its connector first",
                key="pipeline.input.unsynchronised",
                table=str(name),
            )
        snapshot, shape = found.value, table.schema_json.encode()
        if table.upstream.format != v1.TF_ICEBERG:
            # A folder that is written anew counts its versions from the beginning.
            shape += snapshot.format_metadata.get(DIGEST, b"")
        return InputState(table.resource_id.id, snapshot.snapshot_id, sha256(shape).hexdigest()[:16])


def _without_doc(column: pa.Field) -> dict[bytes, bytes]:
    """What a column has besides name and type, without its description, which changes no rows."""
    return {key: value for key, value in (column.metadata or {}).items() if key != b"doc"}


@dataclass(frozen=True, slots=True)
class PipelineArea:
    """What pipelines need besides the metastore: what opens tables, the current roles of users, if the server knows them, and
    whether the operator allows Python functions.
    """

    reconciler: Reconciler
    current_roles: CurrentRoles | None = None
    allows_python: bool = False

    def tables(self, realm: Realm, pipeline: v1.Pipeline, catalog: str) -> LakeTables:
        """The tables of the account, as the owner of a pipeline sees them now."""
        return LakeTables(
            owner_realm(realm, current_owner(realm, pipeline, self.current_roles)),
            catalog,
            self.reconciler,
            realm,
            self.allows_python,
            bound=pipeline.owner.views,
        )


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
        realm = self._tables.realm_of(view.catalog_id.id)
        space = hierarchy.full_path(hierarchy.namespace(realm, view.namespace_id).value)
        catalog = hierarchy.catalog(realm, view.catalog_id).value.display_name
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
            candidates = [
                TableName((catalog, *candidate.namespace), candidate.name) for candidate in candidates
            ] + candidates
        found = next((candidate for candidate in candidates if self._tables.exists(candidate)), candidates[0])
        is_own = len(found.namespace) > 1 and found.namespace[0].casefold() == self._tables.catalog.casefold()
        return TableName(found.namespace[1:], found.name) if is_own else found


def _spark_text(view: v1.View, space: Sequence[str], catalog: str) -> str:
    """The SQL of a view for Spark; translated from that of DuckDB, if it has no other."""
    texts = {definition.dialect: definition.sql for definition in view.sql_definitions}
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
    columns = [column.name for column in view.output_columns]
    if not alias.columns and not query.is_star and len(columns) == len(query.selects):
        alias.set("columns", [exp.to_identifier(column, quoted=True) for column in columns])
    others = {key: value for key, value in table.args.items() if key not in ("this", "db", "alias")}
    return exp.Subquery(this=query, alias=alias, **others)
