"""Jobs: the work on connectors, done in the background by the server or by workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.calling import Call, noun, verb

if TYPE_CHECKING:
    from skiway.client.metastore import Job, Metastore

app = noun("jobs", __doc__)

Id = Annotated[str, typer.Argument(metavar="JOB", help="Its id.")]


class State(StrEnum):
    """How far a job can be."""

    queued = "queued"
    running = "running"
    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job, as it is written. Counts are those of its last attempt; `errors` are by table, the first ones.

    A job that profiles a managed table has no connector.
    """

    id: str
    connector: str | None
    table_id: str | None
    state: str
    phase: str
    tables: int
    changed: int
    failed: int
    attempt: int
    full: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    took: timedelta | None
    message: str
    errors: dict[str, str]

    @classmethod
    def of(cls, job: Job, names: Mapping[str, str]) -> JobRecord:
        """What there is to tell of it, with the names of connectors by their ids."""
        told = job.message
        started, finished = job.started_at, job.finished_at
        return cls(
            job.id,
            names.get(told.connector_id.id, told.connector_id.id) or None,
            told.table_id.id or None,
            job.state,
            job.phase,
            told.tables_scanned,
            told.tables_changed,
            told.errors,
            told.attempt,
            told.full_rescan,
            job.created_at,
            started,
            finished,
            finished - started if started and finished else None,
            told.message,
            job.errors,
        )


@verb(app, "list")
def list_(
    call: Call,
    connector: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this connector.")] = None,
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="How many at most.")] = 20,
) -> None:
    """List jobs, the newest first."""
    of = call.lake.connectors.get(connector).id if connector else None
    names = connector_names(call.lake)
    found = call.lake.jobs(connector=of, state=state and state.value, page_size=limit)
    records = [JobRecord.of(each, names) for each in islice(found, limit)]
    columns = ["id", "state", "connector", "tables", "failed", "took", "created_at", "changed"]
    call.rows(records, columns, nothing="there are no such jobs: skiway connectors sync begins one")


@verb(app, "get")
def get(call: Call, job: Id) -> None:
    """Show one job."""
    call.record(JobRecord.of(call.lake.jobs.get(job), connector_names(call.lake)))


@verb(app, "cancel")
def cancel(call: Call, job: Id) -> None:
    """Cancel a job that waits; tell one that runs to stop."""
    now = JobRecord.of(call.lake.jobs.cancel(job), connector_names(call.lake))
    told = {"running": "was told to stop", "cancelled": "is cancelled"}.get(now.state, f"had {now.state} before")
    call.done(f"job {now.id} {told}", now)


@verb(app, "watch")
def watch(call: Call, job: Id) -> None:
    """Follow a job to its end. Exit code 0 if all of it succeeded, else 1; Ctrl-C leaves it running."""
    from skiway.cli.watching import watched

    watched(call, call.lake.jobs.get(job))


def counted(tables: int, changed: int, failed: int) -> str:
    """What became of tables."""
    return f"{tables:,} table{'' if tables == 1 else 's'}, {changed:,} changed, {failed:,} failed"


def connector_names(lake: Metastore) -> dict[str, str]:
    """What connectors are called, by id."""
    return {str(each.id): each.name for each in lake.connectors()}
