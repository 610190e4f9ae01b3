"""The directory: names to ids and back, one at a time or in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from skiway.client.metastore.collection import Area, Listing, listing_of
from skiway.client.metastore.names import (
    Id,
    Name,
    Ref,
    catalog_id,
    dotted,
    name_ref,
    namespace_id,
    table_id,
    view_id,
)
from skiway.model import v1

__all__ = ["Directory", "Entry"]


@dataclass(frozen=True, slots=True)
class Entry:
    """The id and the full name of a table or view."""

    id: Id
    path: tuple[str, ...]

    @classmethod
    def of(cls, entry: v1.DirectoryEntry) -> Entry:
        """Convert the message."""
        name = entry.name
        return cls(Id(entry.resource_id.id), (name.catalog, *name.path, name.name))

    def __str__(self) -> str:
        return dotted(self.path)


class Directory(Area):
    """`lake.directory`. `resolve_…` raise `NotFound`; the other methods return None or omit what does not exist."""

    def resolve_catalog(self, name: Name) -> Id:
        """Return the id of a catalog by its name."""
        return Id(catalog_id(self._calls, name).id)

    def resolve_namespace(self, name: Name) -> Id:
        """Return the id of a namespace by its name."""
        return Id(namespace_id(self._calls, name).id)

    def resolve_table(self, name: Name) -> Id:
        """Return the id of a table by its name."""
        return Id(table_id(self._calls, name).id)

    def resolve_view(self, name: Name) -> Id:
        """Return the id of a view by its name."""
        return Id(view_id(self._calls, name).id)

    def find_table(self, name: Name) -> Id | None:
        """Return the id of a table by its name, or None if there is none; takes one call."""
        request = v1.LookupTableByRefRequest(ref=name_ref(name, resource="table"))
        response = self._calls.call(request, v1.LookupTableByRefResponse)
        return Id(response.resource_id.id) if response.HasField("resource_id") else None

    def catalog_path(self, catalog: Ref) -> tuple[str, ...] | None:
        """Return the full name of a catalog as segments, or None if there is none."""
        request = v1.LookupCatalogRequest(resource_id=catalog_id(self._calls, catalog))
        name = self._calls.call(request, v1.LookupCatalogResponse).display_name
        return (name,) if name else None

    def namespace_path(self, namespace: Ref) -> tuple[str, ...] | None:
        """Return the full name of a namespace as segments, or None if there is none."""
        request = v1.LookupNamespaceRequest(resource_id=namespace_id(self._calls, namespace))
        return _path(self._calls.call(request, v1.LookupNamespaceResponse).ref)

    def table_path(self, table: Ref) -> tuple[str, ...] | None:
        """Return the full name of a table as segments, or None if there is none."""
        request = v1.LookupTableRequest(resource_id=table_id(self._calls, table))
        return _path(self._calls.call(request, v1.LookupTableResponse).ref)

    def view_path(self, view: Ref) -> tuple[str, ...] | None:
        """Return the full name of a view as segments, or None if there is none."""
        request = v1.LookupViewRequest(resource_id=view_id(self._calls, view))
        return _path(self._calls.call(request, v1.LookupViewResponse).ref)

    def tables(self, names: Iterable[Name]) -> list[Entry]:
        """Return the tables with these names that exist, in this order; takes one call."""
        refs = v1.NameRefs(names=[name_ref(name, resource="table") for name in names])
        response = self._calls.call(v1.ResolveFQTablesRequest(names=refs), v1.ResolveFQTablesResponse)
        return [Entry.of(entry) for entry in response.tables]

    def views(self, names: Iterable[Name]) -> list[Entry]:
        """Return the views with these names that exist, in this order; takes one call."""
        refs = v1.NameRefs(names=[name_ref(name, resource="view") for name in names])
        response = self._calls.call(v1.ResolveFQViewsRequest(names=refs), v1.ResolveFQViewsResponse)
        return [Entry.of(entry) for entry in response.views]

    def tables_in(self, namespace: Name, *, page_size: int | None = None) -> Listing[Entry]:
        """List the ids and full names of all tables of a namespace."""
        return self._list("tables", namespace, page_size)

    def views_in(self, namespace: Name, *, page_size: int | None = None) -> Listing[Entry]:
        """List the ids and full names of all views of a namespace."""
        return self._list("views", namespace, page_size)

    def _list(self, kind: str, namespace: Name, page_size: int | None) -> Listing[Entry]:
        prefix = name_ref(namespace, resource="namespace")

        def start() -> tuple[Mapping[str, Any], Callable[[Any], Entry]]:
            return {"prefix": prefix}, Entry.of

        return listing_of(self._calls, f"ResolveFQ{kind.title()}", kind, start, page_size)


def _path(ref: v1.NameRef) -> tuple[str, ...] | None:
    return (ref.catalog, *ref.path, ref.name) if ref.catalog else None
