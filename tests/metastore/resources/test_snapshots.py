from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from metastore.integrity import damage
from metastore.races import meanwhile
from metastore.resource_factory import behavior, expect_error, key, mask
from skiway.errors import Conflict, Internal, InvalidArgument, NotFound, PreconditionFailed
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import COLUMN_STATS, FILE_STATS, SNAPSHOT, TABLE_STATS
from skiway.metastore.records.realm import timestamp
from skiway.metastore.resources import hierarchy, snapshots, tables
from skiway.model import v1

Create, Update, Delete, Get, Spec, Ref = (
    v1.CreateSnapshotRequest,
    v1.UpdateSnapshotRequest,
    v1.DeleteSnapshotRequest,
    v1.GetSnapshotRequest,
    v1.SnapshotSpec,
    v1.SnapshotRef,
)


def got(factory: Any, table: v1.Table, **ref: Any) -> int:
    request = Get(table_id=table.resource_id, snapshot=Ref(**ref))
    return snapshots.get(factory.home, request).snapshot.snapshot_id


def current(factory: Any, table: v1.Table) -> int:
    return got(factory, table, special=v1.SS_CURRENT)


def delete(factory: Any, table: v1.Table, snapshot_id: int, **precondition: Any) -> v1.MutationMeta:
    request = Delete(table_id=table.resource_id, snapshot_id=snapshot_id, precondition=v1.Precondition(**precondition))
    return snapshots.delete(factory.home, request).meta


def test_snapshot_is_stored_as_requested(factory):
    table = factory.table()
    spec = Spec(
        table_id=table.resource_id,
        snapshot_id=5,
        parent_snapshot_id=4,
        upstream_created_at=Timestamp(seconds=10),
        schema_json="[]",
        schema_id=2,
        partition_spec=v1.PartitionSpecInfo(spec_id=1, fields=[v1.PartitionField(name="day", transform="day")]),
        sequence_number=9,
        manifest_list="s3://m",
        metadata_location="s3://v2",
        summary={"operation": "append"},
        format_metadata={"iceberg": b"\x00"},
    )
    created = snapshots.create(factory.home, Create(spec=spec))
    assert created.snapshot.ingested_at == timestamp(factory.clock())
    assert (created.snapshot.parent_snapshot_id, created.snapshot.partition_spec.fields[0].name) == (4, "day")
    found = snapshots.get(factory.home, Get(table_id=table.resource_id, snapshot=Ref(snapshot_id=5)))
    assert (found.snapshot, found.meta) == (created.snapshot, created.meta)
    assert damage(factory.stores) == []


@behavior(33)
def test_id_zero_is_valid(factory):
    table = factory.table()
    factory.snapshot(table, 0, at=1)
    child = factory.snapshot(table, 1, at=2, parent_snapshot_id=0)
    assert child.HasField("parent_snapshot_id")
    assert (child.parent_snapshot_id, got(factory, table, snapshot_id=0)) == (0, 0)
    assert not factory.snapshot(table, 2).HasField("parent_snapshot_id")


@behavior(33)
def test_newest_snapshot_becomes_current_and_older_ones_do_not(factory):
    table = factory.table()
    for snapshot_id, at, expected in [(5, None, 5), (3, 10, 3), (9, 5, 3), (4, 10, 4), (2, 10, 4), (1, 11, 1)]:
        factory.snapshot(table, snapshot_id, at=at)
        assert current(factory, table) == expected
    request = v1.ListSnapshotsRequest(table_id=table.resource_id)
    assert [each.snapshot_id for each in snapshots.list_(factory.home, request).snapshots] == [1, 4, 3, 2, 9, 5]


@behavior(33)
def test_as_of_finds_the_newest_snapshot_that_is_not_later(factory):
    table = factory.table()
    for snapshot_id, at in [(1, 10), (2, 20), (3, 20), (4, 30), (7, -5)]:
        factory.snapshot(table, snapshot_id, at=at)
    expected = {10: 1, 19: 1, 20: 3, 29: 3, 30: 4, 99: 4, 0: 7, -5: 7}
    assert {at: got(factory, table, as_of=Timestamp(seconds=at)) for at in expected} == expected
    assert got(factory, table, as_of=Timestamp(seconds=19, nanos=999_999_999)) == 1
    factory.snapshot(table, 2**63 - 1, at=30)
    assert got(factory, table, as_of=Timestamp(seconds=30)) == 2**63 - 1
    with expect_error(NotFound, "snapshot.not.found.at.time", as_of="1969-12-31T23:59:54Z"):
        got(factory, table, as_of=Timestamp(seconds=-6))


@behavior(32)
def test_identical_snapshot_is_returned_and_different_content_is_rejected(factory):
    table = factory.table(schema_json='["then"]')
    first = factory.snapshot(table, 1, at=1, summary={"a": "b"})
    assert first.schema_json == '["then"]'
    request = v1.UpdateTableRequest(
        table_id=table.resource_id, spec=v1.TableSpec(schema_json='["now"]'), update_mask=mask("schema_json")
    )
    tables.update(factory.home, request)
    factory.clock.advance(60)
    assert factory.snapshot(table, 1, at=1, summary={"a": "b"}) == first
    assert factory.snapshot(table, 1, at=1, summary={"a": "b"}, schema_json='["then"]') == first
    assert factory.snapshot(table, 2, at=2).schema_json == '["now"]'
    for other in ({"at": 2}, {"at": 1, "summary": {}}, {"at": 1, "parent_snapshot_id": 0}):
        with expect_error(Conflict, "snapshot.mismatch", snapshot_id="1"):
            factory.snapshot(table, 1, **other)
    with expect_error(Conflict, "snapshot.mismatch"):
        factory.snapshot(table, 1, at=1, summary={"a": "b"}, schema_json='["now"]')


def test_rollback_makes_an_older_snapshot_current_until_a_new_one_is_created(factory):
    table = factory.table()
    for number in (1, 2, 3):
        factory.snapshot(table, number, at=number)
    request = v1.SetCurrentSnapshotRequest(table_id=table.resource_id, snapshot_id=1)
    assert snapshots.set_current(factory.home, request).snapshot.snapshot_id == 1
    assert current(factory, table) == 1
    assert got(factory, table, as_of=Timestamp(seconds=9)) == 3
    delete(factory, table, 3)
    assert current(factory, table) == 1
    factory.snapshot(table, 4, at=4)
    assert current(factory, table) == 4
    with expect_error(NotFound, "snapshot", id="77"):
        request.snapshot_id = 77
        snapshots.set_current(factory.home, request)


def test_snapshot_keeps_its_parent_id_when_the_parent_is_deleted(factory):
    table = factory.table()
    for number in (1, 2, 3):
        factory.snapshot(table, number, at=number, parent_snapshot_id=number - 1)
    delete(factory, table, 2)
    found = snapshots.get(factory.home, Get(table_id=table.resource_id, snapshot=Ref(snapshot_id=3)))
    assert (found.snapshot.parent_snapshot_id, found.meta.pointer_version) == (2, 1)


def test_current_snapshot_can_be_deleted_only_if_it_is_the_last(factory):
    table = factory.table()
    factory.snapshot(table, 1, at=1)
    factory.snapshot(table, 2, at=2)
    with expect_error(PreconditionFailed, "snapshot.current", snapshot_id="2"):
        delete(factory, table, 2)
    delete(factory, table, 1)
    assert delete(factory, table, 2).pointer_version == 1
    assert delete(factory, table, 2).pointer_version == 0
    with expect_error(NotFound, "snapshot", id="2"):
        delete(factory, table, 2, expected_version=1)
    with expect_error(NotFound, "snapshot.none", table_id=table.resource_id.id):
        current(factory, table)
    factory.snapshot(table, 3, at=0)
    assert current(factory, table) == 3


def test_current_snapshot_exists_after_concurrent_delete_of_the_last_and_create_of_an_older(factory):
    table = factory.table()
    factory.snapshot(table, 5, at=5)
    meanwhile(factory, keys.of_table("a1", table.resource_id.id), lambda: delete(factory, table, 5))
    factory.snapshot(table, 1, at=1)
    assert current(factory, table) == 1


def test_deleting_a_snapshot_deletes_its_statistics(factory):
    table = factory.table()
    factory.snapshot(table, 1, at=1)
    factory.snapshot(table, 2, at=2)
    for snapshot_id in (1, 2):
        for kind in (TABLE_STATS, COLUMN_STATS, FILE_STATS):
            factory.home.all(kind).create(kind.message(table_id=table.resource_id, snapshot_id=snapshot_id))
    delete(factory, table, 1)
    left = [pointer.key for pointer in factory.stores.pointers.scan(keys.of_table("a1", table.resource_id.id))]
    assert [each for each in left if "0000001" in each and "by-time" not in each] == []
    assert sum("/stats/" in each for each in left) == 3
    assert damage(factory.stores) == []


@behavior(25, 26)
def test_update_changes_masked_fields_and_not_the_current_snapshot(factory):
    table = factory.table()
    factory.snapshot(table, 1, at=1, parent_snapshot_id=7, summary={"a": "b"})
    factory.snapshot(table, 2, at=2)

    def update(*paths: str, **spec: Any) -> v1.Snapshot:
        new_spec = Spec(table_id=table.resource_id, snapshot_id=1, **spec)
        return snapshots.update(factory.home, Update(spec=new_spec, update_mask=mask(*paths))).snapshot

    changed = update("parent_snapshot_id", "summary", "upstream_created_at", upstream_created_at=Timestamp(seconds=9))
    assert not changed.HasField("parent_snapshot_id")
    assert (dict(changed.summary), changed.upstream_created_at.seconds) == ({}, 9)
    assert current(factory, table) == 2
    assert got(factory, table, as_of=Timestamp(seconds=9)) == 1
    assert got(factory, table, as_of=Timestamp(seconds=8)) == 2
    for paths, error_key in [
        ((), "update.mask.required"),
        (("snapshot_id",), "update.mask.path.invalid"),
        (("schema_json",), "schema.json.cannot.clear"),
        (("upstream_created_at",), "upstream.created.at.cannot.clear"),
    ]:
        with expect_error(InvalidArgument, error_key):
            update(*paths)
    assert damage(factory.stores) == []


@pytest.mark.parametrize(
    ("spec", "error_key"),
    [
        (Spec(), "spec.missing.ids"),
        (Spec(snapshot_id=1), "spec.missing.ids"),
        (Spec(table_id=v1.ResourceId(id="t")), "spec.missing.ids"),
        (Spec(table_id=v1.ResourceId(id="t"), snapshot_id=-1), "field.invalid"),
        (Spec(table_id=v1.ResourceId(id="t"), snapshot_id=1, parent_snapshot_id=-1), "field.invalid"),
        (Spec(table_id=v1.ResourceId(id="t", kind=v1.RK_VIEW), snapshot_id=1), "kind"),
        (Spec(table_id=v1.ResourceId(id="t"), snapshot_id=1, summary={"secret": "x"}), "property.secret"),
    ],
)
def test_invalid_specs_are_rejected(factory, spec, error_key):
    with expect_error(InvalidArgument, error_key):
        snapshots.create(factory.home, Create(spec=spec))


def test_snapshot_reference_is_required(factory):
    table = factory.table()
    with expect_error(InvalidArgument, "snapshot.missing"):
        got(factory, table)
    with expect_error(InvalidArgument, "snapshot.special.missing"):
        got(factory, table, special=0)
    with expect_error(NotFound, "snapshot", id="5"):
        got(factory, table, snapshot_id=5)


@behavior(31)
def test_snapshots_of_a_deleted_table_cannot_be_read_or_created(factory):
    table = factory.table()
    factory.snapshot(table, 1, at=1)
    pointer = factory.stores.pointers.get(keys.table("a1", table.resource_id.id))
    factory.stores.pointers.compare_and_delete(pointer.key, expect=pointer.version)
    with expect_error(NotFound, "table"):
        got(factory, table, snapshot_id=1)
    with expect_error(NotFound, "table"):
        factory.snapshot(table, 2)


@behavior(31)
@pytest.mark.parametrize("act", ["create", "update", "roll back"])
def test_nothing_is_written_to_a_table_that_is_deleted_concurrently(factory, monkeypatch, act):
    table = factory.table()
    factory.snapshot(table, 1, at=1)
    find = hierarchy.table

    def delete_after_find(*arguments: Any, **keywords: Any) -> Any:
        found = find(*arguments, **keywords)
        tables.delete(factory.home, v1.DeleteTableRequest(table_id=table.resource_id))
        factory.home.all(SNAPSHOT).create(v1.Snapshot(table_id=table.resource_id, snapshot_id=1))  # not purged yet
        monkeypatch.setattr(hierarchy, "table", find)
        return found

    monkeypatch.setattr(hierarchy, "table", delete_after_find)
    spec = Spec(table_id=table.resource_id, snapshot_id=1, manifest_list="new")
    roll_back = v1.SetCurrentSnapshotRequest(table_id=table.resource_id, snapshot_id=1)
    acts = {
        "create": lambda: factory.snapshot(table, 2, at=2),
        "update": lambda: snapshots.update(factory.home, Update(spec=spec, update_mask=mask("manifest_list"))),
        "roll back": lambda: snapshots.set_current(factory.home, roll_back),
    }
    with expect_error(NotFound, "table"):
        acts[act]()
    left = list(factory.stores.pointers.scan(keys.of_table("a1", table.resource_id.id)))
    assert [(each.key.partition("/snapshots/")[2][:5], each.version) for each in left] == [("by-id", 1), ("by-ti", 1)]


def test_another_account_cannot_access_a_snapshot(factory):
    table = factory.table()
    factory.snapshot(table, 1)
    factory.account("a2")
    for table_id in (table.resource_id, v1.ResourceId(id=table.resource_id.id)):
        with expect_error(NotFound, "table"):
            snapshots.get(factory.realm("a2"), Get(table_id=table_id, snapshot=Ref(snapshot_id=1)))
        with expect_error(NotFound, "table"):
            snapshots.list_(factory.realm("a2"), v1.ListSnapshotsRequest(table_id=table_id))


@behavior(36, 37)
def test_creation_with_the_same_idempotency_key_is_done_once(factory):
    table = factory.table()
    spec = Spec(table_id=table.resource_id, snapshot_id=1)
    first = snapshots.create(factory.home, Create(spec=spec, idempotency=key("k")))
    delete(factory, table, 1)
    assert snapshots.create(factory.home, Create(spec=spec, idempotency=key("k"))) == first
    spec.snapshot_id = 2
    with expect_error(Conflict, "idempotency.mismatch"):
        snapshots.create(factory.home, Create(spec=spec, idempotency=key("k")))


@behavior(15)
def test_missing_current_snapshot_is_damage(factory):
    table = factory.table()
    factory.snapshot(table, 1)
    pointer = factory.stores.pointers.get(keys.snapshot("a1", table.resource_id.id, 1))
    factory.stores.pointers.compare_and_delete(pointer.key, expect=1)
    with expect_error(Internal, "pointer.dangling", pointer=keys.current_snapshot("a1", table.resource_id.id)):
        current(factory, table)


def test_number_of_store_calls_does_not_grow_with_the_history(factory, calls):
    table = factory.table()

    def cost(number: int) -> list[int]:
        counts = []
        for act in (
            lambda: factory.snapshot(table, number, at=number),
            lambda: current(factory, table),
            lambda: got(factory, table, as_of=Timestamp(seconds=3)),
        ):
            calls.reset()
            act()
            counts.append(calls.total)
        return counts

    for number in (1, 2, 3):
        factory.snapshot(table, number, at=number)
    few = cost(4)
    for number in range(5, 60):
        factory.snapshot(table, number, at=number)
    assert cost(60) == few
