"""Where a new or moved table or view goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skiway.client.metastore.calls import Calls
from skiway.client.metastore.collection import (
    KEEP,
    Area,
    Json,
    Keep,
    Listing,
    Turn,
    filled,
    masked,
    precondition,
    schema_text,
)
from skiway.client.metastore.jobs import Job
from skiway.client.metastore.names import Name
from skiway.client.metastore.references import Ref, name_ref, namespace_id, namespace_of, table_id, view_id
from skiway.client.metastore.resources import Meta, Place, Table, View
from skiway.client.metastore.snapshots import At, snapshot_ref
from skiway.errors import NotFound
from skiway.model import v1

__all__ = ["Home", "Tables", "Views", "home_of", "moved"]


@dataclass(frozen=True, slots=True)
class Home:
    """A name in a namespace in a catalog."""

    name: str
    catalog_id: v1.ResourceId
    namespace_id: v1.ResourceId


def home_of(calls: Calls, name: Name, namespace: Ref | None, *, resource: str) -> Home:
    """Where `name` is: a whole name by itself, or a plain one in `namespace`."""
    if namespace is not None and isinstance(name, str):
        plain, place = name, namespace
    else:
        ref = name_ref(name, resource=resource)
        plain, place = ref.name, (ref.catalog, *ref.path)
    found = namespace_of(calls, place)
    return Home(plain, found.catalog_id, found.resource_id)


def moved(calls: Calls, namespace: Ref | Keep) -> dict[str, Any]:
    """The fields that say the new namespace of a table or view; none for one that stays."""
    if isinstance(namespace, Keep):
        return {}
    found = namespace_of(calls, namespace)
    return {"catalog_id": found.catalog_id, "namespace_id": found.resource_id}


# --------------------
# Tables: a name, a schema, and where the data comes from.


class Tables(Area):
    """`lake.tables`: named by catalog, namespaces and table, such as `lake.sales.people`."""

    def __call__(self, namespace: Ref, *, page_size: int | None = None) -> Listing[Table]:
        """The tables of a namespace, by name."""

        def open_() -> Turn[Table]:
            return self._turn(namespace_id(self._calls, namespace))

        return Listing(open_, page_size)

    def get(self, table: Ref, *, at: At = None) -> Table:
        """The table, with the schema it had `at` a snapshot id or a time; `NotFound` if there is none."""
        request = v1.GetTableRequest(
            table_id=table_id(self._calls, table), snapshot=None if at is None else snapshot_ref(at)
        )
        answer = self._calls.ask(request, v1.GetTableResponse)
        return self._table(answer.table, answer.meta)

    def find(self, table: Ref) -> Table | None:
        """The table, or None."""
        try:
            return self.get(table)
        except NotFound:
            return None

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
        """A new table, without snapshots. With a `namespace`, `name` is the plain name in it."""
        home = home_of(self._calls, name, namespace, resource="table")
        spec = filled(
            v1.TableSpec,
            display_name=home.name,
            catalog_id=home.catalog_id,
            namespace_id=home.namespace_id,
            schema_json=schema_text(schema),
            description=description,
            upstream=upstream,
            properties=properties,
        )
        request = v1.CreateTableRequest(spec=spec, idempotency=self._calls.key(idempotency_key))
        answer = self._calls.ask(request, v1.CreateTableResponse)
        return self._table(answer.table, answer.meta)

    def update(
        self,
        table: Ref,
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
        """The table after what is given was changed; None clears.

        `name` is the plain new name, `namespace` where it moves to. Maps are replaced as a whole.
        """
        spec, mask = masked(
            v1.TableSpec,
            display_name=name,
            description=description,
            schema_json=schema_text(schema),
            upstream=upstream,
            properties=properties,
            **moved(self._calls, namespace),
        )
        request = v1.UpdateTableRequest(
            table_id=table_id(self._calls, table),
            spec=spec,
            update_mask=mask,
            precondition=precondition(if_version, if_etag),
        )
        answer = self._calls.ask(request, v1.UpdateTableResponse)
        return self._table(answer.table, answer.meta)

    def delete(self, table: Ref, *, if_version: int | None = None, if_etag: str | None = None) -> Meta:
        """Delete a table with its snapshots and statistics; how it was stored last."""
        request = v1.DeleteTableRequest(
            table_id=table_id(self._calls, table), precondition=precondition(if_version, if_etag)
        )
        return Meta.of(self._calls.ask(request, v1.DeleteTableResponse).meta)

    def profile(self, table: Ref, *, full_rescan: bool = False) -> Job:
        """A job that makes statistics of a managed table's current snapshot; or the one that does it already.

        Tables of a connector are profiled when that is synced.
        """
        request = v1.TriggerReconcileRequest(table_id=table_id(self._calls, table), full_rescan=full_rescan)
        job_id = self._calls.ask(request, v1.TriggerReconcileResponse).job_id
        return Job(self._calls.ask(v1.GetReconcileJobRequest(job_id=job_id), v1.GetReconcileJobResponse).job)

    def _table(self, message: v1.Table, meta: v1.MutationMeta) -> Table:
        return Table(message, self._calls, meta, _place=Place(self._calls, message.namespace_id))

    def _turn(self, namespace: v1.ResourceId) -> Turn[Table]:
        place = Place(self._calls, namespace)

        def turn(page: v1.PageRequest) -> tuple[Sequence[Table], v1.PageResponse]:
            request = v1.ListTablesRequest(namespace_id=namespace, page=page)
            answer = self._calls.ask(request, v1.ListTablesResponse)
            return [Table(table, self._calls, _place=place) for table in answer.tables], answer.page

        return turn


# --------------------
# Views: SQL in one or more dialects, and the names of the relations it reads.


Sql = str | Mapping[str, str]
"""SQL by dialect; plain text is in DuckDB's."""


class Views(Area):
    """`lake.views`: named like tables, with which they share their names."""

    def __call__(self, namespace: Ref, *, page_size: int | None = None) -> Listing[View]:
        """The views of a namespace, by name."""

        def open_() -> Turn[View]:
            return self._turn(namespace_id(self._calls, namespace))

        return Listing(open_, page_size)

    def get(self, view: Ref) -> View:
        """The view; `NotFound` if there is none."""
        answer = self._calls.ask(v1.GetViewRequest(view_id=view_id(self._calls, view)), v1.GetViewResponse)
        return self._view(answer.view, answer.meta)

    def find(self, view: Ref) -> View | None:
        """The view, or None."""
        try:
            return self.get(view)
        except NotFound:
            return None

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
        idempotency_key: str | None = None,
    ) -> View:
        """A new view. With a `namespace`, `name` is the plain name in it.

        `sql` is text for DuckDB, or texts by dialect; `base_relations` are the names of what it reads.
        """
        home = home_of(self._calls, name, namespace, resource="view")
        spec = filled(
            v1.ViewSpec,
            display_name=home.name,
            catalog_id=home.catalog_id,
            namespace_id=home.namespace_id,
            sql_definitions=_definitions(sql),
            description=description,
            base_relations=_names(base_relations),
            creation_search_path=search_path,
            output_columns=output_columns,
            properties=properties,
        )
        request = v1.CreateViewRequest(spec=spec, idempotency=self._calls.key(idempotency_key))
        answer = self._calls.ask(request, v1.CreateViewResponse)
        return self._view(answer.view, answer.meta)

    def update(
        self,
        view: Ref,
        *,
        name: str | Keep = KEEP,
        namespace: Ref | Keep = KEEP,
        description: str | Keep | None = KEEP,
        sql: Sql | Keep = KEEP,
        base_relations: Iterable[Name] | Keep = KEEP,
        search_path: Sequence[str] | Keep = KEEP,
        output_columns: Iterable[v1.SchemaColumn] | Keep = KEEP,
        properties: Mapping[str, str] | Keep | None = KEEP,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> View:
        """The view after what is given was changed; None clears. Maps and lists are replaced as a whole."""
        spec, mask = masked(
            v1.ViewSpec,
            display_name=name,
            description=description,
            sql_definitions=_definitions(sql),
            base_relations=_names(base_relations),
            creation_search_path=search_path,
            output_columns=output_columns,
            properties=properties,
            **moved(self._calls, namespace),
        )
        request = v1.UpdateViewRequest(
            view_id=view_id(self._calls, view),
            spec=spec,
            update_mask=mask,
            precondition=precondition(if_version, if_etag),
        )
        answer = self._calls.ask(request, v1.UpdateViewResponse)
        return self._view(answer.view, answer.meta)

    def delete(self, view: Ref, *, if_version: int | None = None, if_etag: str | None = None) -> Meta:
        """Delete a view; how it was stored last."""
        request = v1.DeleteViewRequest(
            view_id=view_id(self._calls, view), precondition=precondition(if_version, if_etag)
        )
        return Meta.of(self._calls.ask(request, v1.DeleteViewResponse).meta)

    def _view(self, message: v1.View, meta: v1.MutationMeta) -> View:
        return View(message, self._calls, meta, _place=Place(self._calls, message.namespace_id))

    def _turn(self, namespace: v1.ResourceId) -> Turn[View]:
        place = Place(self._calls, namespace)

        def turn(page: v1.PageRequest) -> tuple[Sequence[View], v1.PageResponse]:
            request = v1.ListViewsRequest(namespace_id=namespace, page=page)
            answer = self._calls.ask(request, v1.ListViewsResponse)
            return [View(view, self._calls, _place=place) for view in answer.views], answer.page

        return turn


def _definitions(sql: Sql | Keep) -> Any:
    if isinstance(sql, Keep):
        return sql
    by_dialect = {"duckdb": sql} if isinstance(sql, str) else sql
    return [filled(v1.ViewSql, sql=text, dialect=dialect) for dialect, text in by_dialect.items()]


def _names(relations: Iterable[Name] | Keep) -> Any:
    if isinstance(relations, Keep):
        return relations
    return [name_ref(name, resource="table") for name in relations]
