"""Manifests byte by byte: numbers, truncated files, inherited fields, and what delete files refer to."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestFile,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.typedef import Record

from formats.managed import LooseTable
from skiway.errors import PreconditionFailed, Unsupported
from skiway.formats.iceberg import manifest_files
from skiway.formats.iceberg.changes.evolution import AddColumn, DropColumn, evolve, partition_by
from skiway.formats.iceberg.deletes import FILE_PATH_ID
from skiway.formats.iceberg.file_table import _manifest
from skiway.formats.iceberg.manifest_files import (
    _Decoder,
    _entry_layout,
    _Output,
    entries,
    first_row_id,
    manifests,
    referenced_file,
    schema_of,
    set_partition,
    vector_place,
)
from skiway.formats.iceberg.metadata_files import WritingIO

ROWS = pa.table({"x": [1, 2, 3]})


def zigzag(number: int) -> bytes:
    number, out = number * 2 if number >= 0 else -number * 2 - 1, bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.parametrize("number", [0, 1, -1, 63, 64, -64, -65, 8191, 8192, 2**31, 2**63 - 1, -(2**63)])
def test_numbers_are_decoded(number: int) -> None:
    data = zigzag(number)
    decoder = _Decoder(data + b"\x02")
    assert (decoder.read_int(), decoder.tell(), decoder.read_int()) == (number, len(data), 1)
    for end in range(len(data)):
        with pytest.raises(EOFError):
            _Decoder(data[:end]).read_int()


def test_bytes_end_where_the_data_does() -> None:
    decoder = _Decoder(b"abcdef")
    assert (decoder.read(2), decoder.tell()) == (b"ab", 2)
    decoder.skip(1)
    assert decoder.read(3) == b"def"
    assert decoder.read(0) == b""
    for count in (1, -1):
        with pytest.raises(EOFError, match=f"expected {count} more bytes, found 0"):
            decoder.read(count)
    assert _Decoder(zigzag(5) + zigzag(-6)).read_ints(2) == (5, -6)
    assert _Decoder(b"").read_ints(0) == ()


def delete_file(content: DataFileContent = DataFileContent.POSITION_DELETES, **facts: Any) -> DataFile:
    return DataFile.from_args(
        _table_format_version=3, content=content, file_path="d", file_format=FileFormat.PARQUET, **facts
    )


def test_delete_files_refer_to_one_data_file_or_to_several() -> None:
    def bounds(low: bytes | None, high: bytes | None) -> dict[str, Any]:
        return {
            "lower_bounds": None if low is None else {FILE_PATH_ID: low},
            "upper_bounds": None if high is None else {FILE_PATH_ID: high},
        }

    assert referenced_file(delete_file(referenced_data_file="a")) == "a"
    assert referenced_file(delete_file(**bounds(b"a", b"a"))) == "a"
    assert referenced_file(delete_file(**bounds(b"a", b"b"))) is None
    assert referenced_file(delete_file(**bounds(None, None))) is None
    assert referenced_file(delete_file(**bounds(b"a", None))) is None
    assert referenced_file(delete_file(DataFileContent.EQUALITY_DELETES, **bounds(b"a", b"a"))) is None


def test_places_of_vectors_and_partitions_of_delete_files() -> None:
    assert vector_place(delete_file()) is None
    assert vector_place(delete_file(content_offset=0, content_size_in_bytes=7)) == (0, 7)
    delete, data = delete_file(partition=None), delete_file(partition=Record(5))
    data.spec_id = 3
    set_partition(delete, data)
    assert (delete.partition, delete.spec_id) == (Record(5), 3)


def listed(table: LooseTable) -> tuple[list[ManifestFile], WritingIO]:
    io = WritingIO(table.files)
    return manifests(table.metadata.current_snapshot(), io), io


@pytest.mark.parametrize("version", ["2", "3"])
def test_entries_inherit_from_their_manifest(tmp_path: Path, version: str) -> None:
    table = LooseTable(tmp_path, ROWS.schema, format_version=version)
    table.append(ROWS)
    table.append(ROWS, ROWS)
    (newest, oldest), io = listed(table)
    assert [first_row_id(each) for each in (oldest, newest)] == ([None, None] if version == "2" else [0, 3])
    for manifest, sequence, first in ((oldest, 1, 0), (newest, 2, 3)):
        for entry in entries(manifest, io):
            assert (entry.sequence_number, entry.file_sequence_number) == (sequence, sequence)
            assert entry.snapshot_id == manifest.added_snapshot_id
            assert entry.data_file.spec_id == 0
            assert first_row_id(entry.data_file) == (None if version == "2" else first)
            first += entry.data_file.record_count
    assert manifests(None, io) == []


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_partitions_of_nanoseconds_are_read(tmp_path: Path, zone: str | None) -> None:
    moments = pa.array([1_700_000_000_123_456_789, 1_700_000_000_123_456_790, None], pa.timestamp("ns", zone))
    table = LooseTable(tmp_path, pa.schema({"at": moments.type}), "at", format_version="3")
    table.append(pa.table({"at": moments}))
    table.append(pa.table({"at": moments}))
    found, io = listed(table)
    partitions = {entry.data_file.partition[0] for each in found for entry in entries(each, io)}
    assert partitions == {1_700_000_000_123_456_789, 1_700_000_000_123_456_790, None}
    current = table.handle.current()
    assert current is not None
    rows = table.handle.read(current).read_all()["at"]
    assert Counter(rows.cast(pa.int64()).to_pylist()) == Counter(moments.cast(pa.int64()).to_pylist() * 2)


@pytest.mark.parametrize("partition_by", ["x", "bucket[4](x)"])
@pytest.mark.parametrize("version", ["2", "3"])
def test_kept_readers_and_layouts_are_those_that_pyiceberg_builds(
    tmp_path: Path, version: str, partition_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LooseTable(tmp_path, ROWS.schema, partition_by, format_version=version)
    table.append(ROWS)
    table.append(ROWS)
    found, io = listed(table)
    kept = [entries(each, io) for each in found]
    monkeypatch.setattr(manifest_files, "_MAX_KEPT_SCHEMA", 0)
    again, _ = listed(table)
    assert (again, [entries(each, io) for each in again]) == (found, kept)

    records: list[Any] = [entry for each in kept for entry in each]
    partition = table.metadata.spec().partition_type(table.metadata.schema())
    for layout, version_of_file in ((_entry_layout(2, partition), 2), (_entry_layout(3, partition), 3)):
        written, newest = (
            manifest_entry_schema_with_data_file(each, data_file_with_partition(partition, each))
            for each in (version_of_file, 3)
        )
        meta = {"avro.codec": "gzip"}
        outputs = [io.new_output(f"{table.metadata.location}/metadata/{name}{version_of_file}.avro") for name in "ab"]
        monkeypatch.setattr(os, "urandom", lambda size: b"s" * size)
        files = _Output(outputs[0], layout, meta), AvroOutputFile(outputs[1], written, "manifest_entry", newest, meta)
        for file in files:
            with file as opened:
                opened.write_block(records)
        monkeypatch.undo()
        one, other = (Path(each.location.removeprefix("file://")).read_bytes() for each in outputs)
        assert one == other


@pytest.mark.parametrize("size", [0, 4, 100, -17, -16, -1])
def test_truncated_manifests_are_corrupt(tmp_path: Path, size: int) -> None:
    table = LooseTable(tmp_path, ROWS.schema)
    table.append(ROWS)
    (manifest,), io = listed(table)
    path = Path(manifest.manifest_path.removeprefix("file://"))
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(PreconditionFailed, match="is corrupt"):
        entries(manifest, io)


def test_newest_schema_with_all_sources_of_a_spec_is_used(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, pa.schema({"x": pa.int64(), "y": pa.int64()}), "x")
    first = table.metadata.schema()
    table.change(partition_by(""))
    table.change(evolve([AddColumn("z", pa.int64())]))
    second = table.metadata.schema()
    specs = table.metadata.specs()
    assert schema_of(table.metadata, specs[0]) == second
    table.change(evolve([DropColumn("x")]))
    assert schema_of(table.metadata, specs[0]) == second != first
    assert schema_of(table.metadata, specs[1]) == table.metadata.schema()


@pytest.mark.parametrize("encrypted", ["nothing", "a data file", "the manifest"])
def test_encrypted_tables_are_rejected(tmp_path: Path, encrypted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = LooseTable(tmp_path, ROWS.schema)
    table.append(ROWS)
    (manifest,), io = listed(table)
    found = entries(manifest, io)
    if encrypted == "a data file":
        found[0].data_file[[each.name for each in DATA_FILE_TYPE[3].fields].index("key_metadata")] = b"key"
    monkeypatch.setattr(manifest_files, "entries", lambda _manifest, _io: found)
    if encrypted == "the manifest":
        manifest[[each.name for each in MANIFEST_LIST_FILE_SCHEMAS[3].fields].index("key_metadata")] = b"key"
    schema = table.handle.schema.arrow
    if encrypted == "nothing":
        assert _manifest(table.metadata, manifest, schema, io, "t").num_rows == 1
        return
    with pytest.raises(Unsupported, match="table 't' is encrypted") as refused:
        _manifest(table.metadata, manifest, schema, io, "t")
    file = manifest.manifest_path if encrypted == "the manifest" else found[0].data_file.file_path
    assert file in str(refused.value)
