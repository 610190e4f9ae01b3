"""A worker is killed with SIGKILL while it runs a Python function of a pipeline.

The worker is a process of its own beside a server. When it is killed, the processes of the function end, its token expires with
the lease of the worker, and the next worker continues: in the end, the table has the rows of the function, exactly once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults.crashing_server import EVERY_STEP, TIMEOUT_S, Launcher, Step, launched
from faults.deployments import Deployment, open_deployment
from faults.killed_jobs import KilledJobs, swaps
from faults.test_killed_pipelines import FILES, Orders, Row
from faults.test_killed_syncs import JOB_TIMEOUT_S, is_finished, job_of
from metastore.resource_factory import ResourceFactory
from metastore.upstreams import mirrored
from runtime.servers import NO_GC, eventually
from skiway.client import AirportClient
from skiway.errors import Unauthorized
from skiway.metastore.jobs.queue import leased
from skiway.model import v1
from skiway.runtime.lake import job_tokens
from skiway.security import LeasedJob
from skiway.storage import Stores, utc_now
from spark_queries.test_confinement import needs_landlock

pytestmark = [
    pytest.mark.timeout(6 * TIMEOUT_S), pytest.mark.full, pytest.mark.needs("java", "spark"), needs_landlock
]  # fmt: skip

SETTINGS = ("pipelines.enabled=true", "pipelines.python.enabled=true")
LEASE_S = 15
"""More than for other jobs: Spark and the function use all cores of the machine for a minute."""

RUNS, SENDS = "2.125", "2.25"
"""How long the function sleeps before it returns, and before it sends its last rows."""

CODE = f"""
import subprocess
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

def doubled(batches):
    import pyarrow.compute as pc
    from pyspark import TaskContext
    for batch in batches:
        yield batch.set_column(1, "double", pc.multiply(batch["price"], 2))
    if TaskContext.get().partitionId() == 1:
        subprocess.run(["sleep", "{SENDS}"])

@dp.materialized_view
def doubles():
    rows = spark.table("orders").select("id", "price").repartition(2)
    subprocess.run(["sleep", "{RUNS}"])
    return rows.mapInArrow(doubled, "id bigint, double bigint")
"""

FUNCTION = {"pipeline.yml": FILES["pipeline.yml"], "doubles.py": CODE}


def doubles(orders: list[Row]) -> list[Row]:
    return [(id_, price * 2) for id_, _, price in orders]


@dataclass(frozen=True)
class FunctionProcesses:
    """The processes of functions whose workers have `folder` for temporary files."""

    folder: Path

    def commands(self) -> list[str]:
        """Their command lines."""
        return [
            _text(each / "cmdline").replace("\0", " ").strip()
            for each in Path("/proc").iterdir()
            if each.name.isdecimal() and self._has(each)
        ]

    def has(self, *words: str) -> bool:
        """Whether one of them has this command."""
        return " ".join(words) in self.commands()

    def are_gone(self) -> bool:
        return self.commands() == [] and list(self.folder.glob("skiway-spark-query-*")) == []

    def _has(self, process: Path) -> bool:
        variables = _text(process / "environ")
        is_supervisor = "skiway.spark_queries.supervisor" in _text(process / "cmdline")
        return f"{self.folder}/skiway-spark-query-" in variables or (is_supervisor and str(self.folder) in variables)


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def processes(tmp_path: Path) -> FunctionProcesses:
    (tmp_path / "tmp").mkdir()
    return FunctionProcesses(tmp_path / "tmp")


@pytest.fixture
def own_launcher(processes: FunctionProcesses, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """Starts workers that have a folder for temporary files of their own."""
    monkeypatch.setenv("TMPDIR", str(processes.folder))
    launcher = Launcher()
    yield launcher
    launcher.close()


@dataclass(frozen=True)
class KilledFunctions:
    """Kills workers of a server while they run the function."""

    jobs: KilledJobs
    orders: Orders
    processes: FunctionProcesses
    airport: str

    def kill_when(self, is_reached: Callable[[Stores, str], bool], when: str) -> None:
        """Kill a worker at this moment of a run, and let another one finish the job."""
        self.orders.change(1)
        job_id = self.orders.enqueue()
        with open_deployment(self.jobs.deployment) as stores, self.jobs.crashing_server(Step(0)) as worker:
            eventually(lambda: is_reached(stores, job_id), within_s=JOB_TIMEOUT_S)
            job = leased(job_of(stores, job_id))
            assert self.can_read(job), when
            assert worker.kill() == -signal.SIGKILL
            self._recover(stores, job, when)

    def kill_at(self, number: int, when: str) -> None:
        """Kill a worker before a step of a run, and let another one finish the job."""
        self.orders.change(1)
        job_id = self.orders.enqueue()
        with open_deployment(self.jobs.deployment) as stores, self.jobs.crashing_server(Step(number)) as worker:
            eventually(worker.has_ended, within_s=JOB_TIMEOUT_S)
            assert worker.exit_code == -signal.SIGKILL, when
            assert not is_finished(stores, job_id), when
            self._recover(stores, leased(job_of(stores, job_id)), when)

    def _recover(self, stores: Stores, job: LeasedJob, when: str) -> None:
        eventually(self.processes.are_gone, within_s=30)
        eventually(lambda: not self.can_read(job), within_s=2 * LEASE_S)  # as soon as the lease has expired
        state = v1.JS_RUNNING if job.epoch else v1.JS_QUEUED  # the worker may have been killed before it took the job
        assert job_of(stores, job.id).state == state, f"{when}: no other worker has taken the job"
        self.orders.change(0)
        self.jobs.finish(when)
        assert not self.can_read(job), f"{when}: the next attempt does not make the token valid again"
        assert not self.can_read(leased(job_of(stores, job.id))), f"{when}: the job has ended"
        assert self.processes.are_gone(), when

    def can_read(self, job: LeasedJob) -> bool:
        """Whether the token that a function of the job has can read its input."""
        with open_deployment(self.jobs.deployment) as stores:
            table = mirrored(ResourceFactory(stores, utc_now))["sales.orders"].resource_id.id
            token = job_tokens(stores, self.jobs.deployment.secrets).issue_reader(job, [table])
        with AirportClient(self.airport, "lake", token=token) as client:
            try:
                return client.scan("sales.orders").read_all().num_rows > 0
            except Unauthorized:
                return False


@pytest.fixture
def killed(
    own_launcher: Launcher, new_deployment: Callable[[str], Deployment], processes: FunctionProcesses
) -> Iterator[KilledFunctions]:
    deployment = new_deployment("sqlite")
    orders = Orders(deployment, FUNCTION, {"doubles": ("orders", doubles)})
    with launched(own_launcher, deployment, *NO_GC, *SETTINGS, "reconciler.backend=remote") as server:
        server.wait_until_ready()
        airport = server.addresses["airport"]
        settings = (*SETTINGS, f"sql.spark.location={airport}")
        jobs = KilledJobs(own_launcher, deployment, orders, settings, command="worker", lease_s=LEASE_S)
        yield KilledFunctions(jobs, orders, processes, airport)
        assert not server.has_ended()


def test_worker_killed_before_its_commit_leaves_no_processes_and_no_rows(killed: KilledFunctions) -> None:
    def is_running(stores: Stores, job_id: str) -> bool:
        return job_of(stores, job_id).state == v1.JS_RUNNING

    killed.kill_when(is_running, "before the function starts")
    killed.kill_when(lambda *_: killed.processes.has("sleep", RUNS), "while the function runs")
    killed.kill_when(lambda *_: killed.processes.has("sleep", SENDS), "while rows arrive")


def test_worker_killed_around_its_commit_leaves_the_rows_once(killed: KilledFunctions) -> None:
    killed.orders.change(0)
    steps = killed.jobs.steps()
    killed.orders.check("undisturbed")
    _lease, commit, *_, last = swaps(steps)
    for number in range(1, len(steps) + 1) if EVERY_STEP else (commit, commit + 1, last):
        killed.kill_at(number, f"before step {number} of {steps}")


def test_server_killed_with_its_function_leaves_no_processes(
    own_launcher: Launcher, new_deployment: Callable[[str], Deployment], processes: FunctionProcesses
) -> None:
    """Without a separate worker, the server itself runs the function."""
    deployment = new_deployment("sqlite")
    orders = Orders(deployment, FUNCTION, {"doubles": ("orders", doubles)})
    jobs = KilledJobs(own_launcher, deployment, orders, SETTINGS, lease_s=LEASE_S)
    orders.change(0)
    orders.enqueue()
    with jobs.crashing_server(Step(0)) as server:
        eventually(lambda: processes.has("sleep", SENDS), within_s=JOB_TIMEOUT_S)
        assert server.kill() == -signal.SIGKILL
    eventually(processes.are_gone, within_s=30)
    orders.change(0)
    jobs.finish("the server was killed")
    assert processes.are_gone()
