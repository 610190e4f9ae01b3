"""The home page: what the lake contains, what changed today, and what fails."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from skiway.client.metastore import Event, LakeObject
from skiway.errors import PermissionDenied
from skiway.presentation.sizes import row_count
from skiway.web.pages.rules import failing_rules
from skiway.web.visits import WAIT_S, Page, Visit, incomplete_data, optional

__all__ = ["events_data", "failing_jobs", "home"]

MAX_EVENTS: Final = 200
MAX_CHANGES: Final = 20
LARGEST: Final = 10


def home(visit: Visit) -> Page:
    """The home page."""
    summary = _summary(visit)
    is_late = bool(summary["incomplete"] and summary["incomplete"]["is_temporary"])
    failing, _ = optional(lambda: failing_jobs(visit))
    rules, _ = optional(lambda: failing_rules(visit))
    data = {
        **summary,
        "changes": None if is_late else _changes(visit),  # there may be many, which the server has to sort first
        "failing": failing or [],
        "failing_rules": rules or [],
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
        "largest": [
            {
                "path": list(each.path),
                "format": each.format,
                "rows": row_count(each.rows, is_bound=each.rows_are_bound),
                "rows_are_bound": each.rows_are_bound,
                "size_bytes": each.size_bytes,
            }
            for each in found.largest
        ],
        "incomplete": incomplete_data(found.incomplete),
    }


def _changes(visit: Visit) -> list[dict[str, Any]]:
    try:
        newest, _ = visit.lake.events.newest(MAX_EVENTS)
    except PermissionDenied:
        return []
    since = datetime.now(UTC) - timedelta(days=1)
    recent = [each for each in newest if each.occurred_at >= since][-MAX_CHANGES:]
    return events_data(visit, reversed(recent))


def events_data(visit: Visit, events: Iterable[Event]) -> list[dict[str, Any]]:
    """Events as pages show them, with the paths of their objects where the visitor may see them."""
    shown = list(events)
    known = visit.lake.search.with_ids(each.message.object_id for each in shown)
    return [_event(each, known.get(each.message.object_id)) for each in shown]


def _event(event: Event, of: LakeObject | None) -> dict[str, Any]:
    return {
        "sequence": event.sequence,
        "at": event.occurred_at,
        "kind": event.kind,
        "action": event.action,
        "name": event.name or (of.name if of else ""),
        "page": of.kind if of else "",
        "path": list(of.path) if of else [],
        "snapshot_id": event.snapshot_id,
    }


def failing_jobs(visit: Visit) -> list[dict[str, Any]]:
    """The last job of each connector that failed, in part or as a whole; none for visitors who may not see jobs."""
    try:
        jobs = visit.lake.jobs(page_size=50)
        newest: dict[str, Any] = {}
        for job in next(iter(jobs.pages()), []):
            newest.setdefault(job.message.connector_id.id, job)
    except PermissionDenied:
        return []
    return [
        {"id": job.id, "state": job.state, "errors": job.errors, "message": job.message.message, "at": job.finished_at}
        for job in newest.values()
        if job.state in ("failed", "partial")
    ]
