"""Versions of mirrored tables as Iceberg snapshots: columns, partitions and files that differ between versions."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

from lake.mirrored_source import Source, source_of, values
from lake.test_refused_exports import deletion_vector
from skiway.errors import NotFound, Unsupported
from skiway.formats import Snapshot, TableHandle
from skiway.formats.iceberg.export.versions import ZERO_ID
from skiway.lake.reading.opened_tables import Handles, Sources
from skiway.metastore import exports, snapshots, tables
from skiway.metastore.records import keys
from skiway.model import v1


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    with source_of(tmp_path, "delta") as source:
        yield source


@pytest.fixture
def catalog(source: Source) -> Iterator[RestCatalog]:
    with source.lake.rest("c") as catalog:
        yield catalog


def write(source: Source, rows: pa.Table, **options: Any) -> None:
    deltalake.write_deltalake(str(source.folder / "t"), rows, **options)


def rows_of(table: Table, **at: Any) -> list[dict[str, Any]]:
    return sorted(table.scan(**at).to_arrow().to_pylist(), key=str)


def operations(table: Table) -> list[str]:
    return [each.summary.operation.value for each in table.snapshots() if each.summary]


def test_table_that_is_created_again_has_its_new_rows(source: Source, catalog: RestCatalog) -> None:
    source.write(1, 2)
    source.sync()
    assert values(catalog.load_table("s.t")) == [1, 2]
    shutil.rmtree(source.folder / "t")
    source.write(7)
    source.sync(again=True)
    table = catalog.load_table("s.t")
    assert (values(table), [each.snapshot_id for each in table.snapshots()]) == ([7], [ZERO_ID])


def test_columns_of_older_versions_are_found_by_name(source: Source, catalog: RestCatalog) -> None:
    write(source, pa.table({"x": [1], "old": ["a"]}))
    write(source, pa.table({"x": [2], "new": [2.5]}), mode="overwrite", schema_mode="overwrite")
    write(source, pa.table({"x": [3], "new": [3.5]}), mode="append")
    times = [1577836800000 + 1000 * version for version in range(3)]
    for version, moment in enumerate(times):
        log = source.folder / "t" / "_delta_log" / f"{version:020}.json"
        log.write_text(re.sub(r'"timestamp":\d+', f'"timestamp":{moment}', log.read_text()))
    source.sync()
    table = catalog.load_table("s.t")
    assert rows_of(table, snapshot_id=ZERO_ID) == [{"x": 1, "old": "a"}]
    assert rows_of(table) == [{"x": 2, "new": 2.5}, {"x": 3, "new": 3.5}]
    assert [each.timestamp_ms for each in table.snapshots()] == times
    assert table.metadata.last_updated_ms == times[-1]


def test_partitioning_changes(source: Source, catalog: RestCatalog) -> None:
    days = pa.array([date(2026, 1, 2), date(1969, 12, 31)])
    rows = pa.table({"x": [1, 2], "day": days, "a b": ["p", None]})
    write(source, rows, partition_by=["day"])
    write(source, rows, partition_by=["a b", "day"], mode="overwrite", schema_mode="overwrite")
    source.sync()
    table = catalog.load_table("s.t")
    for version in (ZERO_ID, 1):
        assert rows_of(table, snapshot_id=version) == rows.to_pylist()
    (day,) = table.specs()[0].fields
    odd, day_again = table.specs()[1].fields
    assert (day.field_id, day.name) == (day_again.field_id, day_again.name) == (1000, "day")
    assert (odd.field_id, odd.name) == (1001, f"partition_{odd.source_id}"), "spaces are invalid in Avro"
    condition = "day = '1969-12-31'"
    assert [len(list(table.scan(condition, snapshot_id=each).plan_files())) for each in (ZERO_ID, 1)] == [1, 1]


def test_kept_files_are_checked_against_new_columns(source: Source, catalog: RestCatalog) -> None:
    """Delta allows a column to change its type without new files, if the files have it already."""
    write(source, pa.table({"x": pa.array([1], pa.int64()), "y": ["a"]}))
    source.sync()
    assert rows_of(catalog.load_table("s.t")) == [{"x": 1, "y": "a"}]
    first = source.folder / "t" / "_delta_log" / f"{0:020}.json"
    (metadata,) = (line for line in first.read_text().splitlines() if '"metaData"' in line)
    narrower = metadata.replace(r"\"name\":\"y\"", r"\"name\":\"z\"")
    assert narrower != metadata
    (first.parent / f"{1:020}.json").write_text(narrower)
    source.sync()
    with pytest.raises(Exception, match="has a column that the table lacks, 'y'"):
        catalog.load_table("s.t")


def test_operations_tell_what_a_version_did(source: Source, catalog: RestCatalog) -> None:
    source.write(1, 2)
    source.write(3)
    upstream = deltalake.DeltaTable(str(source.folder / "t"))
    upstream.delete("x = 3")
    upstream.delete("x = 2")
    upstream.delete()
    source.sync()
    table = catalog.load_table("s.t")
    assert operations(table) == ["append", "append", "delete", "overwrite", "delete"]
    assert values(table) == []


def test_snapshots_disappear_with_the_versions_that_the_mirror_forgets(source: Source, catalog: RestCatalog) -> None:
    source.write(1)
    source.write(2)
    source.sync()
    assert len(catalog.load_table("s.t").snapshots()) == 2
    snapshots.delete(source.lake.realm, v1.DeleteSnapshotRequest(table_id=source.id, snapshot_id=0))
    table = catalog.load_table("s.t")
    assert [each.snapshot_id for each in table.snapshots()] == [1]
    assert [each.snapshot_id for each in table.metadata.snapshot_log] == [1]
    assert values(table) == [1, 2]


def test_versions_that_are_mirrored_later_are_added_in_their_place(source: Source, catalog: RestCatalog) -> None:
    source.policy = v1.ConnectorPolicy(scope=v1.SNS_CURRENT)
    source.write(1)
    source.sync()
    source.write(2)
    source.write(3)
    source.sync()
    assert [each.snapshot_id for each in catalog.load_table("s.t").snapshots()] == [ZERO_ID, 2]
    source.policy = v1.ConnectorPolicy()
    source.sync()
    table = catalog.load_table("s.t")
    found = {each.snapshot_id: values(table, snapshot_id=each.snapshot_id) for each in table.snapshots()}
    assert found == {ZERO_ID: [1], 1: [1, 2], 2: [1, 2, 3]}
    assert [each.snapshot_id for each in table.snapshots()] == [ZERO_ID, 1, 2]


def test_source_that_is_restored_from_a_backup_goes_back(source: Source, catalog: RestCatalog) -> None:
    source.write(1)
    source.write(2)
    source.sync()
    assert values(catalog.load_table("s.t")) == [1, 2]
    (source.folder / "t" / "_delta_log" / f"{1:020}.json").unlink()
    source.sync()
    table = catalog.load_table("s.t")
    assert (values(table), [each.snapshot_id for each in table.snapshots()]) == ([1], [ZERO_ID])
    assert table.metadata.metadata_log == [], "no entry is newer than the metadata"


def test_refusal_is_forgotten_after_a_time_and_claims_nothing(source: Source, catalog: RestCatalog) -> None:
    deletion_vector(source.folder)
    source.sync()
    with pytest.raises(Exception, match="deleted rows"):
        catalog.load_table("s.t")
    pointer = source.lake.stores.pointers.get(keys.export(source.lake.realm.account_id, source.id.id))
    assert pointer is not None
    assert pointer.expires_at is not None
    assert timedelta(days=29) < pointer.expires_at - datetime.now(UTC) <= timedelta(days=30)
    assert not list(source.lake.stores.pointers.scan("/folders/"))


def test_refused_version_keeps_the_files_and_the_claim_of_older_ones(source: Source, catalog: RestCatalog) -> None:
    source.write(1)
    source.sync()
    catalog.load_table("s.t")
    known = exports.find_export(source.lake.realm, source.id.id)
    assert known is not None
    pointer = source.lake.stores.pointers.get(keys.export(source.lake.realm.account_id, source.id.id))
    assert pointer is not None
    assert pointer.expires_at is None
    (file,) = (source.folder / "t").glob("*.parquet")
    write(source, pa.table({"x": [2]}), mode="append")
    (new,) = set((source.folder / "t").glob("*.parquet")) - {file}
    pq.write_table(pa.table({"x": [2], "z": [2]}), new)
    source.sync()
    with pytest.raises(Exception, match="lacks, 'z'"):
        catalog.load_table("s.t")
    assert Path(known.location.removeprefix("file://")).is_file()
    assert len(list(source.lake.stores.pointers.scan("/folders/"))) == 1


@pytest.mark.parametrize("lost", ["avro", "json"])
def test_lost_files_are_written_again(source: Source, catalog: RestCatalog, lost: str) -> None:
    """Somebody deleted manifests, or the metadata: a new version needs both."""
    source.write(1)
    source.sync()
    catalog.load_table("s.t")
    for path in source.generated:
        if path.suffix == f".{lost}":
            path.unlink()
    source.write(2)
    source.sync()
    table = catalog.load_table("s.t")
    assert (values(table), values(table, snapshot_id=ZERO_ID)) == ([1, 2], [1])


def test_older_version_is_not_exported_as_the_current_one(tmp_path: Path) -> None:
    """The files of the current listing disappear after the table was opened."""
    with source_of(tmp_path, "parquet") as source:
        for value in (1, 5):
            source.write(value)
            source.sync()
        lake = source.lake
        table = tables.find(lake.realm, source.namespace.resource_id.id, "t")
        assert table is not None
        opened = Handles(Sources(lake.secrets), lake.warehouse).open(lake.realm, table)

        def recall(version: Snapshot) -> TableHandle:
            assert opened.recall is not None
            if version == opened.current:
                raise NotFound("a file is gone", key="file.missing")
            return opened.recall(version)

        with pytest.raises(Unsupported, match="its files were changed"):
            exports.export(lake.realm, lake.warehouse, table, replace(opened, recall=recall))
