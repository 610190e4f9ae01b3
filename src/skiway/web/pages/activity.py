"""What happens in the account: who changed what through which door, and which queries ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, takewhile
from typing import Any, Final

from skiway.client.metastore import Event
from skiway.errors import InvalidArgument, NotFound
from skiway.presentation.query_history import query_called, reasons, recent_queries
from skiway.presentation.tables import picked
from skiway.web.visits import Page, Visit, first_catalog, optional

PART: Final = 1000
MAX_EVENTS: Final = 20_000
"""How far the page looks back for the changes of some days."""
MAX_QUERIES: Final = 200
DAYS: Final = {"1": 1, "7": 7, "": 0}
WHEN: Final = {"": "any time", "today": "today", "yesterday": "yesterday", "1": "last 24 hours", "7": "last 7 days"}
SLOW_MS: Final = {"": 0, "100": 100, "1000": 1000, "10000": 10_000}


def events(visit: Visit) -> Page:
    """The newest changes, grouped by day and by what was done; those of one caller, kind or door, or with a text, if wanted."""
    wanted = {name: visit.query.get(name, "").strip() for name in ("q", "caller", "kind", "door")}
    since, until = _span(visit)
    newest, is_cut = _read(visit, since)
    found = [
        each
        for each in reversed(newest)
        if (since is None or each.occurred_at >= since) and (until is None or each.occurred_at < until)
    ]
    known = visit.lake.search.with_ids(each.message.table_id or each.message.object_id for each in found)
    names = _names(visit)
    rows = [_event(each, known.get(each.message.table_id or each.message.object_id), names) for each in found]
    chosen = [each for each in rows if _matches(each, wanted)]
    by_day = groupby(chosen, lambda each: each["at"].date().isoformat())
    data = {
        "days": [{"day": day, "changes": list(_grouped(list(same)))} for day, same in by_day],
        "filters": {**wanted, "days": visit.query.get("days", ""), "on": visit.query.get("on", "")},
        "when": WHEN,
        "choices": {name: sorted({each[name] for each in rows} - {""}) for name in ("caller", "kind", "door")},
        "found": len(chosen),
        "read": len(newest) if is_cut else None,
    }
    return Page("events.html", "Activity", data)


def _span(visit: Visit) -> tuple[datetime | None, datetime | None]:
    """The time that the query string asks for, in UTC: `on` is a date, and `days` one of `WHEN`."""
    days, on = visit.query.get("days", ""), visit.query.get("on", "")
    if days not in WHEN:
        message = "days is today, yesterday, 1 or 7: leave it out for all"
        raise InvalidArgument(message, key="query.invalid", field="days")
    today = visit.clients.clock().replace(hour=0, minute=0, second=0, microsecond=0)
    if on:
        try:
            start = datetime.fromisoformat(on).replace(tzinfo=UTC)
        except ValueError:
            message = f"on is {on[:40]!r}: give a date such as {today:%Y-%m-%d}"
            raise InvalidArgument(message, key="query.invalid", field="on") from None
        return start, start + timedelta(days=1)
    if days == "yesterday":
        return today - timedelta(days=1), today
    return (today if days == "today" else _since(visit, days)), None


def _since(visit: Visit, days: str) -> datetime | None:
    if days not in DAYS:
        raise InvalidArgument("days is 1 or 7: leave it out for all", key="query.invalid", field="days")
    return visit.clients.clock() - timedelta(days=DAYS[days]) if DAYS[days] else None


def _read(visit: Visit, since: datetime | None) -> tuple[list[Event], bool]:
    """The newest events: a part of them, or all since a moment; and whether there are more that were not read."""
    found, end = visit.lake.events.newest(PART)
    start = (
        found[0].sequence - 1 if found else max(0, end - PART)
    )  # events that the visitor may not see have numbers, too
    steps = MAX_EVENTS // PART if since is not None else 0
    while since is not None and steps and start > 0 and not (found and found[0].occurred_at < since):
        before, last = max(0, start - PART), start
        found = [*takewhile(lambda each: each.sequence <= last, visit.lake.events(after=before)), *found]  # noqa: B023
        start, steps = before, steps - 1
    return found, start > 0 and (since is None or not (found and found[0].occurred_at < since))


def _names(visit: Visit) -> dict[str, str]:
    """The names of connectors and pipelines by id: events of their runs have none."""
    found: dict[str, str] = {}
    for listed in (visit.lake.connectors, visit.lake.pipelines):
        read, _ = optional(lambda listed=listed: {str(each.id): each.name for each in listed()})  # type: ignore[misc]
        found |= read or {}
    return found


def _event(event: Event, of: Any, names: Mapping[str, str]) -> dict[str, Any]:
    message = event.message
    return {
        **picked(event, "sequence", "at=occurred_at", "kind", "action", "snapshot_id"),
        **picked(message, "caller", "door", "detail", "job_id", "previous_name"),
        "name": event.name or (of.name if of else names.get(message.object_id, message.object_id)),
        "page": of.kind if of else "",
        "path": list(of.path) if of else [],
    }


def _matches(event: dict[str, Any], wanted: dict[str, str]) -> bool:
    if any(wanted[name] not in ("", event[name]) for name in ("caller", "kind", "door")):
        return False
    if event["kind"] == "job" and not wanted["kind"]:  # the steps of jobs, whose ends are events of their own
        return False
    text = " ".join([event["name"], event["kind"], event["action"], event["detail"], ".".join(event["path"])]).lower()
    return all(word in text for word in wanted["q"].lower().split())


def _grouped(events: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Changes that follow each other and are the same but for their time, as one with their number."""
    for _, same in groupby(
        events, lambda each: [each[name] for name in ("kind", "action", "name", "path", "caller", "door")]
    ):
        all_of = list(same)
        yield {**all_of[0], "times": len(all_of), "first_at": all_of[-1]["at"]}


def history(visit: Visit) -> Page:
    """The queries that have ended, or one of them with the reasons for its time."""
    catalog = first_catalog(visit)
    if visit.names:
        found = query_called(visit.airport(catalog), visit.name("query")) if catalog else None
        if found is None:
            raise NotFound("there is no such query in the history, or you may not see it", key="query.unknown")
        measured = sum(each["ms"] for each in found["plan"])
        plan = [{**each, "share": each["ms"] / measured if measured else 0.0} for each in found["plan"]]
        data = {"query": {**found, "plan": plan}, "reasons": reasons(found), "catalog": catalog}
        return Page("history_query.html", "Query", data)
    slower = SLOW_MS.get(visit.query.get("slower", ""))
    if slower is None:
        raise InvalidArgument(
            "slower is 100, 1000 or 10000 ms: leave it out for all", key="query.invalid", field="slower"
        )
    wanted = {name: visit.query.get(name, "").strip() for name in ("q", "caller", "days", "slower", "kind")}
    queries = []
    if catalog:
        queries = recent_queries(
            visit.airport(catalog),
            text=wanted["q"],
            caller=wanted["caller"],
            kind=wanted["kind"],
            since=_since(visit, wanted["days"]),
            slower_than_ms=slower,
            limit=MAX_QUERIES,
        )
    longest = max((each["duration_ms"] for each in queries), default=0.0)
    return Page(
        "history.html",
        "Query history",
        {"queries": queries, "filters": wanted, "longest": longest, "limit": MAX_QUERIES},
    )
