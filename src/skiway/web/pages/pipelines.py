"""Pipelines: their tables in the order of a run, what a run would do, and a button that starts one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

import yaml

from skiway.client.metastore import Pipeline, PlannedTable
from skiway.errors import InvalidArgument, SkiwayError
from skiway.web.pages.operations import job_data
from skiway.web.rendering import path_to
from skiway.web.visits import Page, Redirect, Visit

__all__ = ["layers", "pipelines", "run_pipeline", "table_data"]

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
    return {
        "name": pipeline.name,
        "owner": pipeline.owner,
        "files": list(pipeline.files),
        "updated_at": pipeline.updated_at,
        "damage": pipeline.damage,
    }


def _catalog(pipeline: Pipeline) -> str:
    """The catalog in `pipeline.yml`, which the server has checked."""
    return str(yaml.safe_load(pipeline.files["pipeline.yml"])["catalog"])


def table_data(planned: PlannedTable, catalog: str) -> dict[str, Any]:
    """A table as the page shows it, with a link to its own page once it exists."""
    return {
        "table": planned.table,
        "link": path_to("tables", catalog, *planned.table.split(".")) if planned.last_action else "",
        "action": planned.action,
        "reason": planned.reason,
        "reads": planned.reads,
        "last_action": planned.last_action,
        "refreshed_at": planned.refreshed_at,
        "columns": {column: list(sources) for column, sources in planned.columns.items()},
    }
