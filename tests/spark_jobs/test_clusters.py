"""Jobs of a server on a standalone cluster with two workers: tasks run on both, and an executor that is killed changes nothing."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runtime.servers import Server, eventually, started
from skiway.client import AirportClient, Metastore
from skiway.model import v1
from spark_jobs.lakes import SPARK
from spark_jobs.standalone_cluster import standalone_cluster
from spark_jobs.test_sync_server import PATIENCE_S, synced

pytestmark = SPARK

RULES = "[{not_null: v, on_failure: drop}, {unique: id}]"
UPSERT = v1.CopySettings(mode=v1.COM_UPSERT, key_columns=["id"], expect=RULES)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    """A server whose Spark is a cluster, and the folder of the cluster."""
    (tmp_path / "events").mkdir()
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "4",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (tmp_path / "events").as_uri(),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    with standalone_cluster(tmp_path / "cluster", workers=2) as master:
        settings = (
            "pipelines.enabled=true",
            "reconciler.poll_every=100ms",
            "profiles.in_process_bytes=0",
            f"reconciler.spark.master={master}",
            f"reconciler.spark.conf={';'.join(f'{name}={value}' for name, value in conf.items())}",
        )
        given = [part for each in settings for part in ("--set", each)]
        with started(tmp_path / "home", *given) as server:
            yield server, tmp_path / "cluster"


def hosts(folder: Path) -> Counter[str]:
    """The successful tasks by host, as Spark's event log has them."""
    found: Counter[str] = Counter()
    for log in (folder.parent / "events").rglob("*"):
        for line in log.read_text().splitlines() if log.is_file() and not log.name.endswith(".crc") else ():
            if line.startswith("{") and '"SparkListenerTaskEnd"' in line:
                event = json.loads(line)
                if event["Task End Reason"]["Reason"] == "Success" and event["Task Info"]["Executor ID"] != "driver":
                    found[event["Task Info"]["Host"]] += 1
    return found


def executors(folder: Path) -> dict[int, Path]:
    """The executors by process, with their folders."""
    found = {}
    for log in folder.glob("work*/app-*/*/stderr"):
        for process in Path("/proc").iterdir():
            try:
                is_java = process.name.isdecimal() and "CoarseGrained" in (process / "cmdline").read_text()
                if is_java and (process / "cwd").readlink() == log.parent:
                    found[int(process.name)] = log.parent
            except OSError:
                continue
    return found


def write(folder: Path, first: int, count: int, files: int, value: str) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(files):
        ids = range(first + number * count, first + (number + 1) * count)
        pq.write_table(pa.table({"id": ids, "v": [value] * count}), folder / f"{value}-{number}.parquet")


def rows(server: Server, table: str) -> list[tuple[Any, ...]]:
    with AirportClient(server.addresses["airport"], "lake") as client:
        found = client.scan(table).read_all()
    return sorted(tuple(row.values()) for row in found.to_pylist())


def test_jobs_run_on_both_workers_and_a_killed_executor_changes_nothing(cluster, tmp_path):
    server, folder = cluster
    source = tmp_path / "source"
    source.mkdir()
    with Metastore(server.address) as lake:
        write(source / "t", 0, 500, 6, "old")
        lake.connectors.create("c", kind="parquet", uri=str(source), catalog="lake", namespace="s", copy=UPSERT)
        job = synced(lake, "c")
        assert (job.state, job.errors) == ("succeeded", {}), job.message
        assert rows(server, "s.t") == [(number, "old") for number in range(3000)]
        used = hosts(folder)
        assert set(used) == {"127.0.0.1", "127.0.0.2"}, used

        model = "SELECT v, count(*) AS n, max(id) AS last FROM t GROUP BY v"
        pipeline = {"pipeline.yml": "name: p\ncatalog: lake\nnamespace: s\n", "totals.sql": model}
        lake.pipelines.create(pipeline)
        job = lake.jobs.wait(lake.pipelines.start("p"), timeout_s=PATIENCE_S)
        assert job.state == "succeeded", job.message
        assert rows(server, "s.totals") == [("old", 3000, 2999)]

        write(source / "t", 2000, 500, 4, "zew")
        begun = len(executors(folder))
        assert begun == 2
        before = sum(hosts(folder).values())
        killed: list[int] = []

        def kill() -> None:
            eventually(lambda: sum(hosts(folder).values()) > before, within_s=PATIENCE_S)
            killed.append(min(executors(folder)))
            os.kill(killed[0], signal.SIGKILL)

        killer = Thread(target=kill)
        killer.start()
        job = synced(lake, "c")
        killer.join()
        assert (job.state, job.errors) == ("succeeded", {}), job.message
        assert killed
        expected = [(number, "zew" if 2000 <= number < 4000 else "old") for number in range(4000)]
        assert rows(server, "s.t") == expected
        job = lake.jobs.wait(lake.pipelines.start("p"), timeout_s=PATIENCE_S)
        assert job.state == "succeeded", job.message
        assert rows(server, "s.totals") == [("old", 2000, 1999), ("zew", 2000, 3999)]
