"""Concurrent commits to managed tables, and commits of processes that crash."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from pyiceberg.table.update import SetPropertiesUpdate

from metastore.faults import Crashed, CrashPoint, crashing_stores
from metastore.integrity import damage
from metastore.managed_table_factory import NUMBERS, ManagedTableFactory, id_of
from metastore.resource_factory import ResourceFactory
from skiway.errors import Busy, Conflict, NotFound, Unavailable
from skiway.formats.iceberg.changes.commits import append, delete_all, overwrite
from skiway.formats.iceberg.metadata import metadata_json
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.metastore import Realm, statistics
from skiway.metastore import managed as managed_tables
from skiway.metastore.managed import TableChange, states
from skiway.metastore.managed.states import ManagedTable
from skiway.metastore.resources import snapshots
from skiway.model import v1
from skiway.storage import open_stores
from storage.homes import Clock

CURRENT = v1.SnapshotRef(special=v1.SS_CURRENT)


def test_concurrent_appends_are_each_committed_exactly_once(factory: ResourceFactory, tmp_path: Path) -> None:
    managed = ManagedTableFactory.at(factory, tmp_path)
    table = managed.create()
    realms = [Realm(factory.stores, "a1") for _ in range(8)]

    def add(worker: int) -> None:
        for number in range(3):
            managed.append(table, worker * 100 + number, realm=realms[worker])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    assert managed.rows(table) == sorted(worker * 100 + number for worker in range(8) for number in range(3))
    after = managed.load(table)
    assert len(after.metadata.snapshots) == 24
    listed = snapshots.list_(managed.home, v1.ListSnapshotsRequest(table_id=id_of(table))).snapshots
    assert {each.snapshot_id for each in listed} == {each.snapshot_id for each in after.metadata.snapshots}
    assert stats_of(managed, after).row_count == 24
    assert damage(factory.stores) == []


def test_one_of_several_concurrent_rewrites_of_a_file_wins(factory: ResourceFactory, tmp_path: Path) -> None:
    managed = ManagedTableFactory.at(factory, tmp_path)
    table = managed.append(managed.create(), 0)
    (path,) = (row["path"] for row in table.handle.files(table.handle.current()).to_pylist())
    base = table.metadata.current_snapshot_id

    def rewrite(value: int) -> int | str:
        operation = overwrite([path], managed.write(table, value), based_on=base)
        try:
            managed_tables.change(Realm(factory.stores, "a1"), managed.warehouse, id_of(table), operation)
        except Conflict as error:
            return error.key
        return value

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(rewrite, range(1, 5)))
    assert outcomes.count("commit.failed") == 3
    assert managed.rows(table) == [value for value in outcomes if value != "commit.failed"]


def test_files_are_on_disk_before_a_record_refers_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the table and the blobs, and the folders that contain them, right before the batch is applied."""
    with open_stores("memory://", (tmp_path / "blobs").as_uri()) as stores:
        managed = ManagedTableFactory.at(ResourceFactory(stores), tmp_path)
        table = managed.append(managed.create(), 1)
        synced, checked = set[Path](), list[set[Path]]()
        sync, apply = os.fsync, stores.pointers._apply
        before = {path for path in tmp_path.rglob("*") if path.is_file()}

        def recorded_sync(descriptor: int) -> None:
            sync(descriptor)
            synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())

        def checked_apply(batch: Any) -> None:
            new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
            assert {path for path in (*new, *(path.parent for path in new)) if path not in synced} == set()
            checked.append(new)
            apply(batch)

        monkeypatch.setattr(os, "fsync", recorded_sync)
        monkeypatch.setattr(stores.pointers, "_apply", checked_apply)
        assert managed.rows(managed.append(table, 2)) == [1, 2]
        managed_tables.commit(
            managed.home, managed.warehouse, id_of(table), (), [SetPropertiesUpdate(updates={"a": "b"})]
        )
        first, second = checked
        kinds = Counter("blob" if "blobs" in path.parts else path.suffix for path in first)
        assert kinds == {"blob": 4, ".json": 1, ".avro": 2, ".parquet": 1}
        assert Counter("blob" if "blobs" in path.parts else path.suffix for path in second - first) == {
            "blob": 1,
            ".json": 1,
        }


def test_commit_syncs_its_files_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits once for the disk: syncing file after file takes many times as long on a busy machine."""
    with open_stores("memory://", (tmp_path / "blobs").as_uri()) as stores:
        managed = ManagedTableFactory.at(ResourceFactory(stores), tmp_path)
        table = managed.create()
        together = Barrier(4, timeout=200)
        monkeypatch.setattr(os, "fsync", lambda _: together.wait())
        monkeypatch.setattr(stores.blobs, "_synced", Everything())
        managed_tables.commit(
            managed.home, managed.warehouse, id_of(table), (), [SetPropertiesUpdate(updates={"a": "b"})]
        )


class Everything(set[str]):
    """A set that contains everything."""

    def __contains__(self, _: object) -> bool:
        return True


def test_commit_without_new_snapshots_neither_opens_the_table_nor_renders_it_twice(
    factory: ResourceFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = ManagedTableFactory.at(factory, tmp_path)
    table = managed.append(managed.create(), 1)
    opened, real = list[str](), states.handle_of
    monkeypatch.setattr(states, "handle_of", lambda *of: opened.append(of[0].display_name) or real(*of))
    update = SetPropertiesUpdate(updates={"name": "é", "number": "1"})
    made = managed_tables.commit(managed.home, managed.warehouse, id_of(table), (), [update])
    assert opened == []
    written = Path(made.metadata_location.removeprefix("file://")).read_text()
    assert made.json == written == metadata_json(made.metadata)
    assert json.loads(written) == json.loads(made.metadata.model_dump_json())
    managed.append(table, 2)
    assert opened == ["people"]
    assert managed.load(table).json == "", "only what has just been written is kept"


def test_commit_whose_metadata_cannot_be_synced_changes_nothing(
    factory: ResourceFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = ManagedTableFactory.at(factory, tmp_path)
    table = managed.append(managed.create(), 1)
    files = managed.write(table, 2)

    real_seal = TableFiles.seal

    def fail(files: TableFiles, uri: str) -> None:
        if uri.endswith(".metadata.json"):
            raise Unavailable(f"{uri} cannot be synced", key="disk")
        real_seal(files, uri)

    with monkeypatch.context() as patch:
        patch.setattr(TableFiles, "seal", fail)
        with pytest.raises(Unavailable, match="cannot be synced"):
            managed_tables.change(managed.home, managed.warehouse, id_of(table), append(files))
    assert managed.rows(table) == [1]
    assert damage(factory.stores) == []


def stats_of(managed: ManagedTableFactory, table: ManagedTable) -> v1.TableStats:
    return statistics.get_table(managed.home, v1.GetTableStatsRequest(table_id=id_of(table), snapshot=CURRENT)).stats


Change = Callable[[Realm], Any]


def creating(managed: ManagedTableFactory) -> Change:
    namespace_id = managed.factory.first_namespace().resource_id

    def change(realm: Realm) -> None:
        with suppress(Conflict):  # it was created before the process crashed
            managed_tables.create(realm, managed.warehouse, namespace_id=namespace_id, name="people", schema=NUMBERS)

    return change


def appending(managed: ManagedTableFactory) -> Change:
    table = managed.append(managed.create(), 1)
    files = managed.write(table, 2)

    def change(realm: Realm) -> None:
        if managed.rows(table) == [1]:
            managed_tables.change(realm, managed.warehouse, id_of(table), append(files))

    return change


def appending_to_two_tables(managed: ManagedTableFactory) -> Change:
    tables = [managed.append(managed.create(name), 1) for name in ("people", "orders")]
    files = [managed.write(table, 2) for table in tables]

    def change(realm: Realm) -> None:
        if managed.rows(tables[0]) == [1]:
            changes = [TableChange(id_of(table), append(each)) for table, each in zip(tables, files, strict=True)]
            managed_tables.change_all(realm, managed.warehouse, changes)

    return change


def truncating(managed: ManagedTableFactory) -> Change:
    table = managed.append(managed.create(), 1)

    def change(realm: Realm) -> None:
        if managed.rows(table):
            managed_tables.change(realm, managed.warehouse, id_of(table), delete_all())

    return change


def dropping(managed: ManagedTableFactory) -> Change:
    table = managed.append(managed.create(), 1)

    def change(realm: Realm) -> None:
        with suppress(NotFound):
            managed_tables.drop(realm, managed.warehouse, id_of(table))

    return change


PREPARED = (
    creating,
    appending,
    pytest.param(appending_to_two_tables, marks=pytest.mark.full),
    truncating,
    dropping,
)


def visible_state(managed: ManagedTableFactory) -> list[Any]:
    """Everything that readers see of each table except ids: rows, snapshots, the current snapshot, and statistics."""
    found = [
        pointer
        for pointer in managed.factory.stores.pointers.scan("/accounts/a1/tables/by-id/")
        if not pointer.key.endswith("/closing")
    ]
    return [state_of(managed, v1.ResourceId(id=pointer.key.rpartition("/")[2])) for pointer in found]


def state_of(managed: ManagedTableFactory, table_id: v1.ResourceId) -> list[Any]:
    table = managed_tables.load(managed.home, managed.warehouse, table_id)
    listed = snapshots.list_(managed.home, v1.ListSnapshotsRequest(table_id=table_id)).snapshots
    if table.metadata.current_snapshot_id is None:
        return ["empty", len(listed)]
    current = snapshots.get(managed.home, v1.GetSnapshotRequest(table_id=table_id, snapshot=CURRENT)).snapshot
    assert current.snapshot_id == table.metadata.current_snapshot_id
    files = statistics.list_files(
        managed.home, v1.ListFileColumnStatsRequest(table_id=table_id, snapshot=CURRENT)
    ).files
    assert sum(file.row_count for file in files) == stats_of(managed, table).row_count
    return [managed.rows(table), len(listed), len(table.metadata.snapshots), len(files)]


def set_up(prepare: Callable[[ManagedTableFactory], Change], folder: Path) -> tuple[ManagedTableFactory, Change]:
    clock = Clock()
    factory = ResourceFactory(open_stores("memory://", clock=clock), clock)
    managed = ManagedTableFactory.at(factory, folder)
    return managed, prepare(managed)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("prepare", PREPARED, ids=lambda each: each.__name__)
def test_change_interrupted_by_a_crash_is_atomic_and_can_be_repeated(
    tmp_path: Path, prepare: Callable[[ManagedTableFactory], Change], when: Any
) -> None:
    managed, change = set_up(prepare, tmp_path / "model")
    before = visible_state(managed)
    change(managed.home)
    after = visible_state(managed)
    assert before != after
    at, outcomes = 0, set()
    while True:
        at += 1
        managed, change = set_up(prepare, tmp_path / str(at))
        crash_point = CrashPoint(at, when)
        with suppress(Crashed):
            change(
                Realm(
                    crashing_stores(managed.factory.stores, crash_point),
                    "a1",
                    clock=managed.factory.clock,
                    ids=managed.factory.ids,
                )
            )
        now = visible_state(managed)
        assert damage(managed.factory.stores) == []
        assert now in (before, after), f"crashed {when} operation {at}"
        outcomes.add(now == after)
        change(managed.home)
        assert visible_state(managed) == after
        if crash_point.done < at:
            break
    assert outcomes == {True, False}


def test_crash_between_the_metadata_file_and_the_swap_leaves_only_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed, change = set_up(appending, tmp_path)
    written = set(tmp_path.rglob("*.metadata.json"))
    stores = crashing_stores(managed.factory.stores, CrashPoint())

    def crash(batch: Any) -> None:
        raise Crashed

    monkeypatch.setattr(stores.pointers, "_apply", crash)
    with pytest.raises(Crashed):
        change(Realm(stores, "a1", clock=managed.factory.clock, ids=managed.factory.ids))
    assert len(set(tmp_path.rglob("*.metadata.json")) - written) == 1
    assert visible_state(managed)[0][0] == [1]
    change(managed.home)
    assert visible_state(managed)[0][0] == [1, 2]


def test_commit_with_an_unknown_outcome_keeps_its_files(
    factory: ResourceFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = ManagedTableFactory.at(factory, tmp_path)
    table = managed.append(managed.create(), 1)
    files = managed.write(table, 2)
    apply = type(factory.stores.pointers)._apply

    def apply_and_lose_the_connection(store: Any, batch: Any) -> None:
        apply(store, batch)
        raise Unavailable("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(type(factory.stores.pointers), "_apply", apply_and_lose_the_connection)
        with pytest.raises(Unavailable):
            managed_tables.change(managed.home, managed.warehouse, id_of(table), append(files))
    assert managed.rows(table) == [1, 2]


def test_locked_store_is_waited_for_only_once(
    factory: ResourceFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is busy has waited already, so each further attempt would wait as long again."""
    managed = ManagedTableFactory.at(factory, tmp_path)
    table = managed.append(managed.create(), 1)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    waits = []

    def busy(*_: Any, **__: Any) -> None:
        waits.append(None)
        raise Busy("another process held the lock for too long")

    written = managed.write(table, 2)
    with monkeypatch.context() as patched:
        patched.setattr(factory.stores.pointers, "_apply", busy)
        with pytest.raises(Busy):
            managed_tables.change(managed.home, managed.warehouse, id_of(table), append(written))
    assert len(waits) == 1
    managed.warehouse.files(table.metadata.location).remove([each.file_path for each in written])
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
    assert managed.rows(table) == [1]
