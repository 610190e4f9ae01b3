"""Tables written by Skiway, read by Spark with Iceberg's own runtime."""

from __future__ import annotations

import re
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from formats.managed import LooseTable
from formats.oracles import assert_same_rows
from lake.lakes import opened_lake
from skiway.client import col
from skiway.formats.iceberg.changes.commits import overwrite
from skiway.formats.iceberg.changes.evolution import AddColumn, DropColumn, RenameColumn, WidenColumn, evolve
from skiway.metastore.jobs.queue import JobQueue
from skiway.metastore.managed.states import load
from skiway.metastore.reconcile.profiling import ProfileRules, start_profiles
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1
from skiway.spark_jobs.worker import SparkProfile, Worker, jobs_of
from spark_jobs.java_iceberg import JavaTable
from spark_jobs.lakes import SPARK
from spark_jobs.shared_spark import active, rest_results, session_with_jars, session_with_rest_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("part", pa.string()),
        ("day", pa.date32()),
        ("amount", pa.decimal128(9, 2)),
        ("gone", pa.string()),
        ("tags", pa.list_(pa.string())),
    ]
)


def written(folder: Path, *partition_by: str, version: str) -> LooseTable:
    """A table with appends, schema changes and a rewritten file."""
    table = LooseTable(folder, SCHEMA, *partition_by, format_version=version)

    def row(number: int, part: str | None) -> dict[str, Any]:
        values = {"id": number, "part": part, "day": date(2026, 1, number), "amount": Decimal(number) / 4}
        return {**values, "gone": "g", "tags": ["a", None]}

    first = table.append(pa.Table.from_pylist([row(1, "x"), row(2, None), row(3, "y")], schema=SCHEMA))
    table.change(
        evolve(
            [
                AddColumn("note", pa.string()),
                DropColumn("gone"),
                RenameColumn("amount", "price"),
                WidenColumn("id", pa.int64()),
            ]
        )
    )
    table.append(pa.record_batch({"id": [2**40], "part": ["x"], "note": ["late"]}))
    remaining_rows = pa.Table.from_pylist(
        [row for row in table.rows().to_pylist() if row["id"] < 3], schema=table.handle.schema.arrow
    )
    replaced = [file.file_path for file in first]
    table.change(overwrite(replaced, table.write(remaining_rows), based_on=table.metadata.current_snapshot_id))
    return table


def test_spark_reads_the_rows_that_pyiceberg_reads(tmp_path: Path) -> None:
    tables = [
        written(tmp_path / "plain", version="2"),
        written(tmp_path / "in parts", "part", "bucket[2](id)", version="2"),
        written(tmp_path / "newer", "month(day)", version="3"),
    ]
    spark = session_with_jars({})
    for number, table in enumerate(tables):
        spark.read.format("iceberg").load(table.location).write.parquet(f"file://{tmp_path}/read/{number}")
        schema = pa.schema([(field.name, field.type) for field in table.handle.schema.arrow])
        found = pq.read_table(tmp_path / "read" / str(number)).cast(schema)
        assert sorted(found["id"].to_pylist()) == [1, 2, 2**40]
        assert_same_rows(found, table.rows().cast(schema))


def test_spark_reads_row_lineage_and_geometries(tmp_path: Path) -> None:
    """Rows keep their id, and those that were not updated their sequence number. Geometries need a CRS that Spark knows."""
    point = bytes.fromhex("0101000000000000000000f03f0000000000000040")
    with opened_lake(tmp_path) as lake, lake.rest() as rest, lake.client() as db:
        rest.create_namespace("s")
        rest.create_table("s.t", pa.schema({"id": pa.int64(), "name": pa.string()}), properties={"format-version": "3"})
        db.reload()
        db.insert("s.t", pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}))
        db.insert("s.t", pa.table({"id": [4, 5], "name": ["d", "e"]}))
        db.update("s.t", {"name": "B"}, where=col("id") == 2)
        db.delete("s.t", where=col("id") == 5)
        for name, crs in (("places", '{"crs": "OGC:CRS84"}'), ("anywhere", "{}")):
            metadata = {"ARROW:extension:name": "geoarrow.wkb", "ARROW:extension:metadata": crs}
            shapes = pa.schema([pa.field("shape", pa.binary(), metadata=metadata)])
            db.create_table(f"s.{name}", shapes)
            db.insert(f"s.{name}", pa.table([pa.array([point, None], pa.binary())], schema=shapes))
        statements = [
            "SELECT id, name, _row_id, _last_updated_sequence_number FROM lake.s.t ORDER BY id",
            "SET spark.sql.geospatial.enabled = true",
            "SELECT hex(st_asbinary(shape)) FROM lake.s.places ORDER BY 1 NULLS LAST",
            "SELECT * FROM lake.s.anywhere",
        ]
        rows, _, places, anywhere = rest_results(rest.uri, statements, warehouse="managed", token="writer")
    assert rows == [[1, "a", 0, 1], [2, "B", 1, 3], [3, "c", 2, 1], [4, "d", 3, 2]]
    assert places == [[point.hex().upper()], [None]]
    assert "ST_INVALID_CRS_VALUE" in anywhere["message"]


def test_spark_and_airport_delete_rows_by_merge_on_read(tmp_path: Path) -> None:
    """Both read the deletion vectors (version 3) and position deletes (version 2) of the other, and write the same summaries."""
    page = (Path(__file__).parents[2] / "docs" / "managed-tables.md").read_text()
    [documented] = re.findall(r"ALTER TABLE lake.sales.orders SET TBLPROPERTIES .*?\)", page)
    rows = pa.table({"id": range(10), "name": [f"n{number}" for number in range(10)]})
    with opened_lake(tmp_path) as lake, lake.rest() as rest, lake.client() as db:

        def spark(*statements: str) -> list[Any]:
            return rest_results(rest.uri, statements, warehouse="managed", token="writer")

        db.create_schema("s")
        for version in (2, 3):
            rest.create_table(f"s.t{version}", rows.schema, properties={"format-version": str(version)})
            set_mode = documented.replace("sales.orders", f"s.t{version}")
            assert spark(set_mode, set_mode.replace("delete", "update")) == [[], []]
        db.reload()
        for version in (2, 3):
            name = f"s.t{version}"
            db.insert(name, rows)
            db.delete(name, where=col("id") < 2)
            db.update(name, {"name": "new"}, where=col("id") == 2)
            expected = [[number, "new" if number == 2 else f"n{number}"] for number in range(2, 10)]
            read = f"SELECT id, name FROM lake.{name} ORDER BY id"
            found = spark(
                read,
                f"DELETE FROM lake.{name} WHERE id = 3",
                f"UPDATE lake.{name} SET name = 'spark' WHERE id = 4",
                f"SELECT summary FROM lake.{name}.snapshots ORDER BY committed_at",
            )
            assert found[:3] == [expected, [], []]
            [[_], [own_delete], [own_update], [spark_delete], [spark_update]] = found[3]
            assert _counted(own_delete, removed=False) == _counted(spark_delete, removed=False)
            # Spark replaces position delete files, too, if they belong to one data file.
            assert _counted(own_update, removed=version == 3) == _counted(spark_update, removed=version == 3)
            assert db.delete(name, where=col("id") == 5).count == 1  # after the deletes of Spark
            final = [[2, "new"], [4, "spark"], *([number, f"n{number}"] for number in range(6, 10))]
            assert spark(read) == [final]
            assert [list(row.values()) for row in db.scan(name).read_all().sort_by("id").to_pylist()] == final
        [lineage] = spark("SELECT id, _row_id, _last_updated_sequence_number FROM lake.s.t3 ORDER BY id")
    assert lineage == [[2, 2, 3], [4, 4, 5], *([number, number, 1] for number in range(6, 10))]


def _counted(summary: dict[str, str], *, removed: bool) -> set[str]:
    """The names of the counts in a snapshot summary; those of removed files only if `removed`."""
    kinds = ("delete", "dvs", "records", "data-files")
    return {key for key in summary if any(kind in key for kind in kinds) and (removed or "removed" not in key)}


def test_automatic_profile_gives_spark_distinct_counts(tmp_path: Path, spark: SparkSession) -> None:
    """Iceberg's Java API reads the theta sketches over REST, and Spark's optimizer uses them."""
    rows = pa.table({"id": range(1000), "name": [f"n{number % 70}" for number in range(1000)]})
    with opened_lake(tmp_path) as lake, lake.rest() as rest, lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", rows.schema)
        db.insert("s.t", rows)
        at_once = ProfileRules(automatic=True, delay=timedelta())
        started = start_profiles(lake.stores, lake.warehouse, realm_of=lambda _: lake.realm, rules=at_once)
        assert len(started.jobs) == 1
        reconciler = Reconciler(lake.secrets, SparkProfile(lambda: spark), warehouse=lake.warehouse)
        assert Worker(JobQueue(lake.stores), jobs_of(lambda _: lake.realm, reconciler), "w").work_once()
        session = active(session_with_rest_catalog(rest.uri, warehouse="managed", token="writer"))
        assert JavaTable(session, "lake.s.t").distinct_counts() == {1: ("1000", 1000.0), 2: ("70", 70.0)}
        session.conf.set("spark.sql.cbo.enabled", "true")
        assert planned_distinct_counts(session, "lake.s.t") == {"id": 1000, "name": 70}


def planned_distinct_counts(session: SparkSession, table: str) -> dict[str, int]:
    """The distinct counts that Spark's optimizer knows of the columns of a table."""
    frame: Any = session.table(table)
    columns = frame._jdf.queryExecution().optimizedPlan().stats().attributeStats().iterator()
    found = {}
    while columns.hasNext():
        pair = columns.next()
        found[pair._1().name()] = int(pair._2().distinctCount().get())
    return found


def test_tables_in_a_folder_with_spaces_are_profiled(tmp_path: Path, spark: SparkSession) -> None:
    people = pa.table({"id": [1, 2, 3], "name": ["Ada", "Grace", None]})
    with opened_lake(tmp_path / "my lake" / "in  two words") as lake, lake.client() as db:
        db.create_schema("shop")
        db.create_table("shop.people", people.schema)
        db.insert("shop.people", people)
        [row] = db.scan(("skiway", "tables")).read_all().to_pylist()
        table = load(lake.realm, lake.warehouse, v1.ResourceId(id=row["table_id"]))
        snapshot = table.handle.current()
        assert snapshot is not None
        profile = SparkProfile(lambda: spark)
        of = table.table.resource_id
        report = profile(lake.realm, of, snapshot, handle=table.handle, cancelled=lambda: False)
    assert (report.files_profiled, report.failed, report.merged.table.row_count) == (1, {}, 3)
