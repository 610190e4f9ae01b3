"""The home page: what is here, what changed and who changed it, what is broken or stale, and what is used most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from itertools import islice
from typing import Any, Final

from skiway.client.metastore import Event
from skiway.errors import PermissionDenied
from skiway.foundation.resources import namespace_path
from skiway.presentation.tables import row_count
from skiway.web.pages.overview import events_data, failing_jobs, failing_rules, object_data
from skiway.web.visits import WAIT_S, Page, Visit, incomplete_data, optional

MAX_EVENTS: Final = 1000
MAX_CHANGES: Final = 15
MAX_PROBLEMS: Final = 20
MAX_USED: Final = 8
MAX_COUNTED: Final = 500
"""Among how many tables those that are used most are searched: each has records of its own."""
DAYS: Final = 14
LARGEST: Final = 8
QUIET: Final = ("job",)
"""Kinds of events that are not changes of the lake."""


def home(visit: Visit) -> Page:
    """The home page."""
    summary = _summary(visit)
    is_late = bool(summary["incomplete"] and summary["incomplete"]["is_temporary"])
    failing, _ = optional(lambda: failing_jobs(visit))
    rules, _ = optional(lambda: failing_rules(visit))
    newest = [] if is_late else _newest(visit)  # there may be many, which the server has to sort first
    used, _ = optional(lambda: _used(visit, summary["tables"]))
    stale, _ = optional(lambda: list(_stale(visit)))
    broken, _ = optional(lambda: list(_broken(visit)))
    data = {
        **summary,
        "changes": None if is_late else _changes(visit, newest),
        "by_hour": _by_hour(visit, newest),
        "failing": failing or [],
        "failing_rules": rules or [],
        "broken": broken or [],
        "stale": stale or [],
        "used": used or [],
    }
    return Page("home.html", "Lake", data)


def _summary(visit: Visit) -> dict[str, Any]:
    found = visit.lake.search.summary(largest=LARGEST, wait_s=WAIT_S)
    return {
        "catalogs": [
            {"name": path[-1], "comment": comment, "tables": tables} for path, comment, tables in found.containers
        ],
        "tables": found.message.tables,
        "views": found.message.views,
        "rows": row_count(found.message.row_count, is_bound=found.message.row_count_is_bound),
        "rows_are_bound": found.message.row_count_is_bound,
        "size_bytes": found.message.total_size_bytes,
        "formats": [
            {"format": name, "tables": tables, "size_bytes": size_bytes} for name, tables, size_bytes in found.formats
        ],
        "largest": [object_data(each, "size_bytes") for each in found.largest],
        "incomplete": incomplete_data(found.incomplete),
    }


def _newest(visit: Visit) -> list[Event]:
    """The events of the last day, newest first."""
    try:
        newest, _ = visit.lake.events.newest(MAX_EVENTS)
    except PermissionDenied:
        return []
    since = visit.clients.clock() - timedelta(days=1)
    return [each for each in reversed(newest) if each.occurred_at >= since and each.kind not in QUIET]


def _changes(visit: Visit, newest: Sequence[Event]) -> list[dict[str, Any]]:
    """The changes of the last day. Events that differ only in their time are one, with their number."""
    counts: Counter[tuple[str, ...]] = Counter()
    firsts: dict[tuple[str, ...], Event] = {}
    for each in newest:
        key = (each.kind, each.action, each.message.object_id, each.caller)
        counts[key] += 1
        firsts.setdefault(key, each)
    shown = events_data(visit, islice(firsts.values(), MAX_CHANGES))
    return [{**each, "count": count} for each, count in zip(shown, (counts[key] for key in firsts), strict=False)]


def _by_hour(visit: Visit, newest: Iterable[Event]) -> list[tuple[str, int]]:
    """How many changes each of the last 24 hours had."""
    now = visit.clients.clock().replace(minute=0, second=0, microsecond=0)
    hours = [now - timedelta(hours=23 - number) for number in range(24)]
    counts = Counter(each.occurred_at.replace(minute=0, second=0, microsecond=0) for each in newest)
    return [(f"{hour:%H:%M}", counts[hour]) for hour in hours] if counts else []


def _broken(visit: Visit) -> Iterator[dict[str, Any]]:
    """Objects with damaged records."""
    found = visit.lake.search.below(condition="damaged", limit=MAX_PROBLEMS, wait_s=0)
    yield from ({"path": each.path, "kind": each.kind, "reason": each.damage} for each in found.objects)


def _stale(visit: Visit) -> Iterator[dict[str, Any]]:
    """Connectors that did not finish a sync for twice the time of their schedules."""
    finished: dict[str, datetime] = {}
    for job in next(iter(visit.lake.jobs(page_size=200).pages()), ()):
        if job.finished_at and job.state == "succeeded":
            finished.setdefault(job.message.connector_id.id, job.finished_at)
    now = visit.clients.clock()
    for connector in visit.lake.connectors():
        policy = connector.message.policy
        every = policy.interval.ToTimedelta() if policy.HasField("interval") else timedelta(0)
        at = finished.get(str(connector.id))
        if every and not connector.is_paused and (at is None or now - at > 2 * every):
            yield {"name": connector.name, "at": at, "every_seconds": every.total_seconds()}


def _used(visit: Visit, tables: int) -> list[dict[str, Any]]:
    """The tables that were read most in the last days, with their reads by day."""
    if tables > MAX_COUNTED:
        return []
    days = [visit.clients.clock().date() - timedelta(days=DAYS - 1 - number) for number in range(DAYS)]
    reads: dict[tuple[str, ...], Counter[date]] = {}
    for catalog in visit.lake.catalogs():
        rows = visit.airport(catalog.name).scan(
            ("skiway", "usage"), columns=["schema_name", "table_name", "day", "reads"]
        )
        for each in rows.read_all().to_pylist():
            path = (catalog.name, *namespace_path(each["schema_name"]), each["table_name"])
            if each["day"] >= days[0] and each["reads"]:
                reads.setdefault(path, Counter())[each["day"]] += each["reads"]
    most = sorted(reads.items(), key=lambda item: -item[1].total())[:MAX_USED]
    return [
        {"path": path, "reads": counts.total(), "by_day": [(str(day), counts[day]) for day in days]}
        for path, counts in most
    ]
