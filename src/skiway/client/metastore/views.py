"""Views: SQL in one or more dialects, and the names of the relations it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skiway.client.metastore.area import Area
from skiway.client.metastore.changes import KEEP, Keep, filled, masked, precondition
from skiway.client.metastore.listing import Listing, Turn
from skiway.client.metastore.names import Name
from skiway.client.metastore.places import Place
from skiway.client.metastore.references import Ref, name_ref, namespace_id, view_id
from skiway.client.metastore.relations import home_of, moved
from skiway.client.metastore.resources import Meta, View
from skiway.errors import NotFound
from skiway.model import v1

__all__ = ["Views"]

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
