"""Search in tests: callers by grant and policy, and a twin that lists everything instead of using an index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from metastore.resource_factory import ResourceFactory, mask
from skiway.metastore import Realm, search, statistics
from skiway.metastore.records.access import AccessDecision
from skiway.metastore.records.policies import CallerPolicies, Subject
from skiway.metastore.resources import catalogs, grants, namespaces, policies, tables, views
from skiway.metastore.resources.snapshots import current_id
from skiway.metastore.search import SearchIndexes
from skiway.metastore.search.index import Document, column_comments, match, words_of
from skiway.model import v1

WAIT_MS = 20_000

Found = list[tuple[str, str]]
"""Paths, and where the words were found."""


@dataclass
class Searching:
    """A lake in which callers search. The roles of `user:reader` show everything, those of others nothing."""

    factory: ResourceFactory
    indexes: SearchIndexes = field(default_factory=SearchIndexes)

    def as_(self, name: str) -> Realm:
        """The realm of a caller; `server` is the server itself."""
        if name == "server":
            return self.factory.home
        stores = self.factory.stores
        decision = AccessDecision(
            lambda: stores,
            "a1",
            allows=lambda permission: name == "reader" and permission.endswith(".read"),
            grantees=[f"user:{name}"],
        )
        restricted = CallerPolicies(lambda: stores, "a1", Subject(name))
        return replace(self.factory.home, access=decision, policies=restricted)

    def grant(self, name: str, on: v1.ResourceId) -> None:
        grants.add(self.factory.home, v1.AddGrantRequest(object_id=on, grantee=f"user:{name}", privilege=v1.PV_READ))

    def filter_rows(self, name: str, *on: v1.ResourceId, tags: list[str] | None = None, title: str = "filter") -> None:
        """Let a row filter restrict a caller on some objects."""
        spec = v1.PolicySpec(
            display_name=title,
            subjects=[f"user:{name}"],
            objects=on,
            tags=tags or [],
            row_filter=v1.PolicyFilter(predicate="1 = 2"),
        )
        policies.calls(lambda *_: []).create(self.factory.home, v1.CreatePolicyRequest(spec=spec))

    def store_size(self, table: v1.Table, rows: int) -> None:
        """Give a table a snapshot, if it has none, and statistics: each row has ten bytes."""
        if current_id(self.factory.home, table.resource_id.id) is None:
            self.factory.snapshot(table, 1, at=1)
        stats = v1.TableStats(row_count=rows, data_file_count=1, total_size_bytes=10 * rows)
        request = v1.PutTableStatsRequest(table_id=table.resource_id, snapshot_id=1, stats=stats)
        statistics.put_table(self.factory.home, request)

    def answer(self, text: str, name: str = "server", limit: int = 100) -> v1.SearchResponse:
        request = v1.SearchRequest(text=text, limit=limit, wait_ms=WAIT_MS)
        return search.search(self.as_(name), request, indexes=self.indexes)

    def find(self, text: str, name: str = "server") -> Found:
        """What a caller finds."""
        answer = self.answer(text, name)
        assert not answer.HasField("incomplete"), answer.incomplete
        return [(".".join(hit.object.path), hit.found_in) for hit in answer.hits]

    def summary(self, name: str = "server", *path: str) -> v1.GetSummaryResponse:
        request = v1.GetSummaryRequest(path=path, largest=10, wait_ms=WAIT_MS)
        return search.get_summary(self.as_(name), request, indexes=self.indexes)

    def list(
        self, name: str = "server", *path: str, condition: v1.ObjectCondition.ValueType = v1.OC_ANY
    ) -> v1.ListObjectsResponse:
        request = v1.ListObjectsRequest(path=path, condition=condition, limit=1000, wait_ms=WAIT_MS)
        return search.list_objects(self.as_(name), request, indexes=self.indexes)

    def twin(self, name: str) -> Twin:
        return Twin(self.as_(name), shows_tags=name == "server")


@dataclass
class Listed:
    """An object of a listing."""

    document: Document
    path: tuple[str, ...]
    size: v1.TableSize | None = None
    tags: tuple[tuple[str, str], ...] = ()


class Twin:
    """What the plain listings of the metastore show a caller."""

    def __init__(self, realm: Realm, *, shows_tags: bool) -> None:
        self._realm, self._shows_tags = realm, shows_tags
        self.objects = list(self._objects())

    def _objects(self) -> Iterator[Listed]:
        page = v1.PageRequest(page_size=1000)
        for catalog in catalogs.list_(self._realm, v1.ListCatalogsRequest(page=page)).catalogs:
            yield _listed(v1.RK_CATALOG, (catalog.display_name,), comment=catalog.description)
            request = v1.ListNamespacesRequest(catalog_id=catalog.resource_id, recursive=True, page=page)
            for namespace in namespaces.list_(self._realm, request).namespaces:
                path = (catalog.display_name, *namespace.parents, namespace.display_name)
                yield _listed(v1.RK_NAMESPACE, path, comment=namespace.description)
                yield from self._relations(namespace, path, page)

    def _relations(self, namespace: v1.Namespace, path: tuple[str, ...], page: v1.PageRequest) -> Iterator[Listed]:
        wanted = v1.ListTablesRequest(namespace_id=namespace.resource_id, with_sizes=True, page=page)
        listed = statistics.list_tables(self._realm, wanted)
        sizes = {each.table_id.id: each for each in listed.sizes}
        for table in listed.tables:
            comments = column_comments(table.schema_json)
            comment = " ".join(filter(None, (table.description, *comments.values())))
            found = _listed(v1.RK_TABLE, (*path, table.display_name), tuple(comments), comment)
            found.size = sizes.get(table.resource_id.id)
            found.tags = self._tags(table) if self._shows_tags else ()
            yield found
        for view in views.list_(self._realm, v1.ListViewsRequest(namespace_id=namespace.resource_id, page=page)).views:
            yield _listed(v1.RK_VIEW, (*path, view.display_name), comment=view.description)

    def _tags(self, table: v1.Table) -> tuple[tuple[str, str], ...]:
        found = policies.get_tags(self._realm, v1.GetColumnTagsRequest(table_id=table.resource_id)).tags
        return tuple((each.name, tag) for each in found.columns for tag in each.tags)

    def find(self, text: str) -> Found:
        words, found = words_of(text), []
        for each in self.objects:
            result = match(each.document, words, each.tags) if words else None
            if result is not None:
                found.append((-result[0], each.path, each.document.kind, result[1]))
        return [(".".join(path), where) for _, path, _, where in sorted(found)]

    def totals(self) -> tuple[int, int, int, int]:
        """The number of tables and views, the rows, and the bytes."""
        kinds = Counter(each.document.kind for each in self.objects)
        sizes = [each.size for each in self.objects if each.size is not None]
        return (
            kinds[v1.RK_TABLE],
            kinds[v1.RK_VIEW],
            sum(each.row_count for each in sizes),
            sum(each.total_size_bytes for each in sizes),
        )

    def relations(self) -> list[str]:
        """The paths of tables and views, by namespace and name."""
        found = [each.path for each in self.objects if each.document.kind in (v1.RK_TABLE, v1.RK_VIEW)]
        return [".".join(each) for each in sorted(found, key=lambda path: (path[:-1], path[-1]))]


def _listed(kind: int, path: tuple[str, ...], columns: tuple[str, ...] = (), comment: str = "") -> Listed:
    return Listed(Document.at(kind, path, columns, comment), path)


def totals_in(answer: v1.GetSummaryResponse) -> tuple[int, int, int, int]:
    return answer.tables, answer.views, answer.row_count, answer.total_size_bytes


def change_table(realm: Realm, table: v1.Table, **spec: Any) -> None:
    """Update these fields of a table."""
    request = v1.UpdateTableRequest(table_id=table.resource_id, spec=v1.TableSpec(**spec), update_mask=mask(*spec))
    tables.update(realm, request)
