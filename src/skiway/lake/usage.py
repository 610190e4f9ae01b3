"""What statements read and write, collected in memory and stored every few seconds.

A table is written from others if they were read in the transaction, or in the call, of the write. DuckDB has a transaction
for each statement outside of BEGIN … COMMIT, so these are the tables of INSERT … SELECT and CREATE TABLE … AS.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import date, datetime
from threading import Event, Lock, Thread
from typing import Final

from cachetools import LRUCache

from skiway.airport import Request
from skiway.airport.request import call_of
from skiway.errors import SkiwayError
from skiway.metastore import Realm
from skiway.metastore.usage import Usage, add_usage
from skiway.security import utc_now

__all__ = ["UsageLog", "unit_of_work"]

log = logging.getLogger("skiway.lake")

EVERY_S: Final = 5.0
_TRANSACTIONS: Final = 10_000
_MAX_SOURCES: Final = 100


def unit_of_work(request: Request) -> str:
    """What identifies the reads and writes that belong together: the transaction or, without one, the call."""
    return request.transaction_id or call_of(request).correlation_id


class UsageLog:
    """Collects the use of tables by the statements of this server. A crash loses the last seconds."""

    def __init__(self, *, every_s: float = EVERY_S, clock: Callable[[], datetime] = utc_now) -> None:
        self._every_s, self._clock = every_s, clock
        self._lock = Lock()
        self._pending: dict[tuple[str, str, date], tuple[Realm, Usage]] = {}
        self._read_in: LRUCache[str, set[str]] = LRUCache(_TRANSACTIONS)  # tables by unit of work
        self._thread: Thread | None = None
        self._closing = Event()

    def read(
        self, realm: Realm, table_id: str, *, caller: str, unit: str, columns: Sequence[str], size_bytes: int
    ) -> None:
        """Record a scan."""
        with self._lock:
            usage = self._usage(realm, table_id)
            usage.reads += 1
            usage.bytes_read += size_bytes
            usage.columns.update(columns)
            usage.callers[caller] += 1
            if unit:
                tables: set[str] = self._read_in.setdefault(unit, set())
                if len(tables) < _MAX_SOURCES:
                    tables.add(table_id)

    def written(self, realm: Realm, table_id: str, *, caller: str, unit: str) -> None:
        """Record a commit."""
        with self._lock:
            usage = self._usage(realm, table_id)
            usage.writes += 1
            usage.callers[caller] += 1
            usage.sources.update(self._read_in.get(unit, set()) - {table_id})

    def flush(self) -> None:
        """Store what was collected. What cannot be stored is lost: it must not fill the memory."""
        with self._lock:
            pending, self._pending = self._pending, {}
        for (_, table_id, day), (realm, usage) in pending.items():
            try:
                add_usage(realm, table_id, day, usage)
            except SkiwayError:
                log.warning("the use of table %s could not be stored", table_id, exc_info=True)

    def close(self) -> None:
        """Store what was collected, and end the thread."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def _usage(self, realm: Realm, table_id: str) -> Usage:
        if self._thread is None and not self._closing.is_set():
            self._thread = Thread(target=self._run, name="usage", daemon=True)
            self._thread.start()
        key = (realm.account_id, table_id, self._clock().date())
        return self._pending.setdefault(key, (realm, Usage()))[1]

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            self.flush()
