"""Write tables with other programs, for tests to read: python scripts/make_fixtures.py FOLDER [PART...]

    FOLDER/iceberg    by PyIceberg: catalog.db and warehouse/
    FOLDER/delta      by delta-rs
    FOLDER/parquet    by pyarrow and DuckDB
    FOLDER/spark      by Spark, which downloads the jars of Iceberg and Delta; only if PART names it. Besides
                      iceberg/ (a Hadoop catalog), delta/ and parquet/, it contains expected/: the rows that Spark
                      itself reads from each snapshot, as Parquet

Each covers the cases that readers get wrong most often: columns added, dropped, renamed, reordered and widened; changed
partitioning; deleted rows; NaN, NULL, decimals, timestamps with and without time zone, bytes, nested types; empty tables.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_PACKAGES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "io.delta:delta-spark_4.1_2.13:4.4.0",
)
# Spark already contains these; Ivy would add a second version of each.
SPARK_EXCLUDES = (
    *("org.slf4j:*", "org.apache.logging.log4j:*", "com.google.code.findbugs:*", "org.roaringbitmap:*"),
    *(
        "com.fasterxml.jackson.core:*",
        "com.fasterxml.jackson.datatype:*",
        "org.apache.hadoop:*",
        "org.apache.parquet:*",
    ),
    *("javax.annotation:*", "org.locationtech.jts:*", "org.xerial.snappy:*", "io.airlift:*", "commons-pool:*"),
    *("com.github.luben:*", "commons-logging:*"),
)

EPOCH = datetime(2026, 1, 1)
STRUCT = pa.struct({"x": pa.int32(), "y": pa.string(), "inner": pa.struct({"w": pa.float64()})})
TYPES = pa.schema(
    {
        "id": pa.int64(),
        "i": pa.int32(),
        "f": pa.float32(),
        "d": pa.float64(),
        "dec": pa.decimal128(15, 4),
        "big": pa.decimal128(38, 10),
        "s": pa.string(),
        "b": pa.binary(),
        "bo": pa.bool_(),
        "dt": pa.date32(),
        "ts": pa.timestamp("us"),
        "tz": pa.timestamp("us", tz="UTC"),
        "tm": pa.time64("us"),
        "st": STRUCT,
        "li": pa.list_(pa.int32()),
        "ls": pa.list_(pa.struct({"k": pa.string(), "v": pa.int64()})),
        "mp": pa.map_(pa.string(), pa.int64()),
    }
)


def rows(start: int, count: int) -> pa.Table:
    """Rows with a column of every type and with special values. Ids begin at `start`."""
    return pa.Table.from_pylist([_row(number) for number in range(start, start + count)], schema=TYPES)


def _row(number: int) -> dict[str, Any]:
    special = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0]
    real = special[number % 5] if number % 11 == 0 else number * 0.5 - 20
    moment = EPOCH + timedelta(hours=7 * number, microseconds=number * 1001)
    row = {
        "id": number,
        "i": (number * 37) % 101 - 50,
        "f": real,
        "d": real,
        "dec": Decimal(number * 1237 - 50000) / 10000,
        "big": Decimal(number) * Decimal("1234567890123456.0123456789"),
        "s": f"{'long ' * (number % 9)}name {number:05d} ß",
        "b": bytes([number % 256, 255, 0]),
        "bo": number % 3 == 0,
        "dt": date(1969, 12, 1) + timedelta(days=number),
        "ts": moment,
        "tz": (moment - timedelta(days=20454)).replace(tzinfo=UTC),
        "tm": time(number % 24, number % 60, 7, number),
        "st": {"x": number % 7, "y": f"y{number % 5}", "inner": {"w": number / 4}},
        "li": [number, None, -number],
        "ls": [{"k": "a", "v": number}, None],
        "mp": [("one", number), ("none", None)],
    }
    nulls = {name: None for place, name in enumerate(row) if place and (number + place) % 13 == 0}
    return row | nulls


def without(table: pa.Table, *names: str) -> pa.Table:
    return table.drop_columns(list(names))


# Iceberg, by PyIceberg


def iceberg_tables(folder: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    folder.mkdir(parents=True, exist_ok=True)
    with SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse") as catalog:
        catalog.create_namespace("sales")
        catalog.create_namespace(("sales", "eu"))
        for write in (_types, _evolved, _partitioned, _named, _without_ids, _many, _version_one):
            write(catalog, folder)
        catalog.create_table("sales.empty", TYPES)


def _types(catalog: Any, _: Path) -> None:
    table = catalog.create_table("sales.types", TYPES)
    for start in (0, 40, 80):
        table.append(rows(start, 40))
    table.delete("id < 10")
    table.overwrite(rows(200, 5), overwrite_filter="id >= 110")


def _evolved(catalog: Any, _: Path) -> None:
    from pyiceberg.types import DoubleType, LongType, StringType

    first = pa.schema(
        {
            "id": pa.int32(),
            "name": pa.string(),
            "score": pa.float32(),
            "gone": pa.string(),
            "st": pa.struct({"a": pa.int32(), "b": pa.string()}),
            "ls": pa.list_(pa.struct({"k": pa.string()})),
        }
    )
    table = catalog.create_table("sales.evolved", first)
    table.append(pa.Table.from_pylist([_old(number) for number in range(10)], schema=first))
    with table.update_schema() as change:
        change.add_column("extra", StringType())
        change.update_column("id", LongType())
        change.update_column("score", DoubleType())
    table.append(_like(table, 10, extra="x"))
    with table.update_schema() as change:
        change.rename_column("name", "full_name")
        change.delete_column("gone")
        change.move_first("extra")
    table.append(_like(table, 20, full_name="new"))
    with table.update_schema() as change:
        change.rename_column("st.a", "alpha")
        change.delete_column("st.b")
        change.add_column(("st", "c"), LongType())
        change.add_column(("ls", "v"), LongType())
        change.add_column("gone", StringType())  # a new field id: the values of the old column do not come back
    table.append(_like(table, 30, gone="back", st={"alpha": 1, "c": 2}, ls=[{"k": "k", "v": 3}]))


def _old(number: int) -> dict[str, Any]:
    nested = {"a": number, "b": f"b{number}"} if number % 4 else None
    return {
        "id": number,
        "name": f"n{number}",
        "score": number / 2,
        "gone": f"gone {number}",
        "st": nested,
        "ls": [{"k": str(number)}],
    }


def _like(table: Any, start: int, **values: Any) -> pa.Table:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pa.Table.from_pylist(
        [{"id": number, **values} for number in range(start, start + 5)], schema=schema_to_pyarrow(table.schema())
    )


def _partitioned(catalog: Any, _: Path) -> None:
    """A table partitioned by one column, then also by transforms, then without the first."""
    from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform

    table = catalog.create_table(("sales", "eu", "partitioned"), TYPES)
    table.append(rows(0, 12))
    with table.update_spec() as change:
        change.add_field("bo", IdentityTransform())
    table.append(rows(12, 12))
    with table.update_spec() as change:
        change.add_field("ts", DayTransform())
        change.add_field("id", BucketTransform(4))
    table.append(rows(24, 24))
    with table.update_spec() as change:
        change.remove_field("bo")
        change.add_field("s", TruncateTransform(2))
        change.add_field("i", IdentityTransform())
    table.append(rows(48, 24))


def _named(catalog: Any, _: Path) -> None:
    table = catalog.create_table("sales.named", TYPES)
    table.append(rows(0, 5))
    first = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_tag(first, "first").create_branch(first, "trial").commit()
    table.append(rows(5, 5))
    table.append(rows(100, 3), branch="trial")


def _without_ids(catalog: Any, folder: Path) -> None:
    """Files that existed before the table; they have no field ids."""
    (folder / "warehouse" / "sales" / "adopted" / "data").mkdir(parents=True)
    file = folder / "warehouse" / "sales" / "adopted" / "data" / "old.parquet"
    pq.write_table(rows(0, 8), file)
    table = catalog.create_table("sales.adopted", TYPES)
    table.add_files([f"file://{file}"])
    table.append(rows(8, 8))
    with table.update_schema() as change:
        change.rename_column("s", "text")
    table.append(rows(16, 4).rename_columns(["text" if name == "s" else name for name in TYPES.names]))


def _many(catalog: Any, _: Path) -> None:
    table = catalog.create_table("sales.many", pa.schema({"id": pa.int64()}))
    for number in range(12):
        table.append(pa.table({"id": [number]}))


def _version_one(catalog: Any, _: Path) -> None:
    from pyiceberg.transforms import IdentityTransform

    table = catalog.create_table("sales.first_version", TYPES, properties={"format-version": "1"})
    table.append(rows(0, 6))
    with table.update_spec() as change:
        change.add_field("bo", IdentityTransform())
    table.append(rows(6, 6))
    table.delete("id = 3")


# Delta, by delta-rs


def delta_tables(folder: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    def plain(start: int, count: int) -> pa.Table:
        return without(rows(start, count), "tm", "mp")

    for start in (0, 40):
        write_deltalake(folder / "types", plain(start, 40), mode="append")
    DeltaTable(folder / "types").delete("id < 10")
    DeltaTable(folder / "types").update(predicate="id = 20", new_values={"s": "'changed'"})
    write_deltalake(folder / "sales" / "partitioned", plain(0, 30), partition_by=["bo", "dt"])
    odd = pa.table({"id": [1, 2, 3, 4], "k": ["a b", "c/d=e", "ü%", None]})
    write_deltalake(folder / "sales" / "odd", odd, partition_by=["k"])
    first = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})
    write_deltalake(folder / "evolved", first)
    more = pa.table({"id": pa.array([3], pa.int64()), "extra": [1.5], "name": ["c"]})
    write_deltalake(folder / "evolved", more, mode="append", schema_mode="merge")
    write_deltalake(folder / "evolved", pa.table({"other": ["only"]}), mode="overwrite", schema_mode="overwrite")
    for number in range(12):
        write_deltalake(folder / "many", pa.table({"id": [number]}), mode="append")
    DeltaTable(folder / "many").create_checkpoint()
    write_deltalake(folder / "empty", TYPES.empty_table().drop_columns(["tm", "mp"]))


# Parquet, by pyarrow and DuckDB


def parquet_tables(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows(0, 60), folder / "alone.parquet", row_group_size=20)
    for place, start in enumerate((0, 40, 80)):
        _write(rows(start, 40), folder / "plain" / f"part-{place}.parquet", row_group_size=7)
    for number, country in enumerate(("NL", "DE", "__HIVE_DEFAULT_PARTITION__", "a%20b%2Fc")):
        part = (
            folder / "area" / "hive" / f"year={2024 + number % 2}" / f"day=2026-01-0{number + 1}" / f"country={country}"
        )
        _write(rows(number * 10, 10), part / "data.parquet")
    (folder / "area" / "hive" / "_SUCCESS").touch()
    _write(rows(900, 1), folder / "area" / "hive" / "_temporary" / "0.parquet")
    _write(pa.table({"id": pa.array([1], pa.int32()), "a": ["x"]}), folder / "mixed" / "1.parquet")
    _write(pa.table({"b": [2.5], "id": pa.array([2], pa.int64())}), folder / "mixed" / "2.parquet")
    nested = pa.table({"id": pa.array([3], pa.int16()), "st": [{"x": 1}]})
    _write(nested, folder / "mixed" / "3.parquet")
    _write(pa.table({"id": [4], "st": [{"y": "z"}]}), folder / "mixed" / "4.parquet")
    _write(TYPES.empty_table(), folder / "empty" / "none.parquet")
    _duckdb(folder / "duckdb")


def _write(table: pa.Table, file: Path, **options: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file, **options)


def _duckdb(folder: Path) -> None:
    import duckdb

    sql = "SELECT range AS id, range % 3 AS part, 'v' || range AS s, range / 7 AS d, DATE '2026-01-01' + range::INT AS day FROM range(100)"
    with duckdb.connect() as duck:
        duck.execute(f"COPY ({sql}) TO '{folder}' (FORMAT parquet, PARTITION_BY part)")


# Spark, with the jars of Iceberg and Delta


def spark_jars() -> dict[str, str]:
    """The settings of a Spark that can read and write Iceberg and Delta; they must be set before Java starts."""
    return {
        "spark.jars.packages": ",".join(SPARK_PACKAGES),
        "spark.jars.excludes": ",".join(SPARK_EXCLUDES),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,"
        "io.delta.sql.DeltaSparkSessionExtension",
    }


def spark_catalogs(folder: Path) -> dict[str, str]:
    """The settings of a session that writes tables: its catalog `ice` is a folder of Iceberg tables.

    Each statement runs once on a few rows, so interpreting it is faster than compiling it.
    """
    return {
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": f"file://{folder}/iceberg",
        "spark.sql.catalog.ice.cache-enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }


MERGE_ON_READ = (
    "'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read', 'write.merge.mode'='merge-on-read'"
)
NUMBERS = "SELECT id, concat('n', id) AS name, id % 4 AS part, id / 3.0D AS d, timestamp_micros(id * 3600000001) AS ts FROM range({}, {})"


MERGED_ON_READ = ("v2", "v2_partitioned", "v3", "v3_partitioned")


def spark_tables(folder: Path, session: SparkSession, merged_on_read: Sequence[str] = MERGED_ON_READ) -> None:
    """Merge-on-read deletes of both Iceberg versions; Delta's deletion vectors and column mapping."""
    for name in merged_on_read:
        partitioned = "PARTITIONED BY (part)" if name.endswith("_partitioned") else ""
        _merge_on_read(session, f"ice.sales.{name}", int(name[1]), partitioned)
    _spark_evolved(session)
    _spark_delta(session, folder / "delta")


def _merge_on_read(session: SparkSession, name: str, version: int, partitioned: str) -> None:
    session.sql(
        f"CREATE TABLE {name} (id BIGINT, name STRING, part BIGINT, d DOUBLE, ts TIMESTAMP) USING iceberg {partitioned} "
        f"TBLPROPERTIES ('format-version'='{version}', {MERGE_ON_READ})"
    )
    session.sql(f"INSERT INTO {name} {NUMBERS.format(0, 40)}")
    session.sql(f"INSERT INTO {name} {NUMBERS.format(40, 80)}")
    session.sql(f"DELETE FROM {name} WHERE id % 10 = 3")
    session.sql(f"UPDATE {name} SET name = 'changed', part = part + 1 WHERE id % 20 = 7")
    session.sql(f"DELETE FROM {name} WHERE id BETWEEN 30 AND 45")
    session.sql(f"INSERT INTO {name} {NUMBERS.format(30, 50)}")
    session.sql(f"ALTER TABLE {name} RENAME COLUMN name TO title")
    session.sql(f"DELETE FROM {name} WHERE title = 'n31'")
    session.sql(f"ALTER TABLE {name} CREATE TAG checked")


def _spark_evolved(session: SparkSession) -> None:
    name = "ice.sales.evolved"
    session.sql(f"CREATE TABLE {name} (id INT, f FLOAT, s STRING, dec DECIMAL(9,2), ts TIMESTAMP_NTZ) USING iceberg")
    session.sql(f"INSERT INTO {name} VALUES (1, 1.5, 'a', 1.25, TIMESTAMP_NTZ '2026-01-01 00:00:00.000001')")
    session.sql(f"ALTER TABLE {name} ALTER COLUMN id TYPE BIGINT")
    session.sql(f"ALTER TABLE {name} ALTER COLUMN f TYPE DOUBLE")
    session.sql(f"ALTER TABLE {name} ALTER COLUMN dec TYPE DECIMAL(18,2)")
    session.sql(f"ALTER TABLE {name} ADD PARTITION FIELD bucket(4, id)")
    session.sql(f"ALTER TABLE {name} ADD PARTITION FIELD truncate(1, s)")
    session.sql(
        f"INSERT INTO {name} VALUES (5000000000, CAST('NaN' AS DOUBLE), NULL, 7.5, NULL), (2, 2.5, 'bc', 2, NULL)"
    )
    session.sql(f"ALTER TABLE {name} RENAME COLUMN s TO text")
    session.sql(f"ALTER TABLE {name} ADD COLUMN st STRUCT<a: INT, b: ARRAY<STRUCT<c: STRING>>>")
    session.sql(
        f"INSERT INTO {name} VALUES (3, 3, 'd', 3, NULL, named_struct('a', 1, 'b', array(named_struct('c', 'x'))))"
    )
    session.sql(f"ALTER TABLE {name} DROP COLUMN st.a")


def _spark_delta(session: SparkSession, folder: Path) -> None:
    where = f"delta.`{folder}/vectors`"
    session.sql(
        f"CREATE TABLE {where} (id BIGINT, name STRING, part BIGINT, d DOUBLE, ts TIMESTAMP) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors'='true')"
    )
    session.sql(f"INSERT INTO {where} {NUMBERS.format(0, 50)}")
    session.sql(f"DELETE FROM {where} WHERE id % 10 = 3")
    session.sql(f"UPDATE {where} SET name = 'changed' WHERE id = 7")
    mapped = f"delta.`{folder}/mapped`"
    session.sql(
        f"CREATE TABLE {mapped} (id BIGINT, name STRING, part BIGINT, d DOUBLE, ts TIMESTAMP) USING delta PARTITIONED BY (part) "
        "TBLPROPERTIES ('delta.enableDeletionVectors'='true', 'delta.columnMapping.mode'='name')"
    )
    session.sql(f"INSERT INTO {mapped} {NUMBERS.format(0, 30)}")
    session.sql(f"ALTER TABLE {mapped} RENAME COLUMN name TO `full name`")
    session.sql(f"ALTER TABLE {mapped} RENAME COLUMN part TO shard")
    session.sql(f"ALTER TABLE {mapped} ADD COLUMN st STRUCT<a: INT, b: STRING>")
    session.sql(
        f"INSERT INTO {mapped} SELECT *, named_struct('a', CAST(id AS INT), 'b', 'x') FROM ({NUMBERS.format(30, 40)})"
    )
    session.sql(f"ALTER TABLE {mapped} RENAME COLUMN st.a TO alpha")
    session.sql(f"DELETE FROM {mapped} WHERE id % 7 = 0")
    session.sql(f"ALTER TABLE {mapped} DROP COLUMN d")
    by_id = f"delta.`{folder}/by_id`"
    session.sql(
        f"CREATE TABLE {by_id} (id BIGINT, name STRING, part BIGINT, d DOUBLE, ts TIMESTAMP) USING delta "
        "TBLPROPERTIES ('delta.columnMapping.mode'='id')"
    )
    session.sql(f"INSERT INTO {by_id} {NUMBERS.format(0, 10)}")
    session.sql(f"ALTER TABLE {by_id} RENAME COLUMN name TO title")
    session.sql(f"INSERT INTO {by_id} {NUMBERS.format(10, 20)}")
    wide = f"delta.`{folder}/widened`"
    session.sql(f"CREATE TABLE {wide} (id INT) USING delta TBLPROPERTIES ('delta.enableTypeWidening'='true')")
    session.sql(f"INSERT INTO {wide} VALUES (1), (2)")
    session.sql(f"ALTER TABLE {wide} ALTER COLUMN id TYPE BIGINT")
    session.sql(f"INSERT INTO {wide} VALUES (5000000000)")


def expected(folder: Path, session: SparkSession) -> None:
    """Write the rows that Spark reads, one Parquet file per snapshot: expected/FORMAT/TABLE/SNAPSHOT, and `now` for the
    current state.
    """

    def write(sql: str, *path: str) -> None:
        _write(session.sql(sql).toArrow(), folder.joinpath("expected", *path))

    for row in session.sql("SHOW TABLES IN ice.sales").collect():
        name = f"ice.sales.{row.tableName}"
        write(f"SELECT * FROM {name}", "iceberg", row.tableName, "now")
        for snapshot in session.sql(f"SELECT snapshot_id FROM {name}.snapshots").collect():
            version = f"SELECT * FROM {name} VERSION AS OF {snapshot.snapshot_id}"
            write(version, "iceberg", row.tableName, str(snapshot.snapshot_id))
    for table in sorted((folder / "delta").iterdir()):
        name = f"delta.`{table}`"
        for version in session.sql(f"DESCRIBE HISTORY {name}").collect():
            write(f"SELECT * FROM {name} VERSION AS OF {version.version}", "delta", table.name, str(version.version))


def spark_parquet(folder: Path, session: SparkSession) -> None:
    """Timestamps in the old type INT96, outside the range of 64-bit nanoseconds."""
    session.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    moments = "SELECT id, timestamp_micros(id * 3000000000000001) AS ts FROM range(-20, 40)"
    session.sql(moments).coalesce(1).write.parquet(str(folder / "old"))
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    session.sql(moments).coalesce(1).write.parquet(str(folder / "new"))


def make_spark(folder: Path) -> None:
    from skiway.spark_jobs.session import session

    settings = {"spark.sql.warehouse.dir": f"file://{folder}/warehouse"} | spark_jars() | spark_catalogs(folder)
    with session("fixtures", "local[2]", **settings) as spark:
        write_with_spark(folder, spark)


def write_with_spark(folder: Path, session: SparkSession, merged_on_read: Sequence[str] = MERGED_ON_READ) -> None:
    """Write everything in `FOLDER/spark`; the session has the settings `spark_catalogs(folder)`."""
    spark_parquet(folder / "parquet", session)
    spark_tables(folder, session, merged_on_read)
    expected(folder, session)


PARTS: dict[str, Callable[[Path], None]] = {
    "iceberg": iceberg_tables,
    "delta": delta_tables,
    "parquet": parquet_tables,
    "spark": make_spark,
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("parts", nargs="*", choices=[*PARTS], default=["iceberg", "delta", "parquet"])
    asked = options.parse_args()
    for part in asked.parts:
        folder = asked.folder.resolve() / part
        shutil.rmtree(folder, ignore_errors=True)
        PARTS[part](folder)
        print(f"written to {folder}")


if __name__ == "__main__":
    main()
