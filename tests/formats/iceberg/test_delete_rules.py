"""Which delete files apply to which data files, deletion vectors, and position deletes by file."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from skiway.errors import PreconditionFailed
from skiway.formats import Content
from skiway.formats.iceberg.deletes import (
    PLACES,
    Blob,
    deletion_vector,
    encoded_vector,
    merged_positions,
    positions_by_file,
    puffin_file,
    with_deletes,
)
from skiway.formats.iceberg.table import FileLineage, Lineage
from skiway.formats.schemas import field_id
from skiway.formats.source import FILE_COLUMNS

PARTITION = pa.struct({"1000": pa.float64()})
NAN = float("nan")


def row(path: str, content: Content, sequence: int, spec: int = 1, value: float | None = 1.0, **more: Any) -> Any:
    facts = {"path": path, "content": content, "sequence_number": sequence, "spec_id": spec, "row_count": 10}
    return {**facts, "partition": {"1000": value}, **more}


def table(*rows: dict[str, Any]) -> pa.Table:
    schema = pa.schema([*FILE_COLUMNS, pa.field("partition", PARTITION), *PLACES])
    numbered = [{"deletes": [], "equality_ids": [], "ordinal": number, **each} for number, each in enumerate(rows)]
    return with_deletes(pa.Table.from_pylist(numbered, schema), unpartitioned={0})


def deletes_of(*rows: dict[str, Any]) -> list[str]:
    """The paths of the delete files that apply to the first row."""
    found = table(*rows)
    paths = found["path"].to_pylist()
    return [paths[number] for number in found["deletes"].to_pylist()[0]]


@pytest.mark.parametrize(
    ("content", "sequence", "applies"),
    [
        (Content.POSITION_DELETES, 4, False),
        (Content.POSITION_DELETES, 5, True),
        (Content.POSITION_DELETES, 6, True),
        (Content.EQUALITY_DELETES, 4, False),
        (Content.EQUALITY_DELETES, 5, False),
        (Content.EQUALITY_DELETES, 6, True),
    ],
)
def test_deletes_apply_to_older_files(content: Content, sequence: int, applies: bool) -> None:
    assert deletes_of(row("a", Content.DATA, 5), row("d", content, sequence)) == ["d"] * applies


@pytest.mark.parametrize("content", [Content.POSITION_DELETES, Content.EQUALITY_DELETES])
def test_deletes_apply_to_their_partition(content: Content) -> None:
    for (one_spec, one), (other_spec, other) in product([(0, None), (1, 1.0), (1, 2.0), (1, NAN), (2, 1.0)], repeat=2):
        data, delete = row("a", Content.DATA, 1, one_spec, one), row("d", content, 2, other_spec, other)
        same = (one_spec, repr(one)) == (other_spec, repr(other))
        everywhere = content == Content.EQUALITY_DELETES and other_spec == 0
        assert deletes_of(data, delete) == ["d"] * (same or everywhere)


def test_deletes_of_a_named_file_apply_to_it_only() -> None:
    data, other = row("a", Content.DATA, 1), row("b", Content.DATA, 1)
    named = row("d", Content.POSITION_DELETES, 1, spec=9, referenced="a")
    assert deletes_of(data, other, named) == ["d"]
    assert deletes_of(other, data, named) == []


@pytest.mark.parametrize(
    ("low", "high", "applies"),
    [(b"m", b"m", True), (b"n", None, False), (None, b"l", False), (b"a", b"z", True), (None, b"m", True), (b"m", None, True)],
)  # fmt: skip
def test_position_deletes_apply_to_paths_within_their_bounds(low: Any, high: Any, applies: bool) -> None:
    found = deletes_of(row("m", Content.DATA, 1), row("d", Content.POSITION_DELETES, 1, path_from=low, path_to=high))
    assert found == ["d"] * applies


def test_vector_replaces_position_deletes_but_not_equality_deletes() -> None:
    rows = (
        row("a", Content.DATA, 1),
        row("p", Content.POSITION_DELETES, 2),
        row("e", Content.EQUALITY_DELETES, 2),
        row("v", Content.POSITION_DELETES, 3, referenced="a", blob_offset=4, row_count=7),
    )
    assert sorted(deletes_of(*rows)) == ["e", "v"]
    assert table(*rows)["deleted_rows"].to_pylist() == [None, 0, 0, 0]
    assert table(rows[0], rows[3])["deleted_rows"].to_pylist() == [7, 0]
    assert table(rows[0], rows[1])["deleted_rows"].to_pylist() == [None, 0]
    assert table(rows[0])["deletes"].to_pylist() == [[]]


def test_counts_of_position_deletes_are_known_for_files_of_our_own_writer() -> None:
    """It deletes no row twice. Others may, and their files may have rows of several data files."""
    data = row("a", Content.DATA, 1)
    one, two = (
        row(f"{name}-skiway-deletes.parquet", Content.POSITION_DELETES, 2, path_from=b"a", path_to=b"a", row_count=rows)
        for name, rows in (("1", 3), ("2", 4))
    )
    named = {**two, "path_from": None, "path_to": None, "referenced": "a"}
    assert table(data, one, two)["deleted_rows"][0].as_py() == 7
    assert table(data, one, named)["deleted_rows"][0].as_py() == 7
    for other in ({"path": "2-deletes.parquet"}, {"path_to": None}, {"content": Content.EQUALITY_DELETES}):
        assert table(data, one, {**two, **other})["deleted_rows"][0].as_py() is None, other


@pytest.mark.parametrize("positions", [[], [0], [1, 5, 2**40], list(range(5000))])
def test_vectors_are_decoded(positions: list[int]) -> None:
    blob = encoded_vector(np.array(positions, dtype=np.int64))
    assert deletion_vector(blob, file="f", rows=len(positions)).to_pylist() == positions
    assert int.from_bytes(blob[:4]) == len(blob) - 8


def test_damaged_vectors_are_corrupt() -> None:
    blob = encoded_vector(np.array([1, 5]))
    length, body, checksum = blob[:4], blob[4:-4], blob[-4:]
    for damaged in (
        (len(body) + 1).to_bytes(4) + body + checksum,
        length + b"x" + body[1:] + checksum,
        length + body + checksum[::-1],
        length + body[:-1] + bytes([body[-1] ^ 1]) + checksum,
    ):
        with pytest.raises(PreconditionFailed, match="'f' is corrupt") as refused:
            deletion_vector(damaged, file="f", rows=2)
        assert refused.value.detail == "the length, magic number or checksum of a deletion vector is wrong"
    with pytest.raises(PreconditionFailed) as refused:
        deletion_vector(blob, file="f", rows=3)
    assert refused.value.detail == "a deletion vector has 2 rows, but the manifest says 3"


def test_positions_are_grouped_by_file_and_sorted() -> None:
    deletes = pa.table({"file_path": ["b", "a", "b", "c", "a"], "pos": [9, 3, 1, 5, 3]})
    found = {path: positions.to_pylist() for path, positions in positions_by_file(deletes).items()}
    assert found == {"a": [3, 3], "b": [1, 9], "c": [5]}
    assert positions_by_file(deletes.slice(0, 0)) == {}


def test_positions_are_merged() -> None:
    empty, one, two = (pa.array(values, pa.int64()) for values in ([], [3, 5], [1, 3]))
    merged = merged_positions([empty, one, two])
    assert merged is not None
    assert merged.to_pylist() == [1, 3, 5]
    assert merged_positions([empty]) is None
    assert merged_positions([]) is None


def test_puffin_file_describes_its_blobs() -> None:
    made = puffin_file([Blob("t", b"one", [1]), Blob("u", b"second", [2, 3], 7, 8, {"a": "b"})])
    assert [made.data[each["offset"] : each["offset"] + each["length"]] for each in made.blobs] == [b"one", b"second"]
    assert [(each["snapshot-id"], each["sequence-number"]) for each in made.blobs] == [(-1, -1), (7, 8)]
    assert made.data[:4] == made.data[-4:] == made.data[-made.footer_size :][:4] == b"PFA1"
    assert made.data[-8:-4] == b"\0" * 4
    assert int.from_bytes(made.data[-12:-8], "little") == made.footer_size - 16


def test_lineage_is_inherited_unless_it_is_written() -> None:
    lineage = Lineage.of(pa.schema({"_row_id": pa.int64(), "x": pa.int64()}))
    assert (lineage.row_id.name, lineage.last_updated.name) == ("_row_id_", "_last_updated_sequence_number")
    assert (field_id(lineage.row_id), field_id(lineage.last_updated)) == (2147483540, 2147483539)
    schema = lineage.added_to(pa.schema({"x": pa.int64()}))
    rows = pa.record_batch([pa.array([7, 8]), pa.array([None, 50]), pa.array([None, 2])], schema=schema)
    positions = pa.array([3, 4])
    filled = lineage.filled(rows, positions, FileLineage(100, 9))
    assert [each.to_pylist() for each in filled.columns] == [[7, 8], [103, 50], [9, 2]]
    without = lineage.filled(rows, positions, FileLineage(None, 9))
    assert [each.to_pylist() for each in without.columns] == [[7, 8], [None, 50], [9, 2]]
    first = lineage.filled(rows, positions, FileLineage(0, None))
    assert [each.to_pylist() for each in first.columns] == [[7, 8], [3, 50], [None, 2]]
    changed = lineage.changed(filled, pa.array([False, True]))
    assert changed.column(lineage.last_updated.name).to_pylist() == [9, None]
    assert changed.schema == schema
