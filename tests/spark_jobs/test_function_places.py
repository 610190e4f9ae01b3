"""Python functions of pipelines on a separate worker with TLS and on a cluster, and those that are killed or exceed a limit."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from airport.certificates import Authority
from runtime.servers import eventually, launch, started
from skiway.client import AirportClient, Metastore, TlsOptions
from spark_jobs.lakes import SPARK
from spark_jobs.standalone_cluster import standalone_cluster
from spark_jobs.test_python_tables import HEAD, IMPORTS, rows
from spark_jobs.test_spark_queries import QUICK, on_spark
from spark_queries.test_confinement import needs_landlock

pytestmark = [*SPARK, needs_landlock]

CONF = ";".join(f"{name}={value}" for name, value in QUICK.items())
BASIC = (
    "pipelines.enabled=true",
    "pipelines.python.enabled=true",
    "reconciler.poll_every=100ms",
    "reconciler.spark.master=local[2]",
    "reconciler.job_store.max_attempts=1",
)
ORDERS = pa.table({"id": [1, 2, 3], "price": [1, 4, 6]})
DOUBLES = """
from pyspark.sql import functions as F

def doubled(value):
    return value * 2

@dp.materialized_view
def doubles():
    return spark.table("orders").repartition(2).select("id", F.udf(doubled, "bigint")("price").alias("double"))
"""


def settings(*given: str) -> list[str]:
    return [part for each in (*BASIC, *given) for part in ("--set", each)]


def fill(client: AirportClient) -> None:
    client.create_schema("s")
    client.create_table_as("s.orders", ORDERS)


def files(name: str, **code: str) -> dict[str, str]:
    return {"pipeline.yml": HEAD.format(name=name)} | {f"{file}.py": IMPORTS + text for file, text in code.items()}


@contextmanager
def worker(home: Path, *given: str) -> Iterator[None]:
    with launch("worker", "--home", home, *settings(*given), stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def test_separate_worker_reads_tables_of_a_server_over_tls(tmp_path: Path) -> None:
    home, authority = tmp_path / "home", Authority(tmp_path)
    pair = authority.issue("server")
    tls = (f"server.grpc.tls.cert={pair.certificate}", f"server.grpc.tls.key={pair.key}")
    trusted = TlsOptions(root_certificates=authority.certificate)
    with started(home, *settings("reconciler.backend=remote", *tls)) as server:
        location = server.addresses["airport"]
        assert location.startswith("grpc+tls://")
        with (
            AirportClient(location, "lake", tls=trusted) as client,
            Metastore(server.address, tls=trusted) as lake,
        ):
            fill(client)
            lake.pipelines.create(files("tls", doubles=DOUBLES))
            spark = (f"sql.spark.conf={CONF}", f"sql.spark.location={location}")
            with worker(home, *spark):
                (untrusted,) = lake.jobs.wait(lake.pipelines.start("tls")).message.table_errors
            assert "sql.spark.root_certificates" in untrusted.message
            with worker(home, f"sql.spark.conf={CONF}"):
                (nowhere,) = lake.jobs.wait(lake.pipelines.start("tls")).message.table_errors
            assert nowhere.message.startswith("Python functions of pipelines read tables over Airport, and this worker")
            with worker(home, *spark, f"sql.spark.root_certificates={authority.certificate}"):
                job = lake.jobs.wait(lake.pipelines.start("tls"))
            assert job.state == "succeeded", job.message
            assert rows(client, "s.doubles") == [(1, 2), (2, 8), (3, 12)]


ENDLESS = """
import time

def never(batches):
    for batch in batches:
        yield batch
    time.sleep(600)

@dp.materialized_view
def endless():
    return spark.table("orders").repartition(2).mapInArrow(never, "id bigint, price bigint")
"""


def executors(folder: Path) -> list[str]:
    """The processes that the workers of a cluster have started, also those of Python."""
    found = [each for each in Path("/proc").iterdir() if each.name.isdecimal()]
    return [each.name for each in found if str(folder / "work") in _folder_of(each)]


def _folder_of(process: Path) -> str:
    try:
        return str((process / "cwd").readlink())
    except OSError:
        return ""


def test_functions_and_queries_run_on_a_cluster_with_two_workers(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster"
    with standalone_cluster(cluster, workers=2) as master:
        conf = f"{CONF};spark.driver.host=127.0.0.1;spark.executor.memory=512m"
        given = ("sql.spark.enabled=true", f"sql.spark.master={master}", f"sql.spark.conf={conf}")
        with (
            started(tmp_path / "home", *settings(*given)) as server,
            AirportClient(server.addresses["airport"], "lake") as client,
            Metastore(server.address) as lake,
        ):
            fill(client)
            lake.pipelines.create(files("cluster", doubles=DOUBLES))
            job = lake.jobs.wait(lake.pipelines.start("cluster"))
            assert job.state == "succeeded", job.message
            assert rows(client, "s.doubles") == [(1, 2), (2, 8), (3, 12)]
            assert len(list(cluster.glob("work*/app-*/*/stderr"))) == 2, "both workers had an executor"
            eventually(lambda: executors(cluster) == [])
            found = on_spark(client, "SELECT sum(price) AS total FROM s.orders")
            assert found.to_pylist() == [{"total": 11}]
            eventually(lambda: executors(cluster) == [])
            lake.pipelines.create(files("endless", endless=ENDLESS))
            job = lake.pipelines.start("endless")
            eventually(lambda: len(executors(cluster)) > 3, within_s=120)  # two of Java, and those of Python
            lake.jobs.cancel(job.id)
            assert lake.jobs.wait(job).state == "cancelled"
            eventually(lambda: executors(cluster) == [])


KILLED = """
import os, signal

@dp.materialized_view
def killed():
    os.kill(os.getpid(), signal.SIGKILL)
"""
WITHOUT_JAVA = """
import os, signal

@dp.materialized_view
def without_java():
    for each in os.listdir("/proc"):
        if each.isdecimal() and open(f"/proc/{each}/stat").read().rpartition(")")[2].split()[1] == str(os.getpid()):
            os.kill(int(each), signal.SIGKILL)
    return spark.table("orders")
"""
GREEDY = """
@dp.materialized_view
def greedy():
    taken = []
    while True:
        taken.append(b"x" * 50_000_000)
"""
SLOW = """
import time

@dp.materialized_view
def slow():
    time.sleep(600)
"""


FAILED = "the process of the function on Spark did not start, or has failed: the log of the job says why"


def errors_of(home: Path, pipeline: dict[str, str], *given: str, expected: dict[str, list[Any]]) -> dict[str, str]:
    """The errors of a run by table. Tables without errors must have the expected rows, and the job is partly done."""
    with (
        started(home, *settings(*given)) as server,
        AirportClient(server.addresses["airport"], "lake") as client,
        Metastore(server.address) as lake,
    ):
        fill(client)
        lake.pipelines.create(pipeline)
        job = lake.jobs.wait(lake.pipelines.start(pipeline["pipeline.yml"].split()[1]), timeout_s=500)
        errors = {each.table.removeprefix("s."): each.message for each in job.message.table_errors}
        assert job.state == "partial", errors
        assert {name: rows(client, f"s.{name}") for name in expected} == expected
        assert "skiway_job_" not in lake.jobs.log(job.id)
    return errors


def test_functions_that_are_killed_or_use_too_much_memory_stop_no_other_table(tmp_path: Path) -> None:
    code = files("killed", killed=KILLED, without_java=WITHOUT_JAVA, greedy=GREEDY, well=DOUBLES)
    queries = {"after.sql": "SELECT sum(double) AS total FROM doubles", "never.sql": "SELECT * FROM greedy"}
    errors = errors_of(
        tmp_path / "home",
        code | queries,
        f"sql.spark.conf={CONF};spark.driver.memory=512m",
        "pipelines.python.memory_limit=2500MB",
        expected={"doubles": [(1, 2), (2, 8), (3, 12)], "after": [(22,)]},
    )
    assert errors == {
        "killed": FAILED,
        "without_java": FAILED,
        "greedy": "the function used more than 2500 MB of memory, the limit of this server (pipelines.python.memory_limit)",
        "never": "skipped, because s.greedy failed",
    }


def test_function_that_takes_too_long_stops_no_other_table(tmp_path: Path) -> None:
    errors = errors_of(
        tmp_path / "home",
        files("late", slow=SLOW) | {"total.sql": "SELECT sum(price) AS total FROM orders"},
        f"sql.spark.conf={CONF}",
        "pipelines.python.timeout_seconds=5",
        expected={"total": [(11,)]},
    )
    assert errors == {
        "slow": "the function took longer than 5 s, the limit of this server (pipelines.python.timeout_seconds)"
    }
