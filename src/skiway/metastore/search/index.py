"""The index of one account: catalogs, and namespaces with the tables and views in them.

It is not safe for threads by itself: `indexes` lets one at a time use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nlargest
from threading import Lock
from typing import Final

from skiway.metastore.resources.hierarchy import full_path
from skiway.metastore.search.reading import Entry, container
from skiway.model import v1

__all__ = ["MAX_LARGEST", "Area", "Budget", "Index", "Totals"]

MAX_LARGEST: Final = 100


@dataclass(slots=True)
class Totals:
    """How much some tables and views contain."""

    tables: Counter[int] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    """The number of tables and their bytes by format."""
    views: int = 0
    rows: int = 0
    rows_are_bound: bool = False
    largest: list[Entry] = field(default_factory=list)

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Totals:
        """The totals of these entries."""
        totals, sized = cls(), []
        for each in entries:
            if each.kind == v1.RK_VIEW:
                totals.views += 1
                continue
            totals.tables[each.format] += 1
            totals.sizes[each.format] += each.size_bytes or 0
            totals.rows += each.rows or 0
            totals.rows_are_bound |= each.rows is not None and each.rows_are_bound
            if each.size_bytes:
                sized.append(each)
        totals.largest = _largest(sized)
        return totals

    def add(self, more: Totals) -> None:
        """Add other totals."""
        self.tables.update(more.tables)
        self.sizes.update(more.sizes)
        self.views += more.views
        self.rows += more.rows
        self.rows_are_bound |= more.rows_are_bound
        self.largest = _largest((*self.largest, *more.largest))


def _largest(entries: Iterable[Entry]) -> list[Entry]:
    return nlargest(MAX_LARGEST, entries, key=lambda each: each.size_bytes or 0)


@dataclass(slots=True)
class Area:
    """A namespace: its own entry, and those of its tables and views by id. `path` begins with the name of the catalog."""

    entry: Entry
    catalog_id: str
    path: tuple[str, ...]
    relations: dict[str, Entry] = field(default_factory=dict)
    _totals: Totals | None = None
    _sorted: list[Entry] | None = None

    @property
    def id(self) -> str:
        """The id of the namespace."""
        return self.entry.id

    def forget_results(self) -> None:
        """Forget what was computed, because an entry has changed."""
        self._totals = self._sorted = None

    @property
    def totals(self) -> Totals:
        """The totals of all tables and views in it. Do not change them."""
        if self._totals is None:
            self._totals = Totals.of(self.relations.values())
        return self._totals

    @property
    def by_name(self) -> list[Entry]:
        """Its tables and views by name."""
        if self._sorted is None:
            self._sorted = sorted(self.relations.values(), key=lambda each: each.name)
        return self._sorted


class Budget:
    """The bytes that all indexes may take together. `make_room` frees some, and returns whether it did."""

    def __init__(self, max_bytes: int, make_room: Callable[[], bool] = lambda: False) -> None:
        self.max_bytes, self.used = max_bytes, 0
        self.make_room, self.lock = make_room, Lock()


class Index:
    """The entries of an account. Those that exceed the budget are left out."""

    def __init__(self, budget: Budget) -> None:
        self.catalogs: dict[str, Entry] = {}
        self.areas: dict[str, Area] = {}
        self.weight = 0
        self.is_cut = False
        """Whether entries were left out."""
        self._area_of: dict[str, Area] = {}
        self._budget = budget
        self._is_released = False

    def release(self) -> None:
        """Give its bytes back to the budget, because it is used no more."""
        with self._budget.lock:
            if not self._is_released:
                self._budget.used -= self.weight
            self._is_released = True

    def put_catalog(self, catalog: v1.Catalog) -> None:
        """Add a catalog, or replace it; then the paths in it may change."""
        found = container(v1.RK_CATALOG, catalog, (catalog.display_name,))
        before = self.catalogs.get(found.id)
        self._replace(before, found)
        self.catalogs[found.id] = found
        if before is not None and before.name != found.name:
            for area in self._areas_in(found.id):
                self._move(area, (found.name, *area.path[1:]))

    def put_namespace(self, namespace: v1.Namespace) -> None:
        """Add a namespace, or replace it; then the paths in it may change."""
        catalog = self.catalogs.get(namespace.catalog_id.id)
        if catalog is None:
            return  # deleted meanwhile
        path = (catalog.name, *full_path(namespace))
        found = container(v1.RK_NAMESPACE, namespace, path)
        area = self.areas.get(found.id)
        if area is None and not self._has_room(found):
            return
        self._replace(None if area is None else area.entry, found)
        if area is None:
            self.areas[found.id] = Area(found, catalog.id, path)
            return
        area.entry, area.catalog_id = found, catalog.id
        if area.path != path:
            self._move(area, path)

    def put(self, namespace_id: str, entry: Entry) -> None:
        """Add a table or view in a namespace, or replace it. The index sets the path in its text."""
        area = self.areas.get(namespace_id)
        self.remove(entry.id)
        if area is None:
            return  # deleted meanwhile
        entry.move(area.path)
        if not self._has_room(entry):
            return
        self._replace(None, entry)
        area.relations[entry.id] = entry
        area.forget_results()
        self._area_of[entry.id] = area

    def remove(self, object_id: str) -> None:
        """Remove a table or view."""
        area = self._area_of.pop(object_id, None)
        if area is not None:
            area.forget_results()
            self._replace(area.relations.pop(object_id), None)

    def remove_namespace(self, namespace_id: str) -> None:
        """Remove a namespace with its tables and views."""
        area = self.areas.pop(namespace_id, None)
        if area is None:
            return
        for each in list(area.relations):
            self.remove(each)
        self._replace(area.entry, None)

    def remove_catalog(self, catalog_id: str) -> None:
        """Remove a catalog with everything in it."""
        found = self.catalogs.pop(catalog_id, None)
        self._replace(found, None)
        for area in self._areas_in(catalog_id):
            self.remove_namespace(area.id)

    def below(self, path: tuple[str, ...]) -> Iterator[Area]:
        """The namespaces at a path and below it, by path."""
        found = (area for area in self.areas.values() if area.path[: len(path)] == path)
        return iter(sorted(found, key=lambda area: area.path))

    def _areas_in(self, catalog_id: str) -> list[Area]:
        return [area for area in self.areas.values() if area.catalog_id == catalog_id]

    def _move(self, area: Area, path: tuple[str, ...]) -> None:
        area.path = path
        area.forget_results()
        for each, above in ((area.entry, path[:-1]), *((each, path) for each in area.relations.values())):
            before = each.weight
            each.move(above)
            self._weigh(each.weight - before)

    def _has_room(self, entry: Entry) -> bool:
        while self._budget.used + entry.weight > self._budget.max_bytes:
            if self.is_cut or not self._budget.make_room():
                self.is_cut = True
                return False
        return True

    def _replace(self, before: Entry | None, after: Entry | None) -> None:
        self._weigh((0 if after is None else after.weight) - (0 if before is None else before.weight))

    def _weigh(self, more: int) -> None:
        with self._budget.lock:
            self.weight += more
            if not self._is_released:
                self._budget.used += more
