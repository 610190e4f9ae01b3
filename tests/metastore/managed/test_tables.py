"""Managed tables: Iceberg tables whose catalog is the metastore."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    AssertCreate,
    AssertRefSnapshotId,
    AssignUUIDUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
    SetStatisticsUpdate,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField

from formats.oracles import extended
from metastore.integrity import damage
from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.resource_factory import ResourceFactory, expect_error, mask
from skiway.errors import (
    AlreadyExists,
    Conflict,
    Contention,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    Unsupported,
)
from skiway.formats.files import FileCache
from skiway.formats.iceberg.changes.commits import append, delete_all, overwrite, rollback
from skiway.formats.iceberg.changes.evolution import AddColumn, evolve
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore import managed as managed_tables
from skiway.metastore import statistics
from skiway.metastore.gc.warehouse import sweep_warehouse
from skiway.metastore.managed.locations import folder_of, id_in
from skiway.metastore.resources import directory, snapshots, tables
from skiway.metastore.resources.hierarchy import SYSTEM_ACCOUNT
from skiway.metastore.statistics.bounds import check_file, check_table
from skiway.model import v1

CURRENT = v1.SnapshotRef(special=v1.SS_CURRENT)


@pytest.fixture
def managed(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    return ManagedTableFactory.at(factory, tmp_path)


# --- create and load --------------------------------------------------------------------------------------------------


def test_new_table_can_be_resolved_and_is_empty(managed: ManagedTableFactory) -> None:
    created = managed.create(properties={"comment": "everybody", "owner": "me"})
    ref = v1.NameRef(catalog="lake", path=["sales"], name="people")
    found = directory.resolve_table(managed.home, v1.ResolveTableRequest(ref=ref))
    assert found.resource_id == created.table.resource_id
    stored = tables.get(managed.home, v1.GetTableRequest(table_id=id_of(created))).table
    assert stored.metadata_location == created.metadata_location
    assert stored.description == "everybody"
    assert dict(stored.properties) == {"comment": "everybody", "owner": "me"}
    assert [field["name"] for field in json.loads(stored.schema_json)["fields"]] == ["x"]
    assert managed.rows(created) == []
    assert damage(managed.factory.stores) == []


def test_table_folder_is_named_after_ids(managed: ManagedTableFactory, tmp_path: Path) -> None:
    created = managed.create(name="../../%2e%2e/etc/passwd")
    assert created.metadata.location == f"file://{tmp_path}/warehouse/a1/{created.id}"
    assert created.table.display_name == "../../%2e%2e/etc/passwd"


def test_account_id_with_dots_and_slashes_is_one_folder(managed: ManagedTableFactory, tmp_path: Path) -> None:
    realm = managed.factory.realm("../é.b%2f")
    folder = folder_of(realm, managed.warehouse, "t")
    assert folder.startswith(f"file://{tmp_path}/warehouse/=2E=2E=2F")
    assert id_in(folder.rsplit("/", 2)[1]) == "../é.b%2f"


@pytest.mark.parametrize("location", ["/etc", "file:///tmp/x", "s3://bucket/x", "../x", "%2e%2e/x"])
def test_location_chosen_by_the_caller_is_rejected(managed: ManagedTableFactory, location: str) -> None:
    with expect_error(InvalidArgument, "location.refused"):
        managed.create(location=location)


@pytest.mark.parametrize("key", ["write.data.path", "write.metadata.path", "write.object-storage.path"])
def test_properties_cannot_redirect_files(managed: ManagedTableFactory, key: str) -> None:
    with expect_error(InvalidArgument, "location.refused"):
        managed.create(properties={key: "file:///tmp/elsewhere"})
    table = managed.create()
    with expect_error(InvalidArgument, "location.refused"):
        commit(managed, table, SetPropertiesUpdate(updates={key: f"{table.metadata.location}/../x"}))


def test_existing_name_is_rejected_and_leaves_no_file(managed: ManagedTableFactory, tmp_path: Path) -> None:
    managed.create(name="people")
    before = set(tmp_path.rglob("*.json"))
    with pytest.raises(AlreadyExists):
        managed.create(name="People")
    assert set(tmp_path.rglob("*.json")) == before


def test_unsupported_type_is_rejected_with_its_column(managed: ManagedTableFactory) -> None:
    with expect_error(Unsupported, "column.type", column="wait"):
        managed.create(schema=pa.schema({"wait": pa.duration("s")}))


def test_tables_are_created_only_in_managed_catalogs(managed: ManagedTableFactory) -> None:
    mirrored = managed.factory.catalog("mirrored", connector_ref="somewhere")
    namespace = managed.factory.namespace("sales", catalog=mirrored)
    with expect_error(PreconditionFailed, "catalog.not_managed"):
        managed.create(namespace_id=namespace.resource_id)


def test_unmanaged_table_cannot_be_loaded(managed: ManagedTableFactory) -> None:
    with expect_error(PreconditionFailed, "table.not_managed"):
        managed.load(managed.factory.table("plain"))


def test_table_cannot_be_created_in_a_system_namespace(managed: ManagedTableFactory) -> None:
    managed.factory.first_namespace()
    with expect_error(PermissionDenied, "system.object.immutable"):
        managed.create(namespace_id=v1.ResourceId(account_id=SYSTEM_ACCOUNT, id="x", kind=v1.RK_NAMESPACE))


def test_table_of_another_account_is_not_found(managed: ManagedTableFactory) -> None:
    created = managed.create()
    managed.factory.account("a2")
    with pytest.raises(NotFound):
        managed_tables.load(managed.factory.realm("a2"), managed.warehouse, v1.ResourceId(id=created.id))


# --- commit -----------------------------------------------------------------------------------------------------------


def commit(managed: ManagedTableFactory, table: managed_tables.ManagedTable, *updates, requirements=()):
    return managed_tables.commit(managed.home, managed.warehouse, id_of(table), requirements, updates)


def test_commit_publishes_rows_snapshot_and_statistics_together(managed: ManagedTableFactory) -> None:
    table = managed.append(managed.append(managed.create(), 1, 2), 3, 5)
    assert managed.rows(table) == [1, 2, 3, 5]
    stored = snapshots.get(managed.home, v1.GetSnapshotRequest(table_id=id_of(table), snapshot=CURRENT)).snapshot
    current = table.metadata.current_snapshot()
    assert stored.snapshot_id == current.snapshot_id
    assert stored.parent_snapshot_id == current.parent_snapshot_id
    assert stored.manifest_list == current.manifest_list
    assert stored.metadata_location == table.metadata_location
    assert stored.summary["operation"] == "append"
    assert stored.upstream_created_at.ToMilliseconds() == current.timestamp_ms
    stats = statistics.get_table(managed.home, v1.GetTableStatsRequest(table_id=id_of(table), snapshot=CURRENT)).stats
    assert (stats.row_count, stats.data_file_count) == (4, 2)
    files = statistics.list_files(
        managed.home, v1.ListFileColumnStatsRequest(table_id=id_of(table), snapshot=CURRENT)
    ).files
    assert sorted((file.columns[0].min, file.columns[0].max, file.row_count) for file in files) == [
        ("1", "2", 2),
        ("3", "5", 2),
    ]
    assert stats.total_size_bytes == sum(file.size_bytes for file in files)
    assert damage(managed.factory.stores) == []


def test_stored_statistics_pass_the_validation_of_the_metastore(managed: ManagedTableFactory) -> None:
    schema = pa.schema(
        [("n", pa.decimal128(9, 3)), ("f", pa.float64()), ("t", pa.timestamp("us", tz="UTC")), ("s", pa.string())]
    )
    table = managed.create(schema=schema, partition_by=["s"])
    rows = pa.table({"n": [None, Decimal("1.5")], "f": [float("nan"), 2.5], "t": [0, 10**15], "s": ["a/b", None]})
    with DataFileWriter(table.files, table.metadata) as writer:
        batch = rows.cast(schema).to_batches()[0]
        writer.write(batch)
        table = managed_tables.change(managed.home, managed.warehouse, id_of(table), append(writer.close()))
    request = v1.ListFileColumnStatsRequest(table_id=id_of(table), snapshot=CURRENT)
    files = statistics.list_files(managed.home, request).files
    for file in files:
        check_file(file)
    assert sorted(json.loads(file.partition_data_json)["s"] or "" for file in files) == ["", "a/b"]
    request = v1.GetTableStatsRequest(table_id=id_of(table), snapshot=CURRENT)
    check_table(statistics.get_table(managed.home, request).stats)


def test_failed_requirement_is_a_conflict_with_a_reason(managed: ManagedTableFactory, tmp_path: Path) -> None:
    table = managed.append(managed.create(), 1)
    before = set(tmp_path.rglob("*.json"))
    with expect_error(Conflict, "commit.failed"):
        commit(
            managed,
            table,
            SetPropertiesUpdate(updates={"a": "b"}),
            requirements=[AssertRefSnapshotId(ref="main", snapshot_id=77)],
        )
    assert set(tmp_path.rglob("*.json")) == before
    assert managed.load(table).metadata_location == table.metadata_location


def test_commit_without_updates_changes_nothing(managed: ManagedTableFactory) -> None:
    table = managed.create()
    assert commit(managed, table).metadata_location == table.metadata_location


def without_local_lock():
    """A block whose commits bypass the lock of this server, like commits of another server."""
    return mock.patch.object(Warehouse, "lock", return_value=nullcontext())


def test_lost_race_is_retried_on_the_new_state(managed: ManagedTableFactory, tmp_path: Path) -> None:
    table = managed.create()
    files = managed.write(table, 1)
    tried = []

    def commit_first(metadata, files_, clock):
        created = append(files)(metadata, files_, clock)
        if not tried:
            with without_local_lock():
                managed.append(table, 2)
        tried.append(metadata)
        return created

    managed_tables.change(managed.home, managed.warehouse, id_of(table), commit_first, sleep=lambda _: None)
    assert managed.rows(table) == [1, 2]
    assert len(tried) == 2
    left = {path.name for path in tmp_path.rglob("*.metadata.json")}
    assert len(left) == 3, "the metadata file of the lost attempt must be deleted"


def test_retries_of_a_race_that_is_always_lost_end(managed: ManagedTableFactory) -> None:
    table, tried, paused = managed.create(), [], []

    def always_lose(metadata, files, clock):
        tried.append(metadata)
        with without_local_lock():
            commit(managed, table, SetPropertiesUpdate(updates={"turn": str(len(tried))}))
        return append([])(metadata, files, clock)

    with expect_error(Conflict, "commit.failed"):
        managed_tables.change(managed.home, managed.warehouse, id_of(table), always_lose, sleep=paused.append)
    assert len(tried) == 40
    assert len(paused) == 39, "there must be a pause between two attempts"
    assert max(paused) <= 0.5


def test_schema_change_updates_the_record(managed: ManagedTableFactory) -> None:
    table = managed.append(managed.create(), 1)
    managed_tables.change(
        managed.home, managed.warehouse, id_of(table), evolve([AddColumn("name", pa.string(), doc="who")])
    )
    stored = tables.get(managed.home, v1.GetTableRequest(table_id=id_of(table))).table
    assert [field["name"] for field in json.loads(stored.schema_json)["fields"]] == ["x", "name"]
    historical = tables.get(managed.home, v1.GetTableRequest(table_id=id_of(table), snapshot=CURRENT)).table
    assert [field["name"] for field in json.loads(historical.schema_json)["fields"]] == ["x"]


def test_rollback_makes_the_older_snapshot_current(managed: ManagedTableFactory) -> None:
    first = managed.append(managed.create(), 1)
    old = first.metadata.current_snapshot_id
    managed.append(first, 2)
    managed_tables.change(managed.home, managed.warehouse, id_of(first), rollback(old))
    stored = snapshots.get(managed.home, v1.GetSnapshotRequest(table_id=id_of(first), snapshot=CURRENT)).snapshot
    assert stored.snapshot_id == old
    assert managed.rows(first) == [1]
    assert damage(managed.factory.stores) == []


@pytest.mark.parametrize("max_batch", [1000, 25])
def test_removed_snapshots_are_deleted_with_their_statistics(
    managed: ManagedTableFactory, monkeypatch: pytest.MonkeyPatch, max_batch: int
) -> None:
    table = managed.create()
    for value in range(6):
        table = managed.append(table, value)
    gone = [each.snapshot_id for each in table.metadata.snapshots[:-1]]
    monkeypatch.setattr(type(managed.factory.stores.pointers), "max_batch", max_batch)
    commit(managed, table, RemoveSnapshotsUpdate(snapshot_ids=gone))
    listed = snapshots.list_(managed.home, v1.ListSnapshotsRequest(table_id=id_of(table))).snapshots
    assert [each.snapshot_id for each in listed] == [table.metadata.current_snapshot_id]
    assert not [
        pointer.key
        for pointer in managed.factory.stores.pointers.scan()
        if any(f"{number:019d}" in pointer.key for number in gone)
    ]
    assert managed.rows(table) == list(range(6))


def contend(*_: object, **__: object) -> None:
    raise Contention("somebody else was faster")


def test_leftover_records_of_removed_snapshots_are_swept(
    managed: ManagedTableFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = managed.create()
    for value in range(6):
        table = managed.append(table, value)
    with monkeypatch.context() as patch:
        patch.setattr(type(managed.factory.stores.pointers), "max_batch", 20)
        patch.setattr("skiway.metastore.managed.states.apply_batch", contend)
        commit(
            managed,
            table,
            RemoveSnapshotsUpdate(snapshot_ids=[each.snapshot_id for each in table.metadata.snapshots[:-1]]),
        )

    def listed() -> list[int]:
        request = v1.ListSnapshotsRequest(table_id=id_of(table))
        return [each.snapshot_id for each in snapshots.list_(managed.home, request).snapshots]

    assert len(listed()) > 1
    assert managed.rows(table) == list(range(6)), "a later failure must not undo the commit"
    sweep(managed, dry_run=False)
    assert listed() == [table.metadata.current_snapshot_id]


@pytest.mark.parametrize(
    "update",
    [
        lambda table: SetLocationUpdate(location="file:///tmp/other"),
        lambda table: SetLocationUpdate(location=f"{table.metadata.location}/deeper"),
        lambda table: SetStatisticsUpdate(
            statistics=StatisticsFile(
                snapshot_id=1,
                statistics_path="/etc/passwd",
                file_size_in_bytes=1,
                file_footer_size_in_bytes=1,
                blob_metadata=[],
            )
        ),
    ],
)
def test_updates_with_other_locations_are_rejected(managed: ManagedTableFactory, update) -> None:
    table = managed.create()
    with expect_error(InvalidArgument, "location.refused"):
        commit(managed, table, update(table))


def test_snapshot_with_files_of_another_table_is_rejected(managed: ManagedTableFactory) -> None:
    secret = managed.append(managed.create(name="secret"), 42)
    attacker = managed.create(name="thief")
    foreign_snapshot = secret.metadata.current_snapshot()
    with expect_error(InvalidArgument, "location.refused"):
        commit(managed, attacker, AddSnapshotUpdate(snapshot=foreign_snapshot))
    # The manifest list belongs to the attacker's table, but the files it lists do not.
    created = append(managed.write(secret, 1))(secret.metadata, secret.files, managed.home.clock)
    copied = f"{attacker.metadata.location}/metadata/list.avro"
    attacker.files.write(copied, secret.files.read(created.updates[0].snapshot.manifest_list))
    forged = created.updates[0].snapshot.model_copy(update={"manifest_list": copied})
    with pytest.raises(Exception, match="outside of the table's folder"):
        commit(managed, attacker, AddSnapshotUpdate(snapshot=forged))
    assert managed.rows(attacker) == []


def test_data_files_outside_the_table_folder_are_rejected(managed: ManagedTableFactory) -> None:
    secret, attacker = managed.create(name="secret"), managed.create(name="thief")
    foreign = managed.write(secret, 42)
    with expect_error(PermissionDenied, "location.outside"):
        managed_tables.change(managed.home, managed.warehouse, id_of(attacker), append(foreign))
    assert managed.rows(attacker) == []


def test_secrets_are_rejected_as_properties(managed: ManagedTableFactory) -> None:
    table = managed.create()
    with expect_error(InvalidArgument, "property.secret"):
        commit(managed, table, SetPropertiesUpdate(updates={"s3.secret-access-key": "x"}))


def test_table_uuid_cannot_be_changed(managed: ManagedTableFactory) -> None:
    table = managed.create()
    with expect_error(InvalidArgument, "update.invalid"):
        commit(managed, table, AssignUUIDUpdate(uuid=uuid.uuid4()))


@pytest.mark.parametrize("call", ["create", "set_current", "delete", "update"])
def test_snapshots_of_a_managed_table_change_only_by_commits(managed: ManagedTableFactory, call: str) -> None:
    table = managed.append(managed.create(), 1)
    number = table.metadata.current_snapshot_id
    spec = v1.SnapshotSpec(table_id=id_of(table), snapshot_id=number, schema_json="{}")
    requests = {
        "create": v1.CreateSnapshotRequest(spec=spec),
        "set_current": v1.SetCurrentSnapshotRequest(table_id=id_of(table), snapshot_id=number),
        "delete": v1.DeleteSnapshotRequest(table_id=id_of(table), snapshot_id=number),
        "update": v1.UpdateSnapshotRequest(spec=spec, update_mask=mask("schema_json")),
    }
    with expect_error(PreconditionFailed, "table.managed"):
        getattr(snapshots, call)(managed.home, requests[call])


@pytest.mark.parametrize("field", ["schema_json", "properties", "upstream"])
def test_fields_derived_from_commits_cannot_be_set(managed: ManagedTableFactory, field: str) -> None:
    table = managed.create()
    spec = v1.TableSpec(schema_json="{}", properties={"a": "b"}, upstream=v1.UpstreamRef(uri="x"))
    request = v1.UpdateTableRequest(table_id=id_of(table), spec=spec, update_mask=mask(field))
    with expect_error(PreconditionFailed, "table.managed"):
        tables.update(managed.home, request)


def test_description_survives_commits(managed: ManagedTableFactory) -> None:
    table = managed.create()
    request = v1.UpdateTableRequest(
        table_id=id_of(table), spec=v1.TableSpec(description="mine"), update_mask=mask("description")
    )
    tables.update(managed.home, request)
    assert managed.append(table, 1).table.description == "mine"
    assert commit(managed, table, SetPropertiesUpdate(updates={"comment": "new"})).table.description == "new"


# --- staged -----------------------------------------------------------------------------------------------------------


def staged_updates(table: managed_tables.ManagedTable, version: int = 2):
    metadata = table.metadata
    return [
        AssignUUIDUpdate(uuid=metadata.table_uuid),
        UpgradeFormatVersionUpdate(format_version=version),
        AddSchemaUpdate(schema=metadata.schema()),
        SetCurrentSchemaUpdate(schema_id=-1),
        AddPartitionSpecUpdate(spec=metadata.spec()),
        SetDefaultSpecUpdate(spec_id=-1),
        AddSortOrderUpdate(sort_order=metadata.sort_order()),
        SetDefaultSortOrderUpdate(sort_order_id=-1),
        SetLocationUpdate(location=metadata.location),
        SetPropertiesUpdate(updates=metadata.properties),
    ]


def create_staged(managed: ManagedTableFactory, updates, name: str = "people"):
    namespace = managed.factory.first_namespace()
    creation = managed_tables.TableCreation(namespace.resource_id, name, [AssertCreate()], updates)
    return managed_tables.create_staged(managed.home, managed.warehouse, creation)


@pytest.mark.parametrize("version", [2, 3])
def test_staged_table_is_created_with_its_rows(managed: ManagedTableFactory, version: int) -> None:
    staged = managed.create(stage=True, properties={"format-version": str(version)})
    assert not list(managed.factory.stores.pointers.scan("/accounts/a1/tables/"))
    created = append(managed.write(staged, 1, 2))(staged.metadata, staged.files, managed.home.clock)
    table = create_staged(managed, [*staged_updates(staged, version), *created.updates])
    assert table.metadata.table_uuid == staged.metadata.table_uuid
    assert table.metadata.format_version == version
    assert managed.rows(table) == [1, 2]
    assert managed.rows(managed.append(table, 3)) == [1, 2, 3]
    stats = statistics.get_table(managed.home, v1.GetTableStatsRequest(table_id=id_of(table), snapshot=CURRENT)).stats
    assert stats.row_count == 3
    assert damage(managed.factory.stores) == []


def test_staged_table_whose_name_was_taken_meanwhile_is_rejected(managed: ManagedTableFactory) -> None:
    staged = managed.create(stage=True)
    managed.create()
    with pytest.raises(AlreadyExists):
        create_staged(managed, staged_updates(staged))


@pytest.mark.parametrize("location", ["file:///tmp/x", "{warehouse}/a2/t", "{warehouse}", "{warehouse}/a1/t/deeper"])
def test_staged_table_must_keep_its_location(managed: ManagedTableFactory, location: str) -> None:
    staged = managed.create(stage=True)
    formatted = location.format(warehouse=managed.warehouse.folder())
    updates = [each for each in staged_updates(staged) if each.action != "set-location"]
    with pytest.raises(InvalidArgument):
        create_staged(managed, [*updates, SetLocationUpdate(location=formatted)])


def test_staged_table_cannot_use_the_folder_of_another(managed: ManagedTableFactory) -> None:
    other = managed.append(managed.create(name="other"), 1)
    staged = managed.create(stage=True)
    updates = [each for each in staged_updates(staged) if each.action != "set-location"]
    with pytest.raises(AlreadyExists):
        create_staged(managed, [*updates, SetLocationUpdate(location=other.metadata.location)])
    assert managed.rows(other) == [1]


def test_table_is_created_with_the_given_iceberg_schema_and_spec(managed: ManagedTableFactory) -> None:
    schema = Schema(NestedField(7, "x", LongType(), required=False))
    spec = PartitionSpec(PartitionField(7, 1000, BucketTransform(4), "x_bucket"))
    table = managed.create(schema=schema, spec=spec, order=SortOrder())
    assert table.metadata.schema().find_field("x").field_id == 1
    assert str(table.metadata.spec().fields[0].transform) == "bucket[4]"
    assert managed.rows(managed.append(table, 1, 2, 3)) == [1, 2, 3]


# --- rename and drop --------------------------------------------------------------------------------------------------


def test_renamed_table_keeps_its_files(managed: ManagedTableFactory) -> None:
    table = managed.append(managed.create(), 1)
    archive = managed.factory.namespace("archive")
    renamed = managed_tables.rename(managed.home, id_of(table), name="folk", namespace_id=archive.resource_id)
    assert renamed.metadata_location == table.metadata_location
    ref = v1.NameRef(catalog="lake", path=["archive"], name="folk")
    assert directory.resolve_table(managed.home, v1.ResolveTableRequest(ref=ref)).resource_id == id_of(table)
    assert managed.rows(managed.append(managed.load(table), 2)) == [1, 2]


def test_files_of_a_dropped_table_stay_until_gc(managed: ManagedTableFactory, tmp_path: Path) -> None:
    table = managed.append(managed.create(), 1)
    managed_tables.drop(managed.home, managed.warehouse, id_of(table))
    with pytest.raises(NotFound):
        managed.load(table)
    assert list(tmp_path.rglob("*.parquet"))
    assert not list(managed.factory.stores.pointers.scan("/accounts/a1/tables/"))


def test_purged_table_leaves_no_files(managed: ManagedTableFactory, tmp_path: Path) -> None:
    other = managed.append(managed.create(name="other"), 7)
    table = managed.append(managed.create(), 1)
    managed_tables.drop(managed.home, managed.warehouse, id_of(table), purge=True)
    assert not (tmp_path / "warehouse" / "a1" / table.id).exists()
    assert managed.rows(other) == [7]


@pytest.mark.parametrize("purge", [False, True])
@pytest.mark.parametrize("damage_file", [Path.unlink, lambda path: path.write_bytes(b"{")], ids=["gone", "corrupt"])
def test_table_with_missing_metadata_can_be_dropped(
    managed: ManagedTableFactory, damage_file: Callable[[Path], object], *, purge: bool
) -> None:
    table = managed.append(managed.create(), 1)
    damage_file(Path(table.metadata_location.removeprefix("file://")))
    managed.warehouse = replace(managed.warehouse, cache=FileCache())  # as in a new process
    with pytest.raises(PreconditionFailed, match=r"missing|corrupt"):
        managed.load(table)
    managed_tables.drop(managed.home, managed.warehouse, id_of(table), purge=purge)
    with pytest.raises(NotFound):
        managed.load(table)
    assert Path(table.metadata.location.removeprefix("file://")).exists() is not purge
    assert managed.rows(managed.append(managed.create(), 2)) == [2]


# --- gc ---------------------------------------------------------------------------------------------------------------


def set_age(folder: Path, days: float, *, pattern: str = "*") -> None:
    """Make files old enough for gc, which uses the modification times of the disk."""
    moment = time.time() - days * 86400
    for path in folder.rglob(pattern):
        if path.is_file():
            os.utime(path, (moment, moment))


def sweep(managed: ManagedTableFactory, **options):
    return sweep_warehouse(managed.factory.stores, managed.warehouse, clock=lambda: datetime.now(UTC), **options)


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_sweep_deletes_exactly_the_unreferenced_files(managed: ManagedTableFactory, tmp_path: Path) -> None:
    folder = tmp_path / "warehouse"
    table = managed.append(managed.append(managed.create(), 1), 2)
    live = files_in(folder)
    orphan = managed.write(table, 99)[0].file_path.rpartition("/")[2]
    set_age(folder, days=10)
    dry_run = sweep(managed)
    assert {uri.rpartition("/")[2] for uri in dry_run.removed} == {orphan}
    assert files_in(folder) == live | {orphan}, "a dry run must delete nothing"
    assert sweep(managed, dry_run=False).removed == dry_run.removed
    assert files_in(folder) == live
    assert managed.rows(table) == [1, 2]


def test_sweep_keeps_files_that_are_being_written(managed: ManagedTableFactory, tmp_path: Path) -> None:
    table = managed.append(managed.create(), 1)
    set_age(tmp_path, days=10)
    files = managed.write(table, 5)
    assert sweep(managed, dry_run=False).removed == ()
    managed_tables.change(managed.home, managed.warehouse, id_of(table), append(files))
    assert managed.rows(table) == [1, 5]


def test_sweep_keeps_states_that_queries_may_still_read(managed: ManagedTableFactory, tmp_path: Path) -> None:
    table = managed.append(managed.create(), 1)
    expired = table.metadata.current_snapshot_id
    set_age(tmp_path, days=10)
    managed_tables.change(managed.home, managed.warehouse, id_of(table), delete_all())
    commit(managed, table, RemoveSnapshotsUpdate(snapshot_ids=[expired]))
    assert sweep(managed, dry_run=False).removed == (), "a query that began yesterday may read the old snapshot"
    set_age(tmp_path, days=10, pattern="0000[12]*")
    set_age(tmp_path, days=9, pattern="00003*")
    set_age(tmp_path, days=10, pattern="*.avro")
    removed = {uri.rpartition("/")[2].rpartition(".")[2] for uri in sweep(managed, dry_run=False).removed}
    assert "parquet" in removed
    assert managed.rows(table) == []


def test_sweep_deletes_dropped_tables_once_no_query_can_read_them(managed: ManagedTableFactory, tmp_path: Path) -> None:
    folder = tmp_path / "warehouse" / "a1"
    table = managed.append(managed.create(), 1)
    set_age(tmp_path, days=10)
    managed_tables.drop(managed.home, managed.warehouse, id_of(table))
    assert sweep(managed, dry_run=False).removed == ()
    set_age(tmp_path, days=10)
    assert sweep(managed, dry_run=False).removed
    assert not (folder / table.id).exists()


def test_sweep_continues_from_table_to_table(managed: ManagedTableFactory, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        managed.write(managed.create(name=name), 1)
    set_age(tmp_path, days=10)
    token, removed = None, []
    for _ in range(3):
        done = sweep(managed, size=1, token=token)
        removed += done.removed
        token = done.next_token
    assert token is None
    assert len(removed) == 3


def test_sweep_keeps_all_files_of_a_table_with_missing_metadata(managed: ManagedTableFactory, tmp_path: Path) -> None:
    table = managed.append(managed.create(), 1)
    managed.write(table, 2)
    Path(table.metadata.current_snapshot().manifest_list.removeprefix("file://")).unlink()
    set_age(tmp_path, days=10)
    done = sweep(managed, dry_run=False)
    assert done.removed == ()
    assert done.damaged == (table.metadata.location,)


def test_uncommitted_files_of_a_crashed_process_are_swept(managed: ManagedTableFactory, tmp_path: Path) -> None:
    table = managed.append(managed.create(), 1)
    created = overwrite([], managed.write(table, 2), based_on=None)(table.metadata, table.files, managed.home.clock)
    set_age(tmp_path, days=10)
    swept = {uri for uri in sweep(managed, dry_run=False).removed if uri.endswith(".avro")}
    assert swept == set(created.written)
    assert managed.rows(table) == [1]


# --- other readers ----------------------------------------------------------------------------------------------------


@pytest.mark.needs("duckdb extensions")
def test_duckdb_reads_committed_tables(managed: ManagedTableFactory, tmp_path: Path) -> None:
    table = managed.append(managed.append(managed.create(), 1), 2)
    with extended(tmp_path / "extensions") as duck:
        read = duck.execute("SELECT list_sort(list(x)) FROM iceberg_scan(?)", [table.metadata_location]).fetchone()
    assert read == ([1, 2],)


def test_time_travel_reads_the_older_snapshot(managed: ManagedTableFactory) -> None:
    first = managed.append(managed.create(), 1)
    managed.factory.clock.now += timedelta(hours=1)
    managed.append(first, 2)
    as_of = v1.SnapshotRef()
    as_of.as_of.FromMilliseconds(first.metadata.current_snapshot().timestamp_ms)
    historical = snapshots.get(managed.home, v1.GetSnapshotRequest(table_id=id_of(first), snapshot=as_of)).snapshot
    assert historical.snapshot_id == first.metadata.current_snapshot_id


def test_only_a_table_that_nobody_has_changed_is_dropped_as_unused(managed: ManagedTableFactory) -> None:
    def is_dropped(table: managed_tables.ManagedTable) -> bool:
        return managed_tables.drop_unused(managed.home, managed.warehouse, id_of(table))

    unused = managed.create("unused")
    assert is_dropped(unused)
    assert not is_dropped(unused), "it is gone already"
    with pytest.raises(NotFound):
        managed.load(unused)
    filled = managed.append(managed.create("filled"), 1)
    assert not is_dropped(filled)
    assert managed.rows(filled) == [1]
    renamed = managed.create("before")
    managed.factory.clock.advance(1)
    managed_tables.rename(managed.home, id_of(renamed), name="after")
    assert not is_dropped(renamed)
    assert managed.load(renamed).table.display_name == "after"
