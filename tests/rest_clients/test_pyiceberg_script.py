"""A user of PyIceberg: everything that its catalogs and tables offer. After each step, Airport has the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import And, EqualTo, GreaterThan
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, MonthTransform
from pyiceberg.types import DateType, DoubleType, LongType, NestedField, StringType, StructType

from rest_clients.shared_lake import TOKEN, SharedLake
from skiway.client import col

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "day", DateType()),
    identifier_field_ids=[1],
)
numbers = count(1)


class User:
    """A catalog, a namespace of its own, and the comparison with Airport."""

    def __init__(self, lake: SharedLake, **properties: str) -> None:
        self.lake = lake
        signed_in = {"credential": f"etl:{TOKEN}", "oauth2-server-uri": f"{lake.uri}/v1/oauth/tokens"}
        self.catalog = RestCatalog("lake", uri=lake.uri, warehouse="lake", **signed_in, **properties)
        self.namespace = f"user{next(numbers)}"
        self.catalog.create_namespace(self.namespace)

    def named(self, table: str) -> str:
        return f"{self.namespace}.{table}"

    def create(self, name: str = "people", schema: Schema | pa.Schema = SCHEMA, **options: Any) -> Table:
        return self.catalog.create_table(self.named(name), schema, **options)

    def check(self, name: str = "people", **options: Any) -> pa.Table:
        """The rows of a table as PyIceberg reads them now, which are those that Airport reads."""
        rows = self.catalog.load_table(self.named(name)).scan().to_arrow()
        self.lake.assert_same_over_airport(rows, self.named(name), **options)
        return rows.sort_by("id") if "id" in rows.column_names else rows


@pytest.fixture
def user(lake: SharedLake) -> Iterator[User]:
    found = User(lake)
    yield found
    found.catalog.close()


def people(*rows: tuple[int, str | None, date | None]) -> pa.Table:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("day", pa.date32())])
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


ADA = (1, "Ada", date(2026, 1, 1))
GRACE = (2, "Grace", date(2026, 2, 1))
EDSGER = (3, None, None)


def test_rows_are_appended_overwritten_deleted_and_upserted(user: User) -> None:
    table = user.create()
    table.append(people(ADA, GRACE, EDSGER))
    assert user.check()["id"].to_pylist() == [1, 2, 3]
    table.overwrite(people((2, "Hopper", None)), EqualTo("id", 2))
    assert user.check()["name"].to_pylist() == ["Ada", "Hopper", None]
    table.delete(EqualTo("id", 1))
    assert user.check()["id"].to_pylist() == [2, 3]
    done = table.upsert(people((2, "Grace", None), (4, "Barbara", None)))
    assert (done.rows_updated, done.rows_inserted) == (1, 1)
    assert user.check()["name"].to_pylist() == ["Grace", None, "Barbara"]
    table.overwrite(people(ADA))
    assert user.check()["id"].to_pylist() == [1]
    loaded = user.catalog.load_table(user.named("people"))
    first = loaded.scan(snapshot_id=loaded.history()[0].snapshot_id).to_arrow()
    assert first["id"].to_pylist() == [1, 2, 3]
    user.lake.assert_same_over_airport(first, user.named("people"), at_version=loaded.history()[0].snapshot_id)


def test_partitions_are_overwritten_dynamically(user: User) -> None:
    spec = PartitionSpec(PartitionField(3, 1000, MonthTransform(), "month"))
    table = user.create(partition_spec=spec)
    table.append(people(ADA, GRACE))
    identity = user.create(
        "by_name", partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    )
    identity.append(people(ADA, GRACE, EDSGER))
    identity.dynamic_partition_overwrite(people((9, "Ada", None)))
    assert user.check("by_name")["id"].to_pylist() == [2, 3, 9]
    table.overwrite(people((5, "New", date(2026, 2, 2))), GreaterThan("day", date(2026, 1, 31)))
    assert user.check()["id"].to_pylist() == [1, 5]


def test_columns_partitions_and_orders_evolve(user: User) -> None:
    order = SortOrder(SortField(1, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST))
    table = user.create(sort_order=order, properties={"owner": "ada"})
    table.append(people(ADA, GRACE))
    with table.update_schema() as change:
        change.add_column("place", StructType(NestedField(10, "x", DoubleType())), doc="where")
        change.rename_column("name", "who")
        change.move_first("day")
    with table.update_schema() as change:
        change.add_column(("place", "y"), LongType())
    user.check()
    table.append(
        pa.Table.from_pylist(
            [{"day": None, "id": 7, "who": "G", "place": {"x": 1.5, "y": 2}}], table.schema().as_arrow()
        )
    )
    assert user.check()["place"].to_pylist() == [None, None, {"x": 1.5, "y": 2}]
    with table.update_spec() as spec:
        spec.add_field("id", BucketTransform(4), "bucket")
        spec.add_field("day", DayTransform())
    with table.update_spec() as spec:
        spec.remove_field("bucket")
    with table.update_sort_order() as sorting:
        sorting.asc("who", IdentityTransform())
    with table.update_schema(allow_incompatible_changes=True) as change:
        change.delete_column(("place", "x"))
        change.union_by_name(pa.schema([("id", pa.int64()), ("more", pa.string())]))
        change.make_column_optional("id")
        change.set_identifier_fields()
    table.append(
        pa.Table.from_pylist(
            [{"day": date(2026, 3, 1), "id": 8, "who": "H", "place": {"y": 3}, "more": "m"}], table.schema().as_arrow()
        )
    )
    assert user.check()["place"].to_pylist() == [None, None, {"y": 2}, {"y": 3}]
    with table.transaction() as change:
        change.set_properties({"team": "blue"})
        change.remove_properties("owner")
    loaded = user.catalog.load_table(user.named("people"))
    assert (loaded.properties["team"], "owner" in loaded.properties) == ("blue", False)
    assert [field.name for field in loaded.spec().fields] == ["day_day"]
    assert [field.source_id for field in loaded.sort_order().fields] == [2]


def test_formats_are_upgraded(user: User) -> None:
    table = user.create(properties={"format-version": "1"})
    table.append(people(ADA))
    user.check()
    with table.transaction() as change:
        change.upgrade_table_version(2)
    table.append(people(GRACE))
    table.delete(EqualTo("id", 1))
    assert user.check()["id"].to_pylist() == [2]


def test_snapshots_have_tags_and_branches(user: User) -> None:
    table = user.create()
    table.append(people(ADA))
    first = table.metadata.current_snapshot_id
    assert first is not None
    table.manage_snapshots().create_tag(first, "start").create_branch(first, "side").commit()
    table.append(people(GRACE), branch="side")
    table.append(people(EDSGER))
    scan = table.scan().use_ref("side").to_arrow()
    user.lake.assert_same_over_airport(scan, user.named("people"), at_version="side")
    assert sorted(scan["id"].to_pylist()) == [1, 2]
    user.lake.assert_same_over_airport(
        table.scan().use_ref("start").to_arrow(), user.named("people"), at_version="start"
    )
    user.lake.assert_same_over_airport(table.scan(snapshot_id=first).to_arrow(), user.named("people"), at_version=first)
    assert user.check()["id"].to_pylist() == [1, 3]
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert user.check()["id"].to_pylist() == [1]
    table.manage_snapshots().set_current_snapshot(ref_name="side").commit()
    assert user.check()["id"].to_pylist() == [1, 2]
    table.manage_snapshots().remove_branch("side").remove_tag("start").commit()
    assert set(user.catalog.load_table(user.named("people")).refs()) == {"main"}


def test_snapshots_expire(user: User) -> None:
    table = user.create()
    for row in (ADA, GRACE, EDSGER):
        table.append(people(row))
    first, second, _ = table.snapshots()
    table.maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    assert table.snapshots()[0].snapshot_id == second.snapshot_id
    assert user.check()["id"].to_pylist() == [1, 2, 3]


def test_existing_files_are_added(user: User) -> None:
    folder = user.lake.approved / "added"
    folder.mkdir()
    pq.write_table(people(ADA, GRACE), folder / "a.parquet")
    table = user.create()
    table.add_files([f"file://{folder}/a.parquet"])
    assert user.check()["id"].to_pylist() == [1, 2]
    table.append(people(EDSGER))
    table.delete(EqualTo("id", 1))
    assert user.check()["id"].to_pylist() == [2, 3]
    user.catalog.purge_table(user.named("people"))
    assert (folder / "a.parquet").exists(), "the server deletes only files in the folders of tables"


def test_files_elsewhere_are_refused(user: User, tmp_path: Path) -> None:
    pq.write_table(people(ADA), tmp_path / "a.parquet")
    with pytest.raises(BadRequestError, match="operator approved"):
        user.create().add_files([f"file://{tmp_path}/a.parquet"])
    assert user.check().num_rows == 0


def test_tables_have_chosen_locations_are_registered_and_renamed(user: User) -> None:
    place = f"file://{user.lake.approved}/{user.namespace}"
    table = user.create(location=place)
    assert table.location() == place
    table.append(people(ADA, GRACE))
    user.check()
    user.catalog.drop_table(user.named("people"))
    with pytest.raises(NoSuchTableError):
        user.catalog.load_table(user.named("people"))
    user.catalog.register_table(user.named("back"), table.metadata_location)
    assert user.check("back")["id"].to_pylist() == [1, 2]
    with pytest.raises(TableAlreadyExistsError):
        user.catalog.register_table(user.named("back"), table.metadata_location)
    user.catalog.create_namespace((user.namespace, "inner"))
    user.catalog.rename_table(user.named("back"), (user.namespace, "inner", "moved"))
    moved = user.catalog.load_table((user.namespace, "inner", "moved")).scan().to_arrow()
    user.lake.assert_same_over_airport(moved, f'"{user.namespace}.inner".moved')


def test_transactions_are_all_or_nothing(user: User) -> None:
    with user.catalog.create_table_transaction(user.named("people"), SCHEMA) as staged:
        staged.append(people(ADA))
        staged.set_properties({"team": "blue"})
        assert not user.catalog.table_exists(user.named("people"))
    assert user.check()["id"].to_pylist() == [1]
    table = user.catalog.load_table(user.named("people"))
    with table.transaction() as change:
        change.append(people(GRACE))
        change.delete(EqualTo("id", 1))
        with change.update_schema() as columns:
            columns.add_column("age", LongType())
        assert user.check()["id"].to_pylist() == [1]
    assert user.check()["id"].to_pylist() == [2]
    early, late = (user.catalog.load_table(user.named("people")) for _ in range(2))
    early.delete(EqualTo("id", 2))
    with pytest.raises(ValidationException, match="Deleted data files"):  # after it has loaded the table again
        late.overwrite(people(EDSGER).append_column("age", pa.array([1], pa.int64())))
    assert user.check().num_rows == 0


def test_server_plans_scans(lake: SharedLake, user: User) -> None:
    user.create(partition_spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id")))
    table = user.catalog.load_table(user.named("people"))
    table.append(people(ADA, GRACE, EDSGER))
    table.delete(EqualTo("id", 1))
    planning = User(lake, **{"scan-planning-mode": "server"})
    planned = planning.catalog.load_table(user.named("people"))
    user.lake.assert_same_over_airport(planned.scan().to_arrow(), user.named("people"))
    filtered = planned.scan(And(EqualTo("id", 2), GreaterThan("day", date(2026, 1, 1))))
    assert [task.file.record_count for task in filtered.plan_files()] == [1]
    assert filtered.to_arrow()["name"].to_pylist() == ["Grace"]
    planning.catalog.close()


def test_metadata_tables(user: User) -> None:
    table = user.create(partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name")))
    table.append(people(ADA, GRACE))
    table.delete(EqualTo("id", 1))
    expected = {
        "snapshots": 2,
        "history": 2,
        "refs": 1,
        "manifests": 2,
        "files": 1,
        "data_files": 1,
        "delete_files": 0,
        "partitions": 1,
        "all_data_files": 3,
        "metadata_log_entries": 3,
    }
    assert {name: getattr(table.inspect, name)().num_rows for name in expected} == expected
    listed = user.lake.over_airport("skiway.snapshots", where=col("schema_name") == user.namespace)
    assert set(listed["snapshot_id"].to_pylist()) == set(table.inspect.snapshots()["snapshot_id"].to_pylist())


def test_statistics_files_are_recorded(user: User) -> None:
    table = user.create()
    table.append(people(ADA))
    snapshot = table.metadata.current_snapshot_id
    assert snapshot is not None
    path = f"{table.location()}/metadata/{snapshot}.stats"
    Path(path.removeprefix("file://")).write_bytes(b"PFA1")
    blob = BlobMetadata(
        **{"type": "apache-datasketches-theta-v1", "snapshot-id": snapshot, "sequence-number": 1, "fields": [1]}
    )
    statistics = {
        "snapshot-id": snapshot,
        "statistics-path": path,
        "file-size-in-bytes": 4,
        "file-footer-size-in-bytes": 4,
    }
    with table.update_statistics() as change:
        change.set_statistics(StatisticsFile(**statistics, **{"blob-metadata": [blob]}))
    assert [each.statistics_path for each in user.catalog.load_table(user.named("people")).metadata.statistics] == [
        path
    ]
    with table.update_statistics() as change:
        change.remove_statistics(snapshot)
    assert user.catalog.load_table(user.named("people")).metadata.statistics == []
    user.check()


def test_views_are_created_listed_read_over_airport_and_dropped(user: User) -> None:
    from pyiceberg.exceptions import NoSuchViewError  # older versions have no views
    from pyiceberg.view.metadata import ViewVersion

    user.create().append(people(ADA, GRACE, EDSGER))
    sql = "SELECT id AS number, name FROM people WHERE id < 3"
    version = {
        "version-id": 1,
        "schema-id": 1,
        "timestamp-ms": 1,
        "summary": {},
        "representations": [{"type": "sql", "sql": sql, "dialect": "spark"}],
        "default-namespace": [user.namespace],
    }
    schema = Schema(NestedField(1, "number", LongType()), NestedField(2, "name", StringType()), schema_id=1)
    made = user.catalog.create_view(user.named("few"), schema, ViewVersion.model_validate(version))
    assert made.sql_for("spark").sql == sql
    assert user.catalog.view_exists(user.named("few"))
    expected = pa.table({"number": pa.array([1, 2], pa.int64()), "name": ["Ada", "Grace"]})
    user.lake.assert_same_over_airport(expected, user.named("few"))
    with user.lake.airport() as db:
        db.call("skiway.create_view", user.named("many"), "SELECT count(*) AS n FROM people").read_all()
    assert set(user.catalog.list_views(user.namespace)) == {(user.namespace, "few"), (user.namespace, "many")}
    assert user.catalog.load_view(user.named("many")).sql_for("duckdb").sql == "SELECT count(*) AS n FROM people"
    user.catalog.drop_view(user.named("few"))
    with pytest.raises(NoSuchViewError):
        user.catalog.drop_view(user.named("few"))


def test_rows_written_over_airport_are_read(user: User) -> None:
    with user.lake.airport() as db:
        db.create_table(user.named("people"), people().schema)
        db.insert(user.named("people"), people(ADA, GRACE))
        assert user.check()["id"].to_pylist() == [1, 2]
        db.update(user.named("people"), {"name": "A"}, where=col("id") == 1)
    assert user.check()["name"].to_pylist() == ["A", "Grace"]
