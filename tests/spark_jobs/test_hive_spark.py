"""Tables that Spark writes into the metastore of Apache Hive are read and copied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from formats.apache_hive import ApacheHive, running_apache_hive
from metastore.ingest.copies import FolderCopy
from skiway.formats import open_source
from skiway.metastore.connectors.specs import CopyMode
from skiway.spark_jobs.key_joins import SparkJoins
from spark_jobs.lakes import SPARK
from spark_jobs.shared_spark import session_with_jars

pytestmark = SPARK


@pytest.fixture(scope="module")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheHive]:
    with running_apache_hive(tmp_path_factory.mktemp("hive")) as running:
        yield running


def test_copies_follow_the_changes_of_spark(managed_lake: Any, spark: Any, hive: ApacheHive, tmp_path: Path) -> None:
    session = session_with_jars(
        {
            "spark.sql.catalog.hive": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.hive.type": "hive",
            "spark.sql.catalog.hive.uri": hive.uri,
            "spark.sql.catalog.hive.warehouse": f"file://{hive.warehouse}",
            "spark.sql.catalog.hive.cache-enabled": "false",
            "spark.sql.catalog.hive.hadoop.iceberg.engine.hive.lock-enabled": "false",  # there is one writer
        }
    )
    session.sql("CREATE NAMESPACE hive.Sales")
    session.sql(
        "CREATE TABLE hive.Sales.Orders (Id BIGINT, v STRING) USING iceberg TBLPROPERTIES ('format-version'='2')"
    )
    session.sql("CREATE VIEW hive.Sales.Recent AS SELECT Id FROM hive.Sales.Orders")
    options = {"uri": hive.uri, "namespace": "sales", "warehouse": f"file://{hive.warehouse}"}
    distribute = SparkJoins(lambda: spark)
    copy = FolderCopy(managed_lake, tmp_path, "hive", options=options, distribute=distribute)
    copy.in_mode(CopyMode.UPSERT, "Id")
    with open_source("hive", hive.uri, options=options) as source:
        assert source.tables(("sales",)) == ["orders"]
    for statement in (
        "INSERT INTO hive.sales.orders VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "DELETE FROM hive.sales.orders WHERE Id = 2",
        "UPDATE hive.sales.orders SET v = 'new' WHERE Id = 3",
    ):
        session.sql(statement)
        assert copy.load()
        assert copy.rows() == sorted(tuple(row) for row in session.table("hive.sales.orders").collect())
    assert not copy.load()
