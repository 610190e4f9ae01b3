"""Snapshots that are committed: what others read of them, what they say about themselves, and what does not fit."""

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
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.transforms import BucketTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

from formats.managed import LooseTable
from formats.oracles import assert_same_rows
from skiway.errors import AlreadyExists, Conflict, InvalidArgument, NotFound
from skiway.formats.iceberg.commits import (
    Change,
    Producer,
    Replacement,
    append,
    delete_all,
    overwrite,
    plain,
    rollback,
    set_ref,
)
from skiway.formats.iceberg.data_files import DataFileWriter
from skiway.formats.iceberg.file_io import WritingIO
from skiway.formats.iceberg.manifest_files import entries, manifests, write_manifest
from skiway.formats.iceberg.metadata import updated
from skiway.formats.iceberg.partitions import partition_spec
from skiway.formats.iceberg.schema_changes import (
    AddColumn,
    ColumnChange,
    ColumnDoc,
    DropColumn,
    MakeOptional,
    MoveColumn,
    RenameColumn,
    WidenColumn,
    evolve,
)
from skiway.formats.iceberg.snapshots import NewSnapshot
from skiway.formats.iceberg.types import iceberg_schema

NUMBERS = pa.schema({"x": pa.int64()})
FIRST_ROW = [field.name for field in DATA_FILE_TYPE[3].fields].index("first_row_id")
VERSIONS = pytest.mark.parametrize("version", ["2", "3"])


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(values, pa.int64())})


def shown(table: LooseTable) -> list[int]:
    return sorted(table.rows()["x"].to_pylist())


def summary(table: LooseTable) -> dict[str, str]:
    said = table.metadata.current_snapshot().summary
    return {"operation": said.operation.value, **said.additional_properties}


def now() -> datetime:
    return datetime.now(UTC)


# --- what is committed ------------------------------------------------------------------------------------------------


@VERSIONS
def test_appends_add_up(tmp_path: Path, duck: duckdb.DuckDBPyConnection, version: str) -> None:
    table = LooseTable(tmp_path, NUMBERS, format_version=version)
    for start in range(3):
        table.append(numbers(start, start + 10))
    assert shown(table) == [0, 1, 2, 10, 11, 12]
    assert duck.execute("SELECT sum(x) FROM iceberg_scan(?)", [table.location]).fetchone() == (36,)
    said = summary(table)
    assert said["operation"] == "append"
    assert {key: said[key] for key in ("added-records", "added-data-files", "total-records", "total-data-files")} == {
        "added-records": "2",
        "added-data-files": "1",
        "total-records": "6",
        "total-data-files": "3",
    }


@VERSIONS
def test_overwriting_files_leaves_the_others(tmp_path: Path, duck: duckdb.DuckDBPyConnection, version: str) -> None:
    table = LooseTable(tmp_path, NUMBERS, format_version=version)
    first = table.append(numbers(1, 2))
    table.append(numbers(3))
    base = table.metadata.current_snapshot_id
    rewritten = table.write(numbers(20))
    table.change(overwrite([first[0].file_path], rewritten, based_on=base))
    assert shown(table) == [3, 20]
    assert duck.execute("SELECT list_sort(list(x)) FROM iceberg_scan(?)", [table.location]).fetchone() == ([3, 20],)
    said = summary(table)
    assert (said["operation"], said["deleted-records"], said["added-records"], said["total-records"]) == (
        "overwrite",
        "2",
        "1",
        "2",
    )
    table.change(append(table.write(numbers(4))))
    assert shown(table) == [3, 4, 20]


@VERSIONS
def test_delete_all_leaves_an_empty_table_that_goes_on(tmp_path: Path, version: str) -> None:
    table = LooseTable(tmp_path, NUMBERS, format_version=version)
    table.append(numbers(1))
    table.append(numbers(2))
    table.change(delete_all())
    assert shown(table) == []
    assert (summary(table)["operation"], summary(table)["total-records"], summary(table)["total-data-files"]) == (
        "delete",
        "0",
        "0",
    )
    table.append(numbers(7))
    assert shown(table) == [7]


def test_delete_all_may_put_other_rows_in_place(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.append(numbers(1))
    table.change(delete_all(table.write(numbers(5, 6)), based_on=table.metadata.current_snapshot_id))
    assert shown(table) == [5, 6]
    assert summary(table)["operation"] == "overwrite"


def test_rollback_shows_an_older_state_and_keeps_the_newer(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.append(numbers(1))
    old = table.metadata.current_snapshot_id
    table.append(numbers(2))
    table.change(rollback(old))
    assert shown(table) == [1]
    assert len(table.metadata.snapshots) == 2
    table.append(numbers(3))
    assert shown(table) == [1, 3]
    assert table.metadata.current_snapshot().parent_snapshot_id == old


def test_a_tag_names_a_state_for_good(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.append(numbers(1))
    table.change(set_ref("v1", table.metadata.current_snapshot_id, kind="tag"))
    table.append(numbers(2))
    tagged = table.metadata.refs["v1"].snapshot_id
    assert table.peer.scan(snapshot_id=tagged).to_arrow()["x"].to_pylist() == [1]


def test_snapshots_made_within_a_moment_still_follow_each_other_in_time(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    frozen = datetime(2026, 1, 1, tzinfo=UTC)
    for value in range(3):
        made = append(table.write(numbers(value)))(table.metadata, table.files, lambda: frozen)
        table.metadata = updated(table.metadata, made.requirements, made.updates, location=table.location)
    moments = [each.timestamp_ms for each in table.metadata.snapshots]
    assert moments == sorted(set(moments))


def row_ids(table: LooseTable) -> dict[str, range]:
    """The ids of the rows of each data file."""
    found = {}
    for manifest in manifests(table.metadata.current_snapshot(), WritingIO(table.files)):
        for entry in entries(manifest, WritingIO(table.files)):
            first = entry.data_file[FIRST_ROW]
            found[entry.data_file.file_path] = range(first, first + entry.data_file.record_count)
    return found


def test_row_ids_of_version_3_are_given_once_and_stay(tmp_path: Path) -> None:
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
    given_out = [number for ids in after.values() for number in ids]
    assert len(given_out) == len(set(given_out)) == 7
    assert set(given_out).isdisjoint(before[files[0].file_path]), "those of rows that are gone are not used again"
    assert (table.metadata.next_row_id or 0) > max(given_out)


def test_many_small_manifests_are_merged_and_nothing_is_lost(tmp_path: Path, duck: duckdb.DuckDBPyConnection) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.change(plain([], [SetPropertiesUpdate(updates={"commit.manifest.min-count-to-merge": "5"})]))
    for value in range(12):
        table.append(numbers(value))
    assert shown(table) == list(range(12))
    assert duck.execute("SELECT count(*) FROM iceberg_scan(?)", [table.location]).fetchone() == (12,)
    kept = manifests(table.metadata.current_snapshot(), WritingIO(table.files))
    assert len(kept) < 8
    found = {
        entry.data_file.file_path: entry.sequence_number
        for each in kept
        for entry in entries(each, WritingIO(table.files))
    }
    assert sorted(number or 0 for number in found.values()) == list(range(1, 13))


def test_metadata_can_be_packed(tmp_path: Path, duck: duckdb.DuckDBPyConnection) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.change(plain([], [SetPropertiesUpdate(updates={"write.metadata.compression-codec": "gzip"})]))
    table.append(numbers(1))
    assert table.location.endswith(".gz.metadata.json")
    packed = Path(table.location.removeprefix("file://")).read_bytes()
    assert json.loads(gzip.decompress(packed))["format-version"] == 2
    assert shown(table) == [1]
    query = "SELECT x FROM iceberg_scan(?, metadata_compression_codec = 'gzip')"
    assert duck.execute(query, [table.location]).fetchall() == [(1,)]


def test_pyiceberg_goes_on_with_what_we_wrote(tmp_path: Path) -> None:
    table = LooseTable(tmp_path / "ours", NUMBERS, "bucket[2](x)")
    table.append(numbers(1, 2))
    catalog = SqlCatalog("peer", uri=f"sqlite:///{tmp_path}/peer.db", warehouse=f"file://{tmp_path}/peer")
    catalog.create_namespace("n")
    peer = catalog.register_table("n.t", table.location)
    peer.append(pa.table({"x": [3]}))
    peer.delete("x = 1")
    assert sorted(peer.scan().to_arrow()["x"].to_pylist()) == [2, 3]
    catalog.close()


# --- what does not fit ------------------------------------------------------------------------------------------------


def at_once(table: LooseTable, first: Producer, second: Producer) -> None:
    """Both are made for the same state; the first is committed, then the second is tried."""
    made = second(table.metadata, table.files, now)
    table.change(first)
    updated(table.metadata, made.requirements, made.updates, location=table.location)


def test_a_snapshot_for_an_older_state_is_refused(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.append(numbers(1))
    files = table.write(numbers(2))
    with pytest.raises(Conflict, match="branch main has changed") as caught:
        at_once(table, append(files), append(files))
    assert caught.value.key == "commit.failed"


def test_a_snapshot_with_a_used_sequence_number_is_a_conflict_even_without_requirements(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    made = append(table.write(numbers(1)))(table.metadata, table.files, now)
    table.append(numbers(2))
    adding = [each for each in made.updates if isinstance(each, AddSnapshotUpdate)]
    with pytest.raises(Conflict, match="sequence number 1, but the table is at 1"):
        updated(table.metadata, [], adding)


def test_what_replaces_all_fits_a_table_that_went_on_and_numbers_never_go_back(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    made = append(table.write(numbers(1)))(table.metadata, table.files, now)
    for number in (2, 3):
        table.append(numbers(number))
    adding = [each for each in made.updates if isinstance(each, AddSnapshotUpdate)]
    after = updated(table.metadata, [], [RemoveSnapshotRefUpdate(ref_name="main"), *adding])
    assert len(after.snapshots) == 3
    assert after.next_sequence_number() == 3  # after those of 2 and 3


def test_overwriting_a_file_that_another_removed_is_a_conflict(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    (file,) = table.append(numbers(1))
    base = table.metadata.current_snapshot_id
    table.change(overwrite([file.file_path], table.write(numbers(5)), based_on=base))
    before = set(tmp_path.rglob("*.avro"))
    with pytest.raises(Conflict, match="1 of its data files were rewritten or deleted"):
        table.change(overwrite([file.file_path], [], based_on=base))
    assert set(tmp_path.rglob("*.avro")) == before


def test_overwriting_keeps_what_another_appended(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    (file,) = table.append(numbers(1))
    base = table.metadata.current_snapshot_id
    table.append(numbers(2))
    table.change(overwrite([file.file_path], table.write(numbers(10)), based_on=base))
    assert shown(table) == [2, 10]


def test_deleting_all_of_a_state_that_is_gone_is_a_conflict(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.append(numbers(1))
    base = table.metadata.current_snapshot_id
    table.append(numbers(2))
    with pytest.raises(Conflict, match="no longer the current one"):
        table.change(delete_all(based_on=base))


def test_rolling_back_to_a_snapshot_that_never_was_is_refused(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    with pytest.raises(NotFound, match="no snapshot 42"):
        table.change(rollback(42))


def test_an_unknown_requirement_of_the_state_is_told(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    with pytest.raises(Conflict, match="current schema id has changed: expected 7, found 0"):
        updated(table.metadata, [AssertCurrentSchemaId(current_schema_id=7)], [])
    with pytest.raises(Conflict, match="branch or tag main is missing"):
        updated(table.metadata, [AssertRefSnapshotId(ref="main", snapshot_id=3)], [])


def add_position_deletes(table: LooseTable, path: str, *positions: int) -> None:
    """What engines do that delete without rewriting: a file of positions, in a manifest of its own."""
    uri = f"{table.metadata.location}/data/deletes-{len(table.metadata.snapshots)}.parquet"
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
            pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
        ]
    )
    rows = pa.table({"file_path": [path] * len(positions), "pos": list(positions)}, schema=schema)
    with table.files.create(uri) as sink:
        pa.parquet.write_table(rows, sink)
    file = DataFile.from_args(
        _table_format_version=3,
        content=DataFileContent.POSITION_DELETES,
        file_path=uri,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(positions),
        file_size_in_bytes=table.files.find(uri).size,
    )
    file.spec_id = 0

    def produce(metadata: Any, files: Any, clock: Any) -> Change:
        snapshot = NewSnapshot(metadata, files, clock=clock)
        location = f"{metadata.location}/metadata/deletes-{snapshot.id}.avro"
        snapshot._new_manifests.append(
            write_manifest(
                metadata,
                0,
                WritingIO(files),
                location=location,
                snapshot_id=snapshot.id,
                added=[file],
                content=ManifestContent.DELETES,
            )
        )
        snapshot._added.append(file)
        return Change(snapshot.requirements, snapshot.finish("delete", {}))

    table.change(produce)


@VERSIONS
def test_deletes_that_others_wrote_stay_through_appends_and_go_with_delete_all(
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
    assert shown(table) == rows
    assert duck.execute("SELECT list_sort(list(x)) FROM iceberg_scan(?)", [table.location]).fetchone() == (rows,)
    assert summary(table)["total-position-deletes"] == "1"
    table.change(delete_all())
    assert shown(table) == []
    assert (summary(table)["total-position-deletes"], summary(table)["total-delete-files"]) == ("0", "0")


def test_rows_deleted_by_another_do_not_come_back_with_the_files_that_replace_theirs(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    (file,) = table.append(numbers(1, 2))
    base = table.metadata.current_snapshot_id
    rewritten = table.write(numbers(10, 20))
    add_position_deletes(table, file.file_path, 1)
    with pytest.raises(Conflict, match="rows were deleted from it"):
        table.change(overwrite([file.file_path], rewritten, based_on=base))
    table.change(overwrite([file.file_path], table.write(numbers(10)), based_on=table.metadata.current_snapshot_id))
    assert shown(table) == [10]


# --- another table in its place ---------------------------------------------------------------------------------------


@VERSIONS
def test_a_replaced_table_has_its_new_rows_and_its_history(
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


def test_rows_for_columns_that_were_replaced_meanwhile_are_refused(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    late = table.write(numbers(1))
    table.change(Replacement.of(table.metadata, iceberg_schema(NUMBERS)).commit())
    with pytest.raises(Conflict, match="all columns that the rows were written for have been dropped"):
        table.change(append(late))


def test_a_replacement_by_columns_that_were_numbered_meanwhile_is_refused(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    made = Replacement.of(table.metadata, iceberg_schema(pa.schema({"y": pa.int8()})))
    table.change(evolve([AddColumn("z", pa.int8())]))
    with pytest.raises(Conflict, match="last assigned field id has changed"):
        table.change(made.commit())


# --- numbers of schemas and specs -------------------------------------------------------------------------------------


def test_a_schema_that_a_client_numbers_wrongly_gets_the_next_number(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    other = Schema(NestedField(1, "x", LongType()), NestedField(2, "y", StringType()), schema_id=0)
    table.change(plain([], [AddSchemaUpdate(schema=other), SetCurrentSchemaUpdate(schema_id=-1)]))
    assert [each.schema_id for each in table.metadata.schemas] == [0, 1]
    assert table.metadata.current_schema_id == 1
    assert table.metadata.schema().column_names == ["x", "y"]


def test_a_schema_that_is_there_already_is_used_again(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    first = table.metadata.schema()
    table.change(evolve([AddColumn("y", pa.string())]))
    again = Schema(*first.fields, schema_id=9)
    table.change(plain([], [AddSchemaUpdate(schema=again), SetCurrentSchemaUpdate(schema_id=-1)]))
    assert len(table.metadata.schemas) == 2
    assert table.metadata.current_schema_id == first.schema_id


def test_a_partition_spec_that_is_there_already_is_used_again(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "x_bucket"), spec_id=0)
    for _ in range(2):
        table.change(plain([], [AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1)]))
    assert [each.spec_id for each in table.metadata.partition_specs] == [0, 1]
    assert table.metadata.default_spec_id == 1
    table.append(numbers(1, 2, 3))
    assert shown(table) == [1, 2, 3]


def test_files_of_an_older_partition_spec_can_be_replaced(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    (old,) = table.append(numbers(1, 2))
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "x_bucket"))
    table.change(plain([], [AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1)]))
    table.append(numbers(3))
    table.change(overwrite([old.file_path], table.write(numbers(1)), based_on=table.metadata.current_snapshot_id))
    assert shown(table) == [1, 3]


def test_removing_properties_that_are_not_there_is_fine(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.change(plain([], [SetPropertiesUpdate(updates={"a": "1"})]))
    table.change(plain([], [RemovePropertiesUpdate(removals=["a", "b"])]))
    assert "a" not in table.metadata.properties


def test_a_table_of_version_2_becomes_one_of_version_3(tmp_path: Path, duck: duckdb.DuckDBPyConnection) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.append(numbers(1, 2))
    table.change(plain([], [UpgradeFormatVersionUpdate(format_version=3)]))
    table.append(numbers(3))
    assert shown(table) == [1, 2, 3]
    assert duck.execute("SELECT sum(x) FROM iceberg_scan(?)", [table.location]).fetchone() == (6,)
    assert table.metadata.next_row_id == 3


@pytest.mark.parametrize("version", ["1", "4", "two"])
def test_other_versions_of_the_format_are_refused(tmp_path: Path, version: str) -> None:
    from skiway.formats.iceberg.metadata import new_metadata

    schema = Schema(NestedField(1, "x", LongType()))
    with pytest.raises(InvalidArgument, match="use 2 or 3"):
        new_metadata(schema, location=f"file://{tmp_path}", properties={"format-version": version})


# --- columns ----------------------------------------------------------------------------------------------------------


def test_columns_keep_their_values_through_all_changes(tmp_path: Path, duck: duckdb.DuckDBPyConnection) -> None:
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


def test_a_dropped_column_does_not_come_back_with_its_name(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, pa.schema({"x": pa.int64(), "y": pa.int64()}))
    table.append(pa.record_batch({"x": [1], "y": [2]}))
    table.change(evolve([DropColumn("y"), AddColumn("y", pa.int64())]))
    assert table.rows().to_pylist() == [{"x": 1, "y": None}]


def test_a_change_that_leaves_all_as_it_was_asks_for_nothing(tmp_path: Path) -> None:
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
def test_impossible_changes_are_refused(
    tmp_path: Path, change: ColumnChange, error: type[Exception], complaint: str
) -> None:
    names = {"x": pa.int64(), "y": pa.string()}
    partitioned = isinstance(change, DropColumn) and change.path == "p"
    table = LooseTable(tmp_path, pa.schema({**names, "p": pa.int8()} if partitioned else names), *["p"] * partitioned)
    with pytest.raises(error, match=complaint):
        table.change(evolve([change]))


def test_the_only_column_cannot_be_dropped(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="the only column"):
        LooseTable(tmp_path, NUMBERS).change(evolve([DropColumn("x")]))


# --- random programs --------------------------------------------------------------------------------------------------


class Model:
    """Rows as dicts, by the ids of columns: what the table must hold."""

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
def test_random_programs_leave_the_rows_of_a_plain_model(
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
    """Do one step; the files that are live then."""
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
def test_updates_that_do_not_fit_are_refused_and_never_crash(tmp_path: Path, update: TableUpdate) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    with contextlib.suppress(InvalidArgument, Conflict):  # some fit after all
        updated(table.metadata, (), (update,))
    with pytest.raises(InvalidArgument):
        updated(None, (), (update,))
