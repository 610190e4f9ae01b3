"""The health of the lake: what fails, waits, is damaged, or lacks statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from skiway import __version__
from skiway.web.pages.home import INDEXES, failing_jobs
from skiway.web.visits import Page, Visit, optional

__all__ = ["health"]

MAX_SHOWN: Final = 20
MAX_JOBS: Final = 500


def health(visit: Visit) -> Page:
    """One check per line, each with its findings. A check that the visitor may not make says so."""
    checks = [
        _check("Connectors", "the last sync of each connector succeeded", lambda: _failing(visit)),
        _check("Jobs", "no job waits for a worker", lambda: _waiting(visit)),
        _check("Records", "all records can be read", lambda: _damaged(visit)),
        _check("Statistics", "all tables have statistics", lambda: _without_statistics(visit)),
    ]
    return Page("health.html", "Health", {"version": __version__, "checks": checks})


def _check(name: str, expected: str, find: Any) -> dict[str, Any]:
    found, reason = optional(lambda: list(find()))
    state = "unknown" if found is None else "attention" if found else "ok"
    shown = (found or [])[:MAX_SHOWN]
    return {
        "name": name,
        "expected": expected,
        "state": state,
        "reason": reason,
        "count": len(found or ()),
        "findings": shown,
    }


def _failing(visit: Visit) -> Iterable[dict[str, Any]]:
    for job in failing_jobs(visit):
        yield {
            "text": f"job {job['id']} {job['state']}: {job['message'] or 'see the job'}",
            "page": ["jobs", job["id"]],
        }


def _waiting(visit: Visit) -> Iterable[dict[str, Any]]:
    states = Counter(each.state for each in islice(visit.lake.jobs(), MAX_JOBS))
    if states["queued"] and not states["running"]:
        yield {"text": f"{states['queued']} jobs wait, and none runs: is a worker running?", "page": ["jobs"]}


def _damaged(visit: Visit) -> Iterable[dict[str, Any]]:
    for kind, found in (
        ("catalog", visit.lake.catalogs()),
        ("connector", visit.lake.connectors()),
        ("policy", visit.lake.policies()),
    ):
        for each in found:
            if each.damage:
                yield {"text": f"{kind} {each.name} is damaged: {each.damage}", "page": []}
    for entry in INDEXES.of(visit.visitor.token, visit.lake).entries.values():
        if entry.damage:
            yield {"text": f"{entry.kind} {'.'.join(entry.path)} is damaged: {entry.damage}", "page": []}


def _without_statistics(visit: Visit) -> Iterable[dict[str, Any]]:
    for entry in INDEXES.of(visit.visitor.token, visit.lake).entries.values():
        if entry.kind == "table" and entry.rows is None and not entry.damage:
            yield {"text": ".".join(entry.path), "page": ["tables", *entry.path]}
