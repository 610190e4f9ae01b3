from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from metastore import integrity
from skiway.errors import PreconditionFailed, Unavailable
from skiway.metastore import PLATFORM, Realm, statistics
from skiway.metastore.resources import accounts, catalogs, directory, snapshots, tables
from skiway.metastore.seeding import DEFAULT_ACCOUNT, seed_demo, seed_home
from skiway.model import v1
from skiway.storage import Pointer, Stores, open_stores

CURRENT = v1.SnapshotRef(special=v1.SS_CURRENT)
TABLES = {
    ("iceberg",): ["lineitem", "orders"],
    ("iceberg", "staging", "2025"): ["orders_2025", "staging_events"],
}


@pytest.fixture
def stores():
    with open_stores("memory://") as opened:
        yield opened


@pytest.fixture
def on_disk(tmp_path):
    with open_stores(f"sqlite:///{tmp_path}/pointers.db") as opened:
        yield opened


def realm(stores: Stores) -> Realm:
    return Realm(stores, DEFAULT_ACCOUNT)


def damage(stores: Stores) -> list[str]:
    return [each for each in integrity.damage(stores) if not each.startswith("/platform/seeds/")]


def pointers(stores: Stores) -> list[Pointer]:
    """All pointers but those of events and of replaced snapshots, which have random keys."""
    return [each for each in stores.pointers.scan() if not each.key.startswith(("/events/", "/history/"))]


def catalog_names(stores: Stores) -> list[str]:
    return [each.display_name for each in catalogs.list_(realm(stores), v1.ListCatalogsRequest()).catalogs]


def delete_catalog(stores: Stores, name: str) -> None:
    ref = v1.NameRef(catalog=name)
    catalog_id = directory.resolve_catalog(realm(stores), v1.ResolveCatalogRequest(ref=ref)).resource_id
    catalogs.delete(realm(stores), v1.DeleteCatalogRequest(catalog_id=catalog_id, require_empty=False))


def found_tables(stores: Stores, path: tuple[str, ...]) -> list[v1.ResourceId]:
    request = v1.ResolveFQTablesRequest(prefix=v1.NameRef(catalog="examples", path=path))
    return [entry.resource_id for entry in directory.resolve_fq_tables(realm(stores), request).tables]


def test_new_home_has_one_account_with_one_empty_catalog(stores):
    assert seed_home(stores)
    found = accounts.list_(Realm(stores, PLATFORM), v1.ListAccountsRequest()).accounts
    assert [(each.resource_id.id, each.display_name) for each in found] == [("default", "default")]
    assert catalog_names(stores) == ["lake"]
    assert damage(stores) == []


def test_seeding_twice_changes_nothing(stores):
    seed_home(stores)
    seed_demo(stores)
    before = pointers(stores)
    assert not seed_home(stores)
    assert not seed_demo(stores)
    assert pointers(stores) == before


def test_ids_are_derived_from_names(stores):
    seed_home(stores)
    seed_demo(stores)
    with open_stores("memory://") as others:
        seed_home(others)
        seed_demo(others)
        assert [each.key for each in pointers(others)] == [each.key for each in pointers(stores)]


def test_deleted_resources_are_not_seeded_again(stores):
    seed_home(stores)
    seed_demo(stores)
    delete_catalog(stores, "lake")
    delete_catalog(stores, "examples")
    seed_home(stores)
    seed_demo(stores)
    assert catalog_names(stores) == []


def test_demo_has_tables_with_snapshots_and_statistics(stores):
    seed_home(stores)
    seed_demo(stores)
    home = realm(stores)
    for path, names in TABLES.items():
        ids = found_tables(stores, path)
        found = [tables.get(home, v1.GetTableRequest(table_id=each)).table for each in ids]
        assert [each.display_name for each in found] == names
        for table in found:
            snapshot = snapshots.get(home, v1.GetSnapshotRequest(table_id=table.resource_id, snapshot=CURRENT)).snapshot
            by_table = v1.GetTableStatsRequest(table_id=table.resource_id, snapshot=CURRENT)
            stats = statistics.get_table(home, by_table).stats
            assert stats.row_count == int(snapshot.summary["total-records"]) > 0
            by_file = v1.ListFileColumnStatsRequest(table_id=table.resource_id, snapshot=CURRENT)
            files = statistics.list_files(home, by_file).files
            assert sum(each.row_count for each in files) == stats.row_count
            assert sum(each.size_bytes for each in files) == stats.total_size_bytes
            by_column = v1.ListColumnStatsRequest(table_id=table.resource_id, snapshot=CURRENT)
            columns = statistics.list_columns(home, by_column).columns
            assert [each.column_name for each in columns] == [each.column_name for each in files[0].columns]
            assert all(each.min and each.max and each.ndv.exact for each in columns)
    assert damage(stores) == []


def test_demo_has_two_views_of_its_tables(stores):
    seed_home(stores)
    seed_demo(stores)
    request = v1.ResolveFQViewsRequest(prefix=v1.NameRef(catalog="examples", path=["iceberg"]))
    names = [entry.name.name for entry in directory.resolve_fq_views(realm(stores), request).views]
    assert names == ["open_orders", "revenue_by_month"]


@pytest.mark.parametrize("last", range(1, 60, 7))
def test_interrupted_seeding_is_completed_by_the_next_server(stores, monkeypatch, last):
    apply, done = type(stores.pointers)._apply, []

    def apply_then_die(self: Any, batch: Any) -> None:
        done.append(batch)
        if len(done) > last:
            raise Unavailable("the machine is gone")
        apply(self, batch)

    with monkeypatch.context() as broken:
        broken.setattr(type(stores.pointers), "_apply", apply_then_die)
        try:
            seed_home(stores)
            seed_demo(stores)
        except Unavailable:
            pass
    seed_home(stores)
    seed_demo(stores)
    with open_stores("memory://") as complete:
        seed_home(complete)
        seed_demo(complete)
        assert [each.key for each in pointers(stores)] == [each.key for each in pointers(complete)]
    assert damage(stores) == []


def test_servers_that_start_together_seed_one_lake(on_disk):
    barrier = Barrier(4)

    def start() -> None:
        barrier.wait()
        seed_home(on_disk)
        seed_demo(on_disk)

    with ThreadPoolExecutor(4) as pool:
        for outcome in [pool.submit(start) for _ in range(4)]:
            outcome.result()
    assert catalog_names(on_disk) == ["examples", "lake"]
    assert [len(found_tables(on_disk, path)) for path in TABLES] == [2, 2]
    assert damage(on_disk) == []


def test_demo_is_not_seeded_into_a_catalog_of_the_user(stores):
    seed_home(stores)
    catalogs.create(realm(stores), v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="examples")))
    before = pointers(stores)
    with pytest.raises(PreconditionFailed, match=r"rename it, or set seed\.enabled=false"):
        seed_demo(stores)
    assert pointers(stores) == before
