"""A worker is killed with SIGKILL at the steps of a job, and the next worker takes the job over.

The job first runs undisturbed, which shows its steps. Then its input changes, and a server is killed at one of the steps of the
next run. The input changes again before the next server takes the job over. With `SKIWAY_FAULTS=all` a server is killed before
every write to the stores and the warehouse.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from socket import gethostname
from typing import Any, Literal, Protocol

from faults import contents
from faults.crashing_server import (
    ACCOUNT,
    EVERY_STEP,
    FILE_OPERATIONS,
    WRITES,
    CrashingServer,
    Launcher,
    Step,
    launched,
)
from faults.deployments import Deployment, open_deployment
from faults.test_killed_syncs import JOB_TIMEOUT_S, WORKER, is_finished, job_of
from runtime.servers import NO_GC, eventually
from skiway.metastore import Realm, jobs
from skiway.model import v1
from skiway.storage import Stores

__all__ = ["KilledJobs", "Work", "swaps"]


class Work(Protocol):
    """What jobs work on: an input that changes, and the result that it must have in the end."""

    def change(self, turn: int) -> None:
        """Change the input at random; `turn` counts the kills."""

    def enqueue(self) -> str:
        """Start a job, or return the one that is waiting."""

    def check(self, when: str) -> None:
        """Compare the result with the input."""


def swaps(steps: Sequence[str]) -> list[int]:
    """The numbers of the steps that swap pointers, which commits. The last one finishes the job."""
    return [number for number, name in enumerate(steps, 1) if name == "_apply"]


@dataclass(frozen=True)
class KilledJobs:
    """Runs jobs of a deployment with servers that are killed."""

    launcher: Launcher
    deployment: Deployment
    work: Work
    settings: Sequence[str] = ()
    more_threads: Sequence[str] = ()
    command: Literal["serve", "worker"] = "serve"
    lease_s: int = 4

    def run(self, chosen: Callable[[list[str]], list[int]]) -> int:
        """Kill a server at each of the chosen steps. Returns how many jobs were not finished when that happened."""
        killed = 0
        self.work.change(0)
        steps = self.steps()
        self.work.check("undisturbed")
        for turn, number in enumerate(range(1, len(steps) + 1) if EVERY_STEP else chosen(steps)):
            self.work.change(turn)
            was_killed = self._is_killed_at(number)
            # Runs have different numbers of files, so that one may not have the last steps of another.
            assert was_killed or number > len(steps) - 4, f"not killed at step {number}"
            killed += was_killed
            self.work.change(0)
            self.finish(f"killed before step {number} ({steps[number - 1]})")
        return killed

    def finish(self, when: str) -> None:
        """Finish unfinished jobs and run one more, after which the result must equal the input."""
        with open_deployment(self.deployment) as stores, self.server() as server:
            server.wait_until_ready()
            listed = jobs.list_(Realm(stores, ACCOUNT), v1.ListReconcileJobsRequest()).jobs
            for job_id in [each.job_id for each in listed]:
                self._finished(stores, job_id, when)
            self._finished(stores, self.work.enqueue(), when)
            self.work.check(when)
            assert contents.integrity_errors(stores) == [], when

    def server(self, *more: str, **crash: Any) -> Any:
        """A server or a worker that runs jobs."""
        settings = (*NO_GC, *WORKER, "reconciler.spark.master=local[2]", *self.settings, *more)
        return launched(self.launcher, self.deployment, *settings, command=self.command, **crash)

    def crashing_server(self, step: Step) -> Any:
        """A server that is killed before a step of its jobs, whose leases are short; never before step 0."""
        only = WRITES | FILE_OPERATIONS if EVERY_STEP else WRITES
        threads = {"threads": gethostname(), "more_threads": list(self.more_threads)}
        return self.server(f"reconciler.job_store.lease_ms={self.lease_s}000", step=step, only=only, **threads)

    def steps(self) -> list[str]:
        """The steps of a job that does not create its tables, because an earlier one has done so."""
        first = self.work.enqueue()
        with open_deployment(self.deployment) as stores, self.crashing_server(Step(0)) as server:
            self._finished(stores, first, "undisturbed")
            self.work.change(0)
            second = self.work.enqueue()
            before = len(server.operations)
            self._finished(stores, second, "undisturbed")
            found: list[str] = server.operations[before:]
            return found

    def _is_killed_at(self, number: int) -> bool:
        job_id = self.work.enqueue()
        with open_deployment(self.deployment) as stores, self.crashing_server(Step(number)) as server:
            eventually(partial(_is_over, server, stores, job_id), within_s=JOB_TIMEOUT_S)
            return server.kill() == -signal.SIGKILL and not is_finished(stores, job_id)

    def _finished(self, stores: Stores, job_id: str, when: str) -> None:
        eventually(partial(is_finished, stores, job_id), within_s=JOB_TIMEOUT_S)
        done = job_of(stores, job_id)
        assert (done.state, done.errors) == (v1.JS_SUCCEEDED, 0), f"{when}: {done}"


def _is_over(server: CrashingServer, stores: Stores, job_id: str) -> bool:
    return server.has_ended() or is_finished(stores, job_id)
