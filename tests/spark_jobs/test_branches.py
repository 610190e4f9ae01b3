"""Branches of the lake and Spark: its procedures on a branch do not harm main, and pipelines on a branch of their own run on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from metastore.managed_table_factory import ManagedTableFactory
from metastore.pipelines.pipeline_lake import PipelineLake
from metastore.pipelines.test_branches import QUERIES, Sales
from metastore.resource_factory import ResourceFactory
from rest.rest_server import RestServer, opened
from skiway.formats.iceberg.warehouse import uri_of
from skiway.metastore import branches
from skiway.model import v1
from skiway.spark_jobs.pipeline_queries import SparkQueries
from skiway.storage import open_stores, utc_now
from spark_jobs.lakes import SPARK
from spark_jobs.shared_spark import rest_results

pytestmark = SPARK

LATE = "TIMESTAMP '2100-01-01'"
HARMFUL: dict[str, str] = {
    f"CALL lake.system.expire_snapshots(table => 's.t', older_than => {LATE}, retain_last => 1)": "GC is disabled",
    f"CALL lake.system.remove_orphan_files(table => 's.t', older_than => {LATE})": "GC is disabled",
    "DROP TABLE lake.s.t PURGE": "purge",
    "ALTER TABLE lake.s.t SET TBLPROPERTIES ('gc.enabled' = 'true')": "",
    f"CALL lake.system.expire_snapshots(table => 's.t', older_than => {LATE}, retain_last => 1) ": "",
    f"CALL lake.system.remove_orphan_files(table => 's.t', older_than => {LATE}) ": "",
}
"""Statements that delete files, and what Spark's error contains; an empty text if the statement may succeed."""


@pytest.fixture
def rest_server(tmp_path: Path) -> Iterator[RestServer]:
    with open_stores("memory://") as stores, opened(stores, tmp_path) as rest_server:
        yield rest_server


def test_procedures_of_spark_on_a_branch_do_not_harm_main(rest_server: RestServer) -> None:
    def run(statements: list[str], warehouse: str) -> list[Any]:
        return rest_results(rest_server.uri, statements, warehouse=warehouse)

    made = run(
        [
            "CREATE NAMESPACE lake.s",
            "CREATE TABLE lake.s.t (id BIGINT) USING iceberg",
            "INSERT INTO lake.s.t VALUES (1)",
            "INSERT INTO lake.s.t VALUES (2)",
            "DELETE FROM lake.s.t WHERE id = 1",
        ],
        "lake",
    )
    assert made == [[]] * 5
    history = sorted(row[0] for row in run(["SELECT snapshot_id FROM lake.s.t.snapshots"], "lake")[0])
    before = files_of(rest_server)
    branches.create(rest_server.factory.home, v1.CreateBranchRequest(name="lake@dev"))
    assert run(["INSERT INTO lake.s.t VALUES (3)", "INSERT INTO lake.s.t VALUES (4)"], "lake@dev") == [[], []]
    for statement, error in HARMFUL.items():
        (found,) = run([statement.strip()], "lake@dev")
        if error:
            assert error in f"{found}", found
        assert before <= files_of(rest_server), statement
        reads = [f"SELECT id FROM lake.s.t VERSION AS OF {each}" for each in history]
        assert all(isinstance(each, list) for each in run(reads, "lake")), statement
        assert run(["SELECT id FROM lake.s.t ORDER BY id"], "lake") == [[[2]]]
    assert run(["SELECT id FROM lake.s.t ORDER BY id"], "lake@dev") == [[[2], [3], [4]]]
    branches.merge(rest_server.factory.home, v1.MergeBranchRequest(name="lake@dev"), warehouse=rest_server.warehouse)
    assert run(["SELECT id FROM lake.s.t ORDER BY id"], "lake") == [[[2], [3], [4]]]
    main = rest_server.pyiceberg().load_table("s.t")
    assert main.properties.get("gc.enabled") != "false"


def files_of(server: RestServer) -> set[str]:
    return {uri_of(each.location) for each in server.warehouse.everything().walk(server.warehouse.root)}


def test_a_pipeline_on_spark_publishes_all_tables_at_once(tmp_path: Path, spark: SparkSession) -> None:
    with open_stores("memory://") as stores:
        factory = ResourceFactory(stores, utc_now)  # type: ignore[arg-type]
        factory.catalog()
        lake = PipelineLake(ManagedTableFactory.at(factory, tmp_path))
        orders = lake.create()
        lake.append(orders, (1, "eu", 3), (2, "us", 1), (3, "eu", 5))
        sales = Sales(lake, queries=QUERIES, engine=SparkQueries(lambda: spark))
        assert sales.run(on_branch=True).failures == {}
        assert (sales.rows("totals"), sales.branches()) == ([("eu", 16)], [])
        sales.write((4, "us", 9))
        sales.rule("few", "big", row_count=v1.RowCountCheck(max=2))
        assert "few (sales.big, 3 rows" in sales.run(on_branch=True, run_id="job-2").failures["lake@sales-job-2"]
        assert sales.rows("totals") == [("eu", 16)]
        done = sales.run(branch="sales-job-2")
        assert (done.failures, done.changed) == ({}, 0)
        assert sales.rows("totals", "sales-job-2") == [("eu", 16), ("us", 18)]
