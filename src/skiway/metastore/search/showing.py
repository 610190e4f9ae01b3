"""Objects as a caller sees them now: read from the store with the rights of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from skiway.metastore.records import keys
from skiway.metastore.records.kinds import CATALOG, NAMESPACE, TABLE, VIEW, Kind
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import tables
from skiway.metastore.resources.hierarchy import full_path
from skiway.metastore.search.ranking import Document
from skiway.metastore.search.reading import document_of, format_of
from skiway.metastore.statistics import size_of
from skiway.model import v1

__all__ = ["Shown"]

KINDS: Final[dict[int, tuple[Kind[Any], Callable[[str, str], str]]]] = {
    v1.RK_TABLE: (TABLE, keys.table),
    v1.RK_VIEW: (VIEW, keys.view),
    v1.RK_NAMESPACE: (NAMESPACE, keys.namespace),
    v1.RK_CATALOG: (CATALOG, keys.catalog),
}


class Shown:
    """Reads objects for one answer. Repositories hide what the caller may not see."""

    def __init__(self, realm: Realm) -> None:
        self._realm = realm
        self._paths: dict[str, tuple[str, ...] | None] = {}

    def object(self, kind: int, object_id: str) -> tuple[v1.LakeObject, Document] | None:
        """An object as answers contain it, and its texts; None if the caller does not see it, or if it does not exist."""
        found = self._read(kind, object_id)
        path = None if found is None else self._path(found)
        if found is None or path is None:
            return None
        shown = v1.LakeObject(resource_id=found.resource_id, path=path, damage=found.damage)
        shown.resource_id.kind = v1.ResourceKind.ValueType(kind)
        if isinstance(found, v1.Catalog | v1.Namespace):
            document = Document.at(kind, path, comment=found.description)
        else:
            document = document_of(found, path)
        shown.comment = found.description  # the texts have the comments of columns, too
        if isinstance(found, v1.Table):
            self._add_size(shown, found)
        return shown, document

    def with_id(self, object_id: str) -> v1.LakeObject | None:
        """The object with an id, of whatever kind."""
        found = (self.object(kind, object_id) for kind in KINDS)
        return next((each[0] for each in found if each is not None), None)

    def _add_size(self, shown: v1.LakeObject, table: v1.Table) -> None:
        shown.format = format_of(table)
        shown.problem = tables.problem_of(self._realm, table)
        size = size_of(self._realm, table)
        if size is None:
            return
        if size.damage:
            shown.damage = size.damage
        else:
            shown.row_count, shown.total_size_bytes = size.row_count, size.total_size_bytes
            shown.row_count_is_bound = size.row_count_is_bound

    def _read(self, kind: int, object_id: str) -> Any:
        """The record of an object; a damaged one has what its keys tell."""
        noun, key = KINDS[kind]
        found = self._realm.all(noun).entry(self._realm.stores.pointers.get(key(self._realm.account_id, object_id)))
        return None if found is None else found.value

    def _path(self, of: Any) -> tuple[str, ...] | None:
        match of:
            case v1.Catalog():
                return (of.display_name,)
            case v1.Namespace():
                above = self._container(v1.RK_CATALOG, of.catalog_id.id)
                return None if above is None else (*above, *full_path(of))
        above = self._container(v1.RK_NAMESPACE, of.namespace_id.id)
        return None if above is None else (*above, of.display_name)

    def _container(self, kind: int, object_id: str) -> tuple[str, ...] | None:
        if object_id not in self._paths:
            found = self._read(kind, object_id)
            self._paths[object_id] = None if found is None else self._path(found)
        return self._paths[object_id]
