"""The calls of `SearchService`. Callers find, count and sum up only what they may see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop
from itertools import islice
from typing import Any, Final

from skiway.errors import NotFound
from skiway.metastore.records.errors import failure, invalid_field
from skiway.metastore.records.kinds import CATALOG, NAMESPACE, TABLE, VIEW, Kind
from skiway.metastore.records.names import dotted, normal_text
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Repository
from skiway.metastore.resources import catalogs, tables
from skiway.metastore.resources.hierarchy import find_path, full_path
from skiway.metastore.search.index import (
    MAX_LARGEST,
    Area,
    Document,
    Entry,
    Index,
    IndexedDocument,
    Tags,
    Totals,
    document_of,
    format_of,
    match,
    words_of,
)
from skiway.metastore.search.indexes import SearchIndexes
from skiway.metastore.statistics import size_of
from skiway.model import v1
from skiway.telemetry.context import require_active


class Visibility:
    """What one caller may see."""

    def __init__(self, realm: Realm) -> None:
        self._namespaces = realm.all(NAMESPACE)
        self._relations: Mapping[int, Repository[Any]] = {v1.RK_TABLE: realm.all(TABLE), v1.RK_VIEW: realm.all(VIEW)}
        self._access, self._policies = realm.access, realm.policies
        self.shows_tags = realm.access is None or realm.access.everywhere("policy.manage")
        """Whether the caller sees tags of columns: only those who manage policies do."""

    def namespace(self, area: Area) -> bool:
        """Whether the caller sees a namespace."""
        if not self._namespaces.guards:
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
            replace(relation, rows=None, size_bytes=None) if is_withheld(relation.id, bool(relation.tags)) else relation
            for relation in self.relations(area)
        )

    def _sees(self, kind: int, object_id: str, area: Area) -> bool:
        """Whether the caller sees a table or view; without an id, all of them in a namespace."""
        relations = self._relations[kind]
        if not relations.guards:
            return True
        own, place = v1.ResourceId(id=object_id), v1.ResourceId(id=area.id)
        on = v1.Table if kind == v1.RK_TABLE else v1.View
        return relations.sees(on(resource_id=own, namespace_id=place))


KINDS: Final[Mapping[int, Kind[Any]]] = {
    v1.RK_TABLE: TABLE,
    v1.RK_VIEW: VIEW,
    v1.RK_NAMESPACE: NAMESPACE,
    v1.RK_CATALOG: CATALOG,
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
        stored = self._realm.entry(KINDS[kind], object_id)
        return None if stored is None else stored.value

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


DEFAULT_HITS: Final = 20
MAX_HITS: Final = 100
DEFAULT_OBJECTS: Final = 100
MAX_OBJECTS: Final = 1000
MAX_TEXT: Final = 1000
MAX_WAIT_MS: Final = 20_000

Candidate = tuple[float, tuple[str, ...], int, str, Tags]
"""An object that may be a hit: its score, negative so that the best sorts first, its path, its kind, its id, and its tags."""


def search(realm: Realm, request: v1.SearchRequest, *, indexes: SearchIndexes) -> v1.SearchResponse:
    """Return the objects that contain all words of a text, the best first."""
    if len(request.text) > MAX_TEXT:
        raise invalid_field("text", f"{len(request.text)} characters", f"search for up to {MAX_TEXT} characters")
    words, visibility = words_of(request.text), Visibility(realm)
    with indexes.of(realm, wait_s=_wait_s(request.wait_ms)) as (index, incomplete):
        found = list(_candidates(index, visibility, words)) if words else []
    heapify(found)
    hits = islice(_hits(Shown(realm), found, words), _limited(request.limit, DEFAULT_HITS, MAX_HITS))
    return v1.SearchResponse(hits=hits, incomplete=incomplete)


def _candidates(index: Index, visibility: Visibility, words: Sequence[str]) -> Iterator[Candidate]:
    """The matching objects in the index that the caller sees, and all matching catalogs."""

    def scored(entry: Entry, path: tuple[str, ...], tags: Tags = ()) -> Iterator[Candidate]:
        result = match(IndexedDocument(entry.kind, entry.name, entry.text), words, tags)
        if result is not None:
            yield -result[0], path, entry.kind, entry.id, tags

    for catalog in index.catalogs.values():
        yield from scored(catalog, (catalog.name,))
    first, *others = words
    for area in index.areas.values():
        require_active()
        found = [
            relation
            for relation in area.relations.values()
            if (first in relation.text and all(word in relation.text for word in others))
            or (relation.tags and visibility.shows_tags)
        ]
        for each in visibility.relations(area, found) if found else ():
            yield from scored(each, (*area.path, each.name), each.tags if visibility.shows_tags else ())
        if all(word in area.entry.text for word in words) and visibility.namespace(area):
            yield from scored(area.entry, area.path)


def _hits(shown: Shown, found: list[Candidate], words: Sequence[str]) -> Iterator[v1.SearchHit]:
    """The hits in a heap of candidates: those that the caller sees now, and that still contain the words."""
    while found:
        require_active()
        score, _, kind, object_id, tags = heappop(found)
        now = shown.object(kind, object_id)
        result = None if now is None else match(now[1], words, tags)
        if now is not None and result is not None:
            yield v1.SearchHit(object=now[0], score=-score, found_in=result[1])


# --- lists ------------------------------------------------------------------------------------------------------------


def list_objects(realm: Realm, request: v1.ListObjectsRequest, *, indexes: SearchIndexes) -> v1.ListObjectsResponse:
    """Return the objects with some ids, or a part of the tables and views below a path."""
    shown = Shown(realm)
    if request.ids:
        if len(request.ids) > MAX_OBJECTS:
            raise invalid_field("ids", f"{len(request.ids)} ids", f"give up to {MAX_OBJECTS}")
        named = [each for each in map(shown.with_id, request.ids) if each is not None]
        return v1.ListObjectsResponse(objects=named, total=len(named))
    if request.offset < 0:
        raise invalid_field("offset", str(request.offset), "use a number from 0 on")
    path = _checked_path(realm, request.path)[0]
    visibility = Visibility(realm)
    with indexes.of(realm, wait_s=_wait_s(request.wait_ms)) as (index, incomplete):
        found = [each for area in index.below(path) for each in _chosen(area, visibility, request.condition)]
    limit = _limited(request.limit, DEFAULT_OBJECTS, MAX_OBJECTS)
    some = found[request.offset : request.offset + limit]
    objects = (now[0] for kind, object_id in some if (now := shown.object(kind, object_id)) is not None)
    return v1.ListObjectsResponse(objects=objects, total=len(found), incomplete=incomplete)


def _chosen(area: Area, visibility: Visibility, condition: int) -> Iterator[tuple[int, str]]:
    """The kinds and ids of what a list contains of a namespace."""
    if condition == v1.OC_DAMAGED and area.entry.is_damaged and visibility.namespace(area):
        yield v1.RK_NAMESPACE, area.id
    for relation in visibility.relations(area, area.by_name):
        if condition == v1.OC_DAMAGED and not relation.is_damaged:
            continue
        if condition == v1.OC_WITHOUT_STATISTICS and (
            relation.kind != v1.RK_TABLE or relation.rows is not None or relation.is_damaged
        ):
            continue
        yield relation.kind, relation.id


# --- totals -----------------------------------------------------------------------------------------------------------


def get_summary(realm: Realm, request: v1.GetSummaryRequest, *, indexes: SearchIndexes) -> v1.GetSummaryResponse:
    """Return how much the account contains, or the catalog or namespace at a path."""
    path, object_id = _checked_path(realm, request.path)
    shown, visibility, totals = Shown(realm), Visibility(realm), Totals()
    tables, containers = Counter[str](), list[v1.ContainerSummary]()
    with indexes.of(realm, wait_s=_wait_s(request.wait_ms)) as (index, incomplete):
        for area in index.below(path):
            own = visibility.totals(area)
            totals.add(own)
            tables[area.catalog_id] += own.tables.total()
            if path and area.path != path and visibility.namespace(area):
                containers.append(v1.ContainerSummary(path=area.path, tables=own.tables.total()))
        catalog_ids = [] if path else sorted(index.catalogs, key=lambda each: index.catalogs[each].name)
    for each in catalog_ids:
        now = shown.object(v1.RK_CATALOG, each)
        if now is not None:
            found = now[0]
            containers.append(v1.ContainerSummary(path=found.path, comment=found.comment, tables=tables[each]))
    here = shown.with_id(object_id) if object_id else None
    largest = (shown.object(each.kind, each.id) for each in totals.largest[: max(0, min(request.largest, MAX_LARGEST))])
    return v1.GetSummaryResponse(
        object=here,
        tables=totals.tables.total(),
        views=totals.views,
        row_count=totals.rows,
        row_count_is_bound=totals.rows_are_bound,
        total_size_bytes=totals.sizes.total(),
        formats=[
            v1.FormatSummary(format=v1.TableFormat.ValueType(each), tables=count, total_size_bytes=totals.sizes[each])
            for each, count in totals.tables.most_common()
        ],
        containers=containers,
        largest=[each[0] for each in largest if each is not None],
        incomplete=incomplete,
    )


def _checked_path(realm: Realm, given: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """A path, and the id of the catalog or namespace there. Raise `NotFound` if the caller does not see one."""
    if not given:
        return (), ""
    catalog_name, *below = given
    catalog = catalogs.find(realm, catalog_name)
    if catalog is None:
        raise failure(NotFound, "catalog", resource="catalog", id=catalog_name)
    if not below:
        return (catalog.value.display_name,), catalog.value.resource_id.id
    namespace = find_path(realm, catalog.value, tuple(map(normal_text, below)), damaged=True)
    if namespace is None:
        raise failure(NotFound, "namespace", resource="namespace", id=dotted(below))
    return (catalog.value.display_name, *full_path(namespace.value)), namespace.value.resource_id.id


def _limited(given: int, default: int, most: int) -> int:
    return min(given, most) if given > 0 else default


def _wait_s(given_ms: int) -> float:
    return max(0, min(given_ms, MAX_WAIT_MS)) / 1000
