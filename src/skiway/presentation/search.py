"""Ranked search over catalogs, namespaces, tables, views, columns, tags and comments.

Each caller has an index of what it may see. It is built from listings, a thousand tables with their sizes per call. The feed of
events keeps it up to date: only changed objects are read again. All indexes together have a limited size.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from sys import intern
from threading import Lock
from typing import Final

from skiway.client import Metastore
from skiway.client.metastore import Event, Id, Namespace, Table, View
from skiway.errors import NotFound, PermissionDenied, PreconditionFailed
from skiway.model import v1
from skiway.presentation.table_records import column_comments, table_format

__all__ = ["Entry", "Found", "Index", "Indexes"]

MAX_INDEXES: Final = 50
MAX_ENTRIES: Final = 300_000
"""The size of all indexes together. An index that exceeds it alone is kept until another one is needed."""
MAX_REREAD: Final = 200
"""How many changed objects are read one by one. Listings are faster for more."""
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
    text: str = field(init=False, repr=False, compare=False, default="")
    """All texts, in which a word must occur for a closer look."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", "\n".join((".".join(self.path), *self.columns, self.comment)).lower())

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
    is_built: bool = False
    fresh_until: float = float("-inf")
    updating: Lock = field(default_factory=Lock)

    def replace(self, entries: Iterable[Entry]) -> None:
        """Put these entries in the place of all others."""
        found = list(entries)
        self.entries = {(each.kind, each.path): each for each in found}
        self.by_id = {each.id: each for each in found if each.id}

    def change(self, removed: Iterable[str], added: Iterable[Entry]) -> None:
        """Remove the entries with these ids, and add others."""
        entries, by_id = dict(self.entries), dict(self.by_id)  # others may iterate over them now
        for object_id in removed:
            before = by_id.pop(object_id, None)
            if before is not None:
                entries.pop((before.kind, before.path), None)
        for entry in added:
            entries[entry.kind, entry.path] = entry
            if entry.id:
                by_id[entry.id] = entry
        self.entries, self.by_id = entries, by_id

    def find(self, text: str, *, limit: int = 50) -> list[Found]:
        """The best results for a text; each of its words must occur in the path, a column, a tag, or the comment."""
        words = text.lower().split()
        if not words:
            return []
        matches = (_match(entry, words, tags) for entry, tags in self._candidates(words))
        found = (each for each in matches if each is not None)
        return nsmallest(limit, found, key=lambda each: (-each.score, each.entry.path))

    def _candidates(self, words: Sequence[str]) -> Iterator[tuple[Entry, Tags]]:
        """The entries whose texts contain all words, and those with tags, in which they may be, too."""
        tags, (first, *others) = self.tags, words
        for entry in self.entries.values():
            if tags and (own := tags.get(entry.id)):
                yield entry, own
            elif first in entry.text and all(word in entry.text for word in others):
                yield entry, ()


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

    def __init__(self, *, max_entries: int = MAX_ENTRIES) -> None:
        self._known: OrderedDict[str, Index] = OrderedDict()
        self._max_entries = max_entries
        self._lock = Lock()

    def of(self, token: str, lake: Metastore) -> Index:
        """The index of the caller with a token, up to date. `lake` is the metastore as the caller may see it."""
        with self._lock:
            index = self._known.setdefault(token, Index())
            self._known.move_to_end(token)
        with index.updating:  # whoever types a word sends several requests: one of them updates, the others wait
            if time.monotonic() >= index.fresh_until:
                index.fresh_until = _update(index, lake) + time.monotonic()
                self._limit()
        return index

    def _limit(self) -> None:
        """Forget the indexes that were not used for longest, but never the last one."""
        with self._lock:
            total = sum(len(each.entries) for each in self._known.values())
            while len(self._known) > 1 and (len(self._known) > MAX_INDEXES or total > self._max_entries):
                _, forgotten = self._known.popitem(last=False)
                total -= len(forgotten.entries)


def _update(index: Index, lake: Metastore) -> float:
    """Read everything the first time. Later, read the objects of new events again. Returns how long the index is fresh."""
    index.tags = _tags(lake)
    try:
        changes = _changes(index, lake)
    except PermissionDenied:  # the caller may not read the feed
        index.replace(_everything(lake))
        return FRESH_WITHOUT_FEED_S
    if changes is None or len(changes) > MAX_REREAD or not all(map(_is_small, changes)):
        index.replace(_everything(lake))
    elif changes:
        gone = [object_id for _, object_id, _ in changes]
        index.change(gone, [entry for change in changes for entry in _reread(lake, *change)])
    index.is_built = True
    return FRESH_S


Change = tuple[str, str, str]
"""The kind and the id of a changed object, and what happened to it last."""


def _changes(index: Index, lake: Metastore) -> list[Change] | None:
    """What has changed since the last look at the feed; None if that is unknown."""
    events = None
    if index.is_built:
        try:
            events = list(lake.events(after=index.cursor))
        except PreconditionFailed as error:  # the events since then are no longer stored
            if error.key != "events.expired":
                raise
    if events is None:
        newest, index.cursor = lake.events.newest(MAX_RECENT)
        index.recent = deque(newest, MAX_RECENT)
        return None
    if events:
        index.recent.extend(events)
        index.cursor = events[-1].sequence
    relevant = [each for each in events if each.kind in KINDS]
    return [
        (kind, object_id, action)
        for (kind, object_id), action in {(each.kind, each.message.object_id): each.action for each in relevant}.items()
    ]


def _is_small(change: Change) -> bool:
    """Whether the change concerns the object only, and not the paths of others."""
    kind, _, action = change
    return kind in ("table", "view") or action == "created"


def _reread(lake: Metastore, kind: str, object_id: str, _: str) -> Iterator[Entry]:
    """The entries of an object as it is now."""
    own = Id(object_id)
    try:
        match kind:
            case "table":
                yield _table(table := lake.tables.get(own), table.path)
            case "view":
                yield _view(view := lake.views.get(own), view.path)
            case "namespace":
                yield from _namespace(lake, lake.namespaces.get(own))
            case _:
                catalog = lake.catalogs.get(own)
                yield Entry("catalog", catalog.path, comment=catalog.description or "")
    except (NotFound, PermissionDenied):
        return


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
            yield from _namespace(lake, namespace)


def _namespace(lake: Metastore, namespace: Namespace) -> Iterator[Entry]:
    """The namespace, with its tables and views. Their paths are known, so the server is not asked for them."""
    path = namespace.path
    yield Entry("namespace", path, comment=namespace.description or "")
    try:
        for table, size in lake.tables.with_sizes(namespace, page_size=PAGE_SIZE):
            yield _listed(table, (*path, table.name), size)
        for view in lake.views(namespace, page_size=PAGE_SIZE):
            yield _view(view, (*path, view.name))
    except (NotFound, PermissionDenied):
        return  # it was deleted meanwhile


def _table(table: Table, path: tuple[str, ...]) -> Entry:
    """The entry of one table, whose size is requested."""
    try:
        return _entry(table, path, table.stats.row_count, table.stats.total_size_bytes)
    except PreconditionFailed as error:
        if error.key != "resource.damaged":
            raise
        return _entry(table, path, damage=error.message)


def _listed(table: Table, path: tuple[str, ...], size: v1.TableSize | None) -> Entry:
    """The entry of a table in a listing."""
    if size is None or size.damage:
        return _entry(table, path, damage=size.damage if size else "")
    return _entry(table, path, size.row_count, size.total_size_bytes)


def _entry(
    table: Table, path: tuple[str, ...], rows: int | None = None, size_bytes: int | None = None, *, damage: str = ""
) -> Entry:
    comments = column_comments(table)
    return Entry(
        "table",
        path,
        tuple(map(intern, comments)),  # tables often have columns with the same names
        " ".join(filter(None, (table.description, *comments.values()))),
        table_format(table),
        rows,
        size_bytes,
        str(table.id),
        table.damage or damage,
    )


def _view(view: View, path: tuple[str, ...]) -> Entry:
    return Entry("view", path, comment=view.description or "", id=str(view.id), damage=view.damage)
