"""Jobs that run on Spark at the same time do not see the settings and views of each other."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import NumberFormatException

from metastore.managed_table_factory import ManagedTableFactory
from metastore.pipelines.pipeline_lake import PipelineLake
from metastore.resource_factory import ResourceFactory
from skiway.errors import InvalidArgument
from skiway.formats import TableName
from skiway.metastore import connectors, jobs, statistics
from skiway.metastore.jobs.queue import JobQueue, JobRules
from skiway.metastore.managed import ManagedTable
from skiway.metastore.pipelines import api
from skiway.metastore.pipelines.inputs import owner_realm
from skiway.metastore.reconcile.outcomes import Control
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1
from skiway.security import MemorySecrets
from skiway.spark_jobs import interruption
from skiway.spark_jobs import session as sessions
from skiway.spark_jobs.interruption import interruptible
from skiway.spark_jobs.pipeline_queries import SparkQueries
from skiway.spark_jobs.profile import job
from skiway.spark_jobs.profile.job import profile
from skiway.spark_jobs.profile.layouts import file_schemas
from skiway.spark_jobs.profile.python_scans import scan_files
from skiway.spark_jobs.session import PINNED, SparkPlace, separate_session
from skiway.spark_jobs.worker import SparkProfile, Worker, jobs_of
from skiway.storage import open_stores, utc_now
from spark_jobs.lakes import SPARK, opened, write

pytestmark = SPARK

PLACE = SparkPlace(
    "local[2]",
    conf={
        "spark.sql.ansi.enabled": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "Asia/Tokyo",
    },
)
"""The operator has chosen settings with which refreshes would fail, or have other results."""

PATIENCE_S = 300.0
ROUNDS = 2
AT = dt.datetime(2026, 3, 8, 2, 30, tzinfo=dt.UTC)
QUERIES = {
    "good": "SELECT ID, upper(Region) AS region, CAST('2026-03-08 02:30:00' AS TIMESTAMP) AS at FROM orders",
    "bad": "SELECT CAST(region AS INT) AS number FROM orders",
}


@contextmanager
def pipeline(folder: Path) -> Iterator[PipelineLake]:
    with open_stores("memory://") as stores:
        factory = ResourceFactory(stores, utc_now)  # type: ignore[arg-type]
        factory.catalog()
        lake = PipelineLake(ManagedTableFactory.at(factory, folder), dict(QUERIES), SparkQueries(PLACE.session))
        lake.append(lake.create(), *((number, f"r{number % 3}", number) for number in range(20)))
        yield lake


def refreshed(lake: PipelineLake) -> tuple[Any, ...]:
    """The failures of a refresh, and the rows that it has committed."""
    with interruptible(f"refresh-{id(lake)}", Control()):
        failures = lake.run(again=True).failures
    return {name: text.partition(" ")[0] for name, text in failures.items()}, lake.rows("good")


def profiled(folder: Path) -> list[dict[str, Any]]:
    """The figures of a table, for which Spark has to cast numbers to bytes."""
    with interruptible(f"profile-{folder}", Control()), opened(folder) as (handle, snapshot):
        files = handle.files(snapshot)
        found = profile(PLACE.session(), files, handle.schema, schemas=file_schemas(handle, snapshot))
    return found.select(
        ["column_id", "row_count", "null_count", "min", "max", "theta", "element_count", "error"]
    ).to_pylist()


def test_refresh_during_a_profile_has_its_own_settings(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile turns ANSI mode off, and case sensitivity on."""
    write(tmp_path / "files" / "t", pa.table({"tags": [[1, 2], [], None]}))
    profiling, refreshing = threading.Event(), threading.Event()

    def scan_slowly(session: Any, *scan: Any) -> Any:
        profiling.set()
        assert refreshing.wait(PATIENCE_S)
        return scan_files(session, *scan)

    monkeypatch.setattr(job, "scan_files", scan_slowly)
    with pipeline(tmp_path / "lake") as lake, ThreadPoolExecutor(1) as threads:
        running = threads.submit(profiled, tmp_path / "files")
        assert profiling.wait(PATIENCE_S)
        try:
            failures, rows = refreshed(lake)
        finally:
            refreshing.set()
        assert (list(failures), len(rows)) == (["sales.bad"], 20)
        assert not any(row["error"] for row in running.result())


class StressedLake:
    """A lake with two tables to profile and two pipelines to refresh. A worker runs four jobs at a time."""

    def __init__(self, lake: ManagedTableFactory) -> None:
        queries = {f"{name}{number}": text for number in (1, 2) for name, text in QUERIES.items()}
        self.pipelines = PipelineLake(lake, queries)
        self.home = lake.home
        self.pipelines.append(self.pipelines.create(), *((number, f"r{number % 3}", number) for number in range(20)))
        columns = pa.schema({"a": pa.int64(), "tags": pa.list_(pa.int64())})
        self.profiled = [self.pipelines.create(name, columns) for name in ("first", "second")]
        for table in self.profiled:
            self.pipelines.append(table, (1, [1, 2]), (2, []), (None, None))
        owner = owner_realm(lake.home, v1.PipelineOwner(subject="ann", roles=["administrator"]))
        space, catalog = lake.factory.first_namespace(), lake.factory.first_catalog().display_name
        self.refreshed = []
        for number in (1, 2):
            head = f"name: p{number}\ncatalog: {catalog}\nnamespace: {space.display_name}\n"
            files = {f"{name}{number}.sql": text for name, text in QUERIES.items()}
            spec = v1.PipelineSpec(files={"pipeline.yml": head, **files})
            self.refreshed.append(api.CALLS.create(owner, v1.CreatePipelineRequest(spec=spec)).pipeline)
        self.sessions = set[str]()
        profile = SparkProfile(self._session, in_process_bytes=0)
        reconciler = Reconciler(MemorySecrets(), profile, warehouse=lake.warehouse)
        self._run = jobs_of(lake.factory.realm, reconciler, SparkQueries(self._session))
        self._start: threading.Barrier | None = None
        queue = JobQueue(lake.factory.stores, rules=JobRules(max_attempts=1, lease_s=PATIENCE_S))
        self.worker = Worker(queue, self._run_together, "w", poll_s=0.02, at_once=4)

    def _session(self) -> Any:
        found: Any = PLACE.session()
        self.sessions.add(found._jsparkSession.sessionUUID())
        return found

    def _run_together(self, job: v1.Job, control: Control) -> Any:
        if self._start is not None:
            self._start.wait(PATIENCE_S)
        return self._run(job, control)

    def results(self, *, together: bool) -> list[Any]:
        """The results of the four jobs, which run again from the beginning, one after the other or all at once."""
        self._start = threading.Barrier(4) if together else None
        self.sessions.clear()
        requests: list[Callable[[], Any]] = [
            *(
                partial(connectors.trigger, self.home, v1.TriggerReconcileRequest(table_id=each, full_rescan=True))
                for each in (table.table.resource_id for table in self.profiled)
            ),
            *(
                partial(api.start, self.home, v1.StartPipelineRequest(pipeline_id=each.resource_id, full=True))
                for each in self.refreshed
            ),
        ]
        made = []
        for request in requests:
            answer = request()
            made.append(answer.job_id if isinstance(answer, v1.TriggerReconcileResponse) else answer.job.job_id)
            if not together:
                self._wait(made[-1:])
        return [*map(self._outcome, self._wait(made)), *map(self._statistics, self.profiled), *map(self._rows, (1, 2))]

    def _wait(self, job_ids: list[str]) -> list[v1.Job]:
        ends_at = time.monotonic() + PATIENCE_S
        while True:
            found = [jobs.get(self.home, v1.GetReconcileJobRequest(job_id=each)).job for each in job_ids]
            if all(each.state not in (v1.JS_QUEUED, v1.JS_RUNNING) for each in found):
                return found
            assert time.monotonic() < ends_at, [(each.state, each.message) for each in found]
            time.sleep(0.02)

    def _outcome(self, job: v1.Job) -> Any:
        return job.state, {each.table: each.message.partition("]")[0] for each in job.table_errors}

    def _statistics(self, table: ManagedTable) -> Any:
        snapshot = v1.SnapshotRef(snapshot_id=self.pipelines.lake.load(table).handle.current().id)
        request = v1.ListColumnStatsRequest(table_id=table.table.resource_id, snapshot=snapshot)
        found = list(statistics.list_columns(self.home, request).columns)
        for each in found:
            for name in ("table_id", "snapshot_id", "updated_at"):
                if name in each.DESCRIPTOR.fields_by_name:
                    each.ClearField(name)  # type: ignore[arg-type]
        return found

    def _rows(self, number: int) -> Any:
        bad = TableName(self.pipelines.pipeline().project.namespace, f"bad{number}")
        output = self.pipelines.pipeline().tables.output(bad)
        committed = output is not None and output.handle.current() is not None
        return self.pipelines.rows(f"good{number}"), committed


@pytest.mark.timeout(900)
def test_profiles_and_refreshes_at_once_have_the_results_of_sequential_ones(
    spark: Any, managed_lake: ManagedTableFactory
) -> None:
    """Two profiles and two refreshes run at once, several times. A value that cannot be cast is an error, and nothing is committed."""
    lake = StressedLake(managed_lake)
    with lake.worker:
        expected = lake.results(together=False)
        states = [state for state, _ in expected[:4]]
        assert states == [v1.JS_SUCCEEDED, v1.JS_SUCCEEDED, v1.JS_PARTIAL, v1.JS_PARTIAL]
        rejected = "line 1, column 8: Spark rejects the query: [CAST_INVALID_INPUT"
        assert [[*errors.values()] for _, errors in expected[2:4]] == [
            [f"bad{number}.sql, {rejected}"] for number in (1, 2)
        ]
        assert [len(columns) for columns in expected[4:6]] == [2, 2]
        good = sorted([(number, f"R{number % 3}", AT) for number in range(20)], key=repr)
        assert expected[6:] == [(good, False)] * 2
        for _ in range(ROUNDS):
            assert lake.results(together=True) == expected
            assert len(lake.sessions) == 4


def test_job_has_one_session_that_no_other_job_sees(spark: Any) -> None:
    """Also if the settings of the operator differ from those that jobs need."""
    place = SparkPlace("local[2]", conf={"spark.sql.ansi.enabled": "false", "spark.sql.shuffle.partitions": "3"})

    def used(name: str) -> Any:
        with interruptible(name, Control()), ThreadPoolExecutor(2) as threads:
            own = place.session()
            again = [threads.submit(copy_context().run, place.session).result() for _ in range(2)]
            assert all(each is own for each in again)
            own.range(1).createOrReplaceTempView("mine")
            own.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
            return own

    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        one, two = used("one"), used("two")
        with interruptible("three", Control()):
            three = place.session()
            assert len({id(each) for each in (one, two, three, spark)}) == 4
            assert not [each.name for each in three.catalog.listTables() if each.name == "mine"]
            wanted = {name: str(value).lower() for name, value in PINNED.items()}
            assert {name: three.conf.get(name).lower() for name in PINNED} == {
                name: value.lower() for name, value in wanted.items()
            }
            assert three.conf.get("spark.sql.shuffle.partitions") == "3"
            with separate_session(three, {"spark.sql.ansi.enabled": False}) as lenient:
                assert lenient.conf.get("spark.sql.shuffle.partitions") == "3"
                assert lenient.sql("SELECT CAST('x' AS INT)").collect()[0][0] is None
            with pytest.raises(NumberFormatException):
                three.sql("SELECT CAST('x' AS INT)").collect()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


def test_java_is_started_once_if_several_jobs_need_it(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    starting, most = 0, 0
    usual = sessions._check_running

    def check(settings: Any) -> None:
        nonlocal starting, most
        starting += 1
        most = max(most, starting)
        time.sleep(0.1)
        usual(settings)
        starting -= 1

    monkeypatch.setattr(sessions, "_check_running", check)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: PLACE.session(), range(4)))
    assert most == 1


def test_fixed_settings_of_the_operator_are_logged_once(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    sessions._warn_of_fixed.cache_clear()
    conf = {"spark.sql.ansi.enabled": "False", "spark.sql.session.timeZone": "UTC", "spark.sql.caseSensitive": "false"}
    with caplog.at_level(logging.WARNING, "skiway.spark"):
        for _ in range(2):
            SparkPlace("local[2]", conf=conf).session()
    (message,) = [each.getMessage() for each in caplog.records if "fixed" in each.getMessage()]
    assert message.endswith("no effect: spark.sql.ansi.enabled=true")


def test_job_ends_although_java_is_gone(spark: Any) -> None:
    """The error of the job is reported, and not that of the tags and sessions that cannot be removed."""

    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise ConnectionRefusedError(name)

    Gone.__module__ = "pyspark.sql.connect.session"  # as a session on a Spark Connect server

    def fail() -> None:
        with interruptible("gone", Control()):
            work = interruption._WORK.get()
            assert work is not None
            work._joined[0] = work._own = Gone()  # type: ignore[assignment]
            work._joined[1] = SimpleNamespace(sparkContext=Gone())  # type: ignore[assignment]
            raise ValueError("the error of the job")

    with pytest.raises(ValueError, match="the error of the job"):
        fail()


def test_address_of_spark_connect_must_not_name_a_session() -> None:
    with pytest.raises(InvalidArgument, match="remove session_id"):
        sessions.session("app", remote="sc://127.0.0.1:1/;session_id=00000000-0000-0000-0000-000000000001")
