"""Ranked search over catalogs, namespaces, tables, views, columns, tags and comments.

Each caller has an index of what it may see. The feed of events keeps it up to date: only changed objects are read again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from cachetools import LRUCache

from skiway.client import Metastore
from skiway.client.metastore import Event, Id, Namespace, Table, View
from skiway.errors import NotFound, PermissionDenied, PreconditionFailed
from skiway.presentation.table_records import column_comments, table_format

__all__ = ["Entry", "Found", "Index", "Indexes"]

MAX_INDEXES: Final = 50
MAX_RECENT: Final = 500
FRESH_S: Final = 2.0
"""How long an index is used without a look at the feed."""
FRESH_WITHOUT_FEED_S: Final = 30.0
"""The same for callers who may not read the feed: their index has to be built again."""
PAGE_SIZE: Final = 1000
WEIGHTS: Final = {"name": 100, "tag": 50, "column": 40, "comment": 20}
KINDS: Final = {"table": 3, "view": 2, "namespace": 1, "catalog": 1}


Tags = tuple[tuple[str, str], ...]
"""Columns of a table, each with one of its tags."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that can be found: its kind, its path from the catalog on, and the texts in which words are looked for."""

    kind: str
    path: tuple[str, ...]
    columns: tuple[str, ...] = ()
    comment: str = ""
    format: str = ""
    rows: int | None = None
    size_bytes: int | None = None
    id: str = ""
    damage: str = ""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path[-1]


@dataclass(frozen=True, slots=True)
class Found:
    """A result: the entry, its score, and where the words were found."""

    entry: Entry
    score: float
    where: str


@dataclass
class Index:
    """What one caller may see, by path."""

    entries: dict[tuple[str, tuple[str, ...]], Entry] = field(default_factory=dict)
    cursor: int = 0
    by_id: dict[str, Entry] = field(default_factory=dict)
    tags: Mapping[str, Tags] = field(default_factory=dict)
    """The tags of columns by the ids of their tables, for visitors who may manage policies."""
    recent: deque[Event] = field(default_factory=lambda: deque(maxlen=MAX_RECENT))
    """The newest events of the feed."""
    fresh_until: float = float("-inf")

    def replace(self, entries: Iterable[Entry]) -> None:
        """Put these entries in the place of all others."""
        found = list(entries)
        self.entries = {(each.kind, each.path): each for each in found}
        self.by_id = {each.id: each for each in found if each.id}

    def put(self, object_id: str, entry: Entry | None) -> None:
        """Put an entry in the place of the one with this id; None removes that."""
        before = self.by_id.pop(object_id, None)
        entries = dict(self.entries)  # others may iterate over it now
        if before is not None:
            entries.pop((before.kind, before.path), None)
        if entry is not None:
            self.by_id[object_id] = entry
            entries[entry.kind, entry.path] = entry
        self.entries = entries

    def find(self, text: str, *, limit: int = 50) -> list[Found]:
        """The best results for a text; each of its words must occur in the path, a column, a tag, or the comment."""
        words = text.lower().split()
        if not words:
            return []
        tags = self.tags
        matches = (_match(entry, words, tags.get(entry.id, ())) for entry in self.entries.values())
        found = [each for each in matches if each is not None]
        found.sort(key=lambda each: (-each.score, each.entry.path))
        return found[:limit]


def _match(entry: Entry, words: Sequence[str], tags: Tags) -> Found | None:
    path = ".".join(entry.path).lower()
    name = entry.name.lower()
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
            for column in entry.columns:
                if word in column.lower():
                    value = WEIGHTS["column"] * _closeness(word, column.lower(), column.lower())
                    if value > best:
                        best, where = value, f"column {column}"
        if not best and word in entry.comment.lower():
            best, where = float(WEIGHTS["comment"]), "comment"
        if not best:
            return None
        score += best
        places.append(where)
    return Found(entry, score + KINDS.get(entry.kind, 0), next((each for each in places if each != "name"), "name"))


def _closeness(word: str, name: str, path: str) -> float:
    if name == word or path == word:
        return 1.0
    if name.startswith(word):
        return 0.8 + 0.1 * len(word) / max(len(name), 1)
    return 0.6 if word in name else 0.4


class Indexes:
    """The indexes of the callers who came last."""

    def __init__(self) -> None:
        self._known: LRUCache[str, Index] = LRUCache(MAX_INDEXES)
        self._lock = Lock()

    def of(self, token: str, lake: Metastore) -> Index:
        """The index of the caller with a token, up to date. `lake` is the metastore as the caller may see it."""
        with self._lock:
            index = self._known.setdefault(token, Index())
        if time.monotonic() >= index.fresh_until:
            index.fresh_until = _update(index, lake) + time.monotonic()
        return index


def _update(index: Index, lake: Metastore) -> float:
    """Read everything the first time. Later, read the objects of new events again. Returns how long the index is fresh."""
    index.tags = _tags(lake)
    try:
        changes = list(lake.events(after=index.cursor))
    except PermissionDenied:  # the caller may not read the feed
        index.replace(_everything(lake))
        return FRESH_WITHOUT_FEED_S
    index.recent.extend(changes)
    if not index.cursor or any(each.kind in ("catalog", "namespace") for each in changes):
        index.replace(_everything(lake))
    else:
        for kind, object_id in {(each.kind, each.message.object_id): None for each in changes}:
            if kind in ("table", "view"):
                index.put(object_id, _reread(lake, kind, object_id))
    if changes:
        index.cursor = changes[-1].sequence
    return FRESH_S


def _reread(lake: Metastore, kind: str, object_id: str) -> Entry | None:
    try:
        return _table(lake.tables.get(Id(object_id))) if kind == "table" else _view(lake.views.get(Id(object_id)))
    except (NotFound, PermissionDenied):
        return None


def _tags(lake: Metastore) -> Mapping[str, Tags]:
    try:
        return {
            str(table_id): tuple((column, tag) for column, given in tags.items() for tag in given)
            for table_id, tags in lake.policies.tagged(page_size=PAGE_SIZE)
        }
    except PermissionDenied:  # only those who manage policies see tags
        return {}


def _everything(lake: Metastore) -> Iterator[Entry]:
    for catalog in lake.catalogs():
        yield Entry("catalog", catalog.path, comment=catalog.description or "")
        for namespace in lake.namespaces(catalog, recursive=True, page_size=PAGE_SIZE):
            yield Entry("namespace", namespace.path, comment=namespace.description or "")
            try:
                yield from _members(lake, namespace)
            except (NotFound, PermissionDenied):
                continue  # it was deleted meanwhile


def _members(lake: Metastore, namespace: Namespace) -> Iterator[Entry]:
    yield from map(_table, lake.tables(namespace, page_size=PAGE_SIZE))
    yield from map(_view, lake.views(namespace, page_size=PAGE_SIZE))


def _table(table: Table) -> Entry:
    try:
        return _entry(table, table.stats.row_count, table.stats.total_size_bytes)
    except PreconditionFailed as error:
        if error.key != "resource.damaged":
            raise
        return _entry(table, None, None, damage=error.message)


def _entry(table: Table, rows: int | None, size_bytes: int | None, *, damage: str = "") -> Entry:
    comments = column_comments(table)
    return Entry(
        "table",
        table.path,
        tuple(comments),
        " ".join(filter(None, (table.description, *comments.values()))),
        table_format(table),
        rows,
        size_bytes,
        str(table.id),
        table.damage or damage,
    )


def _view(view: View) -> Entry:
    return Entry("view", view.path, comment=view.description or "", id=str(view.id), damage=view.damage)
