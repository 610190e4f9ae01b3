"""`skiway worker`: a separate process that runs the jobs of servers until it is stopped."""

from __future__ import annotations

import itertools
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metastore.upstreams import parquet
from runtime.servers import END_S, eventually, launch, skiway, started
from skiway.client import Metastore
from skiway.errors import PermissionDenied
from skiway.model import v1
from spark_jobs.catalogs import bad_catalog

QUICK = ("--set", "reconciler.poll_every=100ms")
SALES = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["sales"]))


@pytest.fixture
def lake(tmp_path) -> Iterator[Metastore]:
    """A server that leaves its jobs to workers."""
    with (
        started(tmp_path / "home", "--set", "reconciler.backend=remote") as server,
        Metastore(server.address) as client,
    ):
        yield client


@contextmanager
def worker(home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with launch("worker", "--home", home, *QUICK, *arguments, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_worker_runs_the_jobs_of_a_server(lake: Metastore, tmp_path: Path):
    parquet(tmp_path / "data", "people", id=[1])
    made = lake.connectors.create("files", kind="parquet", uri=str(tmp_path / "data"), catalog="lake", namespace="raw")
    job = lake.connectors.sync(made)
    with worker(tmp_path / "home") as process:
        # Statistics would need Spark, which this test does not cover: once they begin, the tables exist.
        eventually(lambda: lake.jobs.get(job).phase == "statistics", within_s=60)
        assert [table.name for table in lake.tables("lake.raw")] == ["people"]
        assert lake.jobs.get(job).message.lease_owner.endswith(f"-{process.pid}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_worker_returns_its_job_to_the_queue(lake: Metastore, tmp_path: Path, number):
    with bad_catalog(tables=200, pause_s=0.2) as upstream, worker(tmp_path / "home") as process:
        lake.connectors.create("slow", kind="iceberg", uri=upstream.uri, catalog="lake", source=SALES)
        job = lake.connectors.sync("slow")
        assert upstream.loading.wait(200)
        assert lake.jobs.get(job).state == "running"
        process.send_signal(number)
        assert process.wait(END_S) == 0
        returned = lake.jobs.get(job)
        assert (returned.state, returned.message.attempt) == ("queued", 0)


def test_worker_runs_the_configured_number_of_jobs_in_parallel(lake: Metastore, tmp_path: Path):
    with (
        bad_catalog(tables=200, pause_s=0.2) as upstream,
        worker(tmp_path / "home", "--set", "reconciler.parallel_jobs=2") as process,
    ):
        for number in range(3):
            lake.connectors.create(f"c{number}", kind="iceberg", uri=upstream.uri, catalog="lake", source=SALES)
            lake.connectors.sync(f"c{number}")
        eventually(lambda: len(list(lake.jobs(state="running"))) == 2, within_s=60)
        assert len(list(lake.jobs(state="queued"))) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 0
        assert len(list(lake.jobs(state="queued"))) == 3


def test_sources_at_forbidden_addresses_are_rejected(tmp_path: Path):
    with (
        bad_catalog() as upstream,
        started(tmp_path / "home", "--set", "reconciler.source_addresses=public") as server,
        Metastore(server.address) as lake,
    ):
        with pytest.raises(PermissionDenied, match="where sources may not be"):
            lake.connectors.create("here", kind="iceberg", uri=upstream.uri, catalog="lake", source=SALES)
        lake.connectors.create("there", kind="iceberg", uri="https://example.com", catalog="lake", source=SALES)
        spec = v1.ConnectorSpec(uri=upstream.uri)
        assert "where sources may not be" in lake.connectors.validate("there", spec=spec).summary
        assert not upstream.requested
        assert server.stop() == 0
        assert "reconciler.source_addresses is replaced by sources.addresses" in server.output()


def test_two_workers_run_a_scheduled_sync_only_once(lake: Metastore, tmp_path: Path):
    policy = v1.ConnectorPolicy(enabled=True)
    policy.interval.seconds = 2
    with bad_catalog() as upstream, worker(tmp_path / "home"), worker(tmp_path / "home"):
        made = lake.connectors.create(
            "auto", kind="iceberg", uri=upstream.uri, catalog="lake", source=SALES, policy=policy
        )
        eventually(lambda: len(list(lake.jobs(connector=made.id, state="failed"))) >= 4, within_s=60)
        lake.connectors.update(made, paused=True)
        moments = sorted(job.created_at.timestamp() for job in lake.jobs(connector=made.id))
    pauses = [after - before for before, after in itertools.pairwise(moments)]
    assert min(pauses) > 1.0, "a job is created shortly after it is due, but not a whole second later"


def test_two_workers_and_a_server_share_one_store(lake: Metastore, tmp_path: Path):
    with bad_catalog(tables=3) as upstream, worker(tmp_path / "home"), worker(tmp_path / "home"):
        for number in range(8):
            lake.connectors.create(f"c{number}", kind="iceberg", uri=upstream.uri, catalog="lake", source=SALES)
        jobs = [lake.connectors.sync(f"c{number}") for number in range(8)]
        ended = [lake.jobs.wait(job, timeout_s=60, every_s=0.1) for job in jobs]
    assert {(job.state, job.message.attempt, len(job.errors)) for job in ended} == {("failed", 1, 3)}


@pytest.mark.parametrize(
    ("arguments", "expected_error"),
    [
        (("--home", "nowhere/at/all"), "there is no home nowhere/at/all"),
        (("--home", ".", "--set", "kv=memory"), "kv is in memory"),
        (("--home", ".", "--set", "secrets=memory"), "secrets is in memory"),
        (("--home", ".", "--set", "reconciler.spark.remote=host:15002"), "such as sc://host:15002"),
        (
            ("--home", ".", "--set", "reconciler.spark.conf=executor.memory=4g"),
            "the names of Spark settings start with 'spark.'",
        ),
    ],
)
def test_worker_that_cannot_start_prints_the_reason(tmp_path: Path, monkeypatch, arguments, expected_error):
    monkeypatch.chdir(tmp_path)
    ended = skiway("worker", *arguments)
    assert ended.returncode == 1
    assert expected_error in ended.stderr
    assert "Traceback" not in ended.stderr
