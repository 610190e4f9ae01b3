"""Accounts, catalogs and namespaces, and the tables and views in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

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
    table_id,
    view_id,
)
from skiway.client.metastore.collection import KEEP, Collection, FetchPage, Json, Keep, Listing, build, schema_text
from skiway.client.metastore.jobs import Job
from skiway.client.metastore.resources import Account, Catalog, Meta, Namespace, Parents, Table, View
from skiway.client.metastore.snapshots import At, snapshot_ref
from skiway.model import v1


class Accounts(Collection[Account]):
    """`lake.accounts`, identified by id. The platform administrator sees all accounts, other callers their own."""

    __slots__ = ()
    _kind, _spec = "account", v1.AccountSpec

    def __call__(self, *, page_size: int | None = None) -> Listing[Account]:
        """List the accounts by name."""
        return self._list(dict, page_size)

    def create(
        self,
        name: str,
        *,
        id: str | None = None,  # noqa: A002 - an id
        description: str | None = None,
        tags: Mapping[str, str] | None = None,
        quotas: Mapping[str, float] | None = None,
        idempotency_key: str | None = None,
    ) -> Account:
        """Create an account. `id` sets an id that other systems know; by default it is random."""
        own_id = None if id is None else v1.ResourceId(id=id, kind=v1.RK_ACCOUNT)
        spec = {"display_name": name, "description": description, "tags": tags, "quotas": quotas}
        return self._create(spec, idempotency_key, account_id=own_id)

    def update(
        self,
        ref: Ref,
        *,
        name: str | Keep = KEEP,
        description: str | Keep | None = KEEP,
        tags: Mapping[str, str] | Keep | None = KEEP,
        quotas: Mapping[str, float] | Keep | None = KEEP,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> Account:
        """Change the given values; None clears a value. `quotas`, such as `{"caller.scans": 4}`, lower those of the server."""
        changes = {"display_name": name, "description": description, "tags": tags, "quotas": quotas}
        return self._change(ref, changes, if_version, if_etag)

    def _id(self, ref: Ref) -> v1.ResourceId:
        return account_id(ref)

    def _wrap(self, message: v1.Account, meta: v1.MutationMeta | None, parents: Parents) -> Account:
        return Account(message, self._calls, meta, parents)


class Catalogs(Collection[Catalog]):
    """`lake.catalogs`, named by one segment, such as `lake`."""

    __slots__ = ()
    _kind, _spec = "catalog", v1.CatalogSpec

    def __call__(self, *, page_size: int | None = None) -> Listing[Catalog]:
        """List the catalogs of the caller's account by name."""
        return self._list(dict, page_size)

    def create(
        self,
        name: Name,
        *,
        description: str | None = None,
        connector_ref: str | None = None,
        policy_ref: str | None = None,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Catalog:
        """Create an empty catalog."""
        spec = {
            "display_name": name_ref(name, resource="catalog").catalog,
            "description": description,
            "connector_ref": connector_ref,
            "policy_ref": policy_ref,
            "properties": properties,
        }
        return self._create(spec, idempotency_key)

    def update(
        self,
        ref: Ref,
        *,
        name: str | Keep = KEEP,
        description: str | Keep | None = KEEP,
        connector_ref: str | Keep | None = KEEP,
        policy_ref: str | Keep | None = KEEP,
        properties: Mapping[str, str] | Keep | None = KEEP,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> Catalog:
        """Change the given values; None clears a value."""
        changes = {
            "display_name": name,
            "description": description,
            "connector_ref": connector_ref,
            "policy_ref": policy_ref,
            "properties": properties,
        }
        return self._change(ref, changes, if_version, if_etag)

    def delete(
        self, ref: Ref, *, cascade: bool = False, if_version: int | None = None, if_etag: str | None = None
    ) -> Meta:
        """Delete a catalog, with `cascade` including its contents; return its last stored version."""
        return self._delete({**self._key(ref), "require_empty": not cascade}, if_version, if_etag)

    def _id(self, ref: Ref) -> v1.ResourceId:
        return catalog_id(self._calls, ref)

    def _wrap(self, message: v1.Catalog, meta: v1.MutationMeta | None, parents: Parents) -> Catalog:
        return Catalog(message, self._calls, meta, parents)


class Namespaces(Collection[Namespace]):
    """`lake.namespaces`, named by catalog and path, such as `lake.sales.eu`."""

    __slots__ = ()
    _kind, _spec = "namespace", v1.NamespaceSpec

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
            found = namespace_id(self._calls, parent)
            return {**options, "catalog_id" if found.kind == v1.RK_CATALOG else "namespace_id": found}

        return self._list(fields, page_size)

    def create(
        self,
        name: Name,
        *,
        description: str | None = None,
        policy_ref: str | None = None,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Namespace:
        """Create a namespace, including missing parents."""
        ref = name_ref(name, resource="namespace")
        spec = {
            "catalog_id": catalog_id(self._calls, (ref.catalog,)),
            "path": ref.path,
            "display_name": ref.name,
            "description": description,
            "policy_ref": policy_ref,
            "properties": properties,
        }
        return self._create(spec, idempotency_key)

    def update(
        self,
        ref: Ref,
        *,
        name: str | Keep = KEEP,
        path: Name | Keep = KEEP,
        description: str | Keep | None = KEEP,
        policy_ref: str | Keep | None = KEEP,
        properties: Mapping[str, str] | Keep | None = KEEP,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> Namespace:
        """Change the given values; None clears a value.

        `name` is the new last segment. `path` is a whole new name such as `lake.archive.eu`, and moves the namespace.
        """
        changes: dict[str, Any] = {
            "display_name": name,
            "description": description,
            "policy_ref": policy_ref,
            "properties": properties,
        }
        if not isinstance(path, Keep):
            target = name_ref(path, resource="namespace")
            changes["catalog_id"] = catalog_id(self._calls, (target.catalog,))
            changes["path"] = [*target.path, target.name]
        return self._change(ref, changes, if_version, if_etag)

    def delete(
        self, ref: Ref, *, cascade: bool = False, if_version: int | None = None, if_etag: str | None = None
    ) -> Meta:
        """Delete a namespace, with `cascade` including its contents; return its last stored version."""
        return self._delete({**self._key(ref), "require_empty": not cascade}, if_version, if_etag)

    def _id(self, ref: Ref) -> v1.ResourceId:
        return namespace_id(self._calls, ref)

    def _wrap(self, message: v1.Namespace, meta: v1.MutationMeta | None, parents: Parents) -> Namespace:
        return Namespace(message, self._calls, meta, parents)


Sql = str | Mapping[str, str]
Rights = Literal["invoker", "definer"]
"""SQL by dialect; a string is SQL for DuckDB."""


class Tables(Collection[Table]):
    """`lake.tables`, named by catalog, namespaces and table, such as `lake.sales.people`."""

    __slots__ = ()
    _kind, _spec = "table", v1.TableSpec

    def __call__(self, namespace: Ref, *, page_size: int | None = None) -> Listing[Table]:
        """List the tables of a namespace by name."""
        return self._list(lambda: {"namespace_id": namespace_id(self._calls, namespace)}, page_size)

    def with_sizes(self, namespace: Ref, *, page_size: int | None = None) -> Listing[tuple[Table, v1.TableSize | None]]:
        """List the tables of a namespace by name, each with its size; None if that is unknown, or hidden by policies."""

        def start_iteration() -> FetchPage[tuple[Table, v1.TableSize | None]]:
            parents, key = Parents(self._calls), namespace_id(self._calls, namespace)

            def fetch(page: v1.PageRequest) -> tuple[Sequence[tuple[Table, v1.TableSize | None]], v1.PageResponse]:
                response = self._calls.rpc("ListTables", namespace_id=key, page=page, with_sizes=True)
                sizes = {each.table_id.id: each for each in response.sizes}
                tables = ((self._wrap(each, None, parents), each.resource_id.id) for each in response.tables)
                return [(table, sizes.get(table_id)) for table, table_id in tables], response.page

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
        description: str | None = None,
        upstream: v1.UpstreamRef | None = None,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Table:
        """Create a table without snapshots. With a `namespace`, `name` is the table's own name in it.

        In a managed catalog, a table with columns and without an `upstream` is a managed table: clients can write to it.
        """
        spec = {
            **_new_name(self._calls, name, namespace, resource="table"),
            "schema_json": schema_text(schema),
            "description": description,
            "upstream": upstream,
            "properties": properties,
        }
        return self._create(spec, idempotency_key)

    def update(
        self,
        ref: Ref,
        *,
        name: str | Keep = KEEP,
        namespace: Ref | Keep = KEEP,
        description: str | Keep | None = KEEP,
        schema: Json | Keep = KEEP,
        upstream: v1.UpstreamRef | Keep | None = KEEP,
        properties: Mapping[str, str] | Keep | None = KEEP,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> Table:
        """Change the given values; None clears a value.

        `name` is the table's new own name; `namespace` moves it. Properties are replaced as a whole.
        """
        changes = {
            "display_name": name,
            "description": description,
            "schema_json": schema_text(schema),
            "upstream": upstream,
            "properties": properties,
            **_move(self._calls, namespace),
        }
        return self._change(ref, changes, if_version, if_etag)

    def profile(self, ref: Ref, *, full_rescan: bool = False) -> Job:
        """Start a job that computes statistics of a managed table's current snapshot; return it, or the running one.

        Tables of a connector are profiled when the connector is synced.
        """
        request = v1.TriggerReconcileRequest(table_id=self._id(ref), full_rescan=full_rescan)
        return Job.started(self._calls, request)

    def _id(self, ref: Ref) -> v1.ResourceId:
        return table_id(self._calls, ref)

    def _wrap(self, message: v1.Table, meta: v1.MutationMeta | None, parents: Parents) -> Table:
        return Table(message, self._calls, meta, parents)


class Views(Collection[View]):
    """`lake.views`, named like tables. A table and a view cannot have the same name."""

    __slots__ = ()
    _kind, _spec = "view", v1.ViewSpec

    def __call__(self, namespace: Ref, *, page_size: int | None = None) -> Listing[View]:
        """List the views of a namespace by name."""
        return self._list(lambda: {"namespace_id": namespace_id(self._calls, namespace)}, page_size)

    def create(
        self,
        name: Name,
        *,
        sql: Sql,
        namespace: Ref | None = None,
        description: str | None = None,
        base_relations: Iterable[Name] = (),
        search_path: Sequence[str] = (),
        output_columns: Iterable[v1.SchemaColumn] = (),
        properties: Mapping[str, str] | None = None,
        rights: Rights = "invoker",
        idempotency_key: str | None = None,
    ) -> View:
        """Create a view. With a `namespace`, `name` is the view's own name in it.

        `sql` is SQL for DuckDB, or a mapping from dialects to SQL; `base_relations` are the tables and views it reads. With
        `rights="definer"`, it reads them with your rights, and not with those of its reader.
        """
        spec = {
            **_new_name(self._calls, name, namespace, resource="view"),
            "sql_definitions": _definitions(sql),
            "description": description,
            "base_relations": _names(base_relations),
            "creation_search_path": search_path,
            "output_columns": output_columns,
            "properties": properties,
            "rights": _rights(rights),
        }
        return self._create(spec, idempotency_key)

    def update(
        self,
        ref: Ref,
        *,
        name: str | Keep = KEEP,
        namespace: Ref | Keep = KEEP,
        description: str | Keep | None = KEEP,
        sql: Sql | Keep = KEEP,
        base_relations: Iterable[Name] | Keep = KEEP,
        search_path: Sequence[str] | Keep = KEEP,
        output_columns: Iterable[v1.SchemaColumn] | Keep = KEEP,
        properties: Mapping[str, str] | Keep | None = KEEP,
        rights: Rights | Keep = KEEP,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> View:
        """Change the given values; None clears a value. Mappings and lists are replaced as a whole."""
        changes = {
            "display_name": name,
            "description": description,
            "sql_definitions": _definitions(sql),
            "base_relations": _names(base_relations),
            "creation_search_path": search_path,
            "output_columns": output_columns,
            "properties": properties,
            "rights": rights if isinstance(rights, Keep) else _rights(rights),
            **_move(self._calls, namespace),
        }
        return self._change(ref, changes, if_version, if_etag)

    def _id(self, ref: Ref) -> v1.ResourceId:
        return view_id(self._calls, ref)

    def _wrap(self, message: v1.View, meta: v1.MutationMeta | None, parents: Parents) -> View:
        return View(message, self._calls, meta, parents)


def _new_name(calls: Calls, name: Name, namespace: Ref | None, *, resource: str) -> dict[str, Any]:
    """The fields of a spec that name a new table or view: by a full name, or by its own name in `namespace`."""
    if namespace is not None and isinstance(name, str):
        own_name, parent = name, namespace
    else:
        ref = name_ref(name, resource=resource)
        own_name, parent = ref.name, (ref.catalog, *ref.path)
    return {"display_name": own_name, **_move(calls, parent)}


def _move(calls: Calls, namespace: Ref | Keep) -> dict[str, Any]:
    """The fields of a spec that place a table or view in a namespace; none for `KEEP`."""
    if isinstance(namespace, Keep):
        return {}
    found = namespace_of(calls, namespace)
    return {"catalog_id": found.catalog_id, "namespace_id": found.resource_id}


def _definitions(sql: Sql | Keep) -> Any:
    if isinstance(sql, Keep):
        return sql
    by_dialect = {"duckdb": sql} if isinstance(sql, str) else sql
    return [build(v1.ViewSql, sql=text, dialect=dialect) for dialect, text in by_dialect.items()]


def _rights(rights: Rights) -> str:
    return f"VR_{rights.upper()}"


def _names(relations: Iterable[Name] | Keep) -> Any:
    if isinstance(relations, Keep):
        return relations
    return [name_ref(name, resource="table") for name in relations]
