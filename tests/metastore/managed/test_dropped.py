"""Dropped tables can be restored until garbage collection may delete their files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from metastore.integrity import damage
from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.resource_factory import ResourceFactory, expect_error
from skiway.errors import AlreadyExists, NotFound, PreconditionFailed
from skiway.metastore import Realm
from skiway.metastore import managed as managed_tables
from skiway.metastore.gc.warehouse import sweep_warehouse
from skiway.metastore.resources import snapshots
from skiway.model import v1


@pytest.fixture
def managed(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    return ManagedTableFactory.at(factory, tmp_path)


def drop(managed: ManagedTableFactory, table: managed_tables.ManagedTable, *, purge: bool = False) -> None:
    managed_tables.drop(managed.home, managed.warehouse, id_of(table), purge=purge)


def undrop(managed: ManagedTableFactory, name: str = "people") -> managed_tables.ManagedTable:
    namespace = managed.factory.first_namespace()
    return managed_tables.undrop(managed.home, managed.warehouse, namespace.resource_id, name)


def test_table_comes_back_with_its_id_and_snapshots(managed: ManagedTableFactory) -> None:
    table = managed.append(managed.append(managed.create("People"), 1, 2), 3)
    drop(managed, table)
    restored = undrop(managed)
    assert (restored.id, restored.table.display_name) == (table.id, "People")
    assert managed.rows(restored) == [1, 2, 3]
    listed = snapshots.list_(managed.home, v1.ListSnapshotsRequest(table_id=id_of(restored))).snapshots
    assert len(listed) == 2
    assert managed.rows(managed.append(restored, 4)) == [1, 2, 3, 4]
    assert damage(managed.factory.stores) == []
    with expect_error(NotFound, "table.not_dropped"):
        undrop(managed)


def test_files_of_a_restored_table_are_not_swept(managed: ManagedTableFactory) -> None:
    table = managed.append(managed.create(), 1)
    drop(managed, table)
    undrop(managed)
    later = datetime.now(UTC) + timedelta(days=30)
    swept = sweep_warehouse(managed.factory.stores, managed.warehouse, clock=lambda: later, dry_run=False)
    assert swept.removed == ()
    assert managed.rows(table) == [1]


def test_table_that_was_dropped_last_is_restored(managed: ManagedTableFactory) -> None:
    for value in (1, 2):
        managed.factory.clock.advance(1)
        drop(managed, managed.append(managed.create(), value))
    assert managed.rows(undrop(managed, "PEOPLE")) == [2]
    known = managed_tables.dropped_tables(managed.home, managed.factory.first_namespace().resource_id.id)
    assert [each.name for each in known] == ["people"]


def test_existing_table_is_not_replaced(managed: ManagedTableFactory) -> None:
    drop(managed, managed.append(managed.create(), 1))
    other = managed.append(managed.create(), 2)
    with pytest.raises(AlreadyExists):
        undrop(managed)
    assert managed.rows(other) == [2]
    drop(managed, other, purge=True)
    assert managed.rows(undrop(managed)) == [1]


def test_purged_and_unknown_tables_cannot_be_restored(managed: ManagedTableFactory) -> None:
    drop(managed, managed.append(managed.create(), 1), purge=True)
    with pytest.raises(NotFound, match="there is none to restore"):
        undrop(managed)
    drop(managed, managed.create("other"))
    with pytest.raises(NotFound, match="it can restore other"):
        undrop(managed)


def test_table_without_all_its_files_cannot_be_restored(managed: ManagedTableFactory, tmp_path: Path) -> None:
    table = managed.append(managed.create(), 1)
    drop(managed, table)
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    with expect_error(PreconditionFailed, "table.files_deleted"):
        undrop(managed)
    with pytest.raises(NotFound):
        managed.load(table)
    assert damage(managed.factory.stores) == []


def test_dropped_tables_are_forgotten_before_their_files_may_be_deleted(managed: ManagedTableFactory) -> None:
    drop(managed, managed.append(managed.create(), 1))
    namespace = managed.factory.first_namespace().resource_id
    for hours, is_known in ((70, True), (72, False)):
        managed.factory.clock.advance(hours * 3600 if hours == 70 else 2 * 3600)
        assert bool(managed_tables.dropped_tables(managed.home, namespace.id)) == is_known


def test_other_accounts_cannot_restore_a_table(managed: ManagedTableFactory) -> None:
    drop(managed, managed.append(managed.create(), 1))
    managed.factory.account("a2")
    other = Realm(managed.factory.stores, "a2")
    namespace = managed.factory.first_namespace().resource_id
    with pytest.raises(NotFound):
        managed_tables.undrop(other, managed.warehouse, v1.ResourceId(id=namespace.id), "people")
    assert managed_tables.dropped_tables(other, namespace.id) == []
