"""The index of one account: catalogs, and namespaces with their tables and views, and which of them match a text best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from sys import getsizeof
from threading import Lock
from typing import Final

import msgspec

from skiway.metastore.records import keys
from skiway.metastore.records.kinds import COLUMN_TAGS, TABLE, VIEW
from skiway.metastore.records.policies import current_columns
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import tables, views
from skiway.metastore.resources.hierarchy import full_path
from skiway.metastore.statistics import size_of
from skiway.model import v1

WEIGHTS: Final = {"name": 100.0, "tag": 50.0, "column": 40.0, "comment": 20.0}
KINDS: Final[dict[int, int]] = {v1.RK_TABLE: 3, v1.RK_VIEW: 2, v1.RK_NAMESPACE: 1, v1.RK_CATALOG: 1}
MAX_WORDS: Final = 20
PART, COLUMN = "\x1e", "\x1f"
"""They separate the parts of a text, and its columns. Words contain neither, because both count as white space."""

Tags = tuple[tuple[str, str], ...]
"""Columns of a table, each with one of its tags."""


@dataclass(frozen=True, slots=True)
class Document:
    """The texts of an object in which words are looked for. `path` has dots, and ends with the name."""

    kind: int
    path: str
    name: str
    columns: Sequence[str] = ()
    comment: str = ""

    @classmethod
    def at(cls, kind: int, path: tuple[str, ...], columns: Sequence[str] = (), comment: str = "") -> Document:
        """The document of an object with this path."""
        return cls(kind, ".".join(path), path[-1], columns, comment)

    def text(self) -> str:
        """All texts in lower case."""
        return PART.join((_plain(self.path), COLUMN.join(map(_plain, self.columns)), _plain(self.comment))).lower()


class IndexedDocument:
    """The document in lower case that has a text. The text is taken apart only as far as that is needed."""

    __slots__ = ("_text", "kind", "name")

    def __init__(self, kind: int, name: str, text: str) -> None:
        self.kind, self.name, self._text = kind, name.lower(), text

    @property
    def path(self) -> str:
        """The path with dots."""
        return self._text[: self._text.index(PART)]

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns."""
        columns = self._text.split(PART)[1]
        return columns.split(COLUMN) if columns else ()

    @property
    def comment(self) -> str:
        """The comment."""
        return self._text[self._text.rindex(PART) + 1 :]


def words_of(text: str) -> list[str]:
    """The words of a search text."""
    return list(dict.fromkeys(text.lower().split()))[:MAX_WORDS]


def match(document: Document | IndexedDocument, words: Sequence[str], tags: Tags = ()) -> tuple[float, str] | None:
    """The score of a document, and where its words were found; None if it does not contain all of them."""
    name, path = document.name.lower(), document.path.lower()
    score, places = 0.0, []
    for word in words:
        best, where = 0.0, ""
        if word in path:
            best, where = WEIGHTS["name"] * _closeness(word, name, path), "name"
        for column, tag in tags:
            value = WEIGHTS["tag"] * _closeness(word, tag, tag) if word in tag else 0.0
            if value > best:
                best, where = value, f"tag {tag} of column {column}"
        if best < WEIGHTS["column"]:
            for column in document.columns:
                lower = column.lower()
                value = WEIGHTS["column"] * _closeness(word, lower, lower) if word in lower else 0.0
                if value > best:
                    best, where = value, f"column {column}"
        if not best and word in document.comment.lower():
            best, where = WEIGHTS["comment"], "comment"
        if not best:
            return None
        score += best
        places.append(where)
    return score + KINDS.get(document.kind, 0), next((place for place in places if place != "name"), "name")


def _closeness(word: str, name: str, path: str) -> float:
    if name == word or path == word:
        return 1.0
    if name.startswith(word):
        return 0.8 + 0.1 * len(word) / max(len(name), 1)
    return 0.6 if word in name else 0.4


def _plain(text: str) -> str:
    return text.replace(PART, " ").replace(COLUMN, " ")


# --- columns ----------------------------------------------------------------------------------------------------------


class _Column(msgspec.Struct):
    name: str
    doc: object = None


class _Schema(msgspec.Struct):
    fields: tuple[_Column, ...] = ()


_SCHEMA: Final = msgspec.json.Decoder(_Schema)
"""Reads only the names and comments of columns, which takes a tenth of the time: there may be many tables."""


def column_comments(schema_json: str) -> dict[str, str]:
    """The comment of each column by its name; none if the schema is not one of a table."""
    try:
        fields: Iterable[_Column] = _SCHEMA.decode(schema_json or "{}").fields
    except msgspec.DecodeError:
        return {}
    return {each.name: each.doc if isinstance(each.doc, str) else "" for each in fields}


OVERHEAD: Final = 600
"""About how many bytes an entry takes besides its text."""

TagsByTable = Mapping[str, v1.ColumnTags]


@dataclass(slots=True)
class Entry:
    """An object in the index. `text` is the one of its document; that of a table or view has no path until it is in an index."""

    kind: int
    id: str
    name: str
    text: str
    format: int = v1.TF_UNSPECIFIED
    rows: int | None = None
    size_bytes: int | None = None
    tags: Tags = ()
    is_damaged: bool = False
    rows_are_bound: bool = False

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        return OVERHEAD + getsizeof(self.text) + sum(getsizeof(tag) for _, tag in self.tags)

    def move(self, path: tuple[str, ...]) -> None:
        """Change the path of what contains it."""
        _, _, rest = self.text.partition(PART)
        start, _, _ = Document.at(self.kind, (*path, self.name)).text().partition(PART)
        self.text = f"{start}{PART}{rest}"


def container(kind: int, of: v1.Catalog | v1.Namespace, path: tuple[str, ...]) -> Entry:
    """The entry of a catalog or a namespace."""
    text = Document.at(kind, path, comment=of.description).text()
    return Entry(kind, of.resource_id.id, path[-1], text, is_damaged=bool(of.damage))


def relations_in(realm: Realm, namespace_id: str, tags: TagsByTable) -> Iterator[Entry]:
    """The entries of all tables and views of a namespace. `tags` are those of all tables."""
    for table in tables.scan(realm, namespace_id):
        yield _table(realm, table, tags.get(table.resource_id.id))
    for view in views.scan(realm, namespace_id):
        yield _view(view)


def all_tags(realm: Realm) -> TagsByTable:
    """The tags of the columns of all tables that have some."""
    found = realm.all(COLUMN_TAGS).entries(keys.column_tags(realm.account_id))
    return {each.value.table_id.id: each.value for each in found}


def read_table(realm: Realm, table_id: str) -> tuple[str, Entry] | None:
    """The id of the namespace of a table, and its entry; None if it does not exist."""
    table = realm.entry(TABLE, table_id)
    if table is None:
        return None
    tags = realm.all(COLUMN_TAGS).find(keys.column_tags(realm.account_id, table_id))
    return table.value.namespace_id.id, _table(realm, table.value, None if tags is None else tags.value)


def read_view(realm: Realm, view_id: str) -> tuple[str, Entry] | None:
    """As `read_table`, for a view."""
    view = realm.entry(VIEW, view_id)
    return None if view is None else (view.value.namespace_id.id, _view(view.value))


def _table(realm: Realm, table: v1.Table, tags: v1.ColumnTags | None) -> Entry:
    size = size_of(realm, table)
    known = size is not None and not size.damage
    return Entry(
        v1.RK_TABLE,
        table.resource_id.id,
        table.display_name,
        document_of(table, (table.display_name,)).text(),
        format_of(table),
        size.row_count if size is not None and known else None,
        size.total_size_bytes if size is not None and known else None,
        () if tags is None else _tags(table, tags.columns),
        bool(table.damage) or (size is not None and bool(size.damage)),
        size is not None and size.row_count_is_bound,
    )


def _view(view: v1.View) -> Entry:
    text = document_of(view, (view.display_name,)).text()
    return Entry(v1.RK_VIEW, view.resource_id.id, view.display_name, text, is_damaged=bool(view.damage))


def document_of(relation: v1.Table | v1.View, path: tuple[str, ...]) -> Document:
    """What is searched of a table or view."""
    if isinstance(relation, v1.View):
        return Document.at(v1.RK_VIEW, path, comment=relation.description)
    comments = column_comments(relation.schema_json)
    comment = " ".join(filter(None, (relation.description, *comments.values())))
    return Document.at(v1.RK_TABLE, path, tuple(comments), comment)


def format_of(table: v1.Table) -> v1.TableFormat.ValueType:
    """The format of a table. Managed tables are Iceberg tables."""
    return v1.TF_ICEBERG if table.metadata_location else table.upstream.format


def _tags(table: v1.Table, tagged: Iterable[v1.TaggedColumn]) -> Tags:
    """The tags with the present names of their columns."""
    now = {number: name for name, number in current_columns(table).items()}
    return tuple((now.get(each.column_id, each.name), tag) for each in tagged for tag in each.tags)


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
        for entry in entries:
            if entry.kind == v1.RK_VIEW:
                totals.views += 1
                continue
            totals.tables[entry.format] += 1
            totals.sizes[entry.format] += entry.size_bytes or 0
            totals.rows += entry.rows or 0
            totals.rows_are_bound |= entry.rows is not None and entry.rows_are_bound
            if entry.size_bytes:
                sized.append(entry)
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
            return  # deleted in the meantime
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
            return  # deleted in the meantime
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
        for relation in list(area.relations):
            self.remove(relation)
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
        for each, above in ((area.entry, path[:-1]), *((relation, path) for relation in area.relations.values())):
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
