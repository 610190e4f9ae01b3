"""Incremental models and expectations on Spark, as in `tests/metastore/pipelines`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from metastore.managed_table_factory import ManagedTableFactory
from metastore.pipelines.pipeline_lake import PipelineLake
from metastore.pipelines.test_expectations import NOTES
from metastore.pipelines.test_incremental import follow
from metastore.resource_factory import ResourceFactory
from skiway.cli.lake.templates import rendered_folder
from skiway.metastore.pipelines.projects import read_project
from skiway.spark_jobs.model_tests import run_unit_tests
from skiway.spark_jobs.pipeline_queries import SparkQueries
from skiway.storage import open_stores, utc_now
from spark_jobs.lakes import SPARK

pytestmark = SPARK


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Iterator[PipelineLake]:
    with open_stores("memory://") as stores:
        factory = ResourceFactory(stores, utc_now)  # type: ignore[arg-type]
        factory.catalog()
        yield PipelineLake(ManagedTableFactory.at(factory, tmp_path), engine=SparkQueries(lambda: spark))


@pytest.mark.parametrize("seed", range(3))
def test_incremental_models_equal_full_refreshes(lake: PipelineLake, seed: int) -> None:
    follow(lake, seed, 4)


def test_a_model_of_each_kind_follows_its_source(lake: PipelineLake) -> None:
    follow(lake, 1, 2, "rowwise", "totals", "rolling")


def test_spark_judges_rows_before_they_are_published(lake: PipelineLake) -> None:
    lake.queries = {"clean": "SELECT id, region, price FROM orders", "notes.yml": NOTES}
    lake.append(lake.create("regions", pa.schema({"code": pa.string()})), ("eu",), ("xx",))
    orders = lake.create()
    lake.append(orders, (1, "eu", 3), (2, None, 1), (3, "xx", 50), (4, "us", 5), (5, "eu", 50))
    outcome = lake.run()
    assert outcome.failures == {}
    assert "1 of 5 rows break cheap (price < 10) and were published" in outcome.note
    assert lake.rows("clean") == [(1, "eu", 3), (5, "eu", 50)]
    assert [(row[0], row[3]) for row in lake.rows("clean_quarantine")] == [
        (2, "not_null_region"),
        (3, "accepted_values_region"),
        (4, "relationships_region"),
    ]
    lake.append(orders, (1, "eu", 1))
    failure = lake.run().failures["sales.clean"]
    assert failure.startswith("notes.yml, line 18: 2 of 6 rows break unique_id")
    assert lake.rows("clean") == [(1, "eu", 3), (5, "eu", 50)]
    lake.queries["clean"] = "SELECT id, region,\n  nonsense AS price FROM orders"
    assert lake.run().failures["sales.clean"].startswith("clean.sql, line 2, column 3: Spark rejects the query: [UNRES")


def test_the_unit_tests_of_the_page_pass_on_spark(tmp_path: Path, spark: SparkSession) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
    for name, body in re.findall(r"```(?:yaml|sql|python)\n(?:#|--) (\S+)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(body)
    project = read_project(rendered_folder(tmp_path))
    assert [each.problem for each in run_unit_tests(project, SparkQueries(lambda: spark))] == [""]
