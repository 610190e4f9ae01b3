"""What the lake does: connectors, jobs, queries and events."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from skiway.client.metastore import Connector, Job, Query
from skiway.errors import InvalidArgument
from skiway.web.pages.home import events_data
from skiway.web.pages.system_tables import system_rows
from skiway.web.rendering import path_to
from skiway.web.visits import Page, Redirect, Visit

__all__ = [
    "cancel_job",
    "change_connector",
    "connectors",
    "end_query",
    "events",
    "job_data",
    "jobs",
    "queries",
    "settings",
]

MAX_ROWS: Final = 100


def connectors(visit: Visit) -> Page:
    """All connectors, or one of them with its jobs."""
    if not visit.names:
        found = [_connector(each) for each in visit.lake.connectors()]
        return Page("connectors.html", "Connectors", {"connectors": found})
    connector = visit.lake.connectors.get(visit.name("connector"))
    recent = list(islice(visit.lake.jobs(connector=connector.id, page_size=20), 20))
    last = next((job_data(each) for each in recent if each.is_over), None)
    data = {"connector": _connector(connector), "jobs": [job_data(each) for each in recent], "last": last}
    return Page("connector.html", connector.name, data)


def change_connector(visit: Visit) -> Redirect:
    """Synchronize, pause or resume a connector."""
    name, action = visit.name("connector"), visit.form.get("action", "")
    match action:
        case "sync":
            return Redirect(path_to("jobs", visit.lake.connectors.sync(name).id))
        case "pause" | "resume":
            visit.lake.connectors.update(name, paused=action == "pause")
            return Redirect(path_to("connectors", name))
    raise InvalidArgument(f"{action[:40]!r} is not an action: use sync, pause or resume", key="form.invalid")


def jobs(visit: Visit) -> Page:
    """Recent jobs, or one of them with its progress."""
    names = {each.id: each.name for each in (*visit.lake.connectors(), *visit.lake.pipelines())}
    if not visit.names:
        state = visit.query.get("state") or None
        found = [job_data(each, names) for each in islice(visit.lake.jobs(state=state, page_size=MAX_ROWS), MAX_ROWS)]
        return Page("jobs.html", "Jobs", {"jobs": found, "state": state or ""})
    job = visit.lake.jobs.get(visit.name("job"))
    return Page("job.html", f"Job {job.id}", {"job": job_data(job, names), "log": visit.lake.jobs.log(job)})


def cancel_job(visit: Visit) -> Redirect:
    """Cancel a job."""
    job = visit.lake.jobs.cancel(visit.name("job"))
    return Redirect(path_to("jobs", job.id))


def queries(visit: Visit) -> Page:
    """Queries that hold leases on snapshots."""
    found = [_query(each) for each in islice(visit.lake.queries(), MAX_ROWS)]
    return Page("queries.html", "Queries", {"queries": found})


def end_query(visit: Visit) -> Redirect:
    """End a query, which releases its leases."""
    visit.lake.queries.get(visit.name("query")).end(commit=False)
    return Redirect(path_to("queries"))


def events(visit: Visit) -> Page:
    """The newest events of the feed."""
    newest, _ = visit.lake.events.newest(MAX_ROWS)
    return Page("events.html", "Events", {"events": events_data(visit, reversed(newest))})


def settings(visit: Visit) -> Page:
    """The settings of the server that the visitor may see. Secrets are not among them."""
    return Page("settings.html", "Settings", {"settings": system_rows(visit, "settings")})


def job_data(job: Job, names: dict[Any, str] | None = None) -> dict[str, Any]:
    """A job as pages show it. `names` are those of connectors and pipelines, by their ids."""
    return {
        "id": job.id,
        "state": job.state,
        "phase": job.phase,
        "connector": (names or {}).get(job.message.connector_id.id, ""),
        "pipeline": (names or {}).get(job.message.pipeline.pipeline_id.id, ""),
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "is_over": job.is_over,
        "done": job.fraction_done,
        "tables_done": job.tables_done,
        "tables_total": job.tables_total,
        "files_done": job.files_done,
        "files_total": job.files_total,
        "rows_done": job.rows_done,
        "rows_total": job.rows_total,
        "bytes_done": job.bytes_done,
        "bytes_total": job.bytes_total,
        "remaining_seconds": None if job.remaining is None else round(job.remaining.total_seconds()),
        "spark_ui": job.spark_ui,
        "tables_now": job.tables_now,
        "errors": job.errors,
        "message": job.message.message,
        "damage": job.damage,
    }


def _connector(connector: Connector) -> dict[str, Any]:
    return {
        "name": connector.name,
        "kind": connector.kind,
        "uri": connector.uri,
        "is_paused": connector.is_paused,
        "comment": connector.description or "",
        "schedule": connector.message.policy.interval.ToTimedelta().total_seconds()
        if connector.message.policy.HasField("interval")
        else None,
        "damage": connector.damage,
    }


def _query(query: Query) -> dict[str, Any]:
    return {
        "id": query.id,
        "state": query.state,
        "kind": query.kind,
        "caller": query.caller,
        "created_at": query.created_at,
        "expires_at": query.expires_at,
        "tables": len(query.snapshots),
    }
