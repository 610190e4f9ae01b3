"""Times in the history of tables never decrease, whatever the clocks of clients and servers show.

Iceberg's Java library rejects metadata in which they decrease by more than a minute.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import snapshot as pyiceberg_snapshots

from rest.rest_server import RestServer
from skiway.formats.iceberg.changes import commits
from skiway.formats.iceberg.metadata import is_ordered
from skiway.metastore import Realm, managed
from skiway.metastore.maintenance import Checker
from skiway.storage import Stores

HOUR_MS = 3_600_000
ROWS = pa.table({"id": [1]})


@pytest.fixture
def catalog(rest_server: RestServer) -> RestCatalog:
    made = rest_server.pyiceberg()
    made.create_namespace("s")
    return made


@pytest.fixture
def table(catalog: RestCatalog) -> Table:
    return catalog.create_table("s.t", ROWS.schema)


class Skew:
    """The clock of a client, which is `ms` ahead."""

    ms = 0


@pytest.fixture
def skew(monkeypatch: pytest.MonkeyPatch) -> Skew:
    clock = Skew()
    original: Any = getattr(pyiceberg_snapshots, "Snapshot")  # noqa: B009 - not exported

    def skewed(**fields: Any) -> Any:
        made = original(**fields)
        return made.model_copy(update={"timestamp_ms": made.timestamp_ms + clock.ms})

    monkeypatch.setattr(pyiceberg_snapshots, "Snapshot", skewed)
    return clock


def check_as_java_does(metadata: TableMetadata) -> None:
    """The checks of `TableMetadata` in Iceberg's Java library, without its tolerance of a minute."""
    for log in (metadata.snapshot_log, metadata.metadata_log):
        times = [entry.timestamp_ms for entry in log]
        assert times == sorted(times)
        assert not times or metadata.last_updated_ms >= times[-1]


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.mark.parametrize("skews", [[0, -HOUR_MS], [0, HOUR_MS, 0], [HOUR_MS, -HOUR_MS, 0], [-HOUR_MS, -HOUR_MS]])
def test_snapshots_of_clients_with_wrong_clocks_are_in_order(table: Table, skew: Skew, skews: list[int]) -> None:
    start = now_ms()
    for skew.ms in skews:
        table.append(ROWS)
        check_as_java_does(table.metadata)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        assert start - 1000 <= snapshot.timestamp_ms <= now_ms()
        assert table.metadata.snapshot_log[-1].timestamp_ms == snapshot.timestamp_ms
    with table.update_schema() as update:
        update.add_column("x", table.schema().find_type("id"))
    check_as_java_does(table.metadata)
    assert table.scan().to_arrow().num_rows == len(skews)


def test_staged_tables_of_clients_with_a_fast_clock_are_not_in_the_future(catalog: RestCatalog, skew: Skew) -> None:
    skew.ms = HOUR_MS
    with catalog.create_table_transaction("s.staged", ROWS.schema) as transaction:
        transaction.append(ROWS)
    made = catalog.load_table("s.staged")
    check_as_java_does(made.metadata)
    assert made.metadata.snapshot_log[-1].timestamp_ms <= now_ms()


def test_branches_and_rollbacks_are_in_order(catalog: RestCatalog, table: Table, skew: Skew) -> None:
    table.append(ROWS)
    first = table.current_snapshot()
    assert first is not None
    skew.ms = -HOUR_MS
    table.append(ROWS, branch="main")
    table.manage_snapshots().create_branch(first.snapshot_id, "side").commit()
    table.append(ROWS, branch="side")
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    check_as_java_does(table.metadata)
    assert [entry.snapshot_id for entry in table.metadata.snapshot_log].count(first.snapshot_id) == 2


def record(rest_server: RestServer, stores: Stores, clock: datetime) -> tuple[Realm, Any]:
    realm = Realm(stores, "a1", clock=lambda: clock)
    loaded = rest_server.pyiceberg().load_table("s.t")
    assert loaded is not None
    from skiway.metastore import catalogs, namespaces, tables

    of = catalogs.find(realm, "lake")
    assert of is not None
    where = namespaces.lookup(realm, of.value.resource_id, ["s"])
    assert where is not None
    found = tables.find(realm, where.resource_id.id, "t")
    assert found is not None
    return realm, found.resource_id


def test_changes_of_a_server_whose_clock_jumps_back_are_in_order(
    rest_server: RestServer, stores: Stores, table: Table
) -> None:
    table.append(ROWS)
    first = table.current_snapshot()
    assert first is not None
    realm, table_id = record(rest_server, stores, datetime.now(UTC) - timedelta(hours=1))
    for producer in (
        commits.append([]),
        commits.delete_all(),
        commits.set_ref("tag", first.snapshot_id, kind="tag"),
        commits.rollback(first.snapshot_id),
        commits.append([]),
    ):
        made = managed.change(realm, rest_server.warehouse, table_id, producer)
        check_as_java_does(made.metadata)


def test_check_finds_and_repairs_logs_that_java_rejects(
    rest_server: RestServer, stores: Stores, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such logs were written by versions that took the times of clients as they were."""
    table.append(ROWS)
    table.append(ROWS)
    realm, table_id = record(rest_server, stores, datetime.now(UTC))
    with monkeypatch.context() as patched:
        patched.setattr("skiway.formats.iceberg.metadata.ordered", _disordered)
        managed.change(realm, rest_server.warehouse, table_id, commits.append([]))
    broken = managed.load(realm, rest_server.warehouse, table_id).metadata
    assert not is_ordered(broken, tolerance_ms=60_000)
    (defect,) = Checker(stores, rest_server.warehouse).defects()
    assert "times in its history decrease" in defect.problem
    assert "skiway check --repair" in defect.problem
    repairing = Checker(stores, rest_server.warehouse, repair=True)
    assert list(repairing.defects()) == []
    assert repairing.repaired == [f"the history of table t: {defect.place}"]
    repaired = managed.load(realm, rest_server.warehouse, table_id).metadata
    check_as_java_does(repaired)
    assert [each.snapshot_id for each in repaired.snapshot_log] == [each.snapshot_id for each in broken.snapshot_log]
    assert list(Checker(stores, rest_server.warehouse).defects()) == []


def _disordered(metadata: TableMetadata) -> TableMetadata:
    last = metadata.snapshot_log[-1]
    log = [*metadata.snapshot_log[:-1], last.model_copy(update={"timestamp_ms": last.timestamp_ms - HOUR_MS})]
    return metadata.model_copy(update={"snapshot_log": log})
