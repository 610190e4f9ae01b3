"""A server is killed while it works on a job: the next one resumes it once, and all is as if nobody had died.

Each job is done once undisturbed, which tells its steps, and then by a server that is killed with SIGKILL in one of them.
The next server takes the job over when the lease of the dead one has run out.
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
    PATIENCE_S,
    QUIET,
    WRITES,
    CrashingServer,
    Launcher,
    Step,
    launched,
)
from faults.deployments import Deployment, collected, opened
from metastore.resource_factory import ResourceFactory
from metastore.upstreams import CORE, STATS, connector, parquet, run
from runtime.servers import eventually
from skiway.metastore import Realm, jobs
from skiway.metastore.seeding.catalog import seed_home
from skiway.model import v1
from skiway.storage import Stores, utc_now

pytestmark = pytest.mark.timeout(PATIENCE_S)

WORKS = ("reconciler.poll_every=50ms", "reconciler.job_store.base_backoff_ms=1")
DIES = (*QUIET, *WORKS, "reconciler.job_store.lease_ms=4000")
LIVES = (*QUIET, *WORKS)
OVER_S = 240.0

Begin = Callable[[Deployment], str]


def tables(deployment: Deployment) -> Path:
    """Three tables upstream, the same for all grounds of a test: what is stored names their files, and how old they are."""
    folder = deployment.folder.parent / "upstream"
    for number in range(0 if folder.exists() else 3):
        parquet(folder / f"t{number}", "a", id=[number, number + 1, None], word=["x", "y", "y"])
        parquet(folder / f"t{number}", "b", id=[7], word=["z"])
    return folder


def mirroring(deployment: Deployment) -> str:
    """A job for the first pass; its id."""
    with opened(deployment) as stores:
        seed_home(stores)
        factory = ResourceFactory(stores, utc_now)
        factory.catalog()
        made = connector(factory, str(tables(deployment)))
        return jobs.enqueue(factory.home, made.resource_id, modes=(CORE,)).job_id


def profiling(deployment: Deployment) -> str:
    """A job for the second pass, of tables that are mirrored already; its id."""
    with opened(deployment) as stores:
        seed_home(stores)
        factory = ResourceFactory(stores, utc_now)
        factory.catalog()
        made = connector(factory, str(tables(deployment)))
        assert run(factory, made, CORE).failures == {}
        return jobs.enqueue(factory.home, made.resource_id, modes=(STATS,)).job_id


@dataclass(frozen=True, slots=True)
class Course:
    """A job that went well: what there is afterwards, and what its worker wrote, in order."""

    facts: list[str]
    operations: Sequence[str]


def facts(stores: Stores) -> list[str]:
    """All that a job brings in: tables, snapshots, statistics."""
    return [each for each in contents.resources(stores) if not each.startswith(("job ", "connector "))]


def job_of(stores: Stores, job_id: str) -> v1.Job:
    return jobs.get(Realm(stores, ACCOUNT), v1.GetReconcileJobRequest(job_id=job_id)).job


def is_over(stores: Stores, job_id: str) -> bool:
    return job_of(stores, job_id).state not in (v1.JS_QUEUED, v1.JS_RUNNING)


def working(launcher: Launcher, deployment: Deployment, step: Step) -> AbstractContextManager[CrashingServer]:
    """A server whose worker dies there."""
    return launched(launcher, deployment, *DIES, threads=gethostname(), more_threads=["tables"], step=step, only=WRITES)


def undisturbed(launcher: Launcher, deployment: Deployment, begin: Begin) -> Course:
    job_id = begin(deployment)
    with opened(deployment) as stores, working(launcher, deployment, Step(0)) as server:
        eventually(lambda: is_over(stores, job_id), within_s=OVER_S)
        done = job_of(stores, job_id)
        assert (done.state, done.attempt, done.errors) == (v1.JS_SUCCEEDED, 1, 0), done
        return Course(facts(stores), server.operations)


def survives(launcher: Launcher, deployment: Deployment, begin: Begin, *, course: Course, step: Step) -> None:
    job_id = begin(deployment)
    with opened(deployment) as stores:
        with working(launcher, deployment, step) as server:
            eventually(server.ended, within_s=OVER_S)
            assert server.exit_code == -signal.SIGKILL, f"nobody died {step}: {server.output()}"
        assert contents.broken(stores) == [], f"killed {step}"
        found = job_of(stores, job_id)
        attempts = found.attempt if is_over(stores, job_id) else found.attempt + 1
        with launched(launcher, deployment, *LIVES) as heir:
            heir.wait_until_ready()
            eventually(lambda: is_over(stores, job_id), within_s=OVER_S)
        done = job_of(stores, job_id)
        assert (done.state, done.errors) == (v1.JS_SUCCEEDED, 0), f"killed {step}: {done}"
        assert (done.attempt, done.lease_epoch) == (attempts, attempts), f"killed {step}, and resumed more than once"
        assert len(jobs.list_(Realm(stores, ACCOUNT), v1.ListReconcileJobsRequest()).jobs) == 1
        assert facts(stores) == course.facts, f"killed {step}"
        assert contents.broken(stores) == [], f"killed {step}, and resumed"
        collected(deployment)
        assert facts(stores) == course.facts, f"killed {step}, resumed, and collected"


def swaps(operations: Sequence[str]) -> list[int]:
    """The numbers of operations that change pointers: the first takes the job, the last ends it."""
    return [number for number, name in enumerate(operations, 1) if name == "_apply"]


def around(operations: Sequence[str]) -> list[Step]:
    return [Step(number, when) for number in swaps(operations) for when in ("before", "after")]


def test_a_pass_over_metadata_is_resumed_once(launcher: Launcher, new_deployment: Callable[[str], Deployment]) -> None:
    course = undisturbed(launcher, new_deployment("sqlite"), mirroring)
    writes = swaps(course.operations)
    some = [Step(writes[0], "after"), Step(writes[len(writes) // 2], "after"), Step(writes[-1], "before")]
    for step in around(course.operations) if EVERY_STEP else some:
        survives(launcher, new_deployment("sqlite"), mirroring, course=course, step=step)


@pytest.mark.needs("java", "spark")
def test_a_pass_over_statistics_is_resumed_once(
    launcher: Launcher, new_deployment: Callable[[str], Deployment]
) -> None:
    """Where it hurts most: of the second table, some of its statistics are there and others are not."""
    course = undisturbed(launcher, new_deployment("sqlite"), profiling)
    _, *of_tables, _ = swaps(course.operations)
    assert len(of_tables) == 9, "profiles, columns and the whole, of three tables"
    some = [Step(of_tables[4], "after")]
    for step in around(course.operations) if EVERY_STEP else some:
        survives(launcher, new_deployment("sqlite"), profiling, course=course, step=step)
