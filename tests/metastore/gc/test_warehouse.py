"""Gc of the warehouse: all that is left over goes, and nothing that somebody writes, reads, or has put there himself."""

from __future__ import annotations

import os
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate

from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.resource_factory import ResourceFactory
from skiway.errors import AlreadyExists, PreconditionFailed, SkiwayError
from skiway.formats.iceberg.commits import append, delete_all
from skiway.formats.iceberg.data_files import DataFileWriter
from skiway.formats.iceberg.metadata import updated, write_metadata
from skiway.metastore import managed as managed_tables
from skiway.metastore import queries
from skiway.metastore.gc.sweeps import Slice
from skiway.metastore.gc.warehouse import sweep_warehouse
from skiway.metastore.managed import locations
from skiway.metastore.managed import tables as managed_tables_tables
from skiway.metastore.managed.commits import ManagedTable
from skiway.metastore.seeding.catalog import seed_home
from skiway.model import v1
from skiway.storage import open_stores


@pytest.fixture
def managed(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    return ManagedTableFactory.at(factory, tmp_path)


@pytest.fixture
def folder(managed: ManagedTableFactory) -> Path:
    return Path(managed.warehouse.root.path)


def sweep(managed: ManagedTableFactory, **asked: Any) -> Slice:
    asked.setdefault("dry_run", False)
    return sweep_warehouse(managed.factory.stores, managed.warehouse, clock=lambda: datetime.now(UTC), **asked)


def age(*places: Path, days: float = 10) -> None:
    """Make files, and all files in folders, that old: gc goes by the times of the disk."""
    moment = time.time() - days * 86400
    for place in places:
        for path in [place, *place.rglob("*")]:
            os.utime(path, (moment, moment))


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def path_of(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def attempt(managed: ManagedTableFactory, table: ManagedTable, *values: int) -> str:
    """The metadata of a commit that died before the pointers were swapped; all its files are there."""
    made = append(managed.write(table, *values))(table.metadata, table.files, managed.home.clock)
    return write_metadata(table.files, updated(table.metadata, made.requirements, made.updates), version=2)


def test_a_commit_that_died_before_the_swap_goes_with_all_its_files(managed: ManagedTableFactory, folder: Path) -> None:
    """Though its metadata is younger than that of the present state."""
    table = managed.append(managed.create(), 1)
    needed = files_in(folder)
    metadata = path_of(attempt(managed, table, 2))
    left_over = files_in(folder) - needed
    assert len(left_over) == 4, "a data file, a manifest, the manifest list and the metadata"
    age(folder)
    age(metadata, days=9)
    assert set(map(path_of, sweep(managed).removed)) == left_over
    assert (files_in(folder), managed.rows(table)) == (needed, [1])


def test_a_commit_that_died_a_moment_ago_stays_as_it_might_be_alive(managed: ManagedTableFactory, folder: Path) -> None:
    table = managed.append(managed.create(), 1)
    age(folder)
    attempt(managed, table, 2)
    assert sweep(managed).removed == ()


@pytest.mark.parametrize("content", [b"", b'{"format-ver', b"{}"])
def test_half_a_file_of_metadata_keeps_only_itself(managed: ManagedTableFactory, folder: Path, content: bytes) -> None:
    table = managed.append(managed.create(), 1)
    orphan = path_of(managed.write(table, 2)[0].file_path)
    age(folder)
    (orphan.parents[1] / "metadata" / f"00002-{uuid.uuid4()}.metadata.json").write_bytes(content)
    done = sweep(managed)
    assert (set(map(path_of, done.removed)), done.damaged) == ({orphan}, ())


def test_a_young_state_without_its_manifests_keeps_only_itself(managed: ManagedTableFactory, folder: Path) -> None:
    table = managed.append(managed.create(), 1)
    orphan = path_of(managed.write(table, 2)[0].file_path)
    age(folder)
    needed = files_in(folder)
    attempt(managed, table, 3)
    for path in files_in(folder) - needed:
        if path.suffix == ".avro":
            path.unlink()
    assert set(map(path_of, sweep(managed).removed)) == {orphan}


def test_the_first_files_of_a_statement_are_as_young_as_its_last(managed: ManagedTableFactory, folder: Path) -> None:
    table = managed.create()
    table.metadata.properties["write.target-file-size-bytes"] = "1"
    writer = DataFileWriter(table.files, table.metadata, buffer_bytes=1)
    writer.write(pa.record_batch({"x": pa.array([1], pa.int64())}))
    age(folder)
    writer.write(pa.record_batch({"x": pa.array([2], pa.int64())}))
    assert sweep(managed).removed == ()
    managed_tables.append_with_retry(managed.home, managed.warehouse, id_of(table), writer.close())
    assert managed.rows(table) == [1, 2]


def test_a_statement_whose_files_were_swept_is_told_so_and_commits_nothing(
    managed: ManagedTableFactory, folder: Path
) -> None:
    table = managed.append(managed.create(), 1)
    files = managed.write(table, 2)
    age(folder)
    assert len(sweep(managed).removed) == 1
    with pytest.raises(PreconditionFailed, match="was deleted before the commit"):
        managed_tables.append_with_retry(managed.home, managed.warehouse, id_of(table), files)
    assert managed.rows(table) == [1]


def test_files_of_a_statement_that_is_long_over_go_whatever_others_write(
    managed: ManagedTableFactory, folder: Path
) -> None:
    table = managed.append(managed.create(), 1)
    orphans = {path_of(managed.write(table, value)[0].file_path) for value in (2, 3)}
    age(folder)
    managed.write(table, 4)
    assert set(map(path_of, sweep(managed).removed)) == orphans


def test_what_a_query_has_pinned_stays_until_it_ends(managed: ManagedTableFactory, folder: Path) -> None:
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
    # The newest state is a day younger, so that no other was current within the age.
    age(folder)
    age(path_of(managed.load(table).metadata_location), days=9)
    sweep(managed)
    assert data.exists()
    queries.end(managed.home, v1.EndQueryRequest(query_id=query.query_id))
    assert set(map(path_of, sweep(managed).removed)) == {data}


def test_what_people_put_into_the_warehouse_is_none_of_our_business(managed: ManagedTableFactory, folder: Path) -> None:
    table = managed.append(managed.create(), 1)
    needed = files_in(folder)
    theirs = [
        folder / "readme.txt",
        folder / "backup" / "table" / "data.parquet",
        folder / "a1" / str(uuid.uuid4()) / "metadata" / "00000-a.metadata.json",
    ]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"theirs")
    age(folder)
    assert sweep(managed).removed == ()
    assert files_in(folder) == needed | set(theirs)
    assert managed.rows(table) == [1]


def test_a_store_that_was_lost_and_begun_anew_takes_nothing_for_dropped(
    managed: ManagedTableFactory, folder: Path
) -> None:
    managed.append(managed.create(), 1)
    needed = files_in(folder)
    age(folder)
    with open_stores("memory://") as another:
        seed_home(another)
        swept = sweep_warehouse(another, managed.warehouse, clock=lambda: datetime.now(UTC), dry_run=False)
    assert (swept.removed, files_in(folder)) == ((), needed)


def test_a_creation_that_died_is_swept_with_its_folder(
    managed: ManagedTableFactory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed.factory.first_namespace()

    class Died(BaseException):
        pass

    def dies(*_: Any) -> None:
        raise Died

    monkeypatch.setattr(managed_tables_tables, "writer", dies)
    with pytest.raises(Died):
        managed.create()
    assert len(files_in(folder)) == 1
    assert sweep(managed).removed == ()
    age(folder)
    assert len(sweep(managed).removed) == 1
    assert list(folder.glob("*/*")) == []
    assert list(managed.factory.stores.pointers.scan("/folders/")) == []


def test_an_empty_folder_stays_while_somebody_may_be_about_to_write_to_it(
    managed: ManagedTableFactory, folder: Path
) -> None:
    (empty := folder / "a1" / "soon" / "metadata").mkdir(parents=True)
    locations.claim(managed.home, "soon")
    now = managed.home.clock()

    def swept_at(moment: datetime) -> bool:
        sweep_warehouse(managed.factory.stores, managed.warehouse, clock=lambda: moment, dry_run=False)
        return not empty.exists()

    assert not swept_at(now)
    assert swept_at(now.replace(year=now.year + 1))


def test_a_creation_that_is_refused_leaves_no_folder(managed: ManagedTableFactory, folder: Path) -> None:
    table = managed.create()
    with pytest.raises(AlreadyExists):
        managed.create()
    assert [path.name for path in folder.glob("*/*")] == [table.id]


def test_a_table_from_before_folders_were_claimed_is_swept_after_it_is_dropped(
    managed: ManagedTableFactory, folder: Path
) -> None:
    table = managed.append(managed.create(), 1)
    locations.release(managed.home, table.id)
    sweep(managed)
    managed_tables.drop(managed.home, managed.warehouse, id_of(table))
    age(folder)
    assert sweep(managed).removed
    assert files_in(folder) == set()


def test_a_dry_run_changes_nothing(managed: ManagedTableFactory, folder: Path) -> None:
    table = managed.append(managed.create(), 1)
    attempt(managed, table, 2)
    age(folder)
    before = files_in(folder), list(managed.factory.stores.pointers.scan())
    assert sweep(managed, dry_run=True).removed
    assert (files_in(folder), list(managed.factory.stores.pointers.scan())) == before


def test_a_store_that_cannot_be_reached_removes_nothing(
    managed: ManagedTableFactory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed.append(managed.create(), 1)
    needed = files_in(folder)
    age(folder)

    def away(_: str) -> None:
        raise SkiwayError("the store is away")

    monkeypatch.setattr(managed.factory.stores.pointers, "get", away)
    with pytest.raises(SkiwayError, match="away"):
        sweep(managed)
    assert files_in(folder) == needed
