"""Every table that Spark writes is served with its rows, or listed with the reason why it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest

from formats.foreign_tables import make_fixtures
from lake.test_odd_tables import Mirrored, assert_served_or_listed, mirrored
from spark_jobs.lakes import SPARK
from spark_jobs.shared_spark import session_with_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["mirrored"]

pytestmark = SPARK

DEEP: Final = "STRUCT<a: STRUCT<b: STRUCT<c: INT, l: ARRAY<STRUCT<m: MAP<STRING, STRUCT<k: STRING>>>>>>>"
DEEP_VALUE: Final = (
    "named_struct('a', named_struct('b', named_struct('c', 1, 'l', array(named_struct('m', "
    "map('k', named_struct('k', 'x')))))))"
)
NESTED: Final = {
    "li": ("ARRAY<INT>", "array(1, NULL)"),
    "mp": ("MAP<STRING, BIGINT>", "map('a', 1L, 'b', NULL)"),
    "mm": ("MAP<INT, MAP<STRING, DOUBLE>>", "map(1, map('x', 1.5D))"),
    "ls": ("ARRAY<STRUCT<k: STRING, v: ARRAY<BIGINT>>>", "array(named_struct('k', 'a', 'v', array(1L)), NULL)"),
    "st": (DEEP, DEEP_VALUE),
}
SCALARS: Final = {
    "bo": ("BOOLEAN", "true"),
    "i": ("INT", "-7"),
    "l": ("BIGINT", "7L"),
    "f": ("FLOAT", "1.5F"),
    "d": ("DOUBLE", "DOUBLE('NaN')"),
    "de": ("DECIMAL(38,10)", "-1.5BD"),
    "s": ("STRING", "'ß'"),
    "ch": ("CHAR(4)", "'ab'"),
    "vc": ("VARCHAR(4)", "'ab'"),
    "b": ("BINARY", "X'00ff'"),
    "dt": ("DATE", "DATE'1500-01-01'"),
    "tz": ("TIMESTAMP", "TIMESTAMP'2026-01-02 03:04:05.000006'"),
    "nt": ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ'2026-01-02 03:04:05.000006'"),
}
SMALL: Final = {"by": ("TINYINT", "7Y"), "sh": ("SMALLINT", "7S")}
COLUMN_MAPPING: Final = "'delta.columnMapping.mode'='{}', 'delta.minReaderVersion'='2', 'delta.minWriterVersion'='5'"

Columns = dict[str, tuple[str, str]]


def _write(session: SparkSession, name: str, columns: Columns, clauses: str) -> None:
    """A table with a row of values, and one of NULLs."""
    defined = ", ".join(f"{column} {of}" for column, (of, _) in columns.items())
    session.sql(f"CREATE TABLE {name} (id BIGINT, {defined}) {clauses}")
    values = ", ".join(value for _, value in columns.values())
    session.sql(f"INSERT INTO {name} SELECT 1, {values} UNION ALL SELECT 2, {', '.join(['NULL'] * len(columns))}")


def _rows(session: SparkSession, name: str) -> pa.Table:
    """The rows that Spark reads; variants as JSON, and intervals as the numbers that files have."""
    found = session.table(name)
    shown = {
        "variant": "to_json({0})",
        "interval day to second": "timestampdiff(MICROSECOND, TIMESTAMP_NTZ'1970-01-01', TIMESTAMP_NTZ'1970-01-01' + {0})",
        "interval year to month": "CAST(timestampdiff(MONTH, TIMESTAMP_NTZ'1970-01-01', TIMESTAMP_NTZ'1970-01-01' + {0}) AS INT)",
    }
    columns = [shown.get(of, "{0}").format(column) + f" AS {column}" for column, of in found.dtypes]
    return session.sql(f"SELECT {', '.join(columns)} FROM {name}").toArrow()


@pytest.fixture
def spark_session(tmp_path: Path) -> SparkSession:
    return session_with_jars(make_fixtures.spark_catalogs(tmp_path))


def test_delta_tables_of_spark(spark_session: SparkSession, mirrored: Callable[[str], Mirrored]) -> None:
    spark_session.conf.set("spark.databricks.delta.schema.typeCheck.enabled", "false")  # for intervals
    # Files have CHAR as it was written; Spark pads it when it reads.
    spark_session.conf.set("spark.sql.readSideCharPadding", "false")
    source, written = mirrored("delta"), list[str]()

    def write(name: str, columns: Columns, properties: str = "") -> None:
        clauses = f"USING delta LOCATION 'file://{source.folder / name}'"
        _write(spark_session, name, columns, clauses + (f" TBLPROPERTIES ({properties})" if properties else ""))
        written.append(name)

    try:
        for mode in ("none", "name", "id"):
            properties = "" if mode == "none" else COLUMN_MAPPING.format(mode)
            write(f"nested_{mode}", NESTED, properties)
            write(f"scalars_{mode}", SCALARS | SMALL, properties)
        write("variants", {"v": ("VARIANT", """parse_json('{"a": [1, null]}')""")})
        write("shredded", {"v": ("VARIANT", "parse_json('5')")}, "'delta.enableVariantShredding'='true'")
        write("intervals", {
            "d": ("INTERVAL DAY TO SECOND", "INTERVAL '1 00:00:00.000001' DAY TO SECOND"),
            "y": ("INTERVAL YEAR TO MONTH", "INTERVAL '2-1' YEAR TO MONTH"),
        })  # fmt: skip
        write("vectors", {"n": ("INT", "1")}, "'delta.enableDeletionVectors'='true'")
        spark_session.sql("DELETE FROM vectors WHERE id = 1")
        write("renamed", {"n": ("INT", "1"), "m": ("INT", "2")}, COLUMN_MAPPING.format("name"))
        spark_session.sql("ALTER TABLE renamed RENAME COLUMN n TO x")
        spark_session.sql("ALTER TABLE renamed DROP COLUMN m")
        spark_session.sql("ALTER TABLE renamed ADD COLUMN m STRING")
        write("void", {"n": ("INT", "1")})
        spark_session.sql("ALTER TABLE void ADD COLUMN v VOID")
        write("row_tracking", {"n": ("INT", "1")}, "'delta.enableRowTracking'='true'")
        written.append("computed")
        spark_session.sql(
            "CREATE TABLE computed (id BIGINT GENERATED ALWAYS AS IDENTITY, n INT, twice INT GENERATED ALWAYS AS (n * 2)) "
            f"USING delta LOCATION 'file://{source.folder / 'computed'}'"
        )
        spark_session.sql("INSERT INTO computed (n) VALUES (1), (2)")
        expected = {name: _rows(spark_session, name) for name in written}
    finally:
        for name in written:
            spark_session.sql(f"DROP TABLE IF EXISTS {name}")
    reasons = assert_served_or_listed(source, expected)
    assert reasons.keys() == {"variants", "shredded"}


def test_iceberg_tables_of_spark(
    tmp_path: Path, spark_session: SparkSession, mirrored: Callable[[str], Mirrored]
) -> None:
    spark_session.conf.set("spark.sql.catalog.odd", "org.apache.iceberg.spark.SparkCatalog")
    spark_session.conf.set("spark.sql.catalog.odd.type", "hadoop")
    spark_session.conf.set("spark.sql.catalog.odd.warehouse", f"file://{tmp_path / 'source'}")
    source, written = mirrored("iceberg"), list[str]()

    def write(name: str, columns: Columns, **properties: str) -> None:
        listed = ", ".join(f"'{key.replace('_', '.')}'='{value}'" for key, value in properties.items())
        _write(spark_session, f"odd.db.{name}", columns, f"USING iceberg TBLPROPERTIES ({listed})")
        written.append(name)

    for version in ("1", "2", "3"):
        for of in ("parquet", "avro", "orc"):
            named = {"format-version": version, "write_format_default": of}
            write(f"nested_{of}_v{version}", NESTED, **named)
            write(f"scalars_{of}_v{version}", SCALARS, **named)
    write("variants", {"v": ("VARIANT", """parse_json('{"a": [1, null]}')""")}, **{"format-version": "3"})
    write("void", {"v": ("VOID", "NULL"), "n": ("INT", "1")}, **{"format-version": "3"})
    write("deleted", {"n": ("INT", "1")}, write_delete_mode="merge-on-read", **{"format-version": "3"})
    spark_session.sql("DELETE FROM odd.db.deleted WHERE id = 1")
    expected = {name: _rows(spark_session, f"odd.db.{name}") for name in written}
    assert assert_served_or_listed(source, expected) == {}
