"""Warehouse gc: unreferenced files are deleted; files that are being written or read, and foreign files, are kept."""

from __future__ import annotations

import os
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetPartitionStatisticsUpdate, SetStatisticsUpdate

from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.resource_factory import ResourceFactory
from skiway.errors import AlreadyExists, PreconditionFailed, SkiwayError
from skiway.formats.iceberg.changes.commits import append, delete_all, plain
from skiway.formats.iceberg.metadata import updated, write_metadata
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore import managed as managed_tables
from skiway.metastore import queries
from skiway.metastore.gc.sweeps import Slice
from skiway.metastore.gc.warehouse import sweep_warehouse
from skiway.metastore.managed import locations
from skiway.metastore.managed import tables as managed_tables_tables
from skiway.metastore.managed.states import ManagedTable
from skiway.metastore.seeding import seed_home
from skiway.model import v1
from skiway.storage import open_stores

NOW_S = time.time()


@pytest.fixture
def managed(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    return ManagedTableFactory.at(factory, tmp_path)


@pytest.fixture
def folder(managed: ManagedTableFactory) -> Path:
    return Path(managed.warehouse.root.path)


def sweep(managed: ManagedTableFactory, **options: Any) -> Slice:
    options.setdefault("dry_run", False)
    return sweep_warehouse(managed.factory.stores, managed.warehouse, clock=lambda: datetime.now(UTC), **options)


def age(*paths: Path, days: float = 10, now_s: float = NOW_S) -> None:
    """Set the age of files and of all files in folders; gc uses the modification times of the disk."""
    modified_at = now_s - days * 86400
    for root in paths:
        for path in [root, *root.rglob("*")]:
            os.utime(path, (modified_at, modified_at))


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def path_of(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def uncommitted_metadata(managed: ManagedTableFactory, table: ManagedTable, *values: int) -> str:
    """Write all files of a commit without swapping the pointers, as if it had crashed, and return its metadata location."""
    created = append(managed.write(table, *values))(table.metadata, table.files, managed.home.clock)
    return write_metadata(table.files, updated(table.metadata, created.requirements, created.updates), version=2)


def test_commit_that_crashed_before_the_swap_is_deleted_with_all_its_files(
    managed: ManagedTableFactory, folder: Path
) -> None:
    """Even if its metadata is newer than the current metadata."""
    table = managed.append(managed.create(), 1)
    needed = files_in(folder)
    metadata = path_of(uncommitted_metadata(managed, table, 2))
    orphaned = files_in(folder) - needed
    assert len(orphaned) == 4, "a data file, a manifest, the manifest list and the metadata"
    age(folder)
    age(metadata, days=9)
    assert set(map(path_of, sweep(managed).removed)) == orphaned
    assert (files_in(folder), managed.rows(table)) == (needed, [1])


def test_recent_uncommitted_files_are_kept(managed: ManagedTableFactory, folder: Path) -> None:
    table = managed.append(managed.create(), 1)
    age(folder)
    uncommitted_metadata(managed, table, 2)
    assert sweep(managed).removed == ()


@pytest.mark.parametrize("content", [b"", b'{"format-ver', b"{}"])
def test_truncated_metadata_file_protects_only_itself(
    managed: ManagedTableFactory, folder: Path, content: bytes
) -> None:
    table = managed.append(managed.create(), 1)
    orphan = path_of(managed.write(table, 2)[0].file_path)
    age(folder)
    (orphan.parents[1] / "metadata" / f"00002-{uuid.uuid4()}.metadata.json").write_bytes(content)
    result = sweep(managed)
    assert (set(map(path_of, result.removed)), result.damaged) == ({orphan}, ())


def test_recent_metadata_without_its_manifests_protects_only_itself(managed: ManagedTableFactory, folder: Path) -> None:
    table = managed.append(managed.create(), 1)
    orphan = path_of(managed.write(table, 2)[0].file_path)
    age(folder)
    needed = files_in(folder)
    uncommitted_metadata(managed, table, 3)
    for path in files_in(folder) - needed:
        if path.suffix == ".avro":
            path.unlink()
    assert set(map(path_of, sweep(managed).removed)) == {orphan}


@pytest.mark.parametrize("days", [0, 10], ids=["young", "old"])
@pytest.mark.parametrize("suffix", [".metadata.json", "snap-*.avro", "m0.avro"])
@pytest.mark.parametrize("content", [None, b"x"], ids=["missing", "unreadable"])
def test_damaged_table_is_reported_and_the_others_are_swept(
    managed: ManagedTableFactory, folder: Path, suffix: str, content: bytes | None, days: float
) -> None:
    damaged, whole = managed.append(managed.create("a"), 1), managed.append(managed.create("b"), 1)
    orphans = [path_of(managed.write(each, 2)[0].file_path) for each in (damaged, whole)]
    place = path_of(managed.load(damaged).metadata.location)
    needed = sorted(place.rglob(f"*{suffix}"))[-1]
    if content is None:
        needed.unlink()
    else:
        needed.write_bytes(content)
    age(folder)
    age(place, days=days)
    result = sweep(ManagedTableFactory(managed.factory, Warehouse.at(str(folder))))  # which has nothing in its cache
    is_noticed = not (suffix == "m0.avro" and content and not days)  # manifests are only read to find orphans
    assert [path_of(each) for each in result.damaged] == [place] * is_noticed
    assert (set(map(path_of, result.removed)), orphans[0].exists()) == ({orphans[1]}, True)


def test_table_that_is_changed_during_the_sweep_is_not_reported(
    managed: ManagedTableFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the newest commit are missing in a list of files that was made before."""
    table = managed.append(managed.create(), 1)
    walk = TableFiles.walk

    def walk_and_commit(files: TableFiles, at: Any) -> Any:
        listed = walk(files, at)
        managed.append(table, 2)
        return listed

    monkeypatch.setattr(TableFiles, "walk", walk_and_commit)
    assert sweep(managed).damaged == ()
    assert 2 in managed.rows(table)


def test_first_files_of_a_running_statement_are_as_recent_as_its_last(
    managed: ManagedTableFactory, folder: Path
) -> None:
    table = managed.create()
    table.metadata.properties["write.target-file-size-bytes"] = "1"
    writer = DataFileWriter(table.files, table.metadata, buffer_bytes=1)
    writer.write(pa.record_batch({"x": pa.array([1], pa.int64())}))
    age(folder)
    writer.write(pa.record_batch({"x": pa.array([2], pa.int64())}))
    assert sweep(managed).removed == ()
    managed_tables.change(managed.home, managed.warehouse, id_of(table), append(writer.close()))
    assert managed.rows(table) == [1, 2]


def test_statement_whose_files_were_swept_fails_and_commits_nothing(managed: ManagedTableFactory, folder: Path) -> None:
    table = managed.append(managed.create(), 1)
    files = managed.write(table, 2)
    age(folder)
    assert len(sweep(managed).removed) == 1
    with pytest.raises(PreconditionFailed, match="was deleted before the commit"):
        managed_tables.change(managed.home, managed.warehouse, id_of(table), append(files))
    assert managed.rows(table) == [1]


def test_old_files_of_a_crashed_statement_are_deleted_while_others_write(
    managed: ManagedTableFactory, folder: Path
) -> None:
    table = managed.append(managed.create(), 1)
    orphans = {path_of(managed.write(table, value)[0].file_path) for value in (2, 3)}
    age(folder)
    managed.write(table, 4)
    assert set(map(path_of, sweep(managed).removed)) == orphans


def replaced_within_the_age(managed: ManagedTableFactory, folder: Path) -> tuple[ManagedTable, Path]:
    """A table whose only data file was expired just now; all its earlier files were written long ago.

    The state that was current when the age began references the data file, and the states before and after it do not.
    """
    table = managed.append(managed.create(), 1)
    (data,) = folder.rglob("*.parquet")
    managed_tables.change(managed.home, managed.warehouse, id_of(table), delete_all())
    age(folder)
    removed = [RemoveSnapshotsUpdate(snapshot_ids=[table.metadata.current_snapshot_id])]
    managed_tables.commit(managed.home, managed.warehouse, id_of(table), [], removed)
    return table, data


@pytest.mark.parametrize(
    "days",
    [[12, 11, 10], [10, 10, 10], [10, 11, 12]],
    ids=["in order", "in the same second", "by clocks that disagree"],
)
def test_files_of_the_state_that_was_current_when_the_age_began_are_kept(
    managed: ManagedTableFactory, folder: Path, days: list[float]
) -> None:
    """Which state it was follows from the versions, because modification times can be equal."""
    _, data = replaced_within_the_age(managed, folder)
    *older, _newest = sorted(folder.rglob("*.metadata.json"))
    for path, written in zip(older, days, strict=True):
        age(path, days=written)
    assert sweep(managed).removed == ()
    assert data.exists()


def test_files_of_the_state_before_are_deleted_when_its_successor_is_older_than_the_age(
    managed: ManagedTableFactory, folder: Path
) -> None:
    table, data = replaced_within_the_age(managed, folder)
    age(folder)
    removed = set(map(path_of, sweep(managed).removed))
    assert data in removed
    assert not any(path.name.endswith(".metadata.json") for path in removed), "the log still names them"
    assert managed.rows(table) == []


def test_files_of_a_state_that_was_replaced_before_the_age_began_are_deleted(
    managed: ManagedTableFactory, folder: Path
) -> None:
    table = managed.append(managed.create(), 1)
    (data,) = folder.rglob("*.parquet")
    managed_tables.change(managed.home, managed.warehouse, id_of(table), delete_all())
    expired = [RemoveSnapshotsUpdate(snapshot_ids=[table.metadata.current_snapshot_id])]
    managed_tables.commit(managed.home, managed.warehouse, id_of(table), [], expired)
    age(folder)
    managed.append(table, 2)
    assert data in set(map(path_of, sweep(managed).removed))
    assert managed.rows(table) == [2]


def test_referenced_statistics_files_are_kept(managed: ManagedTableFactory, folder: Path) -> None:
    """Puffin files of the table's statistics are named by its metadata only, not by any manifest."""
    table = managed.append(managed.create(), 1)
    snapshot_id = table.metadata.current_snapshot_id
    of_columns, of_partitions, orphan = (
        f"{table.metadata.location}/metadata/{uuid.uuid4()}.{suffix}" for suffix in ("puffin", "parquet", "puffin")
    )
    for place in (of_columns, of_partitions, orphan):
        path_of(place).write_bytes(b"PFA1")
    updates = [
        SetStatisticsUpdate(
            statistics=StatisticsFile(
                snapshot_id=snapshot_id,
                statistics_path=of_columns,
                file_size_in_bytes=4,
                file_footer_size_in_bytes=4,
                blob_metadata=[],
            )
        ),
        SetPartitionStatisticsUpdate(
            partition_statistics=PartitionStatisticsFile(
                snapshot_id=snapshot_id, statistics_path=of_partitions, file_size_in_bytes=4
            )
        ),
    ]
    managed_tables.commit(managed.home, managed.warehouse, id_of(table), [], updates)
    age(folder)
    assert set(map(path_of, sweep(managed).removed)) == {path_of(orphan)}


def test_pinned_files_are_kept_until_the_query_ends(managed: ManagedTableFactory, folder: Path) -> None:
    table = managed.append(managed.create(), 1)
    pinned, (data,) = table.metadata.current_snapshot_id, folder.rglob("*.parquet")
    query = queries.begin(
        managed.home,
        v1.BeginQueryRequest(
            inputs=[v1.QueryInput(table_id=id_of(table))],
            default_catalog_id=managed.factory.first_catalog().resource_id,
            ttl_seconds=3600,
        ),
    ).query
    managed_tables.change(managed.home, managed.warehouse, id_of(table), delete_all())
    expired = [RemoveSnapshotsUpdate(snapshot_ids=[pinned])]
    managed_tables.commit(managed.home, managed.warehouse, id_of(table), [], expired)
    # The newest metadata is a day newer, so that no other was current within the minimum age.
    age(folder)
    age(path_of(managed.load(table).metadata_location), days=9)
    sweep(managed)
    assert data.exists()
    queries.end(managed.home, v1.EndQueryRequest(query_id=query.query_id))
    removed = set(map(path_of, sweep(managed).removed))
    assert data in removed
    assert {path.suffix for path in removed - {data}} == {".avro"}, "the manifests of its snapshot"


def test_files_are_deleted_after_three_days(managed: ManagedTableFactory, folder: Path) -> None:
    table = managed.append(managed.create(), 1)
    orphan = path_of(managed.write(table, 2)[0].file_path)
    now, second = datetime.fromtimestamp(NOW_S, UTC), 1 / 86400
    for days, expected in ((3 - second, set()), (3 + second, {orphan})):
        age(folder, days=days)
        swept = sweep_warehouse(managed.factory.stores, managed.warehouse, clock=lambda: now)
        assert set(map(path_of, swept.removed)) == expected
    assert orphan.exists(), "a dry run is the default"


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_sweep_continues_with_the_next_tables(managed: ManagedTableFactory, folder: Path, size: int) -> None:
    orphans = {path_of(managed.write(managed.create(name), 1)[0].file_path) for name in ("a", "b", "c")}
    age(folder)
    removed: list[str] = []
    slices, token = 0, None
    while slices == 0 or token is not None:
        done = sweep(managed, size=size, token=token)
        assert done.looked_at <= 2 * size, "a data file and the metadata of each table"
        removed += done.removed
        slices, token = slices + 1, done.next_token
    assert slices == -(-3 // size)
    assert len(removed) == 3
    assert set(map(path_of, removed)) == orphans


def test_foreign_files_in_the_warehouse_are_kept(managed: ManagedTableFactory, folder: Path) -> None:
    table = managed.append(managed.create(), 1)
    needed = files_in(folder)
    foreign = [
        folder / "readme.txt",
        folder / "backup" / "table" / "data.parquet",
        folder / "a1" / str(uuid.uuid4()) / "metadata" / "00000-a.metadata.json",
    ]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"theirs")
    age(folder)
    assert sweep(managed).removed == ()
    assert files_in(folder) == needed | set(foreign)
    assert managed.rows(table) == [1]


def test_new_store_on_an_existing_warehouse_treats_no_table_as_dropped(
    managed: ManagedTableFactory, folder: Path
) -> None:
    managed.append(managed.create(), 1)
    needed = files_in(folder)
    age(folder)
    with open_stores("memory://") as another:
        seed_home(another)
        swept = sweep_warehouse(another, managed.warehouse, clock=lambda: datetime.now(UTC), dry_run=False)
    assert (swept.removed, files_in(folder)) == ((), needed)


def test_crashed_table_creation_is_swept_with_its_folder(
    managed: ManagedTableFactory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed.factory.first_namespace()

    class Crashed(BaseException):
        pass

    def crash(*_: Any, **__: Any) -> None:
        raise Crashed

    monkeypatch.setattr(managed_tables_tables, "publish", crash)
    with pytest.raises(Crashed):
        managed.create()
    assert len(files_in(folder)) == 1
    assert sweep(managed).removed == ()
    age(folder)
    assert len(sweep(managed).removed) == 1
    assert list(folder.glob("*/*")) == []
    assert list(managed.factory.stores.pointers.scan("/folders/")) == []


def test_recent_empty_folder_is_kept(managed: ManagedTableFactory, folder: Path) -> None:
    (empty := folder / "a1" / "soon" / "metadata").mkdir(parents=True)
    locations.claim(managed.home, "soon")
    now = managed.home.clock()

    def swept_at(now_: datetime) -> bool:
        sweep_warehouse(managed.factory.stores, managed.warehouse, clock=lambda: now_, dry_run=False)
        return not empty.exists()

    assert not swept_at(now)
    assert swept_at(now.replace(year=now.year + 1))


def test_dropped_tables_are_swept_as_soon_as_they_are_old_enough(managed: ManagedTableFactory, folder: Path) -> None:
    table = managed.append(managed.create(), 1)
    managed_tables.drop(managed.home, managed.warehouse, id_of(table))
    second = 1 / 86400
    for days, is_swept in ((3 - second, False), (3 + second, True)):
        age(folder, days=days)
        now = datetime.fromtimestamp(NOW_S, UTC)
        swept = sweep_warehouse(managed.factory.stores, managed.warehouse, clock=lambda: now)  # noqa: B023
        assert bool(swept.removed) == is_swept


def test_rejected_table_creation_leaves_no_folder(managed: ManagedTableFactory, folder: Path) -> None:
    table = managed.create()
    with pytest.raises(AlreadyExists):
        managed.create()
    assert [path.name for path in folder.glob("*/*")] == [table.id]


def test_dropped_table_without_a_folder_claim_is_swept(managed: ManagedTableFactory, folder: Path) -> None:
    table = managed.append(managed.create(), 1)
    locations.release(managed.home, table.id)
    sweep(managed)
    managed_tables.drop(managed.home, managed.warehouse, id_of(table))
    age(folder)
    assert sweep(managed).removed
    assert files_in(folder) == set()


def test_dry_run_deletes_nothing(managed: ManagedTableFactory, folder: Path) -> None:
    table = managed.append(managed.create(), 1)
    uncommitted_metadata(managed, table, 2)
    age(folder)
    before = files_in(folder), list(managed.factory.stores.pointers.scan())
    assert sweep(managed, dry_run=True).removed
    assert (files_in(folder), list(managed.factory.stores.pointers.scan())) == before


def test_nothing_is_deleted_if_the_store_is_unavailable(
    managed: ManagedTableFactory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed.append(managed.create(), 1)
    needed = files_in(folder)
    age(folder)

    def unavailable(_: str) -> None:
        raise SkiwayError("the store is away")

    monkeypatch.setattr(managed.factory.stores.pointers, "_get", unavailable)
    with pytest.raises(SkiwayError, match="away"):
        sweep(managed)
    assert files_in(folder) == needed


@pytest.mark.parametrize(("minutes", "is_kept"), [(50, True), (70, False)])
def test_states_within_the_lifetime_of_a_transaction_are_kept(
    managed: ManagedTableFactory, folder: Path, *, minutes: int, is_kept: bool
) -> None:
    """Although files need to be a minute old only, and the table no longer has the snapshot."""
    table = managed.append(managed.append(managed.create(), 1), 2)
    managed_tables.change(managed.home, managed.warehouse, id_of(table), delete_all())
    old = [each.snapshot_id for each in managed.load(table).metadata.snapshots[:-1]]
    before = files_in(folder)
    removal = plain((), (RemoveSnapshotsUpdate(snapshot_ids=old),))
    managed_tables.change(managed.home, managed.warehouse, id_of(table), removal)
    age(folder, days=minutes / 1440, now_s=time.time())
    sweep(managed, min_age_s=60.0)
    data = {path for path in before if path.suffix == ".parquet"}
    assert (data <= files_in(folder)) == is_kept
