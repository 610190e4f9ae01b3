"""Avro and ORC files written by Spark, and equality deletes written by Iceberg's Java API. Spark's own reads are the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import scope
from formats.foreign_tables import make_fixtures
from formats.oracles import assert_same_rows
from skiway.formats import Content, open_source
from spark_jobs.java_iceberg import JavaTable
from spark_jobs.lakes import SPARK
from spark_jobs.shared_spark import session_with_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK

DELETE_FORMATS = ["parquet", "avro", "orc"] if scope.ALL else ["parquet"]

COLUMNS = """
    id BIGINT, i INT, f FLOAT, d DOUBLE, dec DECIMAL(15,4), big DECIMAL(38,10), s STRING, b BINARY, bo BOOLEAN, dt DATE,
    ts TIMESTAMP_NTZ, tz TIMESTAMP, st STRUCT<x: INT, y: STRING, w: STRUCT<z: DOUBLE>>, li ARRAY<INT>,
    ls ARRAY<STRUCT<k: STRING, v: BIGINT>>, mp MAP<STRING, BIGINT>, mi MAP<INT, STRING>
"""
ROWS = """
    SELECT id, CAST(id % 7 AS INT), CAST(id / 3 AS FLOAT), id / 3.0D, CAST(id * 1.2345 AS DECIMAL(15,4)),
      CAST(-id * 1234567890.0123456789 AS DECIMAL(38,10)), concat('name ', id, ' ß'), CAST(concat('b', id) AS BINARY),
      id % 3 = 0, date_add(DATE'1969-12-01', CAST(id AS INT)),
      TIMESTAMP_NTZ'1969-12-31 23:59:59.000001' + make_dt_interval(CAST(id AS INT)), timestamp_micros(id * 3600000001 - 7),
      IF(id % 5 = 0, NULL, named_struct('x', CAST(id AS INT), 'y', IF(id % 4 = 0, NULL, concat('y', id)), 'w',
        named_struct('z', id / 2.0D))),
      array(CAST(id AS INT), NULL), array(named_struct('k', 'a', 'v', id), NULL), map('one', id, 'none', NULL),
      map(1, 'one', CAST(id + 2 AS INT), 'other')
    FROM range({}, {})
"""
PEOPLE = """
    SELECT id, IF(id % 6 = 0, NULL, concat('n', id % 8)), id % 3, named_struct('k', CAST(id % 5 AS INT)) FROM range({}, {})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("formats")


@pytest.fixture(scope="module")
def session(folder: Path) -> SparkSession:
    return session_with_jars(make_fixtures.spark_catalogs(folder))


def assert_spark_reads_the_same(session: SparkSession, folder: Path, name: str) -> pa.Table:
    """Compare the rows of every snapshot, and of the current state in the current columns; returns the current files."""
    with open_source("iceberg", str(folder / "iceberg")) as source:
        table = source.load(("sales",), name)
    snapshots = table.snapshots()
    for snapshot in snapshots:
        rows = session.sql(f"SELECT * FROM ice.sales.{name} VERSION AS OF {snapshot.id}").toArrow()
        assert_same_rows(table.read(snapshot).read_all(), rows)
    now = session.sql(f"SELECT * FROM ice.sales.{name}").toArrow()
    assert now.num_rows
    assert_same_rows(table.read(snapshots[-1], schema=table.schema.arrow).read_all(), now)
    return table.files(snapshots[-1])


@pytest.mark.full
@pytest.mark.parametrize("of", ["avro", "orc"])
def test_data_files_have_the_rows_that_spark_reads(session: SparkSession, folder: Path, of: str) -> None:
    name = f"ice.sales.{of}"
    session.sql(
        f"CREATE TABLE {name} ({COLUMNS}) USING iceberg TBLPROPERTIES ('format-version'='2', "
        f"'write.format.default'='{of}', 'write.delete.format.default'='{of}', {make_fixtures.MERGE_ON_READ})"
    )
    session.sql(f"INSERT INTO {name} {ROWS.format(0, 40)}")
    session.sql(f"INSERT INTO {name} (id, f) VALUES (100, CAST('NaN' AS FLOAT))")
    session.sql(f"DELETE FROM {name} WHERE id % 10 = 3")
    session.sql(f"ALTER TABLE {name} RENAME COLUMN s TO title")
    session.sql(f"ALTER TABLE {name} ALTER COLUMN i TYPE BIGINT")
    session.sql(f"ALTER TABLE {name} DROP COLUMN b")
    session.sql(f"ALTER TABLE {name} ADD COLUMN st.more INT")
    session.sql(f"ALTER TABLE {name} ADD PARTITION FIELD bucket(4, id)")
    session.sql(f"INSERT INTO {name} (id, i, title) SELECT id, 5000000000, 'new' FROM range(70, 80)")
    session.sql(f"UPDATE {name} SET title = 'changed' WHERE id IN (1, 71)")
    assert set(assert_spark_reads_the_same(session, folder, of)["format"].to_pylist()) == {of}


@pytest.mark.full
def test_variants_have_the_json_of_spark(session: SparkSession, folder: Path) -> None:
    name = "ice.sales.variants"
    session.sql(f"CREATE TABLE {name} (id BIGINT, v VARIANT) USING iceberg TBLPROPERTIES ('format-version'='3')")
    session.sql(
        f"""INSERT INTO {name} VALUES
          (1, parse_json('{{"b": [true, null, 1.5, "x"], "a": {{"c": "{"long " * 20}"}}}}')), (2, parse_json('5')), (3, NULL),
          (4, parse_json('null')), (5, CAST(DATE'2026-01-02' AS VARIANT)), (6, CAST(1.25BD AS VARIANT)),
          (7, CAST(TIMESTAMP'2026-01-02 03:04:05.678' AS VARIANT)), (8, CAST(X'00ff' AS VARIANT)),
          (9, CAST(TIMESTAMP_NTZ'2026-01-02 03:04:05' AS VARIANT)), (10, CAST(CAST(1.5 AS FLOAT) AS VARIANT))"""
    )
    expected = {row.id: row.v for row in session.sql(f"SELECT id, to_json(v) AS v FROM {name}").collect()}
    with open_source("iceberg", str(folder / "iceberg")) as source:
        table = source.load(("sales",), "variants")
    found = {row["id"]: row["v"] for row in table.read(table.snapshots()[-1]).read_all().to_pylist()}
    assert found == expected


@pytest.mark.parametrize("of", DELETE_FORMATS)
def test_equality_deletes_of_the_java_api_delete_the_rows_that_spark_deletes(
    session: SparkSession, folder: Path, of: str
) -> None:
    """By one and several columns, NULL, of a partition and of all, of renamed, added and dropped columns."""
    short = f"equality_{of}"
    name = f"ice.sales.{short}"
    session.sql(
        f"CREATE TABLE {name} (id BIGINT, name STRING, part BIGINT, st STRUCT<k: INT>) USING iceberg "
        "TBLPROPERTIES ('format-version'='2')"
    )
    session.sql(f"INSERT INTO {name} {PEOPLE.format(0, 20)}")
    table = JavaTable(session, name)
    table.delete_equal([{"id": 3}, {"id": 4}, {"id": 25}], ["id"], file_format=of)
    session.sql(f"INSERT INTO {name} {PEOPLE.format(20, 40)}")
    keys = [{"name": None, "part": 0}, {"name": "n1", "part": 1}]
    table.delete_equal(keys, ["name", "part"], file_format=of)
    session.sql(f"ALTER TABLE {name} RENAME COLUMN name TO title")
    session.sql(f"ALTER TABLE {name} ADD PARTITION FIELD part")
    session.sql(f"INSERT INTO {name} {PEOPLE.format(0, 10)}")
    table.delete_equal([{"title": "n2"}, {"title": None}], ["title"], partition="part=1", file_format=of)
    table.delete_equal([{"title": "n3"}], ["title"], spec_id=0, file_format=of)
    session.sql(f"ALTER TABLE {name} ADD COLUMN extra INT")
    session.sql(f"INSERT INTO {name} SELECT id, 'e', id % 3, NULL, 7 FROM range(60, 66)")
    table.delete_equal([{"extra": None, "id": 5}, {"extra": 7, "id": 61}], ["extra", "id"], spec_id=0, file_format=of)
    session.sql(f"DELETE FROM {name} WHERE id = 30")
    session.sql(f"ALTER TABLE {name} DROP COLUMN extra")
    session.sql(f"INSERT INTO {name} {PEOPLE.format(5, 6)}")
    files = assert_spark_reads_the_same(session, folder, short)
    deletes = files.filter(pa.compute.field("content") == Content.EQUALITY_DELETES)
    assert deletes.num_rows == 5
    assert set(deletes["format"].to_pylist()) == {of}
