"""The page about Spark clusters: its commands start a cluster, and its settings run jobs there."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import scope
from metastore.resource_factory import ResourceFactory
from metastore.upstreams import connector, parquet
from ports import free_port
from runtime.servers import command, environment, started
from skiway.client import AirportClient, Metastore
from skiway.config import Settings, describe, load, shown
from skiway.errors import InvalidArgument
from skiway.model import v1
from skiway.runtime.lake import spark_place
from skiway.spark_jobs import session as sessions
from skiway.spark_jobs.java import OLDEST_JAVA
from skiway.spark_jobs.profile.column_statistics import ESTIMATE
from skiway.spark_jobs.profile.job import USUAL
from skiway.spark_jobs.session import PINNED, SparkPlace
from skiway.storage import open_stores, utc_now
from spark_jobs.lakes import SPARK, rows_of_all_types, write
from spark_jobs.test_sync_spark import published, synced

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
TEXT = " ".join(PAGE.split())
(MASTER, WORKER, CONNECT, BESIDE) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
TOML = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
(ON_CLUSTER, BY_CONNECT, LEFT_TO_OTHERS, WITH_MEMORY) = TOML


def settings(toml: str, folder: Path) -> Settings:
    file = folder / "skiway.toml"
    file.write_text(toml)
    return load(folder, file, {}, {})


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toml", "place"),
    [
        (
            ON_CLUSTER,
            SparkPlace(
                "spark://10.0.0.1:7077",
                conf={
                    "spark.executor.memory": "4g",
                    "spark.cores.max": "8",
                    "spark.driver.host": "10.0.0.2",
                },
            ),
        ),
        (BY_CONNECT, SparkPlace(remote="sc://10.0.0.1:15002")),
        (LEFT_TO_OTHERS, SparkPlace()),
        (WITH_MEMORY, SparkPlace("local[4]", conf={"spark.driver.memory": "3g", "spark.local.dir": "/var/tmp"})),
    ],
)
def test_settings_match_the_page(tmp_path: Path, toml: str, place: SparkPlace):
    assert spark_place(settings(toml, tmp_path).reconciler.spark) == place


def test_secret_looking_values_are_not_shown(tmp_path: Path):
    toml = WITH_MEMORY.replace("spark.local.dir=/var/tmp", "spark.hadoop.fs.s3a.secret.key=abc;d")
    found = settings(toml, tmp_path)
    assert spark_place(found.reconciler.spark).conf["spark.hadoop.fs.s3a.secret.key"] == "abc;d"
    conf_text = shown(found)["reconciler.spark.conf"]
    assert "abc" not in conf_text
    assert "spark.hadoop.fs.s3a.secret.key=****" in conf_text


@pytest.mark.parametrize("conf", ["spark.driver.memory", "= 3g", "a b=3"])
def test_setting_that_is_not_a_pair_is_rejected(tmp_path: Path, conf: str):
    with pytest.raises(InvalidArgument, match=r"reconciler\.spark\.conf = .* expected name=value pairs"):
        load(tmp_path, None, {}, {"reconciler.spark.conf": conf})


def test_session_is_created_at_the_configured_place(monkeypatch):
    sessions_requested = []
    monkeypatch.setattr(sessions, "session", lambda *place, **how: sessions_requested.append((place, how)))
    monkeypatch.setattr(sessions, "iceberg_settings", lambda conf, *, fetch: {"fetch": fetch})
    SparkPlace("local[3]", conf={"spark.driver.memory": "3g", "spark.sql.ansi.enabled": "false"}).only_session()
    SparkPlace(remote="sc://host:15002").only_session()
    SparkPlace().only_session()
    assert sessions_requested == [
        (("skiway", "local[3]"), {"remote": "", "jars": {"fetch": False}, "spark.driver.memory": "3g", **PINNED}),
        (("skiway", "local[*]"), {"remote": "sc://host:15002", "jars": {}, **PINNED}),
        (("skiway", "local[*]"), {"remote": "", "jars": {"fetch": False}, **PINNED}),
    ]


@pytest.mark.parametrize(
    ("running", "address"),
    [
        (SimpleNamespace(_sc=SimpleNamespace(uiWebUrl="http://a:4040")), "http://a:4040"),
        (SimpleNamespace(), ""),
        (None, ""),
    ],
)
def test_address_of_the_web_interface(monkeypatch, running: object, address: str):
    import pyspark.sql  # noqa: F401 - otherwise no session can be running

    monkeypatch.setattr(sessions, "_running_session", lambda: running)
    assert sessions.spark_ui() == address


def test_page_names_every_setting_and_the_right_numbers():
    assert {f"`{each.key}`" for each in describe() if each.key.startswith("reconciler.spark.")} <= set(TEXT.split())
    assert f"batches of {USUAL.files} and {USUAL.columns} columns" in TEXT
    assert f"needs Java {OLDEST_JAVA} or newer" in TEXT
    assert f"after {Settings().reconciler.job_store.max_attempts} attempts it has failed" in TEXT


# --- clusters ---------------------------------------------------------------------------------------------------------


@contextmanager
def shell(script: str, log: Path, *, until: str) -> Iterator[None]:
    """Run a command of the page as typed, and wait until its output shows that it is ready."""
    python = Path(sys.executable).parent
    env = {**environment(), "SPARK_LOCAL_IP": "127.0.0.1", "PATH": f"{python}:{os.environ['PATH']}"}
    lines = script.strip().splitlines()
    text = "\n".join([*lines[:-1], f"exec {lines[-1]}"])
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-ec", text], stdout=output, stderr=subprocess.STDOUT, env=env, cwd=log.parent
        )
    try:
        deadline = time.monotonic() + 120
        while until not in log.read_text(errors="replace"):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(200)


def for_one_machine(text: str, **more: str) -> str:
    """The text of the page, adapted to one small machine."""
    smaller = {
        "10.0.0.1": "127.0.0.1",
        "10.0.0.2": "127.0.0.1",
        "=4g": "=600m",
        "--cores 4 --memory 8g": "--cores 1 --memory 700m",
    }
    for original, replacement in {**smaller, **more}.items():
        text = text.replace(original, replacement)
    return text


WORKERS = 2 if scope.ALL else 1
VARIABLES = "\n".join(MASTER.splitlines()[:2])


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("data")
    for number in range(2):
        write(made / "t" / f"part={number}", rows_of_all_types(number, rows=200))
    return made


@pytest.fixture(scope="module")
def expected(data: Path, spark: Any) -> Any:
    """The statistics computed by the Spark session of this process."""
    with open_stores("memory://") as stores:
        factory = ResourceFactory(stores, utc_now)  # type: ignore[arg-type]
        factory.catalog()
        done = synced(factory, connector(factory, str(data)), spark)
        assert done.errors == 0, done
        return comparable(*published(factory))


def found_by_a_server(data: Path, folder: Path, toml: str) -> Any:
    """The same statistics, computed on Spark by a job of a server with these settings."""
    file = folder / "skiway.toml"
    file.write_text(toml)
    on_spark = ("--set", "profiles.in_process_bytes=0")
    with started(folder / "home", "--config", str(file), *on_spark) as server, Metastore(server.address) as lake:
        lake.connectors.create("files", kind="parquet", uri=str(data), catalog="lake", namespace="raw")
        job = lake.jobs.wait(lake.connectors.sync("files"), timeout_s=240)
        assert (job.state, job.errors) == ("succeeded", {}), job.message
        stats = lake.statistics.get("lake.raw.t").message
        columns = list(lake.statistics.columns("lake.raw.t"))
    for each in (stats, *columns):
        for name in ("table_id", "snapshot_id", "updated_at"):
            if name in each.DESCRIPTOR.fields_by_name:
                each.ClearField(name)
    return comparable(stats, columns)


def comparable(stats: v1.TableStats, columns: list[v1.ColumnStats]) -> tuple[v1.TableStats, list[v1.ColumnStats]]:
    """Without frequent values, unless they are exact: which of those with the same count a file lists is arbitrary."""
    for each in columns:
        if each.properties.get("quality.top_values") == ESTIMATE:
            del each.properties["top_values"]
    return stats, columns


CONNECTED_JOBS = """
import sys
from threading import Barrier, Thread

from skiway.metastore.reconcile.outcomes import Control
from skiway.spark_jobs.interruption import interruptible
from skiway.spark_jobs.session import SparkPlace, separate_session

place, both, results = SparkPlace(remote=sys.argv[1]), Barrier(2), {}

def run(name):
    with interruptible(name, Control()):
        own = place.session()
        assert place.session() is own
        with separate_session(own, {"spark.sql.ansi.enabled": name != "profile"}) as part:
            part.range(1).createOrReplaceTempView(name)
            both.wait()
            try:
                results[name] = part.sql("SELECT CAST('x' AS INT)").collect()[0][0]
            except Exception as error:
                results[name] = type(error).__name__
            views = [each.name for each in part.catalog.listTables()]
            assert views == [name], views
            both.wait()
        assert part.is_stopped
        assert own.sql("SELECT current_timezone()").collect()[0][0] == "UTC"
    assert own.is_stopped
    results[name + " ended"] = True

threads = [Thread(target=run, args=(name,)) for name in ("profile", "refresh")]
[each.start() for each in threads]
[each.join() for each in threads]
wanted = {"profile": None, "refresh": "NumberFormatException", "profile ended": True, "refresh ended": True}
assert results == wanted, results
"""
"""Two jobs at once on a Spark Connect server: each has its own settings and views, and ends its sessions."""


@pytest.mark.full
class TestOnClusters:
    pytestmark = SPARK

    def test_job_on_the_cluster_of_the_page_has_the_same_result(self, data: Path, expected: Any, tmp_path: Path):
        port = {"7077": str(free_port())}
        with ExitStack() as cluster:
            master = for_one_machine(MASTER.rstrip(), **port) + " --webui-port 0"
            cluster.enter_context(shell(master, tmp_path / "master.log", until="I have been elected leader"))
            for number in range(WORKERS):
                work = f" --webui-port 0 --host 127.0.0.1 --work-dir {tmp_path}/work-{number}"
                script = f"{VARIABLES}\n{for_one_machine(WORKER.rstrip(), **port)}{work}"
                log = tmp_path / f"worker-{number}.log"
                cluster.enter_context(shell(script, log, until="Successfully registered with master"))
            toml = for_one_machine(ON_CLUSTER, **port, **{"spark.cores.max=8": f"spark.cores.max={WORKERS}"})
            assert found_by_a_server(data, tmp_path, toml) == expected
            executors = [path for number in range(WORKERS) for path in (tmp_path / f"work-{number}").glob("app-*/*")]
            assert len(executors) == WORKERS

    def test_job_on_the_connect_server_of_the_page_has_the_same_result(self, data: Path, expected: Any, tmp_path: Path):
        port = {"15002": str(free_port())}
        local = "--conf spark.connect.grpc.binding.address=127.0.0.1 --conf spark.ui.enabled=false spark-internal"
        script = f"{VARIABLES}\n{for_one_machine(CONNECT, **port, **{'spark-internal': local})}"
        with shell(script, tmp_path / "connect.log", until="Spark Connect server started"):
            assert found_by_a_server(data, tmp_path, for_one_machine(BY_CONNECT, **port)) == expected
            program = [sys.executable, "-c", CONNECTED_JOBS, for_one_machine("sc://10.0.0.1:15002", **port)]
            done = subprocess.run(program, env=environment(), capture_output=True, text=True, timeout=240, check=False)
            assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.timeout(600)
@pytest.mark.needs("java", "spark")
def test_database_is_copied_on_a_connect_server(tmp_path: Path):
    file, port = tmp_path / "shop.db", {"15002": str(free_port())}
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE items (id INTEGER, name TEXT)")
        database.execute("INSERT INTO items VALUES (9, 'a'), (10, NULL)")
    toml = tmp_path / "skiway.toml"
    toml.write_text(for_one_machine(BY_CONNECT, **port))
    local = "--conf spark.connect.grpc.binding.address=127.0.0.1 --conf spark.ui.enabled=false spark-internal"
    script = f"{VARIABLES}\n{for_one_machine(CONNECT, **port, **{'spark-internal': local})}"
    copy = v1.CopySettings(mode=v1.COM_APPEND, cursor_column="id")
    with (
        shell(script, tmp_path / "connect.log", until="Spark Connect server started"),
        started(tmp_path / "home", "--config", str(toml)) as server,
        Metastore(server.address) as lake,
        AirportClient(server.addresses["airport"], "lake") as client,
    ):
        source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["main"]))
        uri = f"sqlite:///{file}"
        lake.connectors.create("shop", kind="jdbc", uri=uri, catalog="lake", namespace="raw", source=source, copy=copy)
        job = lake.jobs.wait(lake.connectors.sync("shop"), timeout_s=240)
        assert (job.state, job.errors) == ("succeeded", {}), job.message
        rows = client.scan("raw.items").read_all().sort_by("id").to_pylist()
    assert rows == [{"id": 9, "name": "a"}, {"id": 10, "name": None}]


def test_worker_command_of_the_page_starts_a_worker(tmp_path: Path):
    parquet(tmp_path / "data", "people", id=[1])
    arguments = BESIDE.replace("skiway", " ".join(command()), 1).split()
    with started(tmp_path / "lake", "--set", "reconciler.backend=remote") as server, Metastore(server.address) as lake:
        lake.connectors.create("files", kind="parquet", uri=str(tmp_path / "data"), catalog="lake", namespace="raw")
        job = lake.connectors.sync("files")
        assert job.state == "queued"
        with subprocess.Popen(arguments, env=environment(), stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
            try:
                updates = lake.jobs.watch(job, timeout_s=120, every_s=0.1)
                assert next(each for each in updates if each.state == "running").message.lease_owner
            finally:
                process.kill()
