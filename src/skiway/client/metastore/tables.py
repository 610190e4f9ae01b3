"""Tables and views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from skiway.client.metastore.calls import Calls
from skiway.client.metastore.collection import KEEP, Collection, FetchPage, Json, Keep, Listing, build, schema_text
from skiway.client.metastore.jobs import Job
from skiway.client.metastore.names import Name, Ref, name_ref, namespace_id, namespace_of, table_id, view_id
from skiway.client.metastore.resources import Parents, Table, View
from skiway.client.metastore.snapshots import At, snapshot_ref
from skiway.model import v1

__all__ = ["Tables", "Views"]

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
