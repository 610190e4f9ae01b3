"""Commits to several tables at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSortOrderUpdate,
    AssertCreate,
    AssignUUIDUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    UpgradeFormatVersionUpdate,
)

from metastore.integrity import damage
from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.races import limit_batches
from metastore.resource_factory import ResourceFactory
from skiway.errors import Conflict, InvalidArgument, LimitExceeded, NotFound, PermissionDenied, PreconditionFailed
from skiway.formats.iceberg.changes.commits import Producer, append, overwrite
from skiway.metastore import Realm, managed
from skiway.metastore.managed import ManagedTable, TableChange, TableCreation, commits
from skiway.metastore.managed.states import NewState, publish
from skiway.model import v1
from skiway.storage import ABSENT, Put


@pytest.fixture
def lake(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    return ManagedTableFactory.at(factory, tmp_path)


def pair(lake: ManagedTableFactory) -> tuple[ManagedTable, ManagedTable]:
    """Two tables with one row each."""
    return lake.append(lake.create("people"), 1), lake.append(lake.create("orders"), 1)


def appending(lake: ManagedTableFactory, table: ManagedTable, *values: int) -> TableChange:
    return TableChange(id_of(table), append(lake.write(table, *values)))


def files_of(lake: ManagedTableFactory) -> set[Path]:
    return {path for path in Path(lake.warehouse.root.path).rglob("*") if path.is_file()}


def test_all_tables_change_in_one_batch(lake: ManagedTableFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    people, orders = pair(lake)
    changes = [appending(lake, people, 2), appending(lake, orders, 3)]
    batches: list[Any] = []
    store = type(lake.factory.stores.pointers)
    apply = store._apply
    monkeypatch.setattr(store, "_apply", lambda self, batch: (batches.append(batch), apply(self, batch))[1])
    made = managed.change_all(lake.home, lake.warehouse, changes)
    assert [each.id for each in made] == [people.id, orders.id]
    assert (lake.rows(people), lake.rows(orders)) == ([1, 2], [1, 3])
    assert len(batches) == 1
    assert damage(lake.factory.stores) == []


def test_no_table_changes_if_one_change_conflicts(lake: ManagedTableFactory) -> None:
    people, orders = pair(lake)
    stale = overwrite(["file:///gone.parquet"], [], based_on=orders.metadata.current_snapshot_id)
    changes = [appending(lake, people, 2), TableChange(id_of(orders), stale)]
    before = files_of(lake)
    with pytest.raises(Conflict) as raised:
        managed.change_all(lake.home, lake.warehouse, changes)
    assert raised.value.key == "commit.failed"
    assert (lake.rows(people), lake.rows(orders)) == ([1], [1])
    assert files_of(lake) == before, "the manifests of the failed commit must be deleted"


def test_no_table_changes_if_one_was_dropped(lake: ManagedTableFactory) -> None:
    people, orders = pair(lake)
    changes = [appending(lake, people, 2), appending(lake, orders, 2)]
    managed.drop(lake.home, lake.warehouse, id_of(orders))
    with pytest.raises(NotFound):
        managed.change_all(lake.home, lake.warehouse, changes)
    assert lake.rows(people) == [1]


def test_lost_race_on_one_table_makes_all_changes_again(lake: ManagedTableFactory) -> None:
    people, orders = pair(lake)
    made: list[str] = []

    def noting(name: str, producer: Producer) -> Producer:
        def produce(metadata: Any, files: Any, clock: Any) -> Any:
            made.append(name)
            if made == ["people", "orders"]:
                # A server without this one's locks, as another process is.
                other = ManagedTableFactory(lake.factory, type(lake.warehouse).at(lake.warehouse.root.path))
                other.append(people, 7)
            return producer(metadata, files, clock)

        return produce

    changes = [
        TableChange(id_of(people), noting("people", append(lake.write(people, 2)))),
        TableChange(id_of(orders), noting("orders", append(lake.write(orders, 2)))),
    ]
    managed.change_all(lake.home, lake.warehouse, changes)
    assert made == ["people", "orders"] * 2
    assert (lake.rows(people), lake.rows(orders)) == ([1, 2, 7], [1, 2])


def test_lost_race_creates_the_new_table_again(lake: ManagedTableFactory) -> None:
    people, _ = pair(lake)
    staged = lake.create("new", stage=True)
    attempts: list[None] = []

    def produce(metadata: Any, files: Any, clock: Any) -> Any:
        attempts.append(None)
        if len(attempts) == 1:
            other = ManagedTableFactory(lake.factory, type(lake.warehouse).at(lake.warehouse.root.path))
            other.append(people, 7)
        return append(lake.write(people, 2))(metadata, files, clock)

    creation = TableCreation(staged.table.namespace_id, "new", [AssertCreate()], initial_updates(staged.metadata))
    made = managed.commit_all(lake.home, lake.warehouse, [TableChange(id_of(people), produce)], creations=[creation])
    assert len(attempts) == 2
    assert (lake.rows(people), lake.rows(made[1]), made[1].id) == ([1, 2, 7], [], staged.id)
    assert damage(lake.factory.stores) == []


def initial_updates(metadata: Any) -> list[Any]:
    """The updates that create an empty table with this metadata."""
    return [
        AssignUUIDUpdate(uuid=metadata.table_uuid),
        UpgradeFormatVersionUpdate(format_version=metadata.format_version),
        AddSchemaUpdate(schema_=metadata.schema()),
        SetCurrentSchemaUpdate(schema_id=-1),
        AddPartitionSpecUpdate(spec=metadata.spec()),
        SetDefaultSpecUpdate(spec_id=-1),
        AddSortOrderUpdate(sort_order=metadata.sort_order_by_id(metadata.default_sort_order_id)),
        SetDefaultSortOrderUpdate(sort_order_id=-1),
        SetLocationUpdate(location=metadata.location),
    ]


def test_publish_replaces_expected_states_only(lake: ManagedTableFactory) -> None:
    people, orders = pair(lake)
    after = [lake.append(table, 2) for table in (people, orders)]
    old = [NewState(each, after[0].metadata, after[0].metadata_location) for each in (people, orders)]
    stored = [lake.load(table).stored for table in (people, orders)]
    with pytest.raises(PreconditionFailed) as raised:
        publish(lake.home, old)
    assert raised.value.key == "version.mismatch"
    assert [lake.load(table).stored for table in (people, orders)] == stored


def test_further_operations_are_part_of_the_batch(lake: ManagedTableFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    people, orders = pair(lake)
    pointers = lake.factory.stores.pointers
    changes = [appending(lake, people, 2), appending(lake, orders, 2)]
    managed.change_all(lake.home, lake.warehouse, changes, also=lambda _: [Put("/also", "done", expect=ABSENT)])
    found = pointers.get("/also")
    assert found is not None
    assert found.blob_uri == "done"
    monkeypatch.setattr(commits, "ATTEMPTS", 2)
    changes = [appending(lake, people, 3), appending(lake, orders, 3)]
    with pytest.raises(Conflict):
        managed.change_all(lake.home, lake.warehouse, changes, also=lambda _: [Put("/also", "again", expect=ABSENT)])
    assert (lake.rows(people), lake.rows(orders)) == ([1, 2], [1, 2])


def test_table_occurs_once_in_a_commit(lake: ManagedTableFactory) -> None:
    people, _ = pair(lake)
    with pytest.raises(InvalidArgument) as raised:
        managed.change_all(lake.home, lake.warehouse, [appending(lake, people, 2), appending(lake, people, 3)])
    assert (raised.value.key, raised.value.params["id"]) == ("commit.table.repeated", people.id)
    assert lake.rows(people) == [1]


def test_more_tables_than_fit_into_a_batch_are_rejected(lake: ManagedTableFactory) -> None:
    tables = [lake.create(f"t{number}") for number in range(5)]
    changes = [appending(lake, table, 1) for table in tables]
    before = files_of(lake)
    limit_batches(lake.factory, 40)
    with pytest.raises(LimitExceeded) as raised:
        managed.change_all(lake.home, lake.warehouse, changes)
    assert raised.value.key == "commit.too_many_tables"
    limit = int(raised.value.params["limit"])
    assert files_of(lake) == before
    managed.change_all(lake.home, lake.warehouse, changes[:limit])
    assert [lake.rows(table) for table in tables[:limit]] == [[1]] * limit


def test_concurrent_commits_keep_two_tables_equal(lake: ManagedTableFactory) -> None:
    people, orders = pair(lake)

    def commit(worker: int) -> None:
        # Every other worker is a server of its own, and some name the tables in the opposite order.
        server = (
            lake if worker % 2 else ManagedTableFactory(lake.factory, type(lake.warehouse).at(lake.warehouse.root.path))
        )
        changes = [appending(server, people, worker), appending(server, orders, worker)]
        managed.change_all(Realm(lake.factory.stores, "a1"), server.warehouse, changes[:: 1 if worker % 4 < 2 else -1])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(commit, range(2, 10)))
    assert lake.rows(people) == lake.rows(orders) == list(range(1, 10))
    assert len(lake.load(people).metadata.snapshots) == len(lake.load(orders).metadata.snapshots) == 9
    assert damage(lake.factory.stores) == []


def test_system_table_cannot_be_part_of_a_commit(lake: ManagedTableFactory) -> None:
    people, _ = pair(lake)
    system = v1.ResourceId(account_id="_system", id="x", kind=v1.RK_TABLE)
    with pytest.raises(PermissionDenied):
        managed.change_all(lake.home, lake.warehouse, [appending(lake, people, 2), TableChange(system, append([]))])
    assert lake.rows(people) == [1]
