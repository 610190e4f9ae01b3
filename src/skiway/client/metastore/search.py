"""Finds objects: by words, over what the caller may see, and by name or id, in the directory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import Final, Literal

from skiway.client.metastore.calls import Id, Name, Ref, dotted, name_ref, resource_id
from skiway.client.metastore.collection import Area, Listing, listing_of
from skiway.client.metastore.resources import Attribute, enum_name
from skiway.model import v1

WAIT_S: Final = 15.0
"""How long the server may wait until its index is complete."""
MAX_IDS: Final = 1000

Condition = Literal["any", "damaged", "without_statistics"]


@dataclass(frozen=True, slots=True)
class LakeObject:
    """A catalog, namespace, table or view."""

    message: v1.LakeObject

    id = Attribute[Id]("resource_id")
    """Its id."""
    path = Attribute[tuple[str, ...]]()
    """Its names from the catalog on."""
    comment = Attribute[str]()
    """Its comment, followed by those of its columns."""
    rows = Attribute[int | None]("row_count")
    """The rows of a table; None if they are unknown, or withheld by a policy."""
    rows_are_bound = Attribute[bool]("row_count_is_bound")
    """Whether a table has at most `rows` rows, because some may be deleted."""
    size_bytes = Attribute[int | None]("total_size_bytes")
    """The size of a table; None if it is unknown, or withheld by a policy."""
    damage = Attribute[str]()
    """A description of damage to its record or its statistics; empty if there is none."""
    problem = Attribute[str]()
    """Why the last synchronisation could not read a mirrored table; empty if it could."""

    @property
    def kind(self) -> str:
        """`catalog`, `namespace`, `table` or `view`."""
        return enum_name(v1.ResourceKind.Name(self.message.resource_id.kind))

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.message.path[-1]

    @property
    def format(self) -> str:
        """The format of a table, such as `iceberg`."""
        return format_name(self.message.format) if self.kind == "table" else ""


def format_name(number: v1.TableFormat.ValueType) -> str:
    """The name of a format; `-` if it is not known."""
    return enum_name(v1.TableFormat.Name(number)) or "-"


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Why an answer may lack something. If that `is_temporary`, ask again in a moment."""

    reason: str
    is_temporary: bool

    @classmethod
    def of(cls, response: v1.SearchResponse | v1.ListObjectsResponse | v1.GetSummaryResponse) -> Incomplete | None:
        """What a response says about itself; None if it is complete."""
        found = response.incomplete
        return cls(found.reason, found.is_temporary) if response.HasField("incomplete") else None


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A result of a search. `found_in` says where the words were found: `name`, `comment`, or a column or tag."""

    object: LakeObject
    score: float
    found_in: str


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The hits, the best first. `incomplete` says why some may be missing, if that is so."""

    hits: tuple[SearchHit, ...]
    incomplete: Incomplete | None

    def __iter__(self) -> Iterator[SearchHit]:
        return iter(self.hits)


@dataclass(frozen=True, slots=True)
class FoundObjects:
    """A part of a list of objects, and how many there are in total."""

    objects: tuple[LakeObject, ...]
    total: int
    incomplete: Incomplete | None


@dataclass(frozen=True, slots=True)
class Summary:
    """How much the account contains, or a catalog or namespace in it."""

    message: v1.GetSummaryResponse

    @property
    def object(self) -> LakeObject | None:
        """The catalog or namespace; None for the whole account."""
        return LakeObject(self.message.object) if self.message.HasField("object") else None

    @property
    def largest(self) -> tuple[LakeObject, ...]:
        """The largest tables."""
        return tuple(map(LakeObject, self.message.largest))

    @property
    def formats(self) -> list[tuple[str, int, int]]:
        """The formats of tables, each with the number of tables and their bytes."""
        return [(format_name(each.format), each.tables, each.total_size_bytes) for each in self.message.formats]

    @property
    def containers(self) -> list[tuple[tuple[str, ...], str, int]]:
        """The catalogs of the account, or the namespaces in it: the path, the comment, and the number of tables of each."""
        return [(tuple(each.path), each.comment, each.tables) for each in self.message.containers]

    @property
    def incomplete(self) -> Incomplete | None:
        """Why the figures may be too small, if that is so."""
        return Incomplete.of(self.message)


class Search(Area):
    """`lake.search`: the server has an index of the account, and shows each caller what it may see."""

    def __call__(self, text: str, *, limit: int = 20, wait_s: float = WAIT_S) -> SearchResult:
        """Return the objects that contain all words of a text in their path, columns, comments or tags, the best first."""
        response = self._calls.rpc("Search", text=text, limit=limit, wait_ms=round(wait_s * 1000))
        hits = (SearchHit(LakeObject(hit.object), hit.score, hit.found_in) for hit in response.hits)
        return SearchResult(tuple(hits), Incomplete.of(response))

    def with_ids(self, ids: Iterable[str]) -> dict[str, LakeObject]:
        """Return the objects with these ids that the caller sees, by id."""
        wanted = list(dict.fromkeys(ids))
        parts = (wanted[start : start + MAX_IDS] for start in range(0, len(wanted), MAX_IDS))
        found = (LakeObject(each) for part in parts for each in self._calls.rpc("ListObjects", ids=part).objects)
        return {str(each.id): each for each in found}

    def below(
        self,
        path: Sequence[str] = (),
        *,
        condition: Condition = "any",
        offset: int = 0,
        limit: int = 100,
        wait_s: float = WAIT_S,
    ) -> FoundObjects:
        """Return a part of the tables and views below a path, by path. Without one, it is the whole account."""
        response = self._calls.rpc(
            "ListObjects",
            path=path,
            condition=f"OC_{condition.upper()}",
            offset=offset,
            limit=limit,
            wait_ms=round(wait_s * 1000),
        )
        return FoundObjects(tuple(map(LakeObject, response.objects)), response.total, Incomplete.of(response))

    def summary(self, path: Sequence[str] = (), *, largest: int = 0, wait_s: float = WAIT_S) -> Summary:
        """Return how much the account contains, or the catalog or namespace at a path, with some of the largest tables."""
        return Summary(self._calls.rpc("GetSummary", path=path, largest=largest, wait_ms=round(wait_s * 1000)))


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

    def resolve(self, kind: str, name: Name) -> Id:
        """Return the id of a catalog, namespace, table or view by its name."""
        return Id(resource_id(kind, self._calls, name).id)

    resolve_catalog = partialmethod(resolve, "catalog")
    resolve_namespace = partialmethod(resolve, "namespace")
    resolve_table = partialmethod(resolve, "table")
    resolve_view = partialmethod(resolve, "view")

    def find_table(self, name: Name) -> Id | None:
        """Return the id of a table by its name, or None if there is none; takes one call."""
        response = self._calls.rpc("LookupTableByRef", ref=name_ref(name, resource="table"))
        return Id(response.resource_id.id) if response.HasField("resource_id") else None

    def path(self, kind: str, ref: Ref) -> tuple[str, ...] | None:
        """Return the full name of a catalog, namespace, table or view as segments, or None if there is none."""
        response = self._calls.rpc(f"Lookup{kind.title()}", resource_id=resource_id(kind, self._calls, ref))
        if kind == "catalog":
            return (response.display_name,) if response.display_name else None
        name = response.ref
        return (name.catalog, *name.path, name.name) if name.catalog else None

    catalog_path = partialmethod(path, "catalog")
    namespace_path = partialmethod(path, "namespace")
    table_path = partialmethod(path, "table")
    view_path = partialmethod(path, "view")

    def tables(self, names: Iterable[Name]) -> list[Entry]:
        """Return the tables with these names that exist, in this order; takes one call."""
        return self._entries("tables", names)

    def views(self, names: Iterable[Name]) -> list[Entry]:
        """Return the views with these names that exist, in this order; takes one call."""
        return self._entries("views", names)

    def tables_in(self, namespace: Name, *, page_size: int | None = None) -> Listing[Entry]:
        """List the ids and full names of all tables of a namespace."""
        return self._list("tables", namespace, page_size)

    def views_in(self, namespace: Name, *, page_size: int | None = None) -> Listing[Entry]:
        """List the ids and full names of all views of a namespace."""
        return self._list("views", namespace, page_size)

    def _entries(self, kinds: str, names: Iterable[Name]) -> list[Entry]:
        refs = v1.NameRefs(names=[name_ref(name, resource=kinds.removesuffix("s")) for name in names])
        return list(map(Entry.of, getattr(self._calls.rpc(f"ResolveFQ{kinds.title()}", names=refs), kinds)))

    def _list(self, kinds: str, namespace: Name, page_size: int | None) -> Listing[Entry]:
        prefix = name_ref(namespace, resource="namespace")
        method = f"ResolveFQ{kinds.title()}"
        return listing_of(self._calls, method, kinds, Entry.of, page_size, lambda: {"prefix": prefix})
