"""The health of the lake: what fails, waits, is damaged, or lacks statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from skiway import __version__
from skiway.web.pages.home import failing_jobs
from skiway.web.visits import WAIT_S, Page, Visit, optional

__all__ = ["health"]

MAX_SHOWN: Final = 20
MAX_JOBS: Final = 500


def health(visit: Visit) -> Page:
    """One check per line, each with its findings. A check that the visitor may not make says so."""
    checks = [
        _check("Connectors", "the last sync of each connector succeeded", lambda: _all(_failing(visit))),
        _check("Jobs", "no job waits for a worker", lambda: _all(_waiting(visit))),
        _check("Records", "all records can be read", lambda: _damaged(visit)),
        _check("Statistics", "all tables have statistics", lambda: _without_statistics(visit)),
    ]
    return Page("health.html", "Health", {"version": __version__, "checks": checks})


Finding = dict[str, Any]
Findings = tuple[int, list[Finding], str]
"""How many findings there are, the first of them, and why some may be missing."""


def _check(name: str, expected: str, find: Callable[[], Findings]) -> dict[str, Any]:
    found, reason = optional(find)
    count, shown, incomplete = found or (0, [], "")
    state = "attention" if count else "unknown" if found is None or incomplete else "ok"
    return {
        "name": name,
        "expected": expected,
        "state": state,
        "reason": reason or incomplete,
        "count": count,
        "findings": shown[:MAX_SHOWN],
    }


def _all(findings: Iterable[Finding]) -> Findings:
    found = list(findings)
    return len(found), found, ""


def _failing(visit: Visit) -> Iterable[Finding]:
    for job in failing_jobs(visit):
        yield {
            "text": f"job {job['id']} {job['state']}: {job['message'] or 'see the job'}",
            "page": ["jobs", job["id"]],
        }


def _waiting(visit: Visit) -> Iterable[Finding]:
    states = Counter(each.state for each in islice(visit.lake.jobs(), MAX_JOBS))
    if states["queued"] and not states["running"]:
        yield {"text": f"{states['queued']} jobs wait, and none runs: is a worker running?", "page": ["jobs"]}


def _damaged(visit: Visit) -> Findings:
    found: list[Finding] = []
    for kind, resources in (
        ("catalog", visit.lake.catalogs()),
        ("connector", visit.lake.connectors()),
        ("policy", visit.lake.policies()),
    ):
        for each in resources:
            if each.damage:
                found.append({"text": f"{kind} {each.name} is damaged: {each.damage}", "page": []})
    more = visit.lake.search.below(condition="damaged", limit=MAX_SHOWN, wait_s=WAIT_S)
    found += (
        {"text": f"{each.kind} {'.'.join(each.path)} is damaged: {each.damage}", "page": []} for each in more.objects
    )
    return len(found) - len(more.objects) + more.total, found, more.incomplete.reason if more.incomplete else ""


def _without_statistics(visit: Visit) -> Findings:
    found = visit.lake.search.below(condition="without_statistics", limit=MAX_SHOWN, wait_s=0)
    shown = [{"text": ".".join(each.path), "page": ["tables", *each.path]} for each in found.objects]
    return found.total, shown, found.incomplete.reason if found.incomplete else ""
