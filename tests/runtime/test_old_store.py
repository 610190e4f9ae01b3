"""Servers of this version on a store of the previous format, as during an upgrade of several servers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from metastore.migrations.old_stores import format_1
from runtime.servers import skiway, started
from skiway.client import AirportClient
from skiway.metastore.records import keys
from skiway.storage import StoreFormat


def test_servers_use_a_store_of_the_previous_format_until_it_is_migrated(tmp_path: Path) -> None:
    """Also one in which the key that signs tickets is in the pointer store: they refused Airport then."""
    old = format_1("sqlite", tmp_path / "home", str)
    with old.open() as stores:
        found = stores.pointers.get(keys.AIRPORT_SIGNING_KEY)
        assert found is not None
        stores.pointers.compare_and_set(found.key, bytes(range(32)).hex(), expect=found.version)
    settings = (*old.settings, "--set", f"warehouse.uri={(old.home / 'warehouse').as_uri()}")
    with started(old.home, *settings) as first, started(old.home, *settings) as second:
        here, there = (AirportClient(each.addresses["airport"], "lake") for each in (first, second))
        here.create_schema("s")
        here.create_table_as("s.t", pa.table({"id": [1]}))
        assert rows(there)["id"].to_pylist() == [1]
        migrated = skiway("migrate", "--home", old.home, *settings)
        assert migrated.returncode == 0, migrated.stderr
        with old.open() as stores:
            assert stores.pointers.format() == StoreFormat(2)
        there.insert("s.t", pa.table({"id": [2]}))
        assert sorted(rows(here)["id"].to_pylist()) == [1, 2]
        here.close()
        there.close()


def rows(lake: AirportClient) -> pa.Table:
    return lake.scan("s.t").read_all()
