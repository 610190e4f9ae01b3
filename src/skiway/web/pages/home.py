"""The home page: what the lake contains, what changed today, and what fails."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from skiway.client.metastore import Event
from skiway.errors import PermissionDenied
from skiway.presentation.search import Index, Indexes
from skiway.web.pages.rules import failing_rules
from skiway.web.visits import Page, Visit, optional

__all__ = ["INDEXES", "event_data", "failing_jobs", "home"]

INDEXES: Final = Indexes()
MAX_CHANGES: Final = 20
LARGEST: Final = 10


def home(visit: Visit) -> Page:
    """The home page."""
    index = INDEXES.of(visit.visitor.token, visit.lake)
    failing, _ = optional(lambda: failing_jobs(visit))
    rules, _ = optional(lambda: failing_rules(visit, index))
    data = {
        **_summary(index),
        "changes": _changes(index),
        "failing": failing or [],
        "failing_rules": rules or [],
    }
    return Page("home.html", "Lake", data)


def _summary(index: Index) -> dict[str, Any]:
    entries = index.entries.values()
    tables = [each for each in entries if each.kind == "table"]
    counts = Counter(each.path[0] for each in tables)
    formats = Counter(each.format for each in tables)
    sizes = Counter[str]()
    for each in tables:
        sizes[each.format] += each.size_bytes or 0
    largest = sorted(tables, key=lambda each: -(each.size_bytes or 0))[:LARGEST]
    return {
        "catalogs": [
            {"name": each.name, "comment": each.comment, "tables": counts[each.name]}
            for each in sorted(entries, key=lambda one: one.path)
            if each.kind == "catalog"
        ],
        "tables": len(tables),
        "views": sum(each.kind == "view" for each in entries),
        "rows": sum(each.rows or 0 for each in tables),
        "size_bytes": sum(each.size_bytes or 0 for each in tables),
        "formats": [
            {"format": name, "tables": count, "size_bytes": sizes[name]} for name, count in formats.most_common()
        ],
        "largest": [
            {"path": list(each.path), "format": each.format, "rows": each.rows, "size_bytes": each.size_bytes}
            for each in largest
            if each.size_bytes
        ],
    }


def _changes(index: Index) -> list[dict[str, Any]]:
    since = datetime.now(UTC) - timedelta(days=1)
    recent = [each for each in index.recent if each.occurred_at >= since]
    return [event_data(each, index) for each in reversed(recent[-MAX_CHANGES:])]


def event_data(event: Event, index: Index) -> dict[str, Any]:
    """An event as pages show it."""
    entry = index.by_id.get(event.message.object_id)
    return {
        "sequence": event.sequence,
        "at": event.occurred_at,
        "kind": event.kind,
        "action": event.action,
        "name": event.name or (entry.name if entry else ""),
        "page": entry.kind if entry else "",
        "path": list(entry.path) if entry else [],
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
