"""`seed.mode=iceberg`: demo tables with rows in the warehouse, readable by other engines."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from runtime.servers import started
from scope import sample
from skiway.client import AirportClient
from skiway.errors import PreconditionFailed, Unavailable
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import Realm, statistics
from skiway.metastore.resources import directory, tables
from skiway.metastore.seeding import DEFAULT_ACCOUNT, seed_demo, seed_home, seed_iceberg
from skiway.model import v1
from skiway.storage import Stores, open_stores

CURRENT = v1.SnapshotRef(special=v1.SS_CURRENT)
ORDERS = 1500
FIRST_LOAD = 1000
ITEMS = 6000


@pytest.fixture
def stores():
    with open_stores("memory://") as opened:
        yield opened


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse.at(str(tmp_path / "warehouse"))


def record(stores: Stores, name: str) -> v1.Table:
    realm = Realm(stores, DEFAULT_ACCOUNT)
    ref = v1.NameRef(catalog="examples", path=["iceberg"], name=name)
    table_id = directory.resolve_table(realm, v1.ResolveTableRequest(ref=ref)).resource_id
    return tables.get(realm, v1.GetTableRequest(table_id=table_id)).table


def rows(stores: Stores, name: str) -> pa.Table:
    """The rows that PyIceberg reads."""
    return StaticTable.from_metadata(record(stores, name).metadata_location).scan().to_arrow()


def assert_complete(stores: Stores) -> None:
    """Every order exists once, with all of its items, and its price is their sum."""
    orders, items = rows(stores, "orders"), rows(stores, "lineitem")
    assert sorted(orders["o_orderkey"].to_pylist()) == list(range(1, ORDERS + 1))
    assert items.num_rows == ITEMS
    wrong = duckdb.connect().execute(
        """
        SELECT count(*) FROM (SELECT l_orderkey, sum(l_extendedprice) AS cost FROM items GROUP BY 1)
        FULL JOIN orders ON l_orderkey = o_orderkey WHERE cost IS DISTINCT FROM o_totalprice
        """
    )
    assert wrong.fetchone() == (0,)


def test_orders_and_items_are_iceberg_tables_in_the_warehouse(stores, warehouse, tmp_path):
    seed_home(stores)
    assert seed_iceberg(stores, warehouse)
    assert_complete(stores)
    for name, total in (("orders", ORDERS), ("lineitem", ITEMS)):
        table = record(stores, name)
        assert str(tmp_path / "warehouse") in table.metadata_location
        found = StaticTable.from_metadata(table.metadata_location)
        first, _ = found.snapshots()
        assert found.scan(snapshot_id=first.snapshot_id).to_arrow().num_rows == total * FIRST_LOAD // ORDERS
        request = v1.GetTableStatsRequest(table_id=table.resource_id, snapshot=CURRENT)
        assert statistics.get_table(Realm(stores, DEFAULT_ACCOUNT), request).stats.row_count == total


def test_seeding_twice_changes_nothing(stores, warehouse):
    seed_home(stores)
    seed_iceberg(stores, warehouse)
    before = list(stores.pointers.scan())
    assert not seed_iceberg(stores, warehouse)
    assert list(stores.pointers.scan()) == before


@pytest.mark.parametrize("last", sample(range(5, 45, 4), every=5))
@pytest.mark.parametrize("written", [False, True])
def test_interrupted_seeding_is_completed_by_the_next_server(stores, warehouse, monkeypatch, last, written):
    seed_home(stores)
    apply, done = type(stores.pointers)._apply, []

    def apply_then_die(self: Any, batch: Any) -> None:
        done.append(batch)
        if len(done) <= last or (written and len(done) == last + 1):
            apply(self, batch)
        if len(done) > last:
            raise Unavailable("the machine is gone")

    with monkeypatch.context() as broken:
        broken.setattr(type(stores.pointers), "_apply", apply_then_die)
        with suppress(Unavailable):
            seed_iceberg(stores, warehouse)
    seed_iceberg(stores, warehouse)
    assert_complete(stores)


def test_servers_that_start_together_seed_one_lake(tmp_path, warehouse):
    with open_stores(f"sqlite:///{tmp_path}/pointers.db") as stores:
        seed_home(stores)
        barrier = Barrier(3)

        def start() -> None:
            barrier.wait()
            seed_iceberg(stores, warehouse)

        with ThreadPoolExecutor(3) as pool:
            for outcome in [pool.submit(start) for _ in range(3)]:
                outcome.result()
        assert_complete(stores)


def test_existing_examples_are_kept(stores, warehouse):
    seed_home(stores)
    seed_demo(stores)
    assert not seed_iceberg(stores, warehouse)
    assert not record(stores, "orders").metadata_location


def test_tables_of_the_other_seed_mode_are_rejected(stores, warehouse):
    seed_home(stores)
    seed_demo(stores)
    marker = stores.pointers.get("/platform/seeds/demo")
    stores.pointers.compare_and_delete(marker.key, expect=marker.version)  # as if that seeding had been interrupted
    with pytest.raises(PreconditionFailed, match=r"delete the catalog examples, or set seed\.mode=fake"):
        seed_iceberg(stores, warehouse)


def test_server_serves_its_examples(tmp_path):
    seeded = ("--set", "seed.enabled=true", "--set", "seed.mode=iceberg")
    with (
        started(tmp_path / "home", *seeded) as server,
        AirportClient(server.addresses["airport"], "examples") as db,
    ):
        assert db.count("iceberg.orders") == ORDERS
        assert db.count("iceberg.lineitem") == ITEMS
