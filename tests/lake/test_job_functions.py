"""`skiway.refresh` and `profile`: background jobs for one table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake.lakes import Lake
from lake.lakes import call_function as call
from skiway.client import AirportClient
from skiway.errors import InvalidArgument, NotFound, PermissionDenied, PreconditionFailed
from skiway.metastore import Realm, jobs
from skiway.metastore.jobs.queue import JobQueue
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1
from skiway.spark_jobs.worker import Worker, jobs_of


@pytest.fixture
def folder(lake: Lake, tmp_path: Path) -> Path:
    """A folder with the Parquet tables `people` and `others`, which a connector mirrors."""
    for name in ("people", "others"):
        made = tmp_path / "source" / "sales" / name
        made.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1]}), made / "a.parquet")
    lake.mirror("parquet", str(tmp_path / "source"), catalog="files")
    return tmp_path / "source" / "sales"


@pytest.fixture
def profiled(lake: Lake) -> Iterator[list[str]]:
    """The ids of tables that a worker, which runs in the background without Spark, has profiled."""
    found: list[str] = []

    def profile(_realm: Realm, table_id: v1.ResourceId, *_: Any, **__: Any) -> None:
        found.append(table_id.id)

    run = jobs_of(
        lambda account: Realm(lake.stores, account), Reconciler(lake.secrets, profile, warehouse=lake.warehouse)
    )
    with Worker(JobQueue(lake.stores), run, name="w", poll_s=0.02):
        yield found


def snapshots(db: AirportClient, table: str) -> int:
    return sum(row["table_name"] == table for row in db.scan("skiway.snapshots").read_all().to_pylist())


def test_refresh_reads_only_this_table_from_its_source(lake: Lake, folder: Path, profiled: list[str]) -> None:
    with lake.client("files") as db:
        before = snapshots(db, "people"), snapshots(db, "others")
        for name in ("people", "others"):
            pq.write_table(pa.table({"id": [2]}), folder / name / "b.parquet")
        done = call(db, "refresh", "sales.People")
        assert (done["table"], done["state"], done["tables_changed"]) == ("files.sales.People", "succeeded", 1)
        assert (snapshots(db, "people"), snapshots(db, "others")) == (before[0] + 1, before[1])
    assert profiled == []


def test_profile_starts_a_job_for_one_table(lake: Lake, folder: Path) -> None:
    with lake.client("files") as db:
        done = call(db, "profile", "sales.people", full=True)
        assert done["state"] == "queued"
        again = call(db, "profile", "sales.people", full=True)
    (job,) = jobs.scan(lake.realm)
    assert job.job_id == done["job_id"] == again["job_id"]
    assert (job.scope.table, list(job.modes), job.full_rescan) == ("people", [v1.CAP_STATS_ONLY_ASYNC], True)
    assert folder.exists()


def test_managed_tables_are_profiled_but_not_refreshed(lake: Lake, profiled: list[str]) -> None:
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", pa.schema({"id": pa.int64()}))
        db.insert("s.t", pa.table({"id": [1]}))
        with pytest.raises(PreconditionFailed, match="always current"):
            call(db, "refresh", "s.t")
        assert call(db, "profile", "s.t", wait_s=30)["state"] == "succeeded"
    assert len(profiled) == 1


def test_planning_starts_no_job(lake: Lake, folder: Path) -> None:
    with lake.client("files") as db:
        db.call("skiway.refresh", "sales.people", named={"wait_s": 0}).close()
    assert folder.exists()
    assert list(jobs.scan(lake.realm)) == []


def test_invalid_calls_start_no_job(lake: Lake, folder: Path) -> None:
    with lake.client("files") as db:
        with pytest.raises(InvalidArgument, match="use 0 to 3600 seconds"):
            call(db, "refresh", "sales.people", wait_s=-1)
        with pytest.raises(NotFound, match="does not exist"):
            call(db, "profile", "sales.nothing")
    with lake.client("files", token="reader") as reader, pytest.raises(PermissionDenied):
        call(reader, "refresh", "sales.people")
    assert folder.exists()
    assert list(jobs.scan(lake.realm)) == []
