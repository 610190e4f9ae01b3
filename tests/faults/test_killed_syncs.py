"""A server is killed while it runs a job: the next one resumes the job once, with the same result as without the kill.

Each job is first run undisturbed, which shows its steps, and then by a server that is killed with SIGKILL at one of them.
The next server takes over the job when the lease of the killed server has expired.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname

import pytest

from faults import contents
from faults.crashing_server import (
    ACCOUNT,
    EVERY_STEP,
    TIMEOUT_S,
    WRITES,
    CrashingServer,
    Launcher,
    Step,
    launched,
)
from faults.deployments import Deployment, collect, open_deployment
from metastore.resource_factory import ResourceFactory
from metastore.upstreams import CORE, STATS, connector, parquet, run
from runtime.servers import NO_GC, eventually
from skiway.metastore import Realm, jobs
from skiway.metastore.seeding import seed_home
from skiway.model import v1
from skiway.storage import Stores, utc_now

pytestmark = pytest.mark.timeout(TIMEOUT_S)

WORKER = ("reconciler.poll_every=50ms", "reconciler.job_store.base_backoff_ms=1")
CRASHING = (*NO_GC, *WORKER, "reconciler.job_store.lease_ms=4000")
SURVIVING = (*NO_GC, *WORKER)
JOB_TIMEOUT_S = 240.0

Enqueue = Callable[[Deployment], str]


def upstream_tables(deployment: Deployment) -> Path:
    """Three upstream tables, shared by all deployments of a test: stored records contain their file names and times."""
    folder = deployment.folder.parent / "upstream"
    for number in range(0 if folder.exists() else 3):
        parquet(folder / f"t{number}", "a", id=[number, number + 1, None], word=["x", "y", "y"])
        parquet(folder / f"t{number}", "b", id=[7], word=["z"])
    return folder


def enqueue_metadata_pass(deployment: Deployment) -> str:
    """Enqueue a job for the metadata pass and return its id."""
    with open_deployment(deployment) as stores:
        seed_home(stores)
        factory = ResourceFactory(stores, utc_now)
        factory.catalog()
        created = connector(factory, str(upstream_tables(deployment)))
        return jobs.enqueue(factory.home, v1.Job(connector_id=created.resource_id, modes=(CORE,))).job_id


def enqueue_statistics_pass(deployment: Deployment) -> str:
    """Enqueue a job for the statistics pass over mirrored tables and return its id."""
    with open_deployment(deployment) as stores:
        seed_home(stores)
        factory = ResourceFactory(stores, utc_now)
        factory.catalog()
        created = connector(factory, str(upstream_tables(deployment)))
        assert run(factory, created, CORE).failures == {}
        return jobs.enqueue(factory.home, v1.Job(connector_id=created.resource_id, modes=(STATS,))).job_id


@dataclass(frozen=True, slots=True)
class Baseline:
    """An undisturbed job: the resources afterwards, and the writes of its worker in order."""

    synced_resources: list[str]
    operations: Sequence[str]


def synced_resources(stores: Stores) -> list[str]:
    """Everything that a job synchronizes: tables, snapshots, statistics."""
    return [each for each in contents.resources(stores) if not each.startswith(("job ", "job_log ", "connector "))]


def job_of(stores: Stores, job_id: str) -> v1.Job:
    return jobs.get(Realm(stores, ACCOUNT), v1.GetReconcileJobRequest(job_id=job_id)).job


def is_finished(stores: Stores, job_id: str) -> bool:
    return job_of(stores, job_id).state not in (v1.JS_QUEUED, v1.JS_RUNNING)


def crashing_server(launcher: Launcher, deployment: Deployment, step: Step) -> AbstractContextManager[CrashingServer]:
    """A server that is killed at `step` of its worker."""
    return launched(
        launcher, deployment, *CRASHING, threads=gethostname(), more_threads=["tables"], step=step, only=WRITES
    )


def run_undisturbed(launcher: Launcher, deployment: Deployment, enqueue: Enqueue) -> Baseline:
    job_id = enqueue(deployment)
    with open_deployment(deployment) as stores, crashing_server(launcher, deployment, Step(0)) as server:
        eventually(lambda: is_finished(stores, job_id), within_s=JOB_TIMEOUT_S)
        done = job_of(stores, job_id)
        assert (done.state, done.attempt, done.errors) == (v1.JS_SUCCEEDED, 1, 0), done
        return Baseline(synced_resources(stores), server.operations)


def check_recovery(
    launcher: Launcher, deployment: Deployment, enqueue: Enqueue, *, baseline: Baseline, step: Step
) -> None:
    job_id = enqueue(deployment)
    with open_deployment(deployment) as stores:
        with crashing_server(launcher, deployment, step) as server:
            eventually(server.has_ended, within_s=JOB_TIMEOUT_S)
            assert server.exit_code == -signal.SIGKILL, f"the server was not killed {step}: {server.output()}"
        assert contents.integrity_errors(stores) == [], f"killed {step}"
        found = job_of(stores, job_id)
        attempts = found.attempt if is_finished(stores, job_id) else found.attempt + 1
        with launched(launcher, deployment, *SURVIVING) as successor:
            successor.wait_until_ready()
            eventually(lambda: is_finished(stores, job_id), within_s=JOB_TIMEOUT_S)
        done = job_of(stores, job_id)
        assert (done.state, done.errors) == (v1.JS_SUCCEEDED, 0), f"killed {step}: {done}"
        assert (done.attempt, done.lease_epoch) == (attempts, attempts), f"killed {step}, then resumed more than once"
        assert len(jobs.list_(Realm(stores, ACCOUNT), v1.ListReconcileJobsRequest()).jobs) == 1
        assert synced_resources(stores) == baseline.synced_resources, f"killed {step}"
        assert contents.integrity_errors(stores) == [], f"killed {step}, then resumed"
        collect(deployment)
        assert synced_resources(stores) == baseline.synced_resources, f"killed {step}, then resumed, then gc"


def swaps(operations: Sequence[str]) -> list[int]:
    """The numbers of the operations that change pointers: the first leases the job, the last finishes it."""
    return [number for number, name in enumerate(operations, 1) if name == "_apply"]


def steps_around_swaps(operations: Sequence[str]) -> list[Step]:
    return [Step(number, when) for number in swaps(operations) for when in ("before", "after")]


@pytest.mark.full
def test_interrupted_metadata_pass_is_resumed_once(
    launcher: Launcher, new_deployment: Callable[[str], Deployment]
) -> None:
    baseline = run_undisturbed(launcher, new_deployment("sqlite"), enqueue_metadata_pass)
    writes = swaps(baseline.operations)
    chosen = [Step(writes[len(writes) // 2], "after"), Step(writes[-1], "before")]
    for step in steps_around_swaps(baseline.operations) if EVERY_STEP else chosen:
        check_recovery(launcher, new_deployment("sqlite"), enqueue_metadata_pass, baseline=baseline, step=step)


@pytest.mark.full
@pytest.mark.needs("java", "spark")
def test_interrupted_statistics_pass_is_resumed_once(
    launcher: Launcher, new_deployment: Callable[[str], Deployment]
) -> None:
    """The worst case: only some of the statistics of the second table are stored."""
    baseline = run_undisturbed(launcher, new_deployment("sqlite"), enqueue_statistics_pass)
    _, *table_swaps, _ = swaps(baseline.operations)
    assert len(table_swaps) == 13, (
        "the log's start; profile, column statistics, table statistics and log of three tables"
    )
    chosen = [Step(table_swaps[6], "after")]
    for step in steps_around_swaps(baseline.operations) if EVERY_STEP else chosen:
        check_recovery(launcher, new_deployment("sqlite"), enqueue_statistics_pass, baseline=baseline, step=step)
