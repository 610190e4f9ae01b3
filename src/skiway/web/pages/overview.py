"""What the lake contains and what fails: catalogs, search, and the health of the lake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from skiway import __version__
from skiway.client.metastore import Event, LakeObject, Rule
from skiway.errors import NotFound, PermissionDenied
from skiway.presentation.tables import picked, row_count
from skiway.web.pages import branches
from skiway.web.visits import WAIT_S, Page, Visit, incomplete_data, optional

MAX_FAILING: Final = 20


def rule_data(rule: Rule) -> dict[str, Any]:
    """A rule and its newest result."""
    names, result = ("status", "method", "observed", "message"), rule.result
    newest = picked(result, *names) if result else {**dict.fromkeys(names, ""), "status": "unknown"}
    return {
        **picked(rule, "name", "kind", "severity"),
        "description": rule.description or rule.damage,
        **newest,
        "checked_at": result.checked_at if result else None,
    }


def failing_rules(visit: Visit) -> list[dict[str, Any]]:
    """The first rules that failed, with the paths of their tables."""
    rules = (rule for rule in visit.lake.rules(page_size=1000) if rule.result and rule.result.status == "failed")
    failed = list(islice(rules, MAX_FAILING))
    known = visit.lake.search.with_ids(str(rule.table_id) for rule in failed)
    return [
        {**rule_data(rule), "path": known[str(rule.table_id)].path} for rule in failed if str(rule.table_id) in known
    ]


def object_data(found: LakeObject, *names: str) -> dict[str, Any]:
    """An object of the lake with its size, and more of its attributes."""
    rows = row_count(found.rows, is_bound=found.rows_are_bound)
    return {**picked(found, "path", "format", "rows_are_bound", *names), "rows": rows}


def events_data(visit: Visit, events: Iterable[Event]) -> list[dict[str, Any]]:
    """Events as pages show them, with the paths of their objects where the visitor may see them."""
    shown = list(events)
    known = visit.lake.search.with_ids(each.message.object_id for each in shown)
    return [_event(each, known.get(each.message.object_id)) for each in shown]


def _event(event: Event, of: LakeObject | None) -> dict[str, Any]:
    return {
        **picked(event, "sequence", "at=occurred_at", "kind", "action", "snapshot_id", "caller"),
        "name": event.name or (of.name if of else ""),
        "page": of.kind if of else "",
        "path": of.path if of else (),
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


PAGE: Final = 100
MAX_HITS: Final = 50


def search(visit: Visit) -> Page:
    """What matches the text in the search box, the best first."""
    text = visit.query.get("q", "").strip()[:200]
    found = visit.lake.search(text, limit=MAX_HITS, wait_s=WAIT_S)
    results = [
        {**object_data(hit.object, "kind"), "where": hit.found_in, "comment": hit.object.comment[:200]} for hit in found
    ]
    data = {"q": text, "results": results, "incomplete": incomplete_data(found.incomplete)}
    return Page("search.html", f"Search: {text}" if text else "Search", data)


def catalog(visit: Visit) -> Page:
    """A catalog or a namespace: its namespaces, and a page of its tables and views."""
    path = visit.names
    if not path:
        raise NotFound("the address names no catalog: choose one on the home page", key="catalog.unknown")
    if visit.branch:
        return branches.contents(visit)
    try:
        here = visit.lake.search.summary(path, wait_s=WAIT_S)
    except NotFound:
        raise NotFound(
            f"there is no catalog or namespace {'.'.join(path)[:200]}, or you may not see it: search for its name",
            key="namespace.not_found",
        ) from None
    number = visit.number("page", 1, most=1_000_000)
    members = visit.lake.search.below(path, offset=(number - 1) * PAGE, limit=PAGE, wait_s=0)
    data = {
        "path": list(path),
        "kind": here.object.kind if here.object else "",
        "branch": None,
        "comment": here.object.comment if here.object else "",
        "namespaces": [{"path": list(below), "tables": tables} for below, _, tables in here.containers],
        "members": [
            {**object_data(member, "kind", "size_bytes", "problem"), "comment": member.comment[:200]}
            for member in members.objects
        ],
        "total": members.total,
        "page": number,
        "pages": max(1, -(-members.total // PAGE)),
        "incomplete": incomplete_data(members.incomplete),
    }
    return Page("catalog.html", ".".join(path), data)


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
