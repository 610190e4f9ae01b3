"""The health report: what maintenance would gain."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from formats.delete_files import add_position_deletes
from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from metastore.table_maintenance.maintained_tables import MaintainedTable
from skiway.formats.iceberg import manifest_files
from skiway.formats.iceberg.metadata import read_metadata
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.metastore.gc import warehouse
from skiway.metastore.table_maintenance.api import table_health
from skiway.metastore.table_maintenance.cleaning import remove_orphans
from skiway.metastore.table_maintenance.optimizing import optimize
from skiway.model import v1

OPEN_COST = {"read.split.open-file-cost": str(1 << 30)}
"""So much that the sizes of files hardly count."""


@pytest.fixture
def home(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    return ManagedTableFactory.at(factory, tmp_path)


def health(table: MaintainedTable) -> v1.TableHealth:
    return table_health(table.home.home, table.home.warehouse, table.id)


def test_expected_gain_is_the_share_of_files_that_need_not_be_opened(home: ManagedTableFactory) -> None:
    table = MaintainedTable.create(home, properties=OPEN_COST)
    table.fill(8)
    assert health(table).expected_gain == pytest.approx(7 / 8, abs=1e-3)
    assert "about 87% less time (an estimate)" in health(table).decisions[0].reason


def test_expected_gain_counts_delete_files_that_are_applied(home: ManagedTableFactory) -> None:
    table = MaintainedTable.create(home, properties=OPEN_COST)
    table.append(*range(10))
    add_position_deletes(table, table.paths()[0], 1, 2)
    found = health(table)
    assert (found.delete_files, found.deleted_share) == (1, 0.2)
    assert found.expected_gain == pytest.approx(1 / 2, abs=1e-3), "one file instead of two"


def test_delete_file_that_still_applies_to_other_files_is_no_gain(home: ManagedTableFactory) -> None:
    table = MaintainedTable.create(home, properties=OPEN_COST)
    table.append(*range(100))
    add_position_deletes(table, table.paths()[0], 1)
    assert health(table).expected_gain == 0, "too few rows are deleted to rewrite the file"


def test_without_the_property_a_disk_opens_files_faster_than_an_object_store(home: ManagedTableFactory) -> None:
    table = MaintainedTable.create(home)
    table.fill(8)
    size = health(table).data_bytes
    opened = 512 << 10
    assert health(table).expected_gain == pytest.approx(1 - (size + opened) / (size + 8 * opened), abs=1e-6)


def test_nothing_is_expected_of_a_table_in_good_shape_and_of_an_empty_one(home: ManagedTableFactory) -> None:
    table = MaintainedTable.create(home)
    assert health(table).expected_gain == 0
    table.fill(8)
    optimize(home.home, home.warehouse, table.id)
    assert health(table).expected_gain == 0


def test_report_reads_older_states_and_snapshots_only_for_files_that_may_be_orphans(
    home: ManagedTableFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table has as many states as commits, and each of them lists all snapshots."""
    states, lists = list[object](), list[object]()
    read_state, read_list = read_metadata, manifest_files.manifests

    def metadata(files: TableFiles, place: str) -> Any:
        states.append(place)
        return read_state(files, place)

    def manifests(snapshot: Any, io: Any) -> Any:
        lists.append(snapshot and snapshot.manifest_list)
        return read_list(snapshot, io)

    monkeypatch.setattr(warehouse, "read_metadata", metadata)
    monkeypatch.setattr(manifest_files, "manifests", manifests)
    table = MaintainedTable.create(home)
    table.fill(8)
    realm = replace(home.home, clock=lambda: datetime.now(UTC))
    lists.clear()
    assert table_health(realm, home.warehouse, table.id).orphan_files == 0
    assert states == [table.now.metadata_location], "the current one"
    assert len(lists) < 8
    orphan = table.folder / "data" / "orphan.parquet"
    orphan.write_bytes(b"x")
    ten_days_ago = datetime.now(UTC).timestamp() - 10 * 24 * 3600
    os.utime(orphan, (ten_days_ago, ten_days_ago))
    lists.clear()
    assert remove_orphans(realm, home.warehouse, table.id).size_bytes == 1
    assert len(states) > 8, "all states"
    assert len(lists) == len(set(lists)) == 8, "each list once"
