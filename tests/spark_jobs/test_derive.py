"""Pipelines on Spark: the same runs as in `tests/metastore/pipelines`, with Spark as the engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from metastore.managed_table_factory import ManagedTableFactory
from metastore.pipelines.pipeline_lake import PipelineLake
from metastore.resource_factory import ResourceFactory
from metastore.upstreams import connector, parquet, run
from runtime.servers import Server
from skiway.client import AirportClient, Metastore
from skiway.model import v1
from skiway.spark_jobs.pipeline_queries import SparkQueries
from skiway.storage import open_stores, utc_now
from spark_jobs.lakes import SPARK
from spark_jobs.test_sync_server import PATIENCE_S, synced

pytestmark = SPARK


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Iterator[PipelineLake]:
    with open_stores("memory://") as stores:
        factory = ResourceFactory(stores, utc_now)  # type: ignore[arg-type]
        factory.catalog()
        yield PipelineLake(ManagedTableFactory.at(factory, tmp_path), engine=SparkQueries(lambda: spark))


def test_spark_refreshes_in_order_and_incrementally(lake: PipelineLake, spark: SparkSession) -> None:
    rng = random.Random(1)
    lake.queries = {
        "big": "SELECT id, upper(region) AS region, price * 2 AS double FROM orders WHERE price > 2",
        "totals": "-- @partition_by: region\nSELECT region, sum(double) AS total FROM big GROUP BY region",
        "broken": "SELECT nonsense FROM orders",
        "after": "SELECT * FROM broken",
    }
    orders = lake.create()
    for actions in (["replace"] * 2, ["append", "replace"]):
        for _ in range(2):
            rows = [(rng.randint(1, 99), rng.choice(["eu", "us", None]), rng.randint(0, 9)) for _ in range(20)]
            lake.append(orders, *rows)
        assert [lake.actions()[name] for name in ("big", "totals")] == actions
        outcome = lake.run()
        assert outcome.changed == 2
        assert set(outcome.failures) == {"sales.broken", "sales.after"}
        assert "UNRESOLVED_COLUMN" in outcome.failures["sales.broken"]
        assert "pipeline_" not in outcome.failures["sales.broken"]
    wanted = [
        (number, region and region.upper(), price * 2) for number, region, price in lake.rows("orders") if price > 2
    ]
    assert lake.rows("big") == sorted(wanted, key=repr)
    sums = {region: sum(double for _, other, double in wanted if other == region) for _, region, _ in wanted}
    assert lake.rows("totals") == sorted(sums.items(), key=repr)
    found = {name: lake.rows(name) for name in ("big", "totals")}
    assert lake.run().changed == 0
    lake.run(again=True)
    assert found == {name: lake.rows(name) for name in ("big", "totals")}
    assert not [each.name for each in spark.catalog.listTables() if each.name.startswith("pipeline_")]


def test_values_that_spark_rejects_are_reported_by_file_and_not_retried(lake: PipelineLake) -> None:
    """Each error says what Spark says, and where in the file the expression is."""
    lake.queries = {
        "cast": "SELECT id,\n       CAST(region AS INT) AS number\nFROM orders",
        "divided": "SELECT id / (price - price) AS ratio FROM orders",
        "missing": "SELECT\n  nonsense FROM orders",
    }
    lake.append(lake.create(), (1, "eu", 3))
    outcome = lake.run()
    assert not outcome.transient
    found = {name.partition(".")[2]: text for name, text in outcome.failures.items()}
    assert found["cast"].startswith(
        "cast.sql, line 2, column 8: Spark rejects the query: [CAST_INVALID_INPUT] The value 'eu' of the type"
    )
    assert found["divided"].startswith("divided.sql, line 1, column 8: Spark rejects the query: [DIVIDE_BY_ZERO] ")
    assert found["missing"].startswith("missing.sql")
    assert "[UNRESOLVED_COLUMN" in found["missing"]
    assert not any("pipeline_" in text or "pos " in text for text in found.values()), found


def test_spark_keeps_types_and_reads_empty_tables(lake: PipelineLake) -> None:
    schema = pa.schema(
        {
            "day": pa.date32(),
            "at": pa.timestamp("us", "UTC"),
            "local": pa.timestamp("us"),
            "amount": pa.decimal128(12, 2),
            "tags": pa.list_(pa.string()),
            "place": pa.struct({"x": pa.float64(), "name": pa.string()}),
            "raw": pa.binary(),
        }
    )
    lake.queries = {
        "copy": "SELECT * FROM things",
        "names": "SELECT place.name AS name, size(tags) AS tags FROM things",
    }
    things = lake.create("things", schema)
    assert lake.run().failures == {}
    assert lake.rows("copy") == []
    rows = [
        {
            "day": 0,
            "at": 1,
            "local": 2,
            "amount": None,
            "tags": ["a", None],
            "place": {"x": 1.5, "name": "here"},
            "raw": b"\0",
        },
        dict.fromkeys(schema.names),
    ]
    values = pa.Table.from_pylist(rows, pa.schema([pa.field(each.name, each.type) for each in schema]))
    lake.append(things, *zip(*(column.to_pylist() for column in values.columns), strict=True))
    assert lake.actions()["copy"] == "append"
    assert lake.run().failures == {}
    assert lake.rows("copy") == lake.rows("things")
    assert lake.rows("names") == sorted([("here", 2), (None, None)], key=repr)
    assert [str(each.type) for each in lake.table("copy").handle.schema.arrow] == [
        str(each.type) for each in lake.table("things").handle.schema.arrow
    ]


def test_spark_reads_mirrored_tables_and_views(lake: PipelineLake, tmp_path: Path) -> None:
    factory = lake.lake.factory
    space = factory.first_namespace()
    write_deltalake(tmp_path / "delta" / "people", pa.table({"id": [1, 2], "n": [10, 20]}))
    destination = v1.ConnectorDestination(
        catalog_id=space.catalog_id, namespace=v1.NamespacePath(segments=["upstream"])
    )
    uri, properties = str(tmp_path / "delta"), {"delta.source": "filesystem"}
    source = connector(factory, uri, v1.CK_DELTA, properties=properties, destination=destination)
    assert run(factory, source).failures == {}
    columns = [v1.SchemaColumn(name=name, logical_type="BIGINT") for name in ("id", "double")]
    sql = "SELECT id, n * 2 FROM upstream.people"
    factory.view("doubled", sql_definitions=[v1.ViewSql(sql=sql, dialect="duckdb")], output_columns=columns)
    lake.queries = {"sums": "SELECT sum(double) AS total FROM doubled", "copy": "SELECT p.n FROM upstream.people AS p"}
    assert lake.run().failures == {}
    assert (lake.rows("sums"), lake.rows("copy")) == ([(60,)], [(10,), (20,)])
    assert lake.actions() == {"copy": "keep", "sums": "keep"}


def test_a_server_runs_a_pipeline_as_a_job(server_with_spark: Server, tmp_path: Path) -> None:
    parquet(tmp_path / "people", "a", id=[1, 2, 3])
    files = {
        "pipeline.yml": "name: derived\ncatalog: lake\nnamespace: derived\n",
        "odd.sql": "SELECT id FROM people WHERE id % 2 = 1",
        "counted.sql": "SELECT count(*) AS id FROM odd",
    }
    copy = v1.CopySettings(mode=v1.COM_APPEND)
    with Metastore(server_with_spark.address) as lake:
        lake.connectors.create(
            "derived", kind="parquet", uri=str(tmp_path), catalog="lake", namespace="derived", copy=copy
        )
        assert synced(lake, "derived").state == "succeeded"
        lake.pipelines.create(files)
        assert [each.action for each in lake.pipelines.plan("derived")] == ["replace", "replace"]
        for wanted in ([1, 3], [1, 3, 5]):
            ended = lake.jobs.wait(lake.pipelines.start("derived"), timeout_s=PATIENCE_S, every_s=0.1)
            assert (ended.state, ended.message.tables_changed) == ("succeeded", 2), ended.message.message
            with AirportClient(server_with_spark.addresses["airport"], "lake") as database:
                assert sorted(database.scan("derived.odd").read_all()["id"].to_pylist()) == wanted
                assert database.scan("derived.counted").read_all()["id"].to_pylist() == [len(wanted)]
            parquet(tmp_path / "people", "b", id=[4, 5])
            synced(lake, "derived")
        assert [each.action for each in lake.pipelines.plan("derived")] == ["keep", "keep"]
