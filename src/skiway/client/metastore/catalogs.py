"""Accounts, catalogs and their branches, namespaces, and the tables and views in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict, Unpack

from google.protobuf.message import Message

from skiway.client.metastore.calls import (
    Calls,
    HasMessage,
    Id,
    Name,
    Ref,
    account_id,
    catalog_id,
    name_ref,
    namespace_id,
    namespace_of,
    segments,
)
from skiway.client.metastore.collection import Area, Collection, FetchPage, Json, Listing, build, schema_text
from skiway.client.metastore.jobs import Job
from skiway.client.metastore.resources import Account, Attribute, Catalog, Meta, Namespace, Table, View, enum_name
from skiway.client.metastore.snapshots import At, snapshot_ref
from skiway.foundation.resources import ACCOUNT, CATALOG, NAMESPACE, TABLE, VIEW
from skiway.model import v1


class AccountFields(TypedDict, total=False):
    """What people set. `quotas`, such as `{"caller.scans": 4}`, lower those of the server."""

    description: str | None
    tags: Mapping[str, str] | None
    quotas: Mapping[str, float] | None


class AccountChanges(AccountFields, total=False):
    """What can be changed."""

    name: str


class Accounts(Collection[Account]):
    """`lake.accounts`, identified by id. The platform administrator sees all accounts, other callers their own."""

    __slots__ = ()
    _kind, _record = ACCOUNT, Account

    def __call__(self, *, page_size: int | None = None) -> Listing[Account]:
        """List the accounts by name."""
        return self._list(page_size)

    def create(
        self,
        name: str,
        *,
        id: str | None = None,  # noqa: A002 - an id
        idempotency_key: str | None = None,
        **fields: Unpack[AccountFields],
    ) -> Account:
        """Create an account. `id` sets an id that other systems know; by default it is random."""
        own_id = None if id is None else v1.ResourceId(id=id, kind=v1.RK_ACCOUNT)
        return self._create({"name": name, **fields}, idempotency_key, account_id=own_id)

    def update(
        self, ref: Ref, *, if_version: int | None = None, if_etag: str | None = None, **changes: Unpack[AccountChanges]
    ) -> Account:
        """Change the given values; None clears a value."""
        return self._change(ref, changes, if_version, if_etag)

    def _key(self, ref: Ref) -> dict[str, Any]:
        return {"account_id": account_id(ref)}


class ContainerFields(TypedDict, total=False):
    """What people set for catalogs and namespaces."""

    description: str | None
    policy_ref: str | None
    properties: Mapping[str, str] | None


class CatalogFields(ContainerFields, total=False):
    """What people set for catalogs."""

    connector_ref: str | None
    protected: bool | None
    mergers: Sequence[str] | None
    required_rules: Sequence[str] | None


class CatalogChanges(CatalogFields, total=False):
    """What can be changed."""

    name: str


class Catalogs(Collection[Catalog]):
    """`lake.catalogs`, named by one segment, such as `lake`."""

    __slots__ = ()
    _kind, _record = CATALOG, Catalog

    def __call__(self, *, page_size: int | None = None) -> Listing[Catalog]:
        """List the catalogs of the caller's account by name."""
        return self._list(page_size)

    def create(self, name: Name, *, idempotency_key: str | None = None, **fields: Unpack[CatalogFields]) -> Catalog:
        """Create an empty catalog."""
        return self._create({"name": name_ref(name, resource="catalog").catalog, **fields}, idempotency_key)

    def update(
        self, ref: Ref, *, if_version: int | None = None, if_etag: str | None = None, **changes: Unpack[CatalogChanges]
    ) -> Catalog:
        """Change the given values; None clears a value."""
        return self._change(ref, changes, if_version, if_etag)

    def delete(
        self, ref: Ref, *, cascade: bool = False, if_version: int | None = None, if_etag: str | None = None
    ) -> Meta:
        """Delete a catalog, with `cascade` including its contents; return its last stored version."""
        return self._delete({**self._key(ref), "require_empty": not cascade}, if_version, if_etag)


class NamespaceChanges(ContainerFields, total=False):
    """What can be changed. `name` is the new last segment of the path."""

    name: str


class Namespaces(Collection[Namespace]):
    """`lake.namespaces`, named by catalog and path, such as `lake.sales.eu`."""

    __slots__ = ()
    _kind, _record = NAMESPACE, Namespace

    def __call__(
        self, parent: Ref, *, recursive: bool = False, prefix: str = "", page_size: int | None = None
    ) -> Listing[Namespace]:
        """List the namespaces directly below a catalog or namespace, or all below it, by path.

        An `Id` is that of a catalog. `prefix` filters by the dotted path below the parent.
        """
        path = (
            () if isinstance(parent, Id | Message | HasMessage) else segments(parent, resource="catalog or namespace")
        )

        def fields() -> dict[str, Any]:
            options = {"path": path[1:], "recursive": recursive, "name_prefix": prefix}
            if path or isinstance(parent, Id):
                return {**options, "catalog_id": catalog_id(self._calls, path[:1] or parent)}
            own_id = namespace_id(self._calls, parent)
            return {**options, "catalog_id" if own_id.kind == v1.RK_CATALOG else "namespace_id": own_id}

        return self._list(page_size, fields)

    def create(self, name: Name, *, idempotency_key: str | None = None, **fields: Unpack[ContainerFields]) -> Namespace:
        """Create a namespace, including missing parents."""
        ref = name_ref(name, resource="namespace")
        place = {"catalog_id": catalog_id(self._calls, (ref.catalog,)), "path": ref.path, "display_name": ref.name}
        return self._create({**place, **fields}, idempotency_key)

    def update(
        self,
        ref: Ref,
        *,
        path: Name | None = None,
        if_version: int | None = None,
        if_etag: str | None = None,
        **changes: Unpack[NamespaceChanges],
    ) -> Namespace:
        """Change the given values; None clears a value. A new `path`, such as `lake.archive.eu`, moves the namespace."""
        place: dict[str, Any] = {}
        if path is not None:
            target = name_ref(path, resource="namespace")
            place = {"catalog_id": catalog_id(self._calls, (target.catalog,)), "path": [*target.path, target.name]}
        return self._change(ref, {**changes, **place}, if_version, if_etag)

    def delete(
        self, ref: Ref, *, cascade: bool = False, if_version: int | None = None, if_etag: str | None = None
    ) -> Meta:
        """Delete a namespace, with `cascade` including its contents; return its last stored version."""
        return self._delete({**self._key(ref), "require_empty": not cascade}, if_version, if_etag)


class TableFields(TypedDict, total=False):
    """What people set, besides the schema."""

    description: str | None
    upstream: v1.UpstreamRef | None
    properties: Mapping[str, str] | None


class TableChanges(TableFields, total=False):
    """What can be changed. `name` is the table's new own name; `namespace` moves it."""

    name: str
    namespace: Ref
    schema: Json


class Tables(Collection[Table]):
    """`lake.tables`, named by catalog, namespaces and table, such as `lake.sales.people`."""

    __slots__ = ()
    _kind, _record = TABLE, Table

    def __call__(self, namespace: Ref, *, page_size: int | None = None) -> Listing[Table]:
        """List the tables of a namespace by name."""
        return self._list(page_size, lambda: {"namespace_id": namespace_id(self._calls, namespace)})

    def with_sizes(self, namespace: Ref, *, page_size: int | None = None) -> Listing[tuple[Table, v1.TableSize | None]]:
        """List the tables of a namespace by name, each with its size; None if that is unknown, or hidden by policies."""

        def start_iteration() -> FetchPage[tuple[Table, v1.TableSize | None]]:
            reader, key = self._reader(), namespace_id(self._calls, namespace)

            def fetch(page: v1.PageRequest) -> tuple[Sequence[tuple[Table, v1.TableSize | None]], v1.PageResponse]:
                response = self._calls.rpc("ListTables", namespace_id=key, page=page, with_sizes=True)
                sizes = {size.table_id.id: size for size in response.sizes}
                return [(reader(table), sizes.get(table.resource_id.id)) for table in response.tables], response.page

            return fetch

        return Listing(start_iteration, page_size)

    def get(self, ref: Ref, *, at: At = None) -> Table:
        """Return the table, with its schema `at` a snapshot or time; raise `NotFound` if there is none."""
        return self._get({**self._key(ref), "snapshot": None if at is None else snapshot_ref(at)})

    def create(
        self,
        name: Name,
        *,
        schema: Json,
        namespace: Ref | None = None,
        idempotency_key: str | None = None,
        **fields: Unpack[TableFields],
    ) -> Table:
        """Create a table without snapshots. With a `namespace`, `name` is the table's own name in it.

        In a managed catalog, a table with columns and without an `upstream` is a managed table: clients can write to it.
        """
        new_name = _new_name(name, namespace, resource="table")
        return self._create({**new_name, "schema": schema, **fields}, idempotency_key)

    def update(
        self, ref: Ref, *, if_version: int | None = None, if_etag: str | None = None, **changes: Unpack[TableChanges]
    ) -> Table:
        """Change the given values; None clears a value. Properties are replaced as a whole."""
        return self._change(ref, changes, if_version, if_etag)

    def profile(self, ref: Ref, *, full_rescan: bool = False) -> Job:
        """Start a job that computes statistics of a managed table's current snapshot; return it, or the running one.

        Tables of a connector are profiled when the connector is synced.
        """
        return Job.started(self._calls, v1.TriggerReconcileRequest(**self._key(ref), full_rescan=full_rescan))

    def _spec(self, given: Mapping[str, Any]) -> dict[str, Any]:
        spec = _with_place(self._calls, super()._spec(given))
        if "schema" in spec:
            spec["schema_json"] = schema_text(spec.pop("schema"))
        return spec


Sql = str | Mapping[str, str]
"""SQL by dialect; a string is SQL for DuckDB."""
Rights = Literal["invoker", "definer"]


class ViewFields(TypedDict, total=False):
    """What people set, besides the SQL. `base_relations` are the tables and views that a view reads.

    With `rights="definer"`, it reads them with your rights, and not with those of its reader.
    """

    description: str | None
    base_relations: Iterable[Name]
    search_path: Sequence[str]
    output_columns: Iterable[v1.SchemaColumn]
    properties: Mapping[str, str] | None
    rights: Rights


class ViewChanges(ViewFields, total=False):
    """What can be changed. `name` is the view's new own name; `namespace` moves it."""

    name: str
    namespace: Ref
    sql: Sql


class Views(Collection[View]):
    """`lake.views`, named like tables. A table and a view cannot have the same name."""

    __slots__ = ()
    _kind, _record = VIEW, View

    def __call__(self, namespace: Ref, *, page_size: int | None = None) -> Listing[View]:
        """List the views of a namespace by name."""
        return self._list(page_size, lambda: {"namespace_id": namespace_id(self._calls, namespace)})

    def create(
        self,
        name: Name,
        *,
        sql: Sql,
        namespace: Ref | None = None,
        idempotency_key: str | None = None,
        **fields: Unpack[ViewFields],
    ) -> View:
        """Create a view. With a `namespace`, `name` is the view's own name in it.

        `sql` is SQL for DuckDB, or a mapping from dialects to SQL.
        """
        given = {"rights": "invoker", **_new_name(name, namespace, resource="view"), "sql": sql, **fields}
        return self._create(given, idempotency_key)

    def update(
        self, ref: Ref, *, if_version: int | None = None, if_etag: str | None = None, **changes: Unpack[ViewChanges]
    ) -> View:
        """Change the given values; None clears a value. Mappings and lists are replaced as a whole."""
        return self._change(ref, changes, if_version, if_etag)

    def _spec(self, given: Mapping[str, Any]) -> dict[str, Any]:
        spec = _with_place(self._calls, super()._spec(given))
        if "sql" in spec:
            sql = spec.pop("sql")
            texts = {"duckdb": sql} if isinstance(sql, str) else sql
            spec["sql_definitions"] = [build(v1.ViewSql, sql=text, dialect=dialect) for dialect, text in texts.items()]
        if "search_path" in spec:
            spec["creation_search_path"] = spec.pop("search_path")
        if "base_relations" in spec:
            spec["base_relations"] = [name_ref(name, resource="table") for name in spec["base_relations"]]
        if "rights" in spec:
            spec["rights"] = f"VR_{spec['rights'].upper()}"
        return spec


def _new_name(name: Name, namespace: Ref | None, *, resource: str) -> dict[str, Any]:
    """The name and the place of a new table or view: by a full name, or by its own name in `namespace`."""
    if namespace is not None and isinstance(name, str):
        return {"name": name, "namespace": namespace}
    ref = name_ref(name, resource=resource)
    return {"name": ref.name, "namespace": (ref.catalog, *ref.path)}


def _with_place(calls: Calls, spec: dict[str, Any]) -> dict[str, Any]:
    """The spec of a table or view, with the ids of its namespace and catalog."""
    if "namespace" not in spec:
        return spec
    namespace = namespace_of(calls, spec.pop("namespace"))
    return {**spec, "catalog_id": namespace.catalog_id, "namespace_id": namespace.resource_id}


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of the lake, or a tag, which cannot be written."""

    message: v1.Branch

    name = Attribute[str]("display_name")
    """Its name without that of the catalog."""
    description = Attribute[str]()
    """A description for users."""
    owner = Attribute[str]()
    """Who created it."""
    is_tag = Attribute[bool]()
    """Whether it is a tag."""
    created_at = Attribute[datetime]()
    """When it was created."""
    merged_by = Attribute[str]()
    """Who merged it; empty if it is not merged."""
    checks = Attribute[list[v1.BranchCheck]]()
    """The results of the rules that the merge required."""
    life = Attribute[v1.BranchLife | None]()
    """How it has been used; None in lists without details, and for callers who do not see everything."""
    damage = Attribute[str]()
    """A description of damage to its record; empty if there is none."""

    @property
    def state(self) -> str:
        """`open`, `merging` or `merged`."""
        return enum_name(v1.BranchState.Name(self.message.state))


@dataclass(frozen=True, slots=True)
class BranchChange:
    """An object that a branch has changed, what happened to it on main, and what a merge does with it."""

    message: v1.BranchChange

    kind = Attribute[str]()
    """`namespace`, `table` or `view`."""
    name = Attribute[str]()
    """The name with that of the namespace."""
    action = Attribute[str]()
    """`created`, `changed`, `renamed` or `dropped`."""
    previous_name = Attribute[str]()
    """The name before it was renamed."""
    on_main = Attribute[str]()
    """What happened on main since the branch was created; empty if nothing did."""
    plan = Attribute[str]()
    """What a merge does: `publish` the state of the branch, `append` its rows, or `keep` that of main."""
    conflict = Attribute[str]()
    """Why it cannot be merged; empty if it can."""
    rows_on_main = Attribute[int | None]()
    """The rows on main; None if they are unknown, or withheld by a policy."""
    rows_on_branch = Attribute[int | None]()
    """The rows on the branch; None if they are unknown, or withheld by a policy."""
    rows_added = Attribute[int | None]()
    """The rows in the files that the branch has added."""
    rows_removed = Attribute[int | None]()
    """The rows in the files that the branch has removed."""
    snapshots = Attribute[int]()
    """How many snapshots only the branch has."""
    columns = Attribute[list[v1.BranchColumn]]()
    """The statistics of the columns on both sides, if they were asked for."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A merge, or the plan of one: the branch, and what it has changed."""

    branch: Branch
    changes: tuple[BranchChange, ...]
    checks: tuple[v1.BranchCheck, ...] = ()
    """The results of the rules that the catalog requires."""

    @property
    def conflicts(self) -> list[str]:
        """Why changes cannot be merged."""
        return [each.conflict for each in self.changes if each.conflict]


class Branches(Area):
    """`lake.branches`: names are those of a catalog and a branch of it, such as `lake@dev`."""

    def __call__(self, catalog: str = "", *, details: bool = False) -> list[Branch]:
        """Return the branches and tags of a catalog, or of all catalogs, by name; with `details`, how they have been used."""
        return list(map(Branch, self._calls.rpc("ListBranches", catalog=catalog, details=details).branches))

    def get(self, name: str) -> Branch:
        """Return a branch."""
        return Branch(self._calls.rpc("GetBranch", name=name).branch)

    def create(self, name: str, *, description: str = "", is_tag: bool = False) -> Branch:
        """Create a branch of a catalog as it is now, or a tag."""
        return Branch(self._calls.rpc("CreateBranch", name=name, description=description, is_tag=is_tag).branch)

    def delete(self, name: str) -> Branch:
        """Delete a branch, and what only it has."""
        return Branch(self._calls.rpc("DeleteBranch", name=name).branch)

    def diff(self, name: str, *, statistics: bool = False) -> list[BranchChange]:
        """Return what a branch has changed; with `statistics`, also those of the columns of changed tables. No rows are read."""
        return list(map(BranchChange, self._calls.rpc("DiffBranch", name=name, statistics=statistics).changes))

    def merge(
        self,
        name: str,
        *,
        dry_run: bool = False,
        ours: Sequence[str] = (),
        theirs: Sequence[str] = (),
        rules: Sequence[str] = (),
    ) -> Merged:
        """Publish all changes of a branch on main at once, or none.

        Objects in conflict that are named in `ours` stay as they are on main, those in `theirs` become as on the branch.
        `rules` are quality rules that must pass on the branch, besides those that the catalog requires; `*` stands for all.
        """
        given: dict[str, Any] = {"ours": ours, "theirs": theirs, "required_rules": rules}
        done = self._calls.rpc("MergeBranch", name=name, dry_run=dry_run, **given)
        return Merged(Branch(done.branch), tuple(map(BranchChange, done.changes)), tuple(done.checks))
