"""How tables are used: by whom, which columns, and what the metrics reports of Iceberg clients say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, Literal

import msgspec

from skiway.errors import Conflict, NotFound
from skiway.foundation.clock import from_micros, to_micros
from skiway.metastore.records import keys
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import apply_batch, retrying
from skiway.storage import ABSENT, Delete, Put

USAGE_KEPT: Final = timedelta(days=90)
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


def add_usage(realm: Realm, table_id: str, day: date, more: Usage) -> None:
    """Add to the record of a day. Concurrent additions by other servers are kept."""
    key = keys.usage(realm.account_id, table_id, day.isoformat())

    def attempt() -> None:
        pointer = realm.stores.pointers.get(key)
        total = Usage() if pointer is None else _decoded(pointer.blob_uri)
        total.add(more)
        expires_at = datetime.combine(day, time(), UTC) + USAGE_KEPT
        put = Put(key, _encoded(total), expect=ABSENT if pointer is None else pointer.version, expires_at=expires_at)
        apply_batch(realm, [put], what=f"the usage of table {table_id}")

    retrying(attempt)


def usage_of(realm: Realm, table_id: str) -> Iterator[tuple[date, Usage]]:
    """The use of a table by day."""
    for pointer in realm.stores.pointers.scan(keys.usage(realm.account_id, table_id)):
        yield date.fromisoformat(keys.last_segment(pointer.key)), _decoded(pointer.blob_uri)


def _encoded(usage: Usage) -> str:
    counts = [dict(each.most_common(MAX_NAMES)) for each in (usage.columns, usage.callers, usage.sources)]
    return msgspec.json.encode([usage.reads, usage.writes, usage.bytes_read, *counts]).decode()


def _decoded(text: str) -> Usage:
    reads, writes, bytes_read, *counts = msgspec.json.decode(text)
    return Usage(reads, writes, bytes_read, *map(Counter, counts))


MAX_REPORTS: Final = 100
"""How many reports of a table are kept."""

REPORTS_KEPT: Final = timedelta(days=30)
MAX_TEXT: Final = 2000
MAX_REPORTED_NAMES: Final = 100


class MetricsReport(msgspec.Struct, array_like=True, frozen=True):
    """A report. Metrics are counts, bytes, or nanoseconds of timers, by name."""

    kind: Literal["scan", "commit"]
    caller: str = ""
    snapshot_id: int | None = None
    operation: str = ""
    filter: str = ""
    columns: Sequence[str] = ()
    metrics: Mapping[str, int] = {}


def add_report(realm: Realm, table_id: str, report: MetricsReport, *, counts: bool = True) -> None:
    """Store a report, and delete the oldest ones beyond the limit. If `counts`, it also counts as use of the table."""
    now, prefix = realm.clock(), keys.metrics_report(realm.account_id, table_id)
    key = keys.metrics_report(realm.account_id, table_id, f"{to_micros(now):020d}-{realm.ids()}")
    stored = msgspec.json.encode(_bounded(report)).decode()
    realm.stores.pointers.apply([Put(key, stored, expect=ABSENT, expires_at=now + REPORTS_KEPT)])
    found = realm.stores.pointers.page(prefix, size=2 * MAX_REPORTS).items
    for each in found[:-MAX_REPORTS]:
        with suppress(Conflict, NotFound):  # another server was first
            realm.stores.pointers.apply([Delete(each.key, expect=each.version)])
    if counts:
        add_usage(realm, table_id, now.date(), _usage(report))


def reports_of(realm: Realm, table_id: str) -> Iterator[tuple[datetime, MetricsReport]]:
    """The reports of a table, oldest first, with the time of each."""
    for pointer in realm.stores.pointers.scan(keys.metrics_report(realm.account_id, table_id)):
        micros = int(keys.last_segment(pointer.key).partition("-")[0])
        yield from_micros(micros), msgspec.json.decode(pointer.blob_uri, type=MetricsReport)


def _bounded(report: MetricsReport) -> MetricsReport:
    """The report without what exceeds the limits."""
    return MetricsReport(
        report.kind,
        report.caller[:MAX_TEXT],
        report.snapshot_id,
        report.operation[:MAX_REPORTED_NAMES],
        report.filter if len(report.filter) <= MAX_TEXT else f"{report.filter[:MAX_TEXT]}…",
        [column[:MAX_REPORTED_NAMES] for column in report.columns[:MAX_REPORTED_NAMES]],
        {name[:MAX_REPORTED_NAMES]: value for name, value in list(report.metrics.items())[:MAX_REPORTED_NAMES]},
    )


def _usage(report: MetricsReport) -> Usage:
    bounded, callers = _bounded(report), Counter([report.caller])
    if report.kind == "commit":
        return Usage(writes=1, callers=callers)
    size = max(0, report.metrics.get("total-file-size-in-bytes", report.metrics.get("total-file-size-bytes", 0)))
    return Usage(reads=1, bytes_read=size, columns=Counter(set(bounded.columns)), callers=callers)
