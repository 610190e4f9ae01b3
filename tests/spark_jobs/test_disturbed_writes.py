"""Every row is written once while tasks fail, are killed or run twice: in local mode, and on a cluster with two workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distribution.environments import PROJECT, build, environment
from runtime.servers import Server
from skiway.client import AirportClient, Metastore
from spark_jobs import disturbed_job
from spark_jobs.lakes import SPARK
from spark_jobs.standalone_cluster import standalone_cluster

pytestmark = SPARK

ROWS = disturbed_job.ROWS


@pytest.fixture(scope="module")
def lake(server_with_spark: Server) -> Iterator[AirportClient]:
    with AirportClient(server_with_spark.addresses["airport"], "lake") as client:
        client.create_schema("disturbed")
        yield client


def run(
    lake: AirportClient,
    folder: Path,
    kinds: Sequence[str],
    master: str,
    *,
    python: Path = Path(sys.executable),
    **settings: Any,
) -> dict[str, Any]:
    """Run the job, on executors with another Python; returns what it has read back."""
    for kind in kinds:
        lake.create_table(
            f"disturbed.{kind}", pa.schema({"id": pa.int64(), "note": pa.string()}), on_conflict="replace"
        )
    given = {
        "master": master,
        "location": f"{lake.location}/lake",
        "folder": str(folder),
        "kinds": list(kinds),
        "settings": settings,
    }
    done = subprocess.run(
        [sys.executable, Path(disturbed_job.__file__), json.dumps(given)],
        check=False, capture_output=True, text=True, timeout=500, env={**os.environ, "PYSPARK_PYTHON": str(python)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(lake: AirportClient, folder: Path, kind: str, found: Sequence[int]) -> None:
    """The disturbance has happened, some rows were staged twice, and all rows were committed once."""
    assert (folder / f"{kind}.disturbed").exists()
    assert list(found) == [ROWS, ROWS, sum(range(ROWS))]
    assert sorted(lake.scan(f"disturbed.{kind}", columns=["id"]).read_all()["id"].to_pylist()) == list(range(ROWS))
    with Metastore(lake.location) as metastore:
        ended = metastore.transactions.get((folder / f"{kind}.transaction").read_text())
    dropped = [each for each in ended.message.writes if each.dropped]
    assert (ended.state, len(ended.snapshots)) == ("committed", 1)
    assert dropped, "the first run of the disturbed task has staged its rows"
    assert sum(each.row_count for each in ended.message.writes) == ROWS + sum(each.row_count for each in dropped)
    assert not [path for each in dropped for path in each.data_files if Path(path.removeprefix("file://")).exists()]
    kept = [path for each in ended.message.writes if not each.dropped for path in each.data_files]
    assert all(Path(path.removeprefix("file://")).exists() for path in kept)


def test_task_that_fails_after_it_has_sent_its_rows(lake: AirportClient, tmp_path: Path) -> None:
    found = run(lake, tmp_path, ["failing"], "local[2,3]")
    check(lake, tmp_path, "failing", found["failing"])


@pytest.mark.full
def test_cluster_with_two_workers_that_have_only_the_wheel(lake: AirportClient, tmp_path: Path) -> None:
    kinds = ["failing", "slow", "killed"]
    (tmp_path / "wheel").mkdir()
    with (
        environment(build(PROJECT, "wheel", tmp_path / "wheel")) as installed,
        standalone_cluster(tmp_path / "cluster", workers=2) as master,
    ):
        settings = {
            "spark.executor.memory": "512m",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.minTaskRuntime": "3s",
        }
        found = run(lake, tmp_path, kinds, master, python=installed.folder / "bin" / "python", **settings)
        prefixes = {(tmp_path / f"{kind}.disturbed").read_text() for kind in kinds}
        assert prefixes == {str(installed.folder)}, "executors use the environment that has only the wheel"
        logs = [log.read_text() for log in (tmp_path / "cluster").rglob("stderr")]
    for kind in kinds:
        check(lake, tmp_path, kind, found[kind])
    assert len(logs) >= 3, "both workers had an executor, and the killed one was replaced"
