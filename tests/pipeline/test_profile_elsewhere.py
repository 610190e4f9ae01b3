"""The same job on a real cluster and through Spark Connect. Slow: each starts several Java processes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.lakes import SPARK, opened, rows_of_all_types, write
from pipeline.test_profile import profiled
from skiway.pipeline.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK
JOB = Path(__file__).with_name("job.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files in a folder whose name is a value too."""
    made = tmp_path_factory.mktemp("elsewhere")
    for number in range(2):
        write(made / "t" / f"part={number}", rows_of_all_types(number, rows=200))
    return made


@pytest.fixture(scope="module")
def local(folder: Path, spark: SparkSession) -> pa.Table:
    with opened(folder) as (handle, snapshot):
        return profiled(spark, handle, snapshot)


def test_a_cluster_of_two_workers_gives_the_same_profile(folder: Path, local: pa.Table, tmp_path: Path) -> None:
    with ExitStack() as stack:
        port = free_port()
        address = f"spark://127.0.0.1:{port}"
        place = ["--host", "127.0.0.1", "--webui-port", "0"]
        master = ["org.apache.spark.deploy.master.Master", *place, "--port", str(port)]
        stack.enter_context(running(tmp_path / "master.log", *master, until="I have been elected leader"))
        for number in range(2):
            worker = ["org.apache.spark.deploy.worker.Worker", *place, "--cores", "1", "--memory", "700m"]
            work = ["--work-dir", str(tmp_path / f"work-{number}"), address]
            log = tmp_path / f"worker-{number}.log"
            stack.enter_context(running(log, *worker, *work, until="Successfully registered with master"))
        assert_same(run_job(folder, tmp_path, "--master", address), local)


def test_a_connect_server_gives_the_same_profile(folder: Path, local: pa.Table, tmp_path: Path) -> None:
    port = free_port()
    server = [
        "org.apache.spark.deploy.SparkSubmit",
        *("--master", "local[2]", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *(
            "--conf",
            f"spark.connect.grpc.binding.port={port}",
            "--conf",
            "spark.connect.grpc.binding.address=127.0.0.1",
        ),
        *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.bindAddress=127.0.0.1"),
        *("--conf", "spark.driver.host=127.0.0.1", "spark-internal"),
    ]
    with running(tmp_path / "connect.log", *server, until="Spark Connect server started"):
        assert_same(run_job(folder, tmp_path, "--remote", f"sc://127.0.0.1:{port}"), local)


def assert_same(found: pa.Table, local: pa.Table) -> None:
    """KLL sketches toss coins when they are full; these are not, so everything is the same byte by byte."""
    assert found.num_rows == local.num_rows > 0
    for name in local.column_names:
        assert found[name].to_pylist() == local[name].to_pylist(), name


def run_job(folder: Path, tmp_path: Path, *where: str) -> pa.Table:
    out = tmp_path / "profile.parquet"
    command = [sys.executable, str(JOB), str(folder), str(out), *where]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    return pq.read_table(out)


@contextmanager
def running(log: Path, *command: str, until: str) -> Iterator[None]:
    """A Java process of Spark, once its log says that it is there."""
    import pyspark

    ensure_java()
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(spark_class), *command], stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=log.parent
        )
    try:
        deadline = time.monotonic() + 120
        while not re.search(until, log.read_text(errors="replace")):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(30)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
