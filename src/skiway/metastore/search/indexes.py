"""The indexes of the accounts that were searched last: built in the background, and kept up to date.

An index is built when its account is first searched. Calls do not wait long for that: they answer with what is indexed so far, and
say that it is not everything. Later, each call first reads the new events, and the objects that have changed. Many changes at once,
such as those of a sync, are read in the background, too.

All indexes together have a limited size; the least recently used ones are forgotten.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from threading import Lock, RLock
from typing import Final

from skiway.metastore import events as feed
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import CATALOG, NAMESPACE
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import catalogs, namespaces
from skiway.metastore.search.index import Budget, Entry, Index, all_tags, read_table, read_view, relations_in
from skiway.model import v1

MAX_BYTES: Final = 256 * 1024 * 1024
"""The size of all indexes of a process together: enough for about 300,000 tables."""
IDLE_S: Final = 60.0
"""An index that was not used for so long makes room for others."""
RETRY_S: Final = 600.0
"""An index that was cut is built again after so long: there may be room now."""
MAX_CHANGES: Final = 200
"""How many changed objects a call reads itself."""
PAGE: Final = 1000
"""How many events are read at a time."""
STEP: Final = 200
"""How many entries are added at a time; between the steps, calls use the index."""
BUILDERS: Final = 2

BUILDING: Final = v1.Incomplete(
    reason="the search index is being built: more will be found in a moment", is_temporary=True
)
UPDATING: Final = v1.Incomplete(
    reason="many objects have changed, and the search index is being updated: some results may be out of date",
    is_temporary=True,
)
FAILED: Final = v1.Incomplete(reason="the search index could not be built: the operator finds the reason in the log")
CUT: Final = v1.Incomplete(reason="the search index has no room for all objects: some are missing")

_KINDS: Final = ("catalog", "namespace", "table", "view")

log = logging.getLogger("skiway.metastore")


class SearchIndexes:
    """The indexes of a process. They take about `max_bytes` together. A call reads up to `max_changes` changed objects itself."""

    def __init__(
        self,
        *,
        max_bytes: int = MAX_BYTES,
        max_changes: int = MAX_CHANGES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._known: OrderedDict[str, _Kept] = OrderedDict()
        self._budget, self._max_changes = Budget(max_bytes, self._forget_one), max_changes
        self._monotonic = monotonic
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(BUILDERS, thread_name_prefix="search-index")

    @property
    def size_bytes(self) -> int:
        """About how many bytes all indexes take."""
        return self._budget.used

    @contextmanager
    def of(self, realm: Realm, *, wait_s: float = 0.0) -> Iterator[tuple[Index, v1.Incomplete | None]]:
        """The index of the realm's account, for the duration of the block, and why something may be missing in it.

        It contains the whole account, whatever the caller may see. If it is being built, wait for that for some time.
        """
        with self._lock:
            kept = self._known.get(realm.account_id)
            if kept is None:
                kept = _Kept(
                    replace(realm.as_server(), caller=""),
                    self._budget,
                    self._threads,
                    self._max_changes,
                    self._monotonic,
                )
                self._known[realm.account_id] = kept
            self._known.move_to_end(realm.account_id)
            kept.used_at = self._monotonic()
        missing = kept.refresh(time.monotonic() + wait_s)
        with kept.using:
            yield kept.index, missing

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            for kept in self._known.values():
                kept.stop()
        self._threads.shutdown(cancel_futures=True)

    def _forget_one(self) -> bool:
        """Forget the index that was not used for longest, if that was some time ago. Returns whether there was one."""
        with self._lock:
            for account_id, kept in self._known.items():
                if not kept.is_busy and self._monotonic() - kept.used_at >= IDLE_S:
                    del self._known[account_id]
                    kept.stop()
                    return True
        return False


@dataclass(slots=True)
class _Changes:
    """The kinds and ids of changed objects, in the order of their first events, and the position of the last event."""

    end: int
    objects: dict[tuple[str, str], None] = field(default_factory=dict)


class _Kept:
    """The index of one account, and how far it has followed the feed."""

    def __init__(
        self,
        realm: Realm,
        budget: Budget,
        threads: ThreadPoolExecutor,
        max_changes: int,
        monotonic: Callable[[], float],
    ) -> None:
        self._realm, self._budget, self._threads = realm, budget, threads
        self._max_changes, self._monotonic = max_changes, monotonic
        self.index, self.using = Index(budget), RLock()
        self.used_at = self._built_at = monotonic()
        self._cursor: int | None = None
        """The position in the feed up to which the index is complete; None before it was built."""
        self._turn = Lock()
        self._work: Future[None] | None = None
        self._is_stopped = False

    @property
    def is_busy(self) -> bool:
        """Whether work goes on in the background."""
        work = self._work
        return work is not None and not work.done()

    def stop(self) -> None:
        """End the work in the background soon, and release the index, which is used no more."""
        self._is_stopped = True
        self.index.release()

    def refresh(self, until: float) -> v1.Incomplete | None:
        """Bring the index up to date. Returns why something may be missing, if that is so."""
        while not self._is_stopped:
            with self._turn:
                if self._work is not None and self._work.done():
                    work, self._work = self._work, None
                    if work.exception() is not None:
                        return FAILED
                if self._work is None:
                    changes = self._changes() if self._has_few_events() else None
                    if changes is not None and len(changes.objects) <= self._max_changes:
                        self._apply(changes)
                        return CUT if self.index.is_cut else None
                    self._work = self._threads.submit(self._catch_up)
                work = self._work
            left = until - time.monotonic()
            if left <= 0 or not wait_for([work], left).done:
                break
        return BUILDING if self._cursor is None else UPDATING

    # --- in the background --------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Build the index if there is none, or if events are missing; then read what has changed, until little is left."""
        try:
            while not self._is_stopped:
                changes = self._changes()
                if changes is None:
                    self._build()
                elif len(changes.objects) > self._max_changes:
                    self._apply(changes)
                else:
                    return
        except Exception:
            if not self._is_stopped:
                log.warning("the search index of account %s could not be built", self._realm.account_id, exc_info=True)
            raise
        finally:
            if self._is_stopped:
                self.index.release()  # it may have been replaced in the meantime

    def _build(self) -> None:
        """Read everything. Calls use what was read so far."""
        realm = self._realm
        feed.sequence_pending(realm.stores.pointers, realm.account_id)
        cursor = feed.head(realm.stores.pointers, realm.account_id)  # later changes are read again
        self.index.release()
        self.index, self._cursor, self._built_at = Index(self._budget), None, self._monotonic()
        for catalog in catalogs.scan(realm):
            with self.using:
                self.index.put_catalog(catalog)
            for namespace in namespaces.scan(realm, catalog.resource_id.id):
                with self.using:
                    self.index.put_namespace(namespace)
        tags = all_tags(realm)
        for namespace_id in list(self.index.areas):
            entries = relations_in(realm, namespace_id, tags)
            while not self._is_stopped and not self.index.is_cut and (step := list(islice(entries, STEP))):
                self._put(namespace_id, step)
        if not self._is_stopped:
            self._cursor = cursor

    def _put(self, namespace_id: str, entries: Iterable[Entry]) -> None:
        with self.using:
            for entry in entries:
                self.index.put(namespace_id, entry)

    # --- from the feed ------------------------------------------------------------------------------------------------

    def _has_few_events(self) -> bool:
        """Whether few events have no number yet: the next reader of the feed has to number all of them."""
        pending = keys.event_pending(self._realm.account_id)
        return self._realm.stores.pointers.page(pending, size=PAGE).next_token is None

    def _changes(self) -> _Changes | None:
        """What has changed since the index was last updated.

        None if the index has to be built: it is new, events since then are no longer stored, or it was cut some time ago.
        """
        pointers, account = self._realm.stores.pointers, self._realm.account_id
        if self._cursor is None or (self.index.is_cut and self._monotonic() - self._built_at > RETRY_S):
            return None
        feed.sequence_pending(pointers, account)
        last = feed.head(pointers, account)
        if self._cursor > last:
            return None  # an older state of the store was restored
        found = _Changes(self._cursor)
        while found.end < last and len(found.objects) <= PAGE:
            events = feed.read(pointers, account, after=found.end, limit=PAGE)
            if not events or events[0].sequence != found.end + 1:
                return None
            found.objects.update(((event.kind, event.object_id), None) for event in events if event.kind in _KINDS)
            found.end = events[-1].sequence
        return found

    def _apply(self, changes: _Changes) -> None:
        """Read changed objects again."""
        for kind, object_id in changes.objects:
            if self._is_stopped:
                return
            if kind == "catalog":
                self._read_catalog(object_id)
            elif kind == "namespace":
                self._read_namespace(object_id)
            else:
                self._read_relation(kind, object_id)
        self._cursor = changes.end

    def _read_catalog(self, catalog_id: str) -> None:
        catalog = self._realm.entry(CATALOG, catalog_id)
        with self.using:
            if catalog is None:
                self.index.remove_catalog(catalog_id)
            else:
                self.index.put_catalog(catalog.value)

    def _read_namespace(self, namespace_id: str) -> None:
        namespace = self._realm.entry(NAMESPACE, namespace_id)
        if namespace is not None and namespace.value.catalog_id.id not in self.index.catalogs:
            self._read_catalog(namespace.value.catalog_id.id)  # its own change comes later
        with self.using:
            if namespace is None:
                self.index.remove_namespace(namespace_id)
            else:
                self.index.put_namespace(namespace.value)

    def _read_relation(self, kind: str, object_id: str) -> None:
        found = (read_table if kind == "table" else read_view)(self._realm, object_id)
        if found is not None and found[0] not in self.index.areas:
            self._read_namespace(found[0])  # its own change comes later
        with self.using:
            if found is None:
                self.index.remove(object_id)
            else:
                self.index.put(*found)
