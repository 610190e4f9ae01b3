"""Names to ids and back, many at a time if wanted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skiway.client.metastore.collection import Area, Listing
from skiway.client.metastore.names import Id, Name, dotted
from skiway.client.metastore.references import Ref, catalog_id, name_ref, namespace_id, table_id, view_id
from skiway.model import v1

__all__ = ["Directory", "Entry"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A table or view under the names it, its namespaces and its catalog are stored with."""

    id: Id
    path: tuple[str, ...]

    def __str__(self) -> str:
        return dotted(self.path)


class Directory(Area):
    """`lake.directory`: `resolve_…` insist on an answer, the others answer with None or leave out."""

    def resolve_catalog(self, name: Name) -> Id:
        """The id of the catalog with a name."""
        return Id(catalog_id(self._calls, name).id)

    def resolve_namespace(self, name: Name) -> Id:
        """The id of the namespace with a name."""
        return Id(namespace_id(self._calls, name).id)

    def resolve_table(self, name: Name) -> Id:
        """The id of the table with a name."""
        return Id(table_id(self._calls, name).id)

    def resolve_view(self, name: Name) -> Id:
        """The id of the view with a name."""
        return Id(view_id(self._calls, name).id)

    def find_table(self, name: Name) -> Id | None:
        """The id of the table with a name, or None: one call."""
        request = v1.LookupTableByRefRequest(ref=name_ref(name, resource="table"))
        answer = self._calls.ask(request, v1.LookupTableByRefResponse)
        return Id(answer.resource_id.id) if answer.HasField("resource_id") else None

    def catalog_path(self, catalog: Ref) -> tuple[str, ...] | None:
        """The segments of the name of a catalog, or None."""
        request = v1.LookupCatalogRequest(resource_id=catalog_id(self._calls, catalog))
        name = self._calls.ask(request, v1.LookupCatalogResponse).display_name
        return (name,) if name else None

    def namespace_path(self, namespace: Ref) -> tuple[str, ...] | None:
        """The segments of the name of a namespace, or None."""
        request = v1.LookupNamespaceRequest(resource_id=namespace_id(self._calls, namespace))
        return _path(self._calls.ask(request, v1.LookupNamespaceResponse).ref)

    def table_path(self, table: Ref) -> tuple[str, ...] | None:
        """The segments of the name of a table, or None."""
        request = v1.LookupTableRequest(resource_id=table_id(self._calls, table))
        return _path(self._calls.ask(request, v1.LookupTableResponse).ref)

    def view_path(self, view: Ref) -> tuple[str, ...] | None:
        """The segments of the name of a view, or None."""
        request = v1.LookupViewRequest(resource_id=view_id(self._calls, view))
        return _path(self._calls.ask(request, v1.LookupViewResponse).ref)

    def tables(self, names: Iterable[Name]) -> list[Entry]:
        """Those of these tables that exist, in this order: one call."""
        refs = v1.NameRefs(names=[name_ref(name, resource="table") for name in names])
        answer = self._calls.ask(v1.ResolveFQTablesRequest(names=refs), v1.ResolveFQTablesResponse)
        return _entries(answer.tables)

    def views(self, names: Iterable[Name]) -> list[Entry]:
        """Those of these views that exist, in this order: one call."""
        refs = v1.NameRefs(names=[name_ref(name, resource="view") for name in names])
        answer = self._calls.ask(v1.ResolveFQViewsRequest(names=refs), v1.ResolveFQViewsResponse)
        return _entries(answer.views)

    def tables_in(self, namespace: Name, *, page_size: int | None = None) -> Listing[Entry]:
        """All tables of a namespace, with their ids and full names only."""
        prefix = name_ref(namespace, resource="namespace")

        def turn(page: v1.PageRequest) -> tuple[Sequence[Entry], v1.PageResponse]:
            request = v1.ResolveFQTablesRequest(prefix=prefix, page=page)
            answer = self._calls.ask(request, v1.ResolveFQTablesResponse)
            return _entries(answer.tables), answer.page

        return Listing(lambda: turn, page_size)

    def views_in(self, namespace: Name, *, page_size: int | None = None) -> Listing[Entry]:
        """All views of a namespace, with their ids and full names only."""
        prefix = name_ref(namespace, resource="namespace")

        def turn(page: v1.PageRequest) -> tuple[Sequence[Entry], v1.PageResponse]:
            request = v1.ResolveFQViewsRequest(prefix=prefix, page=page)
            answer = self._calls.ask(request, v1.ResolveFQViewsResponse)
            return _entries(answer.views), answer.page

        return Listing(lambda: turn, page_size)


def _entries(found: Iterable[v1.DirectoryEntry]) -> list[Entry]:
    return [Entry(Id(each.resource_id.id), (each.name.catalog, *each.name.path, each.name.name)) for each in found]


def _path(ref: v1.NameRef) -> tuple[str, ...] | None:
    return (ref.catalog, *ref.path, ref.name) if ref.catalog else None
