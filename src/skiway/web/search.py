"""Ranked search over catalogs, namespaces, tables, views, columns, comments and tags.

Each visitor has an index of what it may see. The feed of events keeps it up to date: only changed objects are read again.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from cachetools import LRUCache

from skiway.client import Metastore
from skiway.client.metastore import Event, Id, Namespace, Table, View
from skiway.errors import NotFound, PermissionDenied
from skiway.presentation.table_records import TableRecord
from skiway.web.visits import Visit

__all__ = ["Entry", "Found", "Index", "Indexes"]

MAX_INDEXES: Final = 50
MAX_RECENT: Final = 500
FRESH_S: Final = 2.0
"""How long an index is used without a look at the feed."""
WEIGHTS: Final = {"name": 100, "column": 40, "tag": 35, "comment": 20}
KINDS: Final = {"table": 3, "view": 2, "namespace": 1, "catalog": 1}


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
    """What one visitor may see, by path."""

    entries: dict[tuple[str, tuple[str, ...]], Entry] = field(default_factory=dict)
    cursor: int = 0
    by_id: dict[str, Entry] = field(default_factory=dict)
    recent: deque[Event] = field(default_factory=lambda: deque(maxlen=MAX_RECENT))
    """The newest events of the feed."""
    checked_at: float = float("-inf")

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
        """The best results for a text; each of its words must occur in the path, a column, or the comment."""
        words = text.lower().split()
        if not words:
            return []
        found = [each for entry in self.entries.values() if (each := _match(entry, words)) is not None]
        found.sort(key=lambda each: (-each.score, each.entry.path))
        return found[:limit]


def _match(entry: Entry, words: Sequence[str]) -> Found | None:
    path = ".".join(entry.path).lower()
    name = entry.name.lower()
    score, places = 0.0, []
    for word in words:
        best, where = 0.0, ""
        if word in path:
            best, where = WEIGHTS["name"] * _closeness(word, name, path), "name"
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
    """The indexes of the visitors who came last."""

    def __init__(self) -> None:
        self._known: LRUCache[str, Index] = LRUCache(MAX_INDEXES)
        self._lock = Lock()

    def of(self, visit: Visit) -> Index:
        """The index of a visitor, up to date."""
        with self._lock:
            index = self._known.setdefault(visit.visitor.token, Index())
        now = time.monotonic()
        if now - index.checked_at < FRESH_S:
            return index
        _update(index, visit.lake)
        index.checked_at = time.monotonic()
        return index


def _update(index: Index, lake: Metastore) -> None:
    """Read everything the first time. Later, read again what the new events of the feed are about."""
    try:
        changes = list(lake.events(after=index.cursor))
    except PermissionDenied:  # the visitor may not read the feed
        index.replace(_everything(lake))
        return
    index.recent.extend(changes)
    if not index.cursor or any(each.kind in ("catalog", "namespace") for each in changes):
        index.replace(_everything(lake))
    else:
        for kind, object_id in {(each.kind, each.message.object_id): None for each in changes}:
            if kind in ("table", "view"):
                index.put(object_id, _reread(lake, kind, object_id))
    if changes:
        index.cursor = changes[-1].sequence


def _reread(lake: Metastore, kind: str, object_id: str) -> Entry | None:
    try:
        return _table(lake.tables.get(Id(object_id))) if kind == "table" else _view(lake.views.get(Id(object_id)))
    except (NotFound, PermissionDenied):
        return None


def _everything(lake: Metastore) -> Iterator[Entry]:
    for catalog in lake.catalogs():
        yield Entry("catalog", catalog.path, comment=catalog.description or "")
        for namespace in lake.namespaces(catalog):
            yield Entry("namespace", namespace.path, comment=namespace.description or "")
            try:
                yield from _members(lake, namespace)
            except (NotFound, PermissionDenied):
                continue  # it was deleted meanwhile


def _members(lake: Metastore, namespace: Namespace) -> Iterator[Entry]:
    yield from map(_table, lake.tables(namespace))
    yield from map(_view, lake.views(namespace))


def _table(table: Table) -> Entry:
    record, fields = TableRecord.of(table, {}), _fields(table.schema_json)
    comments = " ".join(comment for _, comment in fields if comment)
    return Entry(
        "table",
        table.path,
        tuple(name for name, _ in fields),
        f"{table.description or ''} {comments}".strip(),
        record.format,
        record.rows,
        record.size_bytes,
        str(table.id),
    )


def _view(view: View) -> Entry:
    return Entry("view", view.path, comment=view.description or "", id=str(view.id))


def _fields(schema_json: str) -> list[tuple[str, str]]:
    try:
        fields = json.loads(schema_json or "{}").get("fields", [])
    except ValueError:
        return []
    return [(str(each.get("name", "")), str(each.get("doc") or "")) for each in fields]
