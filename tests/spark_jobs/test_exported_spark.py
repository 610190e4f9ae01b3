"""Spark reads Delta and Parquet tables through the Iceberg REST catalog, with the rows that Airport returns.

Among them are tables that Spark wrote as Delta. It reads those back with the rows that its own Delta reader returns.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from formats.foreign_tables import make_fixtures
from formats.oracles import assert_same_rows
from lake.lakes import Lake, opened_lake
from skiway.formats.iceberg.export.versions import snapshot_id
from spark_jobs.lakes import SPARK
from spark_jobs.shared_spark import session_with_jars

pytestmark = [*SPARK, pytest.mark.full]

DELTA = {
    "root.types": 4,
    "root.evolved": 3,
    "root.many": 12,
    "root.empty": 1,
    "sales.partitioned": 1,
    "sales.odd": 1,
    "root.widened": 4,
}
PARQUET = ["root.plain", "root.mixed", "root.duckdb", "root.small", "root.hive"]
REFUSED = {"root.vectors": "deleted rows", "root.mapped": "column mapping", "root.by_id": "column mapping"}


def parquet_tables(folder: Path) -> None:
    """Tables without times, for which Spark has no type."""
    rows = make_fixtures.rows(0, 60).drop_columns(["tm"])
    make_fixtures.parquet_tables(folder)
    for name in ("plain", "area", "empty"):
        shutil.rmtree(folder / name)
    (folder / "alone.parquet").unlink()
    (folder / "plain").mkdir()
    for number in range(3):
        pq.write_table(rows.slice(number * 20, 20), folder / "plain" / f"{number}.parquet")
    for number, country in enumerate(("NL", "__HIVE_DEFAULT_PARTITION__", "a%20b%2Fc", "ü x")):
        file = folder / "hive" / f"year={2024 + number % 2}" / f"country={country}" / "0.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(rows.slice(number * 10, 10), file)
    small = {"i8": pa.array([1, None, -3], pa.int8()), "i16": pa.array([1, None, -3], pa.int16())}
    small |= {
        "words": pa.array(["a", None, "a"]).dictionary_encode(),
    }
    small |= {"a.b": [1, 2, 3], "c d": [1, 2, 3]}
    (folder / "small").mkdir()
    pq.write_table(pa.table(small), folder / "small" / "0.parquet", use_compliant_nested_type=False)


@dataclass
class World:
    """A lake with catalogs `delta` and `parquet`, and Spark, which has both as `delta_lake` and `parquet_lake`."""

    lake: Lake
    spark: Any
    folder: Path

    def rows(self, sql: str) -> pa.Table:
        return self.spark.sql(sql).toArrow()

    def airport(self, catalog: str, name: str, **at: Any) -> pa.Table:
        with self.lake.client(catalog) as db:
            return db.scan(tuple(name.split(".")), **at).read_all()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("exported")
    with opened_lake(folder / "lake") as lake, lake.rest_served() as uri:
        settings = {**make_fixtures.spark_catalogs(folder), "spark.sql.session.timeZone": "America/New_York"}
        settings["spark.sql.parquet.outputTimestampType"] = "TIMESTAMP_MICROS"
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
        spark = session_with_jars(settings)
        make_fixtures.delta_tables(folder / "delta")
        parquet_tables(folder / "parquet")
        make_fixtures._spark_delta(spark, folder / "delta")
        lake.mirror("delta", str(folder / "delta"), options={"delta.source": "filesystem"})
        lake.mirror("parquet", str(folder / "parquet"))
        yield World(lake, spark, folder)


def columns(table: pa.Table) -> str:
    return ", ".join(f"`{name}`" for name in table.column_names)


@pytest.mark.parametrize("name", DELTA)
def test_versions_of_delta_tables(world: World, name: str) -> None:
    for version in range(DELTA[name]):
        expected = world.airport("delta", name, at_version=version)
        sql = f"SELECT {columns(expected)} FROM delta_lake.{name} VERSION AS OF {snapshot_id(version)}"
        assert_same_rows(world.rows(sql), expected)


@pytest.mark.parametrize("name", ["widened"])
def test_rows_equal_those_of_the_writer(world: World, name: str) -> None:
    table = f"delta.`{world.folder}/delta/{name}`"
    expected = world.rows(f"SELECT * FROM {table}")
    assert_same_rows(world.rows(f"SELECT {columns(expected)} FROM delta_lake.root.{name}"), expected)


@pytest.mark.parametrize("name", PARQUET)
def test_parquet_tables(world: World, name: str) -> None:
    expected = world.airport("parquet", name)
    assert_same_rows(world.rows(f"SELECT {columns(expected)} FROM parquet_lake.{name}"), expected)


@pytest.mark.parametrize(
    ("catalog", "name", "columns"),
    [
        ("parquet", "root.plain", ["i", "dec", "dt", "ts", "s"]),
    ],
)
def test_aggregates_from_metadata(world: World, catalog: str, name: str, columns: list[str]) -> None:
    """Spark answers these from bounds and counts in the manifests, where it can."""
    rows = world.airport(catalog, name)
    found = ", ".join(f"min({each}), max({each}), count({each})" for each in columns)
    expected = pa.table({f"c{place}": [value] for place, value in enumerate(aggregates(rows, columns))})
    table = world.rows(f"SELECT {found} FROM {catalog}_lake.{name}")
    assert_same_rows(table.rename_columns(expected.column_names), expected)


def aggregates(rows: pa.Table, columns: list[str]) -> list[Any]:
    import duckdb

    with duckdb.connect() as duck:
        duck.register("found", rows)
        sql = ", ".join(f"min({each}), max({each}), count({each})" for each in columns)
        return list(duck.execute(f"SELECT {sql} FROM found").to_arrow_table().to_pylist()[0].values())


@pytest.mark.parametrize("name", REFUSED)
def test_refused_tables(world: World, name: str) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="cannot be found"):
        world.spark.sql(f"SELECT * FROM delta_lake.{name}")
    assert world.airport("delta", name).num_rows


def test_nothing_can_be_changed(world: World) -> None:
    for statement in (
        "INSERT INTO delta_lake.root.widened VALUES (7)",
        "DELETE FROM delta_lake.root.widened",
        "ALTER TABLE delta_lake.root.widened ADD COLUMN more INT",
        "DROP TABLE delta_lake.root.widened PURGE",
        "CALL delta_lake.system.expire_snapshots('root.widened')",
    ):
        with pytest.raises(Exception, match=r"read-only|GC is disabled|gc\.enabled"):
            world.spark.sql(statement).collect()
    assert sorted(world.airport("delta", "root.widened")["id"].to_pylist()) == [1, 2, 5000000000]
