"""Tables that Spark optimizes with Iceberg's procedures, through the REST door of a server with authentication."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import httpx
import pyarrow as pa
import pytest

from lake.lineage_reader import read_lineage
from rest_clients.shared_lake import TOKEN, TOKENS
from runtime.servers import Server, started
from skiway.client import AirportClient, Metastore, col
from skiway.client.metastore import Job
from skiway.client.metastore.jobs import optimize_task
from skiway.config import load
from skiway.errors import Conflict
from skiway.metastore import Realm, managed
from skiway.metastore.jobs.queue import JobQueue, JobRules
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.runtime.lake import job_tokens, optimizer_of, warehouse_of
from skiway.runtime.stores import secrets_of, stores_of
from skiway.security import LeasedJob
from skiway.spark_jobs.interruption import joined
from skiway.spark_jobs.optimizer import SparkOptimizer
from skiway.spark_jobs.worker import Worker, jobs_of
from spark_jobs.lakes import SPARK
from spark_jobs.shared_spark import shared_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK

SCHEMA = pa.schema({"id": pa.int64(), "odd `name`": pa.string(), "place": pa.string()})
numbers = count(1)


@dataclass
class Lake:
    """A server without workers, and a worker in this process with the Spark of all tests."""

    server: Server
    realm: Realm
    warehouse: Any
    worker: Worker
    optimizer: SparkOptimizer
    issued: list[str]

    def airport(self) -> AirportClient:
        return AirportClient(self.server.addresses["airport"], "lake", token=TOKEN)

    def metastore(self) -> Metastore:
        return Metastore(self.server.address, token=TOKEN)

    def table(self, files: int = 8, rows: int = 10, version: str = "2") -> str:
        """A table with small files, in a namespace whose name needs quotes."""
        name = f"odd's.t{next(numbers)}"
        with self.airport() as db:
            db.create_table(name, SCHEMA)
        if version == "3":
            response = self.rest("POST", name, json={"requirements": [], "updates": [upgrade(3)]})
            assert response.status_code == 200, response.text
        for number in range(files):
            self.insert(name, range(number * rows, (number + 1) * rows))
        return name

    def insert(self, name: str, ids: range) -> None:
        with self.airport() as db:
            texts = [f"v{each}" for each in ids]
            db.insert(name, pa.table({"id": list(ids), "odd `name`": texts, "place": texts}, schema=SCHEMA))

    def ids(self, name: str) -> list[int]:
        with self.airport() as db:
            return sorted(db.scan(name).read_all()["id"].to_pylist())

    def state(self, name: str) -> managed.ManagedTable:
        with self.metastore() as lake:
            found = lake.tables.get(f"lake.{name}")
        return managed.load(self.realm, self.warehouse, found.message.resource_id)

    def start(self, name: str, **options: Any) -> Job:
        with self.metastore() as lake:
            return lake.maintenance.start(f"lake.{name}", optimize_task(engine="spark", **options))

    def run(self, name: str, **options: Any) -> Job:
        """Run an optimization to its end."""
        job = self.start(name, **options)
        assert self.worker.work_once()
        return self.job(job)

    def job(self, job: Job) -> Job:
        with self.metastore() as lake:
            return lake.jobs.get(job.id)

    def rest(self, method: str, name: str, token: str = TOKEN, **options: Any) -> httpx.Response:
        """A request about a table to the REST door."""
        namespace, table = name.split(".")
        url = f"{self.server.addresses['http']}/iceberg/v1/lake/namespaces/{namespace}/tables/{table}"
        return httpx.request(method, url, headers={"authorization": f"Bearer {token}"}, timeout=60, **options)


def upgrade(version: int) -> dict[str, Any]:
    return {"action": "upgrade-format-version", "format-version": version}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    spark = shared_session()  # before this process uses gRPC
    if not spark.conf.get("spark.jars.packages", ""):
        pytest.skip("the jars of Iceberg and Delta could not be fetched; to get them: run once with a network")
    home = tmp_path_factory.mktemp("optimized") / "home"
    home.mkdir()
    (home / "tokens.toml").write_text(TOKENS)
    (home / "tokens.toml").chmod(0o600)
    with ExitStack() as parts:
        server = parts.enter_context(started(home, "--set", "auth.mode=token", "--set", "reconciler.backend=remote"))
        settings = load(home, flags={"maintenance.spark.rest_uri": f"{server.addresses['http']}/iceberg"})
        stores, secrets = parts.enter_context(stores_of(settings, home)), secrets_of(settings)
        issued: list[str] = []

        def token(job: LeasedJob, table_id: str) -> str:
            issued.append(job_tokens(stores, secrets).issue(job, table_id))
            return issued[-1]

        optimizer = replace(optimizer_of(settings, stores, secrets), spark=lambda: joined(spark), token=token)
        warehouse, realm = warehouse_of(settings), Realm(stores, "default")
        run = jobs_of(lambda _account: realm, Reconciler(secrets, warehouse=warehouse), None, large=optimizer)
        worker = Worker(JobQueue(stores, rules=JobRules(lease_s=3.0)), run, name="spark")
        found = Lake(server, realm, warehouse, worker, optimizer, issued)
        with found.airport() as db:
            db.create_schema("odd's")
        yield found


@pytest.mark.parametrize("version", ["2", "3"])
def test_small_files_are_packed_and_row_lineage_is_kept(lake: Lake, version: str) -> None:
    name = lake.table(version=version)
    before = lake.state(name).metadata
    lineage = read_lineage(before) if version == "3" else {}
    job = lake.run(name)
    result = job.message.maintenance_result
    assert (job.state, result.files_rewritten, result.files_added) == ("succeeded", 8, 1), job.message
    after = lake.state(name).metadata
    assert lake.ids(name) == list(range(80))
    assert after.current_snapshot().summary.operation.value == "replace"
    assert len(lake.state(name).handle.files(lake.state(name).handle.current())) == 1
    assert (read_lineage(after) if version == "3" else {}) == lineage


@pytest.mark.parametrize("order", [{"sort": '"odd `name`" DESC'}, {"z_order": ["id", "place"]}])
def test_rows_are_put_in_order(lake: Lake, order: dict[str, Any]) -> None:
    name = lake.table(files=2)
    job = lake.run(name, **order)
    assert (job.state, job.message.maintenance_result.files_rewritten) == ("succeeded", 2), job.message
    handle = lake.state(name).handle
    rows = handle.read(handle.current()).read_all()["odd `name`"].to_pylist()
    assert len(rows) == 20
    if "sort" in order:
        assert rows == sorted(rows, reverse=True)


def test_token_is_nowhere_and_ends_with_the_job(
    lake: Lake, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    name, other = lake.table(files=5), lake.table(files=1)
    seen: list[int] = []
    job = lake.start(name)

    def ask() -> None:
        while not lake.issued or job.id not in _content(lake.issued[-1]):
            time.sleep(0.01)
        token = lake.issued[-1]
        requests = (("GET", name), ("GET", other), ("DELETE", other))
        seen.extend(lake.rest(method, table, token).status_code for method, table in requests)

    thread = threading.Thread(target=ask)
    with caplog.at_level(logging.DEBUG):
        thread.start()
        assert lake.worker.work_once()
        thread.join()
    assert lake.job(job).state == "succeeded"
    token = lake.issued[-1]
    assert token not in caplog.text
    assert seen == [200, 404, 404], "the token is good for one table only"
    ended = lake.rest("GET", name, token)
    assert (ended.status_code, "has ended" in ended.text) == (401, True)
    shown = "\n".join(map(str, spark.newSession().sql("SET").collect()))
    assert "lake_" not in shown


def _content(token: str) -> str:
    import base64

    sealed = token.removeprefix("skiway_job_").partition(".")[0]
    return base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4)).decode()


def test_writers_win(lake: Lake) -> None:
    name = lake.table(files=6)
    stop, expected = threading.Event(), set(range(60))

    def write() -> None:
        """Add and delete a row in turn, until the job has ended."""
        for number in range(60):
            lake.insert(name, range(1000 + number, 1001 + number))
            expected.add(1000 + number)
            with lake.airport() as db, suppress(Conflict):  # the rows have moved to another file meanwhile
                assert db.delete(name, where=col("id") == number).count == 1
                expected.discard(number)
            if stop.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    job = lake.run(name)
    stop.set()
    writer.join()
    assert job.state == "succeeded", job.message
    assert lake.ids(name) == sorted(expected)


def test_cancelled_job_stops_spark_and_commits_nothing(lake: Lake, spark: SparkSession) -> None:
    name = lake.table(files=6, rows=100_000)
    before = lake.state(name).metadata.current_snapshot_id
    job = lake.start(name, z_order=["id", "place"])
    tracker = spark.sparkContext.statusTracker()

    ended = threading.Event()

    def cancel() -> None:
        while not tracker.getActiveJobsIds() and not ended.is_set():
            time.sleep(0.02)
        with lake.metastore() as metastore:
            metastore.jobs.cancel(job.id)

    thread = threading.Thread(target=cancel)
    thread.start()
    assert lake.worker.work_once()
    ended.set()
    thread.join()
    assert lake.job(job).state == "cancelled"
    assert not tracker.getActiveJobsIds()
    assert lake.state(name).metadata.current_snapshot_id == before
    assert len(lake.ids(name)) == 600_000


def test_failure_is_not_taken_for_a_lost_race(lake: Lake) -> None:
    name = lake.table(files=2)
    job = lake.run(name, z_order=["id", '"odd `name`"'])  # Iceberg cannot
    assert job.state == "queued", "it is tried again"
    assert "the log of the worker says why" in job.message.message
    with lake.metastore() as metastore:
        metastore.jobs.cancel(job.id)


def test_door_that_does_not_answer_is_reported(lake: Lake) -> None:
    name = lake.table(files=5)
    optimizer = replace(lake.optimizer, rest_uri=lambda: "http://127.0.0.1:9/iceberg")
    run = jobs_of(lambda _account: lake.realm, Reconciler(None, warehouse=lake.warehouse), None, large=optimizer)  # type: ignore[arg-type]
    job = lake.start(name)
    assert replace(lake.worker, run=run).work_once()
    failed = lake.job(job)
    assert (
        "cannot reach the REST door at http://127.0.0.1:9/iceberg: set maintenance.spark.rest_uri"
        in failed.message.message
    )
    with lake.metastore() as metastore:
        metastore.jobs.cancel(job.id)
