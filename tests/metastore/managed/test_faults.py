"""Commits to managed tables when many come at once, and when processes die."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from metastore.faults import Died, Fate, dying
from metastore.integrity import damage
from metastore.managed_table_factory import NUMBERS, ManagedTableFactory, id_of
from metastore.resource_factory import ResourceFactory
from skiway.errors import Conflict, NotFound, Unavailable
from skiway.formats.iceberg.commits import delete_all, overwrite
from skiway.metastore import Realm, statistics
from skiway.metastore import managed as managed_tables
from skiway.metastore.managed.commits import ManagedTable
from skiway.metastore.resources import snapshots
from skiway.model import v1
from skiway.storage import open_stores
from storage.homes import Clock

CURRENT = v1.SnapshotRef(special=v1.SS_CURRENT)


def test_appends_of_eight_threads_are_each_there_exactly_once(factory: ResourceFactory, tmp_path: Path) -> None:
    managed = ManagedTableFactory.at(factory, tmp_path)
    table = managed.create()
    realms = [Realm(factory.stores, "a1") for _ in range(8)]

    def add(worker: int) -> None:
        for turn in range(3):
            managed.append(table, worker * 100 + turn, realm=realms[worker])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    assert managed.rows(table) == sorted(worker * 100 + turn for worker in range(8) for turn in range(3))
    after = managed.load(table)
    assert len(after.metadata.snapshots) == 24
    listed = snapshots.list_(managed.home, v1.ListSnapshotsRequest(table_id=id_of(table))).snapshots
    assert {each.snapshot_id for each in listed} == {each.snapshot_id for each in after.metadata.snapshots}
    assert stats_of(managed, after).row_count == 24
    assert damage(factory.stores) == []


def test_of_two_who_rewrite_the_same_file_one_wins(factory: ResourceFactory, tmp_path: Path) -> None:
    managed = ManagedTableFactory.at(factory, tmp_path)
    table = managed.append(managed.create(), 0)
    (path,) = (row["path"] for row in table.handle.files(table.handle.current()).to_pylist())
    base = table.metadata.current_snapshot_id

    def rewrite(value: int) -> int | str:
        made = overwrite([path], managed.write(table, value), based_on=base)
        try:
            managed_tables.change(Realm(factory.stores, "a1"), managed.warehouse, id_of(table), made)
        except Conflict as error:
            return error.key
        return value

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(rewrite, range(1, 5)))
    assert outcomes.count("commit.failed") == 3
    assert managed.rows(table) == [value for value in outcomes if value != "commit.failed"]


def stats_of(managed: ManagedTableFactory, table: ManagedTable) -> v1.TableStats:
    return statistics.get_table(managed.home, v1.GetTableStatsRequest(table_id=id_of(table), snapshot=CURRENT)).stats


Change = Callable[[Realm], Any]


def creating(managed: ManagedTableFactory) -> Change:
    place = managed.factory.first_namespace().resource_id

    def change(realm: Realm) -> None:
        with suppress(Conflict):  # it was made before the process died
            managed_tables.create(realm, managed.warehouse, namespace_id=place, name="people", schema=NUMBERS)

    return change


def appending(managed: ManagedTableFactory) -> Change:
    table = managed.append(managed.create(), 1)
    files = managed.write(table, 2)

    def change(realm: Realm) -> None:
        if managed.rows(table) == [1]:
            managed_tables.append_with_retry(realm, managed.warehouse, id_of(table), files)

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


def seen(managed: ManagedTableFactory) -> list[Any]:
    """All that readers see of the table, but for ids: rows, snapshots, which is current, and statistics."""
    found = [
        pointer
        for pointer in managed.factory.stores.pointers.scan("/accounts/a1/tables/by-id/")
        if not pointer.key.endswith("/closing")
    ]
    if not found:
        return []
    table_id = v1.ResourceId(id=found[0].key.rpartition("/")[2])
    table = managed_tables.load(managed.home, managed.warehouse, table_id)
    listed = snapshots.list_(managed.home, v1.ListSnapshotsRequest(table_id=table_id)).snapshots
    if table.metadata.current_snapshot_id is None:
        return ["empty", len(listed)]
    told = snapshots.get(managed.home, v1.GetSnapshotRequest(table_id=table_id, snapshot=CURRENT)).snapshot
    assert told.snapshot_id == table.metadata.current_snapshot_id
    files = statistics.list_files(
        managed.home, v1.ListFileColumnStatsRequest(table_id=table_id, snapshot=CURRENT)
    ).files
    assert sum(file.row_count for file in files) == stats_of(managed, table).row_count
    return [managed.rows(table), len(listed), len(table.metadata.snapshots), len(files)]


def prepared(prepare: Callable[[ManagedTableFactory], Change], folder: Path) -> tuple[ManagedTableFactory, Change]:
    clock = Clock()
    factory = ResourceFactory(open_stores("memory://", clock=clock), clock)
    managed = ManagedTableFactory.at(factory, folder)
    return managed, prepare(managed)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("prepare", [creating, appending, truncating, dropping], ids=lambda each: each.__name__)
def test_a_death_in_any_step_leaves_the_old_state_or_the_new_and_trying_again_finishes(
    tmp_path: Path, prepare: Callable[[ManagedTableFactory], Change], when: Any
) -> None:
    managed, change = prepared(prepare, tmp_path / "model")
    before = seen(managed)
    change(managed.home)
    after = seen(managed)
    assert before != after
    at, outcomes = 0, set()
    while True:
        at += 1
        managed, change = prepared(prepare, tmp_path / str(at))
        fate = Fate(at, when)
        with suppress(Died):
            change(
                Realm(dying(managed.factory.stores, fate), "a1", clock=managed.factory.clock, ids=managed.factory.ids)
            )
        now = seen(managed)
        assert damage(managed.factory.stores) == []
        assert now in (before, after), f"died {when} operation {at}"
        outcomes.add(now == after)
        change(managed.home)
        assert seen(managed) == after
        if fate.done < at:
            break
    assert outcomes == {True, False}


def test_a_death_between_the_metadata_file_and_the_swap_leaves_only_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed, change = prepared(appending, tmp_path)
    written = set(tmp_path.rglob("*.metadata.json"))
    stores = dying(managed.factory.stores, Fate())

    def dies(batch: Any) -> None:
        raise Died

    monkeypatch.setattr(stores.pointers, "_apply", dies)
    with pytest.raises(Died):
        change(Realm(stores, "a1", clock=managed.factory.clock, ids=managed.factory.ids))
    assert len(set(tmp_path.rglob("*.metadata.json")) - written) == 1
    assert seen(managed)[0] == [1]
    change(managed.home)
    assert seen(managed)[0] == [1, 2]


def test_a_commit_whose_outcome_is_not_known_keeps_its_files(
    factory: ResourceFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = ManagedTableFactory.at(factory, tmp_path)
    table = managed.append(managed.create(), 1)
    files = managed.write(table, 2)
    apply = type(factory.stores.pointers)._apply

    def applies_but_does_not_answer(store: Any, batch: Any) -> None:
        apply(store, batch)
        raise Unavailable("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(type(factory.stores.pointers), "_apply", applies_but_does_not_answer)
        with pytest.raises(Unavailable):
            managed_tables.append_with_retry(managed.home, managed.warehouse, id_of(table), files)
    assert managed.rows(table) == [1, 2]
