"""Copies as jobs of a real server with its own Spark: progress, errors of single tables, and what readers see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metastore.upstreams import parquet
from runtime.servers import Server
from skiway.client import AirportClient, Metastore
from skiway.model import v1
from spark_jobs.lakes import SPARK
from spark_jobs.test_sync_server import PATIENCE_S, synced

pytestmark = SPARK


@pytest.fixture(scope="module")
def lake(server_with_spark: Server) -> Iterator[Metastore]:
    with Metastore(server_with_spark.address) as client:
        yield client


def ids(server: Server, table: str) -> list[int]:
    with AirportClient(server.addresses["airport"], "lake") as database:
        found = database.scan(table).read_all()
    return sorted(found["id"].to_pylist())


def test_one_failed_table_does_not_stop_the_others(lake, server_with_spark, tmp_path):
    parquet(tmp_path / "good", "a", id=[1, 2])
    parquet(tmp_path / "also_good", "a", id=[3])
    parquet(tmp_path / "no_key", "a", other=[1])
    copy = v1.CopySettings(mode=v1.COM_UPSERT, key_columns=["id"])
    lake.connectors.create("mixed", kind="parquet", uri=str(tmp_path), catalog="lake", namespace="mixed", copy=copy)
    job = synced(lake, "mixed")
    assert (job.state, job.message.errors) == ("partial", 1)
    assert [(each.table, "'id' does not exist" in each.message) for each in job.message.table_errors] == [
        ("no_key", True)
    ]
    assert ids(server_with_spark, "mixed.good") == [1, 2]
    assert ids(server_with_spark, "mixed.also_good") == [3]


def test_copy_loads_what_is_new_and_shows_its_progress(lake, server_with_spark, tmp_path: Path):
    for number in range(3):
        parquet(tmp_path / "people", f"f{number}", id=[number])
    copy = v1.CopySettings(mode=v1.COM_APPEND)
    lake.connectors.create("grown", kind="parquet", uri=str(tmp_path), catalog="lake", namespace="grown", copy=copy)
    first = synced(lake, "grown")
    assert (first.state, first.files_done, first.files_total, first.message.tables_changed) == ("succeeded", 3, 3, 1)
    pq.write_table(pa.table({"id": [7]}), tmp_path / "people" / "new.parquet")
    second = synced(lake, "grown")
    assert (second.state, second.files_total) == ("succeeded", 1)
    assert ids(server_with_spark, "grown.people") == [0, 1, 2, 7]
    third = synced(lake, "grown")
    assert (third.state, third.message.tables_changed) == ("succeeded", 0)
    full = lake.jobs.wait(lake.connectors.sync("grown", full_rescan=True), timeout_s=PATIENCE_S, every_s=0.1)
    assert (full.state, full.files_total) == ("succeeded", 4)
    assert ids(server_with_spark, "grown.people") == [0, 1, 2, 7]
