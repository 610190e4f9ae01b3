"""Jobs: the work on connectors, done in the background."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from skiway.client.metastore.collection import Area, Listing, Turn, time_of
from skiway.client.metastore.names import Id
from skiway.errors import InvalidArgument, TimedOut
from skiway.model import v1

__all__ = ["Job", "Jobs"]

STATES: Final = {
    name.removeprefix("JS_").lower(): number for name, number in v1.JobState.items() if number != v1.JS_UNSPECIFIED
}
OVER: Final = ("succeeded", "failed", "cancelled")
PHASES: Final = {v1.CAP_METADATA_ONLY_CORE: "metadata", v1.CAP_STATS_ONLY_ASYNC: "statistics"}


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it was when it was read; `message` is what was received."""

    message: v1.Job

    @property
    def id(self) -> str:
        """Its id."""
        return self.message.job_id

    @property
    def state(self) -> str:
        """`queued`, `running`, `succeeded`, `failed` or `cancelled`."""
        return v1.JobState.Name(self.message.state).removeprefix("JS_").lower()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in OVER

    @property
    def created_at(self) -> datetime:
        """When it was asked for."""
        return time_of(self.message.created_at)

    @property
    def started_at(self) -> datetime | None:
        """When its last attempt began; None while it never did."""
        return time_of(self.message.started_at) if self.message.HasField("started_at") else None

    @property
    def finished_at(self) -> datetime | None:
        """When it was over."""
        return time_of(self.message.finished_at) if self.message.HasField("finished_at") else None

    @property
    def errors(self) -> dict[str, str]:
        """What went wrong, by table; the first ones."""
        return {each.table: each.message for each in self.message.table_errors}

    @property
    def phase(self) -> str:
        """What is done now, or was done last: `metadata`, `statistics`, or nothing yet."""
        return PHASES.get(getattr(self.message.progress, "pass"), "")

    @property
    def tables_now(self) -> list[str]:
        """The tables that are worked on."""
        return list(self.message.progress.tables)

    @property
    def tables_done(self) -> int:
        """How many tables of the phase are done, with those that failed."""
        return self.message.progress.tables_done

    @property
    def tables_total(self) -> int:
        """How many tables the phase has."""
        return self.message.progress.tables_total

    @property
    def files_done(self) -> int:
        """How many files are profiled by this job."""
        return self.message.progress.files_done

    @property
    def files_total(self) -> int:
        """How many files of the tables begun so far are to be profiled."""
        return self.message.progress.files_total

    @property
    def fraction_done(self) -> float:
        """How much of the phase is done, between 0 and 1: of its tables or, where it has one, of the files of that."""
        if self.is_over or not self.tables_total:
            return float(self.is_over)
        if self.tables_total == 1 and self.files_total:
            return self.files_done / self.files_total
        return self.tables_done / self.tables_total


class Jobs(Area):
    """`lake.jobs`."""

    def __call__(
        self, *, connector: Id | v1.ResourceId | None = None, state: str | None = None, page_size: int | None = None
    ) -> Listing[Job]:
        """Jobs, newest first: of all connectors or of one, in any state or in one."""
        of = v1.ResourceId(id=connector, kind=v1.RK_CONNECTOR) if isinstance(connector, Id) else connector

        def turn(page: v1.PageRequest) -> tuple[Sequence[Job], v1.PageResponse]:
            request = v1.ListReconcileJobsRequest(connector_id=of, state=_state(state), page=page)
            answer = self._calls.ask(request, v1.ListReconcileJobsResponse)
            return [Job(each) for each in answer.jobs], answer.page

        def open_() -> Turn[Job]:
            return turn

        return Listing(open_, page_size)

    def get(self, job: str | Job) -> Job:
        """The job as it is now."""
        request = v1.GetReconcileJobRequest(job_id=_id(job))
        return Job(self._calls.ask(request, v1.GetReconcileJobResponse).job)

    def cancel(self, job: str | Job) -> Job:
        """The job, cancelled if it waited; one that runs is told to stop."""
        request = v1.CancelReconcileJobRequest(job_id=_id(job))
        return Job(self._calls.ask(request, v1.CancelReconcileJobResponse).job)

    def watch(self, job: str | Job, *, timeout_s: float | None = None, every_s: float = 0.5) -> Iterator[Job]:
        """The job as it is now, and again whenever it has changed, until it is over; `TimedOut` if that takes too long."""
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        last: Job | None = None
        while True:
            now = self.get(job)
            if last is None or _told(now) != _told(last):
                yield now
                last = now
            if now.is_over:
                return
            if ends_at is not None and time.monotonic() + every_s > ends_at:
                raise TimedOut(
                    f"job {now.id} is still {now.state} after {timeout_s:g} s: wait longer", key="job.not.over"
                )
            time.sleep(every_s)

    def wait(
        self,
        job: str | Job,
        *,
        timeout_s: float | None = None,
        every_s: float = 0.5,
        on_change: Callable[[Job], None] = lambda _: None,
    ) -> Job:
        """The job once it is over; `on_change` is told whenever it has changed. `TimedOut` if that takes too long."""
        for now in self.watch(job, timeout_s=timeout_s, every_s=every_s):
            on_change(now)
        return now


def _told(job: Job) -> v1.Job:
    """What is worth telling: that a lease was renewed is not."""
    told = v1.Job()
    told.CopyFrom(job.message)
    for name in ("lease_expires_at", "updated_at"):
        told.ClearField(name)
    return told


def _id(job: str | Job) -> str:
    return job.id if isinstance(job, Job) else job


def _state(name: str | None) -> v1.JobState.ValueType:
    if name is None:
        return v1.JS_UNSPECIFIED
    if name not in STATES:
        raise InvalidArgument(
            f"{name!r} is no state of jobs: use {', '.join(STATES)}", key="field.invalid", field="state"
        )
    return v1.JobState.ValueType(STATES[name])
