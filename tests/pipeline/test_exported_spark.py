"""Spark reads Delta and Parquet tables through the Iceberg REST catalog, with the rows that Airport returns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from formats.foreign_tables import foreign_tables
from formats.oracles import assert_same_rows
from lake.lakes import Lake, mirrored_lake
from pipeline.shared_spark import session_with_jars
from skiway.formats.iceberg.export.versions import snapshot_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["foreign_tables"]

pytestmark = pytest.mark.full

DELTA = {
    "root.types": 4,
    "root.evolved": 3,
    "root.many": 12,
    "root.empty": 1,
    "sales.partitioned": 1,
    "sales.odd": 1,
}
PARQUET = ["root.alone", "root.plain", "root.mixed", "root.empty", "root.duckdb", "area.hive"]


@pytest.fixture(scope="module")
def lake(foreign_tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with mirrored_lake(foreign_tables, tmp_path_factory.mktemp("exported")) as lake:
        yield lake


@pytest.fixture(scope="module")
def spark(lake: Lake) -> Iterator[SparkSession]:
    """Spark with a catalog for each catalog of the lake."""
    with lake.rest_served() as uri:
        settings = {"spark.sql.session.timeZone": "America/New_York"}
        for name in ("delta", "parquet"):
            catalog = f"spark.sql.catalog.{name}_lake"
            settings |= {
                catalog: "org.apache.iceberg.spark.SparkCatalog",
                f"{catalog}.type": "rest",
                f"{catalog}.uri": uri,
                f"{catalog}.warehouse": name,
                f"{catalog}.token": "writer",
                f"{catalog}.token-refresh-enabled": "false",
                f"{catalog}.cache-enabled": "false",
            }
        yield session_with_jars(settings)


def rows(spark: SparkSession, sql: str) -> pa.Table:
    return spark.sql(sql).toArrow()


def without_times(table: pa.Table) -> pa.Table:
    """Spark has no type for Iceberg's times."""
    return table.drop_columns(["tm"]) if "tm" in table.column_names else table


def columns(table: pa.Table) -> str:
    return ", ".join(f"`{name}`" for name in table.column_names)


@pytest.mark.parametrize("name", DELTA)
def test_delta_versions(lake: Lake, spark: SparkSession, name: str) -> None:
    with lake.client("delta") as db:
        for version in range(DELTA[name]):
            expected = db.scan(tuple(name.split(".")), at_version=version).read_all()
            sql = f"SELECT {columns(expected)} FROM delta_lake.{name} VERSION AS OF {snapshot_id(version)}"
            assert_same_rows(rows(spark, sql), expected)


@pytest.mark.parametrize("name", PARQUET)
def test_parquet_tables(lake: Lake, spark: SparkSession, name: str) -> None:
    with lake.client("parquet") as db:
        expected = without_times(db.scan(tuple(name.split("."))).read_all())
    if "time" in str(spark.table(f"parquet_lake.{name}").schema):
        assert spark is not None
    assert_same_rows(rows(spark, f"SELECT {columns(expected)} FROM parquet_lake.{name}"), expected)
