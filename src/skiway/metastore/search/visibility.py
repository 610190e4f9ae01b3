"""What a caller sees of an index: decided at each call, by the same guards that protect the records themselves.

Catalogs are not decided on here: there are few, and what an answer contains of them is read with the rights of the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from skiway.metastore.records.kinds import NAMESPACE, TABLE, VIEW
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Guard
from skiway.metastore.search.index import Area, Totals
from skiway.metastore.search.reading import Entry
from skiway.model import v1

__all__ = ["Visibility"]


class Visibility:
    """What one caller may see."""

    def __init__(self, realm: Realm) -> None:
        self._namespaces = realm.all(NAMESPACE).guard
        self._relations: Mapping[int, Guard | None] = {
            v1.RK_TABLE: realm.all(TABLE).guard,
            v1.RK_VIEW: realm.all(VIEW).guard,
        }
        self._access, self._policies = realm.access, realm.policies
        self.shows_tags = realm.access is None or realm.access.everywhere("policy.manage")
        """Whether the caller sees tags of columns: only those who manage policies do."""

    def namespace(self, area: Area) -> bool:
        """Whether the caller sees a namespace."""
        if self._namespaces is None:
            return True
        *parents, name = area.path[1:]
        own, catalog = v1.ResourceId(id=area.id), v1.ResourceId(id=area.catalog_id)
        return self._namespaces.sees(
            v1.Namespace(resource_id=own, catalog_id=catalog, parents=parents, display_name=name)
        )

    def relations(self, area: Area, entries: Iterable[Entry] | None = None) -> Iterator[Entry]:
        """The tables and views of a namespace that the caller sees, or those of `entries`, which are in the namespace."""
        found = area.relations.values() if entries is None else entries
        all_of = {kind: self._sees(kind, "", area) for kind in self._relations}
        if all(all_of.values()):
            return iter(found)
        granted = () if self._access is None else self._access.granted_ids
        return (
            each for each in found if all_of[each.kind] or (each.id in granted and self._sees(each.kind, each.id, area))
        )

    def totals(self, area: Area) -> Totals:
        """The totals of what the caller sees in a namespace. Sizes that policies withhold are not in them."""
        is_withheld = None if self._policies is None else self._policies.withholding_sizes(area.catalog_id, area.id)
        if is_withheld is None:
            if all(self._sees(kind, "", area) for kind in self._relations):
                return area.totals
            return Totals.of(self.relations(area))
        return Totals.of(
            replace(each, rows=None, size_bytes=None) if is_withheld(each.id, bool(each.tags)) else each
            for each in self.relations(area)
        )

    def _sees(self, kind: int, object_id: str, area: Area) -> bool:
        """Whether the caller sees a table or view; without an id, all of them in a namespace."""
        guard = self._relations[kind]
        if guard is None:
            return True
        own, place = v1.ResourceId(id=object_id), v1.ResourceId(id=area.id)
        on = v1.Table if kind == v1.RK_TABLE else v1.View
        return guard.sees(on(resource_id=own, namespace_id=place))
