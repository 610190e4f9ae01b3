"""Metrics reports of Iceberg clients: what their scans and commits of a table did, as far as they say.

The newest reports of a table are stored, each under a key of its own, and expire after some time. Scans and commits also count
as use of the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from skiway.clock import from_micros, to_micros
from skiway.errors import Conflict, NotFound
from skiway.metastore.records import keys
from skiway.metastore.records.realm import Realm
from skiway.metastore.usage import Usage, add_usage
from skiway.storage import ABSENT, Delete, Put

__all__ = ["MAX_REPORTS", "MetricsReport", "add_report", "reports_of"]

MAX_REPORTS: Final = 100
"""How many reports of a table are kept."""

KEPT: Final = timedelta(days=30)
MAX_TEXT: Final = 2000
MAX_NAMES: Final = 100


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
    realm.stores.pointers.apply([Put(key, stored, expect=ABSENT, expires_at=now + KEPT)])
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
        report.operation[:MAX_NAMES],
        report.filter if len(report.filter) <= MAX_TEXT else f"{report.filter[:MAX_TEXT]}…",
        [each[:MAX_NAMES] for each in report.columns[:MAX_NAMES]],
        {name[:MAX_NAMES]: value for name, value in list(report.metrics.items())[:MAX_NAMES]},
    )


def _usage(report: MetricsReport) -> Usage:
    bounded, callers = _bounded(report), Counter([report.caller])
    if report.kind == "commit":
        return Usage(writes=1, callers=callers)
    size = max(0, report.metrics.get("total-file-size-in-bytes", report.metrics.get("total-file-size-bytes", 0)))
    return Usage(reads=1, bytes_read=size, columns=Counter(set(bounded.columns)), callers=callers)
