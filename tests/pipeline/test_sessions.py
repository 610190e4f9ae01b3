"""Jobs that run on Spark at the same time do not see the settings and views of each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import NumberFormatException

from metastore.managed_table_factory import ManagedTableFactory
from metastore.pipelines.pipeline_lake import PipelineLake
from metastore.resource_factory import ResourceFactory
from pipeline.lakes import SPARK, opened, write
from skiway.errors import InvalidArgument
from skiway.metastore.reconcile.outcomes import Control
from skiway.pipeline import session as sessions
from skiway.pipeline.derive import SparkQueries
from skiway.pipeline.interruption import interruptible
from skiway.pipeline.profile import job
from skiway.pipeline.profile.job import profile
from skiway.pipeline.profile.layouts import file_schemas
from skiway.pipeline.profile.python_tasks import scan_files
from skiway.pipeline.session import PINNED, SparkPlace, separate_session
from skiway.storage import open_stores, utc_now

pytestmark = SPARK

PLACE = SparkPlace("local[2]")
PATIENCE_S = 300.0
ROUNDS = 5
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


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_profiles_and_refreshes_at_once_have_the_results_of_sequential_ones(spark: Any, tmp_path: Path) -> None:
    """Two profiles and two refreshes run at once, several times. A value that cannot be cast is always an error."""
    rows = pa.table({"a": [1, 2, None], "tags": [[1, 2], [], None]})
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        write(folder / "t", rows)
    with pipeline(tmp_path / "three") as three, pipeline(tmp_path / "four") as four:
        jobs: list[tuple[Any, Any]] = [
            (profiled, folders[0]),
            (refreshed, three),
            (profiled, folders[1]),
            (refreshed, four),
        ]
        wanted = [run(of) for run, of in jobs]
        assert not any(row["error"] for row in wanted[0])
        assert list(wanted[1][0]) == ["sales.bad"]

        def repeated(run: Any, of: Any) -> list[Any]:
            return [run(of) for _ in range(ROUNDS)]

        with ThreadPoolExecutor(len(jobs)) as threads:
            running = [threads.submit(repeated, run, of) for run, of in jobs]
            found = [each.result() for each in running]
        for results, result in zip(found, wanted, strict=True):
            assert results == [result] * ROUNDS


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


def test_address_of_spark_connect_must_not_name_a_session() -> None:
    with pytest.raises(InvalidArgument, match="remove session_id"):
        sessions.session("app", remote="sc://127.0.0.1:1/;session_id=00000000-0000-0000-0000-000000000001")
