"""Python functions of pipelines on a real Spark: their tables, and attacks by the code of a function."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from runtime.servers import eventually, started
from skiway.client import AirportClient, Metastore
from skiway.client.metastore import Job
from skiway.errors import SkiwayError
from spark_jobs.lakes import SPARK
from spark_jobs.test_spark_queries import NAMES, QUICK, SparkServer, _low_port, entry, token_of
from spark_queries.attacks import ATTACKS
from spark_queries.test_confinement import needs_landlock

pytestmark = [*SPARK, needs_landlock]

DOCS = Path(__file__).parents[2] / "docs" / "pipelines.md"
HEAD = "name: {name}\ncatalog: lake\nnamespace: s\n"
IMPORTS = "from pyspark import pipelines as dp\nfrom pyspark.sql import SparkSession\nspark = SparkSession.active()\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkServer]:
    """A server of two accounts that runs Python functions, with an environment that contains secrets."""
    home = tmp_path_factory.mktemp("functions") / "home"
    temporary = home.parent / "tmp"
    for folder in (home, temporary):
        folder.mkdir()
    (home / "tokens.toml").write_text("".join(entry(name, *facts) for name, facts in NAMES.items()))
    (home / "tokens.toml").chmod(0o600)
    (home / "secret").write_text("planted-secret")
    conf = ";".join(f"{name}={value}" for name, value in QUICK.items())
    settings = (
        "auth.mode=token",
        "pipelines.enabled=true",
        "pipelines.python.enabled=true",
        f"sql.spark.conf={conf}",
        "reconciler.spark.master=local[2]",
        "reconciler.spark.conf=spark.sql.shuffle.partitions=2",
        "reconciler.poll_every=100ms",
        "reconciler.job_store.max_attempts=1",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
        patch.setenv("TMPDIR", str(temporary))
        with started(home, *(part for each in settings for part in ("--set", each))) as running:
            made = SparkServer(running, home, temporary)
            made.create_accounts()
            for name in ("ada", "eve"):
                with made.client(name) as client:
                    client.create_schema("s")
                    rows = pa.table({"id": [1, 2, 3, 4], "region": ["eu", "us", "eu", "eu"], "price": [1, 4, 6, 9]})
                    for table in ("orders", "private", "empty"):
                        client.create_table(f"s.{table}", rows.schema)
                    client.insert("s.orders", rows)
                    client.insert("s.private", rows)
            yield made


def lake_of(server: SparkServer) -> Metastore:
    return Metastore(server.server.address, token=token_of("ada"))


def ran(server: SparkServer, name: str, **files: str) -> Job:
    """The job of a first run of a pipeline with Python files."""
    with lake_of(server) as lake:
        lake.pipelines.create(
            {"pipeline.yml": HEAD.format(name=name), **{f"{file}.py": IMPORTS + text for file, text in files.items()}}
        )
        return lake.jobs.wait(lake.pipelines.start(name))


def rows(client: AirportClient, table: str) -> list[tuple[object, ...]]:
    client.reload()
    return sorted((tuple(each.values()) for each in client.scan(table).read_all().to_pylist()), key=repr)


def test_example_of_the_page_runs(server: SparkServer) -> None:
    """Queries and functions in order; an unchanged table is kept, and a changed input refreshes what depends on it."""
    blocks = re.findall(
        r"```(?:yaml|sql|python)\n(?:#|--) (\S+\.(?:yml|sql|py))\n(.*?)```", DOCS.read_text(), re.DOTALL
    )
    files = {name: text.replace("namespace: shop", "namespace: s") for name, text in blocks}
    assert list(files) == ["pipeline.yml", "big_orders.sql", "totals.sql", "shares.py"]
    files["pipeline.yml"] = files["pipeline.yml"].replace("schedule: 1h\n", "")
    with lake_of(server) as lake, server.client("ada") as client:
        lake.pipelines.create(files)
        job = lake.jobs.wait(lake.pipelines.start("sales"))
        assert (job.state, job.message.message) == ("succeeded", job.message.message), job.message
        assert rows(client, "s.totals") == [("EU", 30), ("US", 8)]
        assert rows(client, "s.shares") == [("EU", 0.79), ("US", 0.21)]
        assert {each.action for each in lake.pipelines.plan("sales")} == {"keep"}
        client.insert("s.orders", pa.table({"id": [5], "region": ["us"], "price": [11]}))
        planned = {each.table: each.action for each in lake.pipelines.plan("sales")}
        assert planned == {"s.big_orders": "append", "s.totals": "replace", "s.shares": "replace"}
        assert lake.jobs.wait(lake.pipelines.start("sales")).state == "succeeded"
        assert rows(client, "s.shares") == [("EU", 0.5), ("US", 0.5)]
        lineage = client.scan("skiway.lineage").read_all().to_pylist()
        assert [each for each in lineage if "shares" in str(each) and "totals" in str(each)]


def test_functions_use_udfs_empty_tables_and_views_and_print_to_the_log(server: SparkServer) -> None:
    code = """
from pyspark.sql import functions as F

def doubled(value):
    return value * 2

@dp.materialized_view(comment="Both", partition_cols=["region"])
def both():
    print("said by", "the function")
    spark.table("s.orders").createOrReplaceTempView("o")
    found = spark.sql("SELECT * FROM o WHERE id < 3").unionByName(spark.read.table("lake.s.empty"))
    return found.withColumn("double", F.udf(doubled, "bigint")("price"))

@dp.materialized_view
def undeclared():
    return getattr(spark, "table")("both")
"""
    job = ran(server, "udfs", functions=code)
    assert job.state == "partial"
    (error,) = job.message.table_errors
    assert error.table == "s.undeclared"
    assert error.message.startswith("Spark rejects the function: [TABLE_OR_VIEW_NOT_FOUND] The table or view `both`")
    with lake_of(server) as lake, server.client("ada") as client:
        assert rows(client, "s.both") == [(1, "eu", 1, 2), (2, "us", 4, 8)]
        text = lake.jobs.log(job.id)
    assert "said by the function" in text
    assert "skiway_job_" not in text


def test_endless_function_ends_with_its_job(server: SparkServer) -> None:
    code = """
import os, time

@dp.materialized_view
def endless():
    if os.fork() == 0:
        os.setsid()
    while True:
        time.sleep(1)
"""
    with lake_of(server) as lake:
        lake.pipelines.create({"pipeline.yml": HEAD.format(name="endless"), "endless.py": IMPORTS + code})
        job = lake.pipelines.start("endless")
        eventually(lambda: len(server.processes()) >= 4, within_s=60)  # supervisor, worker, Java, and the other one
        began = time.monotonic()
        lake.jobs.cancel(job.id)
        assert lake.jobs.wait(job).state == "cancelled"
    assert time.monotonic() - began < 30
    assert server.processes() == []


HOSTILE = """
import inspect, io, json, os, subprocess, sys
from contextlib import redirect_stdout
from skiway.client import AirportClient, Metastore
import pyarrow as pa

def outcome(attempt):
    try:
        return f"done: {attempt()}"[:200]
    except BaseException as error:
        return type(error).__name__

def attacks():
    said = io.StringIO()
    with redirect_stdout(said):
        exec(ATTACKS, {"__name__": "attacks"})
    return json.loads(said.getvalue())

def in_a_task(batches):
    for batch in batches:
        found = {f"task: {name}": value for name, value in attacks().items()}
        found["task: environment"] = str([each for each in os.environ.items() if "planted" in str(each)])
        yield pa.record_batch({"name": list(found), "outcome": list(found.values())})

def sleeper():
    if os.fork() == 0:
        os.setsid()
        os.execvp("sleep", ["sleep", "600"])
    return "started"

def of_the_server(found):
    request = next(each.frame.f_locals["query"] for each in inspect.stack() if "query" in each.frame.f_locals)
    token, options = request["token"], request["tables"]["input_0"]
    address = options["location"].removeprefix("grpc://").removesuffix("/lake")
    row = pa.table({"id": [99], "region": ["xx"], "price": [99]})
    found["the token"] = token
    with AirportClient(options["location"], token=token) as client:
        found["tables"] = str([each.name for schema in client.schemas() if schema.name == "s" for each in schema.tables])
        found["own input"] = outcome(lambda: client.scan("s.orders").read_all().num_rows)
        found["other table"] = outcome(lambda: client.scan("s.private").read_all().num_rows)
        found["insert into the input"] = outcome(lambda: client.insert("s.orders", row))
        found["insert into another table"] = outcome(lambda: client.insert("s.private", row))
        found["insert into the output"] = outcome(lambda: client.insert("s.hostile", row))
        found["delete of the input"] = outcome(lambda: client.drop_table("s.orders"))
        found["new schema"] = outcome(lambda: client.create_schema("mine"))
        found["new table"] = outcome(lambda: client.create_table("s.mine", row.schema))
        found["query on Spark"] = outcome(
            lambda: client.call("skiway.query", "SELECT 1 AS x", named={"engine": "spark"}).read_all())
        found["query"] = outcome(lambda: client.call("skiway.query", "SELECT * FROM s.private").read_all())
    with AirportClient(options["location"]) as client:
        found["without the token"] = outcome(lambda: client.scan("s.orders").read_all().num_rows)
    with Metastore(address, token=token) as lake:
        found["pipelines"] = outcome(lambda: list(lake.pipelines()))
        found["jobs"] = outcome(lambda: list(lake.jobs()))
        found["new catalog"] = outcome(lambda: lake.catalogs.create("mine"))
        found["grants"] = outcome(lambda: list(lake.grants()))
        found["accounts"] = outcome(lambda: list(lake.accounts()))
        found["connectors"] = outcome(lambda: list(lake.connectors()))
        found["other table in the metastore"] = outcome(lambda: lake.tables.get(("lake", "s", "private")))

@dp.materialized_view
def hostile():
    found = attacks()
    found["environment"] = str([each for each in os.environ.items() if "planted" in str(each)])
    found["environments of the parents"] = outcome(lambda: open(f"/proc/{os.getppid()}/environ", "rb").read())
    found["sleeper"] = sleeper()
    of_the_server(found)
    spark.table("orders")
    return spark.createDataFrame(list(found.items()), "name string, outcome string").union(
        spark.range(1).mapInArrow(in_a_task, "name string, outcome string"))
"""
REFUSED = {
    "PermissionDenied",
    "NotFound",
    "Unauthorized",
    "PermissionError",
    "Unsupported",
    "PreconditionFailed",
    "OtherMount",
}


def test_code_of_a_function_reaches_nothing_but_its_inputs(server: SparkServer) -> None:
    with socket.create_server(("127.0.0.1", _low_port())) as store:
        arguments = ["", str(server.home), str(server.server.process.pid), str(store.getsockname()[1])]
        attacks = f"import sys; sys.argv = {arguments!r}\n{ATTACKS}"
        job = ran(server, "hostile", hostile=f"ATTACKS = {attacks!r}\n{HOSTILE}")
    assert job.state == "succeeded", job.message
    assert server.processes() == []  # also the one that left the session
    assert server.server.process.poll() is None
    with server.client("ada") as client:
        found = {str(name): str(outcome) for name, outcome in rows(client, "s.hostile")}
        assert len(rows(client, "s.private")) == 4
    token = found.pop("the token")
    assert found.pop("tables") == "['orders']"
    assert found.pop("own input").startswith("done: ")
    assert found.pop("sleeper") == "started"
    for name in ("environment", "task: environment"):
        assert found.pop(name) == "[]"
    for name in ("own file", "task: own file", "own attributes", "task: own attributes"):
        assert found.pop(name) == "done"
    assert {name: value for name, value in found.items() if value not in REFUSED} == {}
    with (
        AirportClient(server.server.addresses["airport"], "lake", token=token) as late,
        pytest.raises(SkiwayError, match="has ended"),
    ):
        late.scan("s.orders").read_all()
