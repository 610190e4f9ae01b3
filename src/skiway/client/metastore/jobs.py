"""Jobs: the work on connectors, done in the background."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from skiway.client.metastore.area import Area
from skiway.client.metastore.changes import time_of
from skiway.client.metastore.listing import Listing, Turn
from skiway.client.metastore.names import Id
from skiway.errors import InvalidArgument, TimedOut
from skiway.model import v1

__all__ = ["Job", "Jobs"]

STATES: Final = {
    name.removeprefix("JS_").lower(): number for name, number in v1.JobState.items() if number != v1.JS_UNSPECIFIED
}
OVER: Final = ("succeeded", "failed", "cancelled")


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
    def errors(self) -> dict[str, str]:
        """What went wrong, by table; the first ones."""
        return {each.table: each.message for each in self.message.table_errors}


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

    def wait(
        self,
        job: str | Job,
        *,
        timeout_s: float | None = None,
        every_s: float = 0.5,
        on_change: Callable[[Job], None] = lambda _: None,
    ) -> Job:
        """The job once it is over; `on_change` is told whenever it has changed. `TimedOut` if that takes too long."""
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        last: Job | None = None
        while True:
            now = self.get(job)
            if now != last:
                on_change(now)
                last = now
            if now.is_over:
                return now
            if ends_at is not None and time.monotonic() + every_s > ends_at:
                raise TimedOut(
                    f"job {now.id} is still {now.state} after {timeout_s:g} s: wait longer", key="job.not.over"
                )
            time.sleep(every_s)


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
