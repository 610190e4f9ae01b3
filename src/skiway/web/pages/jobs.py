"""What fills the lake: connectors, pipelines, and the jobs that they start, with their progress and their failures."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Final

import yaml
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from skiway.client.metastore import Connector, Job, Pipeline, PlannedTable
from skiway.errors import InvalidArgument, SkiwayError
from skiway.presentation.tables import picked
from skiway.web.rendering import lines, path_to
from skiway.web.visits import Page, Redirect, Visit, optional

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
    shown = job_data(job, names)
    pipeline = optional(lambda: visit.lake.pipelines.get(shown["pipeline"]))[0] if shown["pipeline"] else None
    changed_at = pipeline.updated_at if pipeline else None
    data = {
        "job": shown,
        "log": visit.lake.jobs.log(job),
        **failures(job, pipeline.files if pipeline else {}),
        "is_edited": changed_at is not None and job.created_at is not None and changed_at > job.created_at,
    }
    return Page("job.html", f"Job {job.id}", data)


_PLACED: Final = re.compile(
    r"(?P<file>[^\s,:][^,:\n]*\.\w+)(?:, line (?P<line>\d+)(?:, column (?P<column>\d+))?)?: (?P<message>.+)", re.DOTALL
)
"""How an error of a pipeline begins if its place is known."""
SKIPPED: Final = "skipped, because "
AROUND: Final = 3
"""How many lines the page shows before and after a wrong one."""


def failures(job: Job, files: Mapping[str, str]) -> dict[str, Any]:
    """The tables that failed in a run of a pipeline, each with its place in the files if it is known; and those that were skipped."""
    found, skipped = list[dict[str, Any]](), list[str]()
    for table, text in job.errors.items() if files else ():
        if text.startswith(SKIPPED):
            skipped.append(table)
            continue
        placed = _PLACED.fullmatch(text)
        file = placed["file"] if placed and placed["file"] in files else _file_of(table, files)
        place = (
            placed.groupdict() if placed and placed["file"] == file else {"line": None, "column": None, "message": text}
        )
        line = int(place["line"] or 0)
        found.append(
            {
                "table": table,
                "file": file,
                "line": line or None,
                "column": int(place["column"] or 0) or None,
                "message": place["message"],
                "lines": lines(files[file])[max(line - AROUND, 1) - 1 : line + AROUND] if file and line else [],
            }
        )
    return {"failures": found, "skipped": skipped}


def _file_of(table: str, files: Mapping[str, str]) -> str:
    """The file that declares a table: the one with its name; empty if there is none."""
    name = table.rpartition(".")[2].casefold()
    return next((each for each in files if PurePosixPath(each).stem.casefold() == name), "")


PROGRESS_EVERY_S: Final = 0.5
MAX_PROGRESS_S: Final = 600.0
MAX_FOLLOWED: Final = 50
"""How many pages may follow jobs at a time. More of them show the progress when they are loaded again."""


def progress(visit: Visit) -> Response:
    """Server-sent events: one whenever the progress of a job has changed, until the job is over. Each is read with the visitor's rights."""
    job_id = visit.name("job")
    first = job_data(visit.lake.jobs.get(job_id))

    async def events() -> AsyncIterator[str]:
        global _followed
        if _followed >= MAX_FOLLOWED:
            yield "retry: 30000\n\n"
            return
        _followed += 1
        try:
            known, until = first, time.monotonic() + MAX_PROGRESS_S
            while not known["is_over"] and time.monotonic() < until:
                await asyncio.sleep(PROGRESS_EVERY_S)
                now = await run_in_threadpool(lambda: job_data(visit.lake.jobs.get(job_id)))
                if now != known:
                    yield f"data: {now['state']}\n\n"
                known = now
            if known["is_over"]:
                yield f"data: {known['state']}\n\nevent: end\ndata: \n\n"
        except SkiwayError:  # the visitor may not see the job any more, or the server ends
            yield "event: end\ndata: \n\n"
        finally:
            _followed -= 1

    return StreamingResponse(events(), media_type="text/event-stream")


_followed = 0


def cancel_job(visit: Visit) -> Redirect:
    """Cancel a job."""
    job = visit.lake.jobs.cancel(visit.name("job"))
    return Redirect(path_to("jobs", job.id))


def job_data(job: Job, names: dict[Any, str] | None = None) -> dict[str, Any]:
    """A job as pages show it. `names` are those of connectors and pipelines, by their ids."""
    known = names or {}
    return {
        **picked(
            job, "id", "state", "phase", "created_at", "started_at", "finished_at", "is_over", "done=fraction_done"
        ),
        **picked(job, "tables_done", "tables_total", "files_done", "files_total", "rows_done", "rows_total"),
        **picked(job, "bytes_done", "bytes_total", "spark_ui", "tables_now", "errors", "damage"),
        "connector": known.get(job.message.connector_id.id, ""),
        "pipeline": known.get(job.message.pipeline.pipeline_id.id, ""),
        "remaining_seconds": None if job.remaining is None else round(job.remaining.total_seconds()),
        "message": job.message.message,
    }


def _connector(connector: Connector) -> dict[str, Any]:
    policy = connector.message.policy
    return {
        **picked(connector, "name", "kind", "uri", "is_paused", "damage"),
        "comment": connector.description or "",
        "schedule": policy.interval.ToTimedelta().total_seconds() if policy.HasField("interval") else None,
    }


RECENT_JOBS: Final = 200
"""Among how many jobs those of a pipeline are searched."""

SHOWN_JOBS: Final = 20


def pipelines(visit: Visit) -> Page:
    """All pipelines, or one of them with its tables and jobs."""
    if not visit.names:
        found = [_pipeline(each) for each in visit.lake.pipelines()]
        return Page("pipelines.html", "Pipelines", {"pipelines": found})
    pipeline = visit.lake.pipelines.get(visit.name("pipeline"))
    planned, problem = list[PlannedTable](), pipeline.damage
    if not problem:
        try:
            planned = visit.lake.pipelines.plan(pipeline.id)
        except SkiwayError as error:
            problem = error.message
    recent = islice(visit.lake.jobs(page_size=RECENT_JOBS), RECENT_JOBS)
    own = [each for each in recent if each.message.pipeline.pipeline_id.id == pipeline.id]
    data = {
        "pipeline": {**_pipeline(pipeline), "texts": dict(pipeline.files)},
        "problem": problem,
        "tables": [table_data(each, _catalog(pipeline)) for each in planned],
        "layers": layers({each.table: each.reads for each in planned}),
        "jobs": [job_data(each) for each in own[:SHOWN_JOBS]],
    }
    return Page("pipeline.html", pipeline.name, data)


def run_pipeline(visit: Visit) -> Redirect:
    """Start a run, and go to its job."""
    name, action = visit.name("pipeline"), visit.form.get("action", "")
    if action not in ("run", "refresh"):
        raise InvalidArgument(f"{action[:40]!r} is not an action: use run or refresh", key="form.invalid")
    return Redirect(path_to("jobs", visit.lake.pipelines.start(name, full=action == "refresh").id))


def layers(reads: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """All tables of a graph in layers: each table is in a later one than those that it reads."""
    depths: dict[str, int] = {}
    for table, sources in reads.items():  # in the order of a run, so the depths of sources are known
        for source in sources:
            depths.setdefault(source, 0)
        depths[table] = max((depths[each] + 1 for each in sources), default=0)
    found: list[list[str]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
    for table, depth in depths.items():
        found[depth].append(table)
    return found


def _pipeline(pipeline: Pipeline) -> dict[str, Any]:
    return {**picked(pipeline, "name", "owner", "updated_at", "damage"), "files": list(pipeline.files)}


def _catalog(pipeline: Pipeline) -> str:
    """The catalog in `pipeline.yml`, which the server has checked."""
    return str(yaml.safe_load(pipeline.files["pipeline.yml"])["catalog"])


def table_data(planned: PlannedTable, catalog: str) -> dict[str, Any]:
    """A table as the page shows it, with a link to its own page once it exists."""
    link = path_to("tables", catalog, *planned.table.split(".")) if planned.last_action else ""
    facts = picked(planned, "table", "action", "reason", "reads", "last_action", "refreshed_at")
    return {**facts, "link": link, "columns": {column: list(sources) for column, sources in planned.columns.items()}}
