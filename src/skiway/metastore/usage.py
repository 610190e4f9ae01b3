"""How tables are used: who reads and writes them, which columns, and from which other tables they are written.

Each table has a record per day, which expires after some months. Servers collect what happens, and add it to the records
every few seconds, so that statements do not wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

import msgspec

from skiway.metastore.records import keys
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import apply_batch, retrying
from skiway.storage import ABSENT, Put

__all__ = ["Usage", "add_usage", "usage_of"]

KEPT: Final = timedelta(days=90)
MAX_NAMES: Final = 500
"""How many columns, callers and sources a record has; of more, those that are used most."""

MAX_BYTES: Final = 2**62
"""The maximum of counted bytes: clients report sizes, and the total must remain a 64-bit number."""


@dataclass(slots=True)
class Usage:
    """What happened to a table. Sources are the ids of tables that were read in the transactions of its writes."""

    reads: int = 0
    writes: int = 0
    bytes_read: int = 0
    columns: Counter[str] = field(default_factory=Counter)
    callers: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)

    def add(self, more: Usage) -> None:
        """Add what happened elsewhere."""
        self.reads += more.reads
        self.writes += more.writes
        self.bytes_read = min(self.bytes_read + more.bytes_read, MAX_BYTES)
        for own, others in ((self.columns, more.columns), (self.callers, more.callers), (self.sources, more.sources)):
            own.update(others)


class _Record(msgspec.Struct, array_like=True, frozen=True):
    reads: int
    writes: int
    bytes_read: int
    columns: dict[str, int]
    callers: dict[str, int]
    sources: dict[str, int]


def add_usage(realm: Realm, table_id: str, day: date, more: Usage) -> None:
    """Add to the record of a day. Concurrent additions by other servers are kept."""
    key = keys.usage(realm.account_id, table_id, day.isoformat())

    def attempt() -> None:
        found = realm.stores.pointers.get(key)
        total = Usage() if found is None else _decoded(found.blob_uri)
        total.add(more)
        expires_at = datetime.combine(day, time(), UTC) + KEPT
        put = Put(key, _encoded(total), expect=ABSENT if found is None else found.version, expires_at=expires_at)
        apply_batch(realm, [put], what=f"the usage of table {table_id}")

    retrying(attempt)


def usage_of(realm: Realm, table_id: str) -> Iterator[tuple[date, Usage]]:
    """The use of a table by day."""
    for pointer in realm.stores.pointers.scan(keys.usage(realm.account_id, table_id)):
        yield date.fromisoformat(keys.last_segment(pointer.key)), _decoded(pointer.blob_uri)


def _encoded(usage: Usage) -> str:
    counts = [dict(each.most_common(MAX_NAMES)) for each in (usage.columns, usage.callers, usage.sources)]
    return msgspec.json.encode(_Record(usage.reads, usage.writes, usage.bytes_read, *counts)).decode()


def _decoded(text: str) -> Usage:
    found = msgspec.json.decode(text, type=_Record)
    return Usage(
        found.reads,
        found.writes,
        found.bytes_read,
        Counter(found.columns),
        Counter(found.callers),
        Counter(found.sources),
    )
