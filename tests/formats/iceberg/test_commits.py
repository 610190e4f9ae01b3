"""Commits of Iceberg snapshots: what other engines read, snapshot summaries, and conflicting commits."""

from __future__ import annotations

import contextlib
import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DATA_FILE_TYPE
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from formats.delete_files import add_position_deletes
from formats.managed import LooseTable
from formats.oracles import assert_same_rows
from skiway.errors import AlreadyExists, Conflict, InvalidArgument, NotFound
from skiway.formats.iceberg.changes.commits import (
    Producer,
    Replacement,
    append,
    delete_all,
    overwrite,
    plain,
    rollback,
    set_ref,
)
from skiway.formats.iceberg.changes.evolution import (
    AddColumn,
    ColumnChange,
    ColumnDoc,
    DropColumn,
    MakeOptional,
    MoveColumn,
    RenameColumn,
    WidenColumn,
    evolve,
    partition_spec,
)
from skiway.formats.iceberg.manifest_files import entries, manifests
from skiway.formats.iceberg.metadata import metadata_json, updated
from skiway.formats.iceberg.metadata_files import WritingIO
from skiway.formats.iceberg.types import iceberg_schema
from skiway.formats.iceberg.writing.data_files import DataFileWriter

NUMBERS = pa.schema({"x": pa.int64()})
FIRST_ROW = [field.name for field in DATA_FILE_TYPE[3].fields].index("first_row_id")
VERSIONS = pytest.mark.parametrize("version", ["2", "3"])


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(values, pa.int64())})


def sorted_values(table: LooseTable) -> list[int]:
    return sorted(table.rows()["x"].to_pylist())


def summary(table: LooseTable) -> dict[str, str]:
    properties = table.metadata.current_snapshot().summary
    return {"operation": properties.operation.value, **properties.additional_properties}


def now() -> datetime:
    return datetime.now(UTC)


# --- successful commits -----------------------------------------------------------------------------------------------


@VERSIONS
def test_appended_rows_accumulate(tmp_path: Path, duck: duckdb.DuckDBPyConnection, version: str) -> None:
    table = LooseTable(tmp_path, NUMBERS, format_version=version)
    for start in range(3):
        table.append(numbers(start, start + 10))
    assert sorted_values(table) == [0, 1, 2, 10, 11, 12]
    assert duck.execute("SELECT sum(x) FROM iceberg_scan(?)", [table.location]).fetchone() == (36,)
    properties = summary(table)
    assert properties["operation"] == "append"
    assert {
        key: properties[key] for key in ("added-records", "added-data-files", "total-records", "total-data-files")
    } == {
        "added-records": "2",
        "added-data-files": "1",
        "total-records": "6",
        "total-data-files": "3",
    }


@VERSIONS
def test_overwrite_replaces_only_the_given_files(tmp_path: Path, duck: duckdb.DuckDBPyConnection, version: str) -> None:
    table = LooseTable(tmp_path, NUMBERS, format_version=version)
    first = table.append(numbers(1, 2))
    table.append(numbers(3))
    base = table.metadata.current_snapshot_id
    rewritten = table.write(numbers(20))
    table.change(overwrite([first[0].file_path], rewritten, based_on=base))
    assert sorted_values(table) == [3, 20]
    assert duck.execute("SELECT list_sort(list(x)) FROM iceberg_scan(?)", [table.location]).fetchone() == ([3, 20],)
    properties = summary(table)
    assert (
        properties["operation"],
        properties["deleted-records"],
        properties["added-records"],
        properties["total-records"],
    ) == (
        "overwrite",
        "2",
        "1",
        "2",
    )
    table.change(append(table.write(numbers(4))))
    assert sorted_values(table) == [3, 4, 20]


@VERSIONS
def test_table_accepts_appends_after_delete_all(tmp_path: Path, version: str) -> None:
    table = LooseTable(tmp_path, NUMBERS, format_version=version)
    table.append(numbers(1))
    table.append(numbers(2))
    table.change(delete_all())
    assert sorted_values(table) == []
    assert (summary(table)["operation"], summary(table)["total-records"], summary(table)["total-data-files"]) == (
        "delete",
        "0",
        "0",
    )
    table.append(numbers(7))
    assert sorted_values(table) == [7]


def test_delete_all_can_add_replacement_rows(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.append(numbers(1))
    table.change(delete_all(table.write(numbers(5, 6)), based_on=table.metadata.current_snapshot_id))
    assert sorted_values(table) == [5, 6]
    assert summary(table)["operation"] == "overwrite"


def test_rollback_restores_an_older_state_and_keeps_newer_snapshots(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.append(numbers(1))
    old = table.metadata.current_snapshot_id
    table.append(numbers(2))
    table.change(rollback(old))
    assert sorted_values(table) == [1]
    assert len(table.metadata.snapshots) == 2
    table.append(numbers(3))
    assert sorted_values(table) == [1, 3]
    assert table.metadata.current_snapshot().parent_snapshot_id == old


def test_tag_keeps_pointing_to_its_snapshot(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.append(numbers(1))
    table.change(set_ref("v1", table.metadata.current_snapshot_id, kind="tag"))
    table.append(numbers(2))
    tagged = table.metadata.refs["v1"].snapshot_id
    assert table.peer.scan(snapshot_id=tagged).to_arrow()["x"].to_pylist() == [1]


def test_snapshots_with_equal_clock_time_get_increasing_timestamps(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    frozen = datetime(2026, 1, 1, tzinfo=UTC)
    for value in range(3):
        made = append(table.write(numbers(value)))(table.metadata, table.files, lambda: frozen)
        table.metadata = updated(table.metadata, made.requirements, made.updates, location=table.location)
    moments = [each.timestamp_ms for each in table.metadata.snapshots]
    assert moments == sorted(set(moments))


def row_ids(table: LooseTable) -> dict[str, range]:
    """The row ids of each data file."""
    found = {}
    for manifest in manifests(table.metadata.current_snapshot(), WritingIO(table.files)):
        for entry in entries(manifest, WritingIO(table.files)):
            first = entry.data_file[FIRST_ROW]
            found[entry.data_file.file_path] = range(first, first + entry.data_file.record_count)
    return found


def test_entries_inherit_the_snapshot_and_sequence_number_of_their_manifest(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.change(append(table.write(numbers(1))))
    first = table.metadata.current_snapshot()
    table.change(append(table.write(numbers(2))))
    second = table.metadata.current_snapshot()
    listed = manifests(second, WritingIO(table.files))
    found = {
        (entry.snapshot_id, entry.sequence_number) for each in listed for entry in entries(each, WritingIO(table.files))
    }
    assert found == {(first.snapshot_id, 1), (second.snapshot_id, 2)}


def test_row_ids_of_version_3_are_stable_and_never_reused(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS, format_version="3")
    files = [*table.write(numbers(1, 2, 3)), *table.write(numbers(4, 5))]
    table.change(append(files))
    before = row_ids(table)
    assert [before[file.file_path] for file in files] == [range(3), range(3, 5)]
    table.change(overwrite([files[0].file_path], table.write(numbers(9, 9)), based_on=None))
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(1), "x_bucket"))
    late = table.write(numbers(6))
    table.change(plain([], [AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1)]))
    table.change(append([*late, *table.write(numbers(7, 8))]))
    after = row_ids(table)
    assert after[files[1].file_path] == before[files[1].file_path]
    assigned = [number for ids in after.values() for number in ids]
    assert len(assigned) == len(set(assigned)) == 7
    assert set(assigned).isdisjoint(before[files[0].file_path]), "row ids of deleted rows are not reused"
    assert (table.metadata.next_row_id or 0) > max(assigned)


def test_many_small_manifests_are_merged_without_losing_rows(tmp_path: Path, duck: duckdb.DuckDBPyConnection) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.change(plain([], [SetPropertiesUpdate(updates={"commit.manifest.min-count-to-merge": "5"})]))
    for value in range(12):
        table.append(numbers(value))
    assert sorted_values(table) == list(range(12))
    assert duck.execute("SELECT count(*) FROM iceberg_scan(?)", [table.location]).fetchone() == (12,)
    current_manifests = manifests(table.metadata.current_snapshot(), WritingIO(table.files))
    assert len(current_manifests) < 8
    found = {
        entry.data_file.file_path: entry.sequence_number
        for each in current_manifests
        for entry in entries(each, WritingIO(table.files))
    }
    assert sorted(number or 0 for number in found.values()) == list(range(1, 13))


def test_metadata_can_be_compressed(tmp_path: Path, duck: duckdb.DuckDBPyConnection) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.change(plain([], [SetPropertiesUpdate(updates={"write.metadata.compression-codec": "gzip"})]))
    table.append(numbers(1))
    assert table.location.endswith(".gz.metadata.json")
    packed = Path(table.location.removeprefix("file://")).read_bytes()
    assert json.loads(gzip.decompress(packed))["format-version"] == 2
    assert sorted_values(table) == [1]
    query = "SELECT x FROM iceberg_scan(?, metadata_compression_codec = 'gzip')"
    assert duck.execute(query, [table.location]).fetchall() == [(1,)]


def test_pyiceberg_appends_to_our_tables(tmp_path: Path) -> None:
    table = LooseTable(tmp_path / "ours", NUMBERS, "bucket[2](x)")
    table.append(numbers(1, 2))
    catalog = SqlCatalog("peer", uri=f"sqlite:///{tmp_path}/peer.db", warehouse=f"file://{tmp_path}/peer")
    catalog.create_namespace("n")
    peer = catalog.register_table("n.t", table.location)
    peer.append(pa.table({"x": [3]}))
    peer.delete("x = 1")
    assert sorted(peer.scan().to_arrow()["x"].to_pylist()) == [2, 3]
    catalog.close()


# --- conflicts --------------------------------------------------------------------------------------------------------


def commit_concurrently(table: LooseTable, first: Producer, second: Producer) -> None:
    """Produce both updates from the same state, commit the first, then try the second."""
    made = second(table.metadata, table.files, now)
    table.change(first)
    updated(table.metadata, made.requirements, made.updates, location=table.location)


def test_snapshot_based_on_an_older_state_is_rejected(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.append(numbers(1))
    files = table.write(numbers(2))
    with pytest.raises(Conflict, match="branch main has changed") as caught:
        commit_concurrently(table, append(files), append(files))
    assert caught.value.key == "commit.failed"


def test_reused_sequence_number_is_a_conflict_even_without_requirements(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    made = append(table.write(numbers(1)))(table.metadata, table.files, now)
    table.append(numbers(2))
    adding = [each for each in made.updates if isinstance(each, AddSnapshotUpdate)]
    with pytest.raises(Conflict, match="sequence number 1, but the table is at 1"):
        updated(table.metadata, [], adding)


def test_full_replacement_of_a_changed_table_succeeds_with_a_higher_sequence_number(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    made = append(table.write(numbers(1)))(table.metadata, table.files, now)
    for number in (2, 3):
        table.append(numbers(number))
    adding = [each for each in made.updates if isinstance(each, AddSnapshotUpdate)]
    after = updated(table.metadata, [], [RemoveSnapshotRefUpdate(ref_name="main"), *adding])
    assert len(after.snapshots) == 3
    assert after.next_sequence_number() == 3  # after the appends of 2 and 3


def test_overwriting_a_concurrently_removed_file_is_a_conflict(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    (file,) = table.append(numbers(1))
    base = table.metadata.current_snapshot_id
    table.change(overwrite([file.file_path], table.write(numbers(5)), based_on=base))
    before = set(tmp_path.rglob("*.avro"))
    with pytest.raises(Conflict, match="1 of its data files were rewritten or deleted"):
        table.change(overwrite([file.file_path], [], based_on=base))
    assert set(tmp_path.rglob("*.avro")) == before


def test_overwrite_keeps_concurrently_appended_rows(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    (file,) = table.append(numbers(1))
    base = table.metadata.current_snapshot_id
    table.append(numbers(2))
    table.change(overwrite([file.file_path], table.write(numbers(10)), based_on=base))
    assert sorted_values(table) == [2, 10]


def test_delete_all_of_an_outdated_state_is_a_conflict(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.append(numbers(1))
    base = table.metadata.current_snapshot_id
    table.append(numbers(2))
    with pytest.raises(Conflict, match="no longer the current one"):
        table.change(delete_all(based_on=base))


def test_rollback_to_an_unknown_snapshot_is_rejected(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    with pytest.raises(NotFound, match="no snapshot 42"):
        table.change(rollback(42))


def test_snapshot_has_the_time_of_the_clock_and_is_later_than_the_one_before(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    later = datetime(2126, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    times = []
    for _ in range(2):
        made = append(table.write(numbers(1)))(table.metadata, table.files, lambda: later)
        table.metadata = updated(table.metadata, made.requirements, made.updates)
        times.append(table.metadata.current_snapshot().timestamp_ms)
    assert times == [int(later.timestamp() * 1000), int(later.timestamp() * 1000) + 1]


def test_manifests_are_merged_when_there_are_enough_of_them(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.metadata.properties["commit.manifest.min-count-to-merge"] = "3"
    counts = []
    for number in range(5):
        table.append(numbers(number))
        counts.append(len(manifests(table.metadata.current_snapshot(), WritingIO(table.files))))
    assert counts == [1, 2, 3, 2, 3]
    assert sorted_values(table) == [0, 1, 2, 3, 4]


def test_snapshots_know_their_manifest_lists(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.append(numbers(1))
    table.append(numbers(2))
    found = {each.id: each.manifest_list for each in table.handle.snapshots()}
    assert found == {each.snapshot_id: each.manifest_list for each in table.peer.metadata.snapshots}


def test_sort_order_is_added_once_and_becomes_the_default(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    order = SortOrder(SortField(source_id=1, transform=IdentityTransform()))
    unsorted = SortOrder(order_id=0)
    for wanted, expected in [(order, 1), (order, 1), (unsorted, 0), (order, 1)]:
        updates = [AddSortOrderUpdate(sort_order=wanted), SetDefaultSortOrderUpdate(sort_order_id=-1)]
        table.change(plain([], updates))
        assert table.metadata.default_sort_order_id == expected
    assert [(each.order_id, len(each.fields)) for each in table.peer.metadata.sort_orders] == [(0, 0), (1, 1)]


def test_snapshot_that_assigns_row_ids_again_is_rejected(tmp_path: Path) -> None:
    """Its writer has not seen the rows that were added since."""
    table = LooseTable(tmp_path, NUMBERS, format_version="3")
    table.append(numbers(1, 2))
    first = table.metadata.current_snapshot()
    stale = first.model_copy(
        update={"snapshot_id": 7, "sequence_number": 2, "first_row_id": 1, "parent_snapshot_id": first.snapshot_id}
    )
    with pytest.raises(Conflict, match="a snapshot assigns row id 1 again, but the table is at 2"):
        updated(table.metadata, [], [AddSnapshotUpdate(snapshot=stale)])
    following = stale.model_copy(update={"first_row_id": 2})
    assert updated(table.metadata, [], [AddSnapshotUpdate(snapshot=following)]).snapshot_by_id(7) is not None


def test_unmet_requirement_is_reported(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    with pytest.raises(Conflict, match="current schema id has changed: expected 7, found 0"):
        updated(table.metadata, [AssertCurrentSchemaId(current_schema_id=7)], [])
    with pytest.raises(Conflict, match="branch or tag main is missing"):
        updated(table.metadata, [AssertRefSnapshotId(ref="main", snapshot_id=3)], [])


@VERSIONS
def test_foreign_delete_files_survive_appends_and_are_removed_by_delete_all(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection, version: str
) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    (file,) = table.append(numbers(1, 2, 3))
    add_position_deletes(table, file.file_path, 1)
    table.append(numbers(4))
    if version == "3":
        table.change(plain([], [UpgradeFormatVersionUpdate(format_version=3)]))
        table.append(numbers(5))
    rows = [1, 3, 4, 5] if version == "3" else [1, 3, 4]
    assert sorted_values(table) == rows
    assert duck.execute("SELECT list_sort(list(x)) FROM iceberg_scan(?)", [table.location]).fetchone() == (rows,)
    assert summary(table)["total-position-deletes"] == "1"
    table.change(delete_all())
    assert sorted_values(table) == []
    assert (summary(table)["total-position-deletes"], summary(table)["total-delete-files"]) == ("0", "0")


def test_rows_deleted_by_another_engine_do_not_reappear_after_a_rewrite(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    (file,) = table.append(numbers(1, 2))
    base = table.metadata.current_snapshot_id
    rewritten = table.write(numbers(10, 20))
    add_position_deletes(table, file.file_path, 1)
    with pytest.raises(Conflict, match="rows were deleted from it"):
        table.change(overwrite([file.file_path], rewritten, based_on=base))
    table.change(overwrite([file.file_path], table.write(numbers(10)), based_on=table.metadata.current_snapshot_id))
    assert sorted_values(table) == [10]


# --- replaced tables --------------------------------------------------------------------------------------------------


@VERSIONS
def test_replaced_table_has_new_rows_and_keeps_its_history(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection, version: str
) -> None:
    table = LooseTable(tmp_path, pa.schema({"x": pa.int64(), "old": pa.string()}), "x", format_version=version)
    table.append(pa.record_batch({"x": [1], "old": ["a"]}))
    before = table.metadata.current_snapshot_id
    schema = iceberg_schema(pa.schema({"x": pa.string(), "y": pa.int64()}), format_version=int(version))
    made = Replacement.of(
        table.metadata, schema, spec=partition_spec(schema, ["bucket[2](y)"]), properties={"comment": "new"}
    )
    with DataFileWriter(table.files, made.metadata) as writer:
        writer.write(pa.record_batch({"x": ["one", "two"], "y": [1, 2]}))
        table.change(made.commit(writer.close()))
    assert sorted(table.rows()["x"].to_pylist()) == ["one", "two"]
    assert duck.execute("SELECT sum(y) FROM iceberg_scan(?)", [table.location]).fetchone() == (3,)
    assert table.metadata.properties == {"comment": "new"}
    assert summary(table)["total-records"] == "2"
    assert table.peer.scan(snapshot_id=before).to_arrow().to_pylist() == [{"x": 1, "old": "a"}]
    numbers_of = [field.field_id for field in table.metadata.schema().fields]
    assert numbers_of == [3, 4]
    table.append(pa.record_batch({"x": ["three"], "y": [3]}))
    assert table.rows().num_rows == 3


def test_partition_fields_of_a_replacement_have_new_ids(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS, "x", "bucket[2](x)")
    assert table.metadata.last_partition_id == 1001
    schema = iceberg_schema(NUMBERS)
    made = Replacement.of(table.metadata, schema, spec=partition_spec(schema, ["truncate[5](x)", "x"]))
    assert [each.field_id for each in made.metadata.spec().fields] == [1002, 1003]


def test_rows_for_concurrently_replaced_columns_are_rejected(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    late = table.write(numbers(1))
    table.change(Replacement.of(table.metadata, iceberg_schema(NUMBERS)).commit())
    with pytest.raises(Conflict, match="all columns that the rows were written for have been dropped"):
        table.change(append(late))


def test_replacement_with_concurrently_assigned_column_ids_is_rejected(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    made = Replacement.of(table.metadata, iceberg_schema(pa.schema({"y": pa.int8()})))
    table.change(evolve([AddColumn("z", pa.int8())]))
    with pytest.raises(Conflict, match="last assigned field id has changed"):
        table.change(made.commit())


# --- numbers of schemas and specs -------------------------------------------------------------------------------------


def test_schema_with_a_wrong_id_gets_the_next_id(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    other = Schema(NestedField(1, "x", LongType()), NestedField(2, "y", StringType()), schema_id=0)
    table.change(plain([], [AddSchemaUpdate(schema=other), SetCurrentSchemaUpdate(schema_id=-1)]))
    assert [each.schema_id for each in table.metadata.schemas] == [0, 1]
    assert table.metadata.current_schema_id == 1
    assert table.metadata.schema().column_names == ["x", "y"]


def test_existing_schema_is_reused(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    first = table.metadata.schema()
    table.change(evolve([AddColumn("y", pa.string())]))
    again = Schema(*first.fields, schema_id=9)
    table.change(plain([], [AddSchemaUpdate(schema=again), SetCurrentSchemaUpdate(schema_id=-1)]))
    assert len(table.metadata.schemas) == 2
    assert table.metadata.current_schema_id == first.schema_id


def test_existing_partition_spec_is_reused(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "x_bucket"), spec_id=0)
    for _ in range(2):
        table.change(plain([], [AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1)]))
    assert [each.spec_id for each in table.metadata.partition_specs] == [0, 1]
    assert table.metadata.default_spec_id == 1
    table.append(numbers(1, 2, 3))
    assert sorted_values(table) == [1, 2, 3]


def test_files_of_an_older_partition_spec_can_be_replaced(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    (old,) = table.append(numbers(1, 2))
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "x_bucket"))
    table.change(plain([], [AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1)]))
    table.append(numbers(3))
    table.change(overwrite([old.file_path], table.write(numbers(1)), based_on=table.metadata.current_snapshot_id))
    assert sorted_values(table) == [1, 3]


def test_removing_missing_properties_is_allowed(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.change(plain([], [SetPropertiesUpdate(updates={"a": "1"})]))
    table.change(plain([], [RemovePropertiesUpdate(removals=["a", "b"])]))
    assert "a" not in table.metadata.properties


def test_table_is_upgraded_from_version_2_to_3(tmp_path: Path, duck: duckdb.DuckDBPyConnection) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.append(numbers(1, 2))
    table.change(plain([], [UpgradeFormatVersionUpdate(format_version=3)]))
    table.append(numbers(3))
    assert sorted_values(table) == [1, 2, 3]
    assert duck.execute("SELECT sum(x) FROM iceberg_scan(?)", [table.location]).fetchone() == (6,)
    assert table.metadata.next_row_id == 3


@pytest.mark.parametrize("version", ["0", "4", "two"])
def test_unsupported_format_versions_are_rejected(tmp_path: Path, version: str) -> None:
    from skiway.formats.iceberg.metadata import new_metadata

    schema = Schema(NestedField(1, "x", LongType()))
    with pytest.raises(InvalidArgument, match="use 1, 2 or 3"):
        new_metadata(schema, location=f"file://{tmp_path}", properties={"format-version": version})


# --- columns ----------------------------------------------------------------------------------------------------------


def test_columns_keep_their_values_through_schema_changes(tmp_path: Path, duck: duckdb.DuckDBPyConnection) -> None:
    place = pa.struct([("city", pa.string())])
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), ("ratio", pa.float32()), ("place", place)])
    table = LooseTable(tmp_path, schema)
    table.append(pa.Table.from_pylist([{"id": 1, "ratio": 0.5, "place": {"city": "Ulm"}}], schema=schema))
    table.change(
        evolve(
            [
                AddColumn("note", pa.string(), doc="said later"),
                AddColumn(("place", "zip"), pa.int32()),
                RenameColumn("ratio", "share"),
                WidenColumn("share", pa.float64()),
                WidenColumn("id", pa.int64()),
                MakeOptional("id"),
                MoveColumn("note"),
                MoveColumn("id", after="share"),
                ColumnDoc("id", "a number"),
            ]
        )
    )
    assert [field.name for field in table.metadata.schema().fields] == ["note", "share", "id", "place"]
    assert len(table.metadata.schemas) == 2
    table.append(pa.Table.from_pylist([{"note": "n", "share": 1.5, "id": None, "place": {"city": "Bonn", "zip": 5}}]))
    expected = [
        {"note": None, "share": 0.5, "id": 1, "place": {"city": "Ulm", "zip": None}},
        {"note": "n", "share": 1.5, "id": None, "place": {"city": "Bonn", "zip": 5}},
    ]
    assert sorted(table.rows().to_pylist(), key=lambda row: row["share"]) == expected
    read = duck.execute("FROM iceberg_scan(?) ORDER BY share", [table.location]).to_arrow_table()
    assert read.to_pylist() == expected
    assert table.metadata.schema().find_field("id").doc == "a number"


def test_new_column_with_a_dropped_name_does_not_restore_old_values(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, pa.schema({"x": pa.int64(), "y": pa.int64()}))
    table.append(pa.record_batch({"x": [1], "y": [2]}))
    table.change(evolve([DropColumn("y"), AddColumn("y", pa.int64())]))
    assert table.rows().to_pylist() == [{"x": 1, "y": None}]


def test_change_without_effect_produces_no_updates(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    made = evolve([AddColumn("y", pa.int8()), DropColumn("y")])(table.metadata, table.files, now)
    assert (made.requirements, made.updates) == ((), ())


@pytest.mark.parametrize(
    ("change", "error", "complaint"),
    [
        (AddColumn("X", pa.int8()), AlreadyExists, "'X' already"),
        (RenameColumn("y", "x"), AlreadyExists, "'x' already"),
        (DropColumn("nobody"), NotFound, "no column 'nobody'; it has x, y"),
        (WidenColumn("x", pa.int32()), InvalidArgument, "'x' cannot be changed"),
        (WidenColumn("y", pa.int64()), InvalidArgument, "'y' cannot be changed"),
        (AddColumn(("x", "deep"), pa.int8()), InvalidArgument, "non-struct"),
        (MoveColumn("x", after="nobody"), InvalidArgument, "'x' cannot be changed"),
        (DropColumn("p"), InvalidArgument, "not possible"),
    ],
)
def test_invalid_schema_changes_are_rejected(
    tmp_path: Path, change: ColumnChange, error: type[Exception], complaint: str
) -> None:
    names = {"x": pa.int64(), "y": pa.string()}
    partitioned = isinstance(change, DropColumn) and change.path == "p"
    table = LooseTable(tmp_path, pa.schema({**names, "p": pa.int8()} if partitioned else names), *["p"] * partitioned)
    with pytest.raises(error, match=complaint):
        table.change(evolve([change]))


def test_last_column_cannot_be_dropped(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="the only column"):
        LooseTable(tmp_path, NUMBERS).change(evolve([DropColumn("x")]))


# --- random programs --------------------------------------------------------------------------------------------------


class Model:
    """The rows the table must hold, as dicts keyed by column id."""

    def __init__(self, folder: Path, version: str, partitioned: bool) -> None:
        parts = ["bucket[2](k)"] if partitioned else []
        self.table = LooseTable(folder, pa.schema({"k": pa.int64(), "a": pa.int32()}), *parts, format_version=version)
        self.files: dict[str, list[dict[int, Any]]] = {}

    def names(self) -> dict[str, int]:
        return {field.name: field.field_id for field in self.table.metadata.schema().fields}

    def types(self) -> pa.Schema:
        return self.table.handle.schema.arrow

    def batch(self, values: list[int]) -> pa.Table:
        rows = [{name: (value + place) % 100 for place, name in enumerate(self.names())} for value in values]
        return pa.Table.from_pylist(rows, schema=pa.schema([(each.name, each.type) for each in self.types()]))

    def write(self, values: list[int]) -> list[Any]:
        written = self.table.write(self.batch(values))
        for file in written:
            with self.table.files.open(file.file_path) as opened:
                found = pa.parquet.read_table(opened).to_pylist()
            names = self.names()
            self.files[file.file_path] = [{names[key]: value for key, value in row.items()} for row in found]
        return written

    def live(self) -> list[str]:
        return [task.file.file_path for task in self.table.peer.scan().plan_files()]

    def expected(self, live: list[str]) -> pa.Table:
        rows = [
            {name: row.get(number) for name, number in self.names().items()}
            for path in live
            for row in self.files[path]
        ]
        return pa.Table.from_pylist(rows, schema=pa.schema([(each.name, each.type) for each in self.types()]))


STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(st.integers(0, 99), min_size=1, max_size=5)),
    st.tuples(st.just("overwrite"), st.lists(st.integers(0, 99), max_size=3)),
    st.tuples(st.just("truncate"), st.just(None)),
    st.tuples(st.just("rollback"), st.integers(0, 5)),
    st.tuples(st.just("add"), st.sampled_from(["b", "c", "d"])),
    st.tuples(st.just("drop"), st.integers(0, 5)),
    st.tuples(st.just("rename"), st.integers(0, 5)),
    st.tuples(st.just("move"), st.integers(0, 5)),
    st.tuples(st.just("widen"), st.just("a")),
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(program=st.lists(STEPS, min_size=1, max_size=10), version=st.sampled_from(["2", "3"]), partitioned=st.booleans())
def test_random_programs_match_a_simple_model(
    tmp_path_factory: pytest.TempPathFactory,
    duck: duckdb.DuckDBPyConnection,
    program: list[tuple[str, Any]],
    version: str,
    partitioned: bool,
) -> None:
    model = Model(tmp_path_factory.mktemp("program"), version, partitioned)
    live: list[str] = []
    states: dict[int, list[str]] = {}
    for number, (step, argument) in enumerate(program):
        live = perform(model, step, argument, live, states, number)
        states[model.table.metadata.current_snapshot_id] = live
        assert sorted(model.live()) == sorted(live)
        wanted = model.expected(live)
        assert_same_rows(model.table.rows().cast(wanted.schema), wanted)
        if live:
            read = duck.execute("FROM iceberg_scan(?)", [model.table.location]).to_arrow_table()
            assert_same_rows(read.cast(wanted.schema), wanted)


def perform(
    model: Model, step: str, argument: Any, live: list[str], states: dict[int, list[str]], number: int
) -> list[str]:
    """Run one step and return the files that are live afterwards."""
    table, base = model.table, model.table.metadata.current_snapshot_id
    columns = [name for name in model.names() if name != "k"]
    match step:
        case "append":
            written = model.write(argument)
            table.change(append(written))
            return [*live, *(file.file_path for file in written)]
        case "overwrite" if live:
            written = model.write(argument) if argument else []
            table.change(overwrite(live[:1], written, based_on=base))
            return [*live[1:], *(file.file_path for file in written)]
        case "truncate":
            table.change(delete_all())
            return []
        case "rollback" if base is not None:
            known = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id in states]
            chosen = known[argument % len(known)]
            table.change(rollback(chosen))
            return states[chosen]
        case "add" if argument not in columns:
            table.change(evolve([AddColumn(argument, pa.int64())]))
        case "drop" if columns:
            table.change(evolve([DropColumn(columns[argument % len(columns)])]))
        case "rename" if columns:
            table.change(evolve([RenameColumn(columns[argument % len(columns)], f"r{number}")]))
        case "move" if columns:
            table.change(evolve([MoveColumn(columns[argument % len(columns)])]))
        case "widen" if "a" in columns:
            table.change(evolve([WidenColumn("a", pa.int64())]))
    return live


@pytest.mark.parametrize(
    "update",
    [
        SetDefaultSpecUpdate(spec_id=77),
        SetCurrentSchemaUpdate(schema_id=77),
        SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=77),
        AddPartitionSpecUpdate(spec=PartitionSpec(PartitionField(77, 1000, "identity", "p"))),
        AddSchemaUpdate(schema=Schema()),
        RemoveSnapshotRefUpdate(ref_name="nothing"),
    ],
    ids=lambda each: each.action,
)
def test_invalid_updates_are_rejected_and_never_crash(tmp_path: Path, update: TableUpdate) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    with contextlib.suppress(InvalidArgument, Conflict):  # some updates are valid
        updated(table.metadata, (), (update,))
    with pytest.raises(InvalidArgument):
        updated(None, (), (update,))


@pytest.mark.parametrize("version", ["1", "2", "3"])
def test_metadata_json_has_the_snapshots_that_pyiceberg_writes(tmp_path: Path, version: str) -> None:
    table = LooseTable(tmp_path, pa.schema({"id": pa.int64()}), format_version=version)
    for number in range(3):
        table.append(pa.table({"id": [number]}))
        dumped = table.metadata.model_dump(mode="json", by_alias=True, exclude_none=True)
        assert json.loads(metadata_json(table.metadata)) == dumped


def test_metadata_json_is_never_that_of_metadata_that_is_gone(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, pa.schema({"id": pa.int64()}))
    table.append(pa.table({"id": [1]}))
    text = metadata_json(table.metadata)
    for number in range(100):  # new objects, often where others were before
        other = text.replace('"total-records":"1"', f'"total-records":"{number}"')
        assert json.loads(metadata_json(TableMetadataUtil.parse_raw(other))) == json.loads(other)
