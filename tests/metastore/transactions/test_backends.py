"""Transactions and events on every storage backend, with concurrent callers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from metastore.integrity import damage
from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.resource_factory import ResourceFactory, expect_error
from skiway.errors import LimitExceeded
from skiway.formats.iceberg.changes.commits import append
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import events, managed
from skiway.metastore.managed import ManagedTable, TableChange
from skiway.metastore.transactions import api, staged_writes
from skiway.metastore.transactions.staged_writes import NewWrite
from skiway.model import v1
from skiway.storage import Stores, open_stores, utc_now
from storage.conftest import server  # noqa: F401 - a fixture
from storage.homes import pointer_home

CALLERS = 8


@pytest.mark.parametrize(
    "kind", ["sqlite", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("postgresql", "dynamodb"))]
)
def test_concurrent_commits_to_two_tables_are_atomic_on_every_backend(
    kind: str,
    tmp_path: Path,
    server: Callable[[str], str],  # noqa: F811
) -> None:
    home = pointer_home(kind, tmp_path, server)
    with home.pointers(clock=utc_now) as opened, open_stores("memory://") as other:
        factory = ResourceFactory(Stores(opened, other.blobs), utc_now)
        lake = ManagedTableFactory.at(factory, tmp_path)
        tables = [lake.append(lake.create(name), 0) for name in ("people", "orders")]

        def commit(number: int) -> None:
            # Each caller has a warehouse, and therefore locks, of its own, like a server.
            own = ManagedTableFactory(factory, Warehouse.at(str(tmp_path / "warehouse")))
            realm = replace(factory.home, caller=f"caller {number}")
            unit = f"unit {number}"
            staged_writes.opened(realm, unit, until=utc_now().replace(year=2100))
            for table in tables[:: 1 if number % 2 else -1]:
                staged_writes.stage(realm, unit, NewWrite(own.load(table), own.write(table, number), 1))
            api.commit_transaction(realm, own.warehouse, unit)

        with ThreadPoolExecutor(CALLERS) as pool:
            list(pool.map(commit, range(1, CALLERS + 1)))
        rows = [lake.rows(table) for table in tables]
        assert rows == [list(range(CALLERS + 1))] * 2
        check_events(lake, tables)
        check_limit(lake)
        assert damage(factory.stores) == []


def check_events(lake: ManagedTableFactory, tables: list[ManagedTable]) -> None:
    """The events of each table must be in the order of its snapshots, and those of a commit belong together."""
    found = events.list_(lake.home, v1.ListEventsRequest(limit=1000)).events
    assert [each.sequence for each in found] == list(range(1, len(found) + 1))
    committed = [each for each in found if each.action == "committed"]
    for table in tables:
        log = [each.snapshot_id for each in lake.load(table).metadata.snapshots]
        assert [each.snapshot_id for each in committed if each.object_id == table.id] == log
    changes = [each.change_id for each in committed if each.caller]
    assert sorted(changes.count(each) for each in set(changes)) == [2] * CALLERS


def check_limit(lake: ManagedTableFactory) -> None:
    """A commit to more tables than fit is rejected, and changes nothing."""
    if lake.home.stores.pointers.max_batch > 100:
        return
    tables = [lake.create(f"t{number}") for number in range(12)]
    changes = [TableChange(id_of(table), append(lake.write(table, 1))) for table in tables]
    with expect_error(LimitExceeded, "commit.too_many_tables", found="12"):
        managed.change_all(lake.home, lake.warehouse, changes)
    managed.change_all(lake.home, lake.warehouse, changes[:8])
    assert [len(lake.load(table).metadata.snapshots) for table in tables] == [1] * 8 + [0] * 4
