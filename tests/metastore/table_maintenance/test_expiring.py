"""Expiry removes old snapshots and the files that only they use; nothing that anybody may still read."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import SetSnapshotRefUpdate

from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from metastore.table_maintenance.maintained_tables import MaintainedTable
from skiway.errors import Cancelled, InvalidArgument, NotFound
from skiway.formats.iceberg.changes import maintenance
from skiway.formats.iceberg.changes.commits import delete_all, plain, rollback, set_ref
from skiway.formats.iceberg.changes.maintenance import CompactionRules
from skiway.metastore import gc, queries
from skiway.metastore.table_maintenance import cleaning
from skiway.metastore.table_maintenance.cleaning import Planned, expire_snapshots, remove_orphans
from skiway.metastore.table_maintenance.optimizing import optimize
from skiway.model import v1

HOUR, DAY = 3600.0, 86400.0


@pytest.fixture
def home(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    return ManagedTableFactory.at(factory, tmp_path)


@pytest.fixture
def table(home: ManagedTableFactory) -> MaintainedTable:
    """Four snapshots, a day apart; the last one replaced all rows of the others."""
    made = MaintainedTable.create(home)
    for number in range(3):
        made.append(number)
        home.factory.clock.advance(DAY)
    made.change(delete_all(made_files(made, 7)))
    home.factory.clock.advance(2 * HOUR)
    return made


def made_files(table: MaintainedTable, *ids: int) -> list[Any]:
    import pyarrow as pa

    from skiway.formats.iceberg.writing.data_files import DataFileWriter

    now = table.now
    with DataFileWriter(now.files, now.metadata) as writer:
        writer.write(pa.record_batch({"id": list(ids), "part": ["a"] * len(ids), "v": ["v"] * len(ids)}))
        return writer.close()


def run(table: MaintainedTable, **options: Any) -> Planned:
    options = {"max_age_ms": 0, "dry_run": False, **options}
    return expire_snapshots(table.home.home, table.home.warehouse, table.id, **options)


def snapshots(table: MaintainedTable) -> list[int]:
    return [each.snapshot_id for each in table.metadata.snapshots]


def begin(table: MaintainedTable, snapshot_id: int, *, ttl_s: int = 600) -> str:
    """Begin a query that reads a snapshot, and return its id."""
    catalog = table.now.table.catalog_id
    read = v1.QueryInput(table_id=table.id, snapshot=v1.SnapshotRef(snapshot_id=snapshot_id))
    request = v1.BeginQueryRequest(default_catalog_id=catalog, inputs=[read], ttl_seconds=ttl_s)
    return queries.begin(table.home.home, request).query.query_id


def test_dry_run_lists_exactly_what_is_then_deleted(table: MaintainedTable) -> None:
    before, state = table.on_disk(), table.now.metadata_location
    planned = run(table, dry_run=True)
    assert (table.on_disk(), table.now.metadata_location) == (before, state), "a dry run changes nothing"
    done = run(table)
    assert done == planned
    added = table.on_disk() - before
    assert all(path.endswith(".metadata.json") for path in added)
    assert before - table.on_disk() == {each.location for each in planned.files}
    assert len(planned.expired) == 3
    assert sum(each.location.endswith(".parquet") for each in planned.files) == 3
    assert (table.ids(), len(snapshots(table))) == ([7], 1)
    assert planned.size_bytes > 0


def test_files_that_a_remaining_snapshot_shares_stay(home: ManagedTableFactory) -> None:
    table = MaintainedTable.create(home)
    table.fill(3)
    home.factory.clock.advance(10 * DAY)
    report = run(table)
    assert len(report.expired) == 2
    assert not any(each.location.endswith(".parquet") for each in report.files)
    assert table.ids() == list(range(30))


def test_age_and_count_decide(table: MaintainedTable) -> None:
    by_age = run(table, dry_run=True, max_age_ms=int((DAY + 3 * HOUR) * 1000))
    assert len(by_age.expired) == 2
    assert len(run(table, dry_run=True, min_count=3).expired) == 1
    assert not run(table, dry_run=True, max_age_ms=None).expired, "five days by default"


def test_tags_and_branches_keep_their_snapshots(table: MaintainedTable) -> None:
    first, second, third, last = snapshots(table)
    table.change(set_ref("release", first, kind="tag"))
    table.change(set_ref("try", third))
    report = run(table)
    assert sorted(snapshots(table)) == sorted([first, third, last])
    assert list(report.expired) == [second]
    assert report.kept[first] == "tag release"
    assert (table.own_rows(first), table.own_rows(third)) == ([0], [0, 1, 2])


def test_ref_with_a_maximum_age_expires_with_its_snapshot(table: MaintainedTable) -> None:
    first = snapshots(table)[0]
    ref = SetSnapshotRefUpdate(
        ref_name="old", type=SnapshotRefType.TAG, snapshot_id=first, max_ref_age_ms=int(DAY * 1000)
    )
    table.change(plain((), (ref,)))
    report = run(table)
    assert (list(report.refs), first in report.expired, "old" in table.metadata.refs) == (["old"], True, False)


def test_snapshots_that_a_transaction_may_read_stay(home: ManagedTableFactory) -> None:
    """A transaction reads the tables as of its begin, for up to an hour."""
    table = MaintainedTable.create(home)
    table.append(1)
    first = table.snapshot_id
    home.factory.clock.advance(30 * DAY)
    table.change(delete_all())
    home.factory.clock.advance(HOUR - 60)
    report = run(table)
    assert (list(report.expired), table.own_rows(first)) == ([], [1])
    home.factory.clock.advance(120)
    assert list(run(table).expired) == [first]


def test_leased_snapshot_and_its_files_stay_until_the_lease_ends(table: MaintainedTable) -> None:
    first, second = snapshots(table)[:2]
    query_id = begin(table, second)
    report = run(table)
    assert (first in report.expired, report.kept[second]) == (True, "leased by a query or transaction")
    assert table.own_rows(second) == [0, 1]
    queries.end(table.home.home, v1.EndQueryRequest(query_id=query_id))
    assert list(run(table).expired) == [second]
    assert [path for path in table.on_disk() if path.endswith(".parquet")] == table.paths()


def test_lease_that_ran_out_keeps_nothing(table: MaintainedTable) -> None:
    second = snapshots(table)[1]
    begin(table, second, ttl_s=60)
    table.home.factory.clock.advance(3600)
    assert second in run(table).expired


def test_files_of_a_snapshot_that_is_leased_while_it_expires_stay(table: MaintainedTable, monkeypatch: Any) -> None:
    """The lease began after the commit was prepared. Its reader has the list of files, so they must stay."""
    first, second, third, _ = snapshots(table)
    needed = set(
        table.now.handle.files(next(each for each in table.now.handle.snapshots() if each.id == second))[
            "path"
        ].to_pylist()
    )
    query_id = begin(table, second)
    monkeypatch.setattr(cleaning, "snapshots_in_use", lambda *_: {})
    report = run(table)
    assert set(report.expired) == {first, second, third}
    assert needed <= table.on_disk()
    queries.end(table.home.home, v1.EndQueryRequest(query_id=query_id))
    age(table)
    removed = remove_orphans(
        real_time(table), table.home.warehouse, table.id, older_than=timedelta(days=1), dry_run=False
    )
    assert needed <= {each.location for each in removed.files}
    assert table.ids() == [7]


def real_time(table: MaintainedTable) -> Any:
    """A realm with the clock of the disk."""
    from dataclasses import replace

    return replace(table.home.home, clock=lambda: datetime.now(UTC))


def age(table: MaintainedTable, *, days: float = 10) -> None:
    for path in table.on_disk():
        moment = datetime.now(UTC).timestamp() - days * DAY
        os.utime(path.removeprefix("file://"), (moment, moment))


def test_commit_that_happens_meanwhile_stays(table: MaintainedTable, monkeypatch: Any) -> None:
    real, calls = maintenance.expirable, list[Any]()

    def expirable(*args: Any, **options: Any) -> Any:
        if not calls:
            calls.append(table.append(8))
        return real(*args, **options)

    monkeypatch.setattr(cleaning, "expirable", expirable)
    run(table)
    assert table.ids() == [7, 8]


def test_snapshot_that_is_restored_meanwhile_stays(table: MaintainedTable, monkeypatch: Any) -> None:
    first = snapshots(table)[0]
    real, calls = maintenance.expirable, list[Any]()

    def expirable(*args: Any, **options: Any) -> Any:
        if not calls:
            calls.append(table.change(rollback(first)))
        return real(*args, **options)

    monkeypatch.setattr(cleaning, "expirable", expirable)
    report = run(table)
    assert first not in report.expired
    assert table.ids() == [0]


def test_sweep_of_the_warehouse_finds_no_damage_after_an_expiry(table: MaintainedTable) -> None:
    """The state that the expiry has replaced is old, and still lists the snapshots, whose files are gone."""
    age(table)
    run(table)
    done = gc.sweep_table(real_time(table), table.home.warehouse, table.id.id, dry_run=False)
    assert done.damaged == ()
    assert table.ids() == [7]
    age(table)
    table.append(9)
    done = gc.sweep_table(real_time(table), table.home.warehouse, table.id.id, dry_run=False)
    assert done.damaged == ()
    assert table.ids() == [7, 9]


def test_expired_snapshot_cannot_be_read_any_more_and_says_so(table: MaintainedTable) -> None:
    first = snapshots(table)[0]
    run(table)
    with pytest.raises(NotFound, match="may have expired"):
        table.change(rollback(first))


def test_run_that_stops_half_way_leaves_orphans_that_clean_removes(table: MaintainedTable) -> None:
    planned = run(table, dry_run=True)
    calls = iter(range(100))

    def check() -> None:
        if next(calls) == 2:
            raise Cancelled("stop", key="job.cancelled")

    with pytest.raises(Cancelled):
        run(table, check=check)
    left = {each.location for each in planned.files} & table.on_disk()
    assert len(left) == len(planned.files) - 2
    age(table)
    realm = real_time(table)
    dry = remove_orphans(realm, table.home.warehouse, table.id, older_than=timedelta(days=1))
    assert left <= table.on_disk()
    done = remove_orphans(realm, table.home.warehouse, table.id, older_than=timedelta(days=1), dry_run=False)
    assert done == dry
    assert left <= {each.location for each in done.files}
    assert not left & table.on_disk()
    assert table.ids() == [7]


def test_age_of_orphans_below_an_hour_is_refused(table: MaintainedTable) -> None:
    with pytest.raises(InvalidArgument, match="older than an hour"):
        remove_orphans(table.home.home, table.home.warehouse, table.id, older_than=timedelta(minutes=5))


def test_optimize_then_expire_leaves_only_the_new_files(home: ManagedTableFactory) -> None:
    table = MaintainedTable.create(home)
    table.fill(8)
    optimize(home.home, home.warehouse, table.id, rules_of=lambda metadata: CompactionRules.of(metadata))
    home.factory.clock.advance(10 * DAY)
    run(table)
    data = [path for path in table.on_disk() if path.endswith(".parquet")]
    assert (data, table.ids()) == (table.paths(), list(range(80)))
