"""Footers that contradict themselves are rejected. pyarrow would end the process when it reads them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skiway.errors import PreconditionFailed
from skiway.formats import open_source
from skiway.formats.files import Files, Reach
from skiway.formats.readers import footers
from skiway.formats.readers.encodings import read_struct
from skiway.formats.readers.footers import _check_chunks, cached_row_groups, read_footer, row_groups
from skiway.formats.schemas import leaves, with_id

ROWS = pa.table({"id": pa.array(range(10), pa.int64()), "name": [str(number) for number in range(10)]})


@pytest.mark.parametrize("tail", [8, 9, 100, 64 * 1024])
def test_footer_is_read_whether_or_not_the_tail_contains_it(
    tail: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3]}), path)
    monkeypatch.setattr(footers, "_TAIL_BYTES", tail)
    with pa.OSFile(str(path)) as file:
        assert footers._footer_bytes(file) == footer_of(path.read_bytes())[1]


def footer_of(data: bytes) -> tuple[bytes, bytearray]:
    size = int.from_bytes(data[-8:-4], "little")
    return data[: -8 - size], bytearray(data[-8 - size : -8])


def with_types(path: Path, schema_type: int) -> None:
    """Write a file whose schema says that column `id` has this type; its chunks are INT64."""
    pq.write_table(ROWS, path, row_group_size=5)
    body, footer = footer_of(path.read_bytes())
    # The second element of the schema: field 1 (type, an i32) is the zigzag number of INT64, 4.
    place = footer.index(b"\x15\x04\x25\x02\x18\x02id")
    footer[place + 1] = schema_type << 1
    path.write_bytes(body + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def with_codec(path: Path, codec: int) -> None:
    """Write a file whose columns have this compression codec, according to the footer."""
    pq.write_table(ROWS, path, compression="snappy")
    body, footer = footer_of(path.read_bytes())
    changed = footer.replace(b"\x02id\x15\x02", b"\x02id\x15" + bytes([codec << 1]))
    assert changed != footer
    path.write_bytes(body + changed + len(changed).to_bytes(4, "little") + b"PAR1")


def read(folder: Path) -> None:
    with open_source("parquet", str(folder)) as source:
        handle = source.load((), "t")
        snapshot = handle.current()
        assert snapshot is not None
        handle.files(snapshot)
        handle.read(snapshot).read_all()


@pytest.mark.parametrize(
    ("damage", "what"),
    [(lambda path: with_types(path, 6), "statistics"), (lambda path: with_codec(path, 14), "compression")],
)
def test_pyarrow_ends_the_process(tmp_path: Path, damage: Callable[[Path], None], what: str) -> None:
    """If this fails, pyarrow has been fixed, and the check is not needed any more."""
    damage(tmp_path / "t.parquet")
    script = (
        f"import pyarrow.parquet as pq; pq.read_metadata({str(tmp_path / 't.parquet')!r}).row_group(0).column(0).{what}"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert ended.returncode < 0, ended


@pytest.mark.parametrize("codec", [8, 14, 60])
def test_unknown_codecs_are_rejected(tmp_path: Path, codec: int) -> None:
    with_codec(tmp_path / "t.parquet", codec)
    with pytest.raises(PreconditionFailed, match="is corrupt"):
        read(tmp_path)


@pytest.mark.parametrize("schema_type", [0, 1, 6])
def test_types_that_do_not_match_are_rejected(tmp_path: Path, schema_type: int) -> None:
    with_types(tmp_path / "t.parquet", schema_type)
    with pytest.raises(PreconditionFailed, match="is corrupt") as refused:
        read(tmp_path)
    assert refused.value.key == "file.corrupt"


NESTED = pa.table(
    {
        "l": [[1], None],
        "s": [{"a": 1, "b": "x"}, None],
        "m": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
    }
)


def nested_footer(tmp_path: Path) -> dict[int, Any]:
    pq.write_table(NESTED, tmp_path / "n.parquet")
    _, footer = footer_of((tmp_path / "n.parquet").read_bytes())
    return read_struct(bytes(footer))[0]


def first_chunk(footer: dict[int, Any]) -> dict[int, Any]:
    found: dict[int, Any] = footer[4][0][1][0]
    return found


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda footer: first_chunk(footer)[3][16][3].append(1), "histogram of levels"),
        (lambda footer: first_chunk(footer)[3][16][2].append(1), "histogram of levels"),
        (lambda footer: footer[2][1].update({3: -2}), "histogram of levels"),
        (lambda footer: first_chunk(footer)[3][12].update({6: b"1234567"}), "too short for its type"),
        (lambda footer: first_chunk(footer)[3][12].update({5: b""}), "too short for its type"),
        (lambda footer: first_chunk(footer).update({8: {}}), "is encrypted"),
        (lambda footer: footer[4][0][1].pop(), "a row group has 4 columns, the schema has 5"),
        (lambda footer: first_chunk(footer).pop(3), "another type"),
    ],
)
def test_chunks_that_contradict_the_schema_are_found(
    tmp_path: Path, damage: Callable[[dict[int, Any]], object], message: str
) -> None:
    footer = nested_footer(tmp_path)
    _check_chunks(footer)
    damage(footer)
    with pytest.raises(ValueError, match=message):
        _check_chunks(footer)


def test_files_of_all_kinds_pass(tmp_path: Path) -> None:
    files = Files({}, Reach(()))
    for number, table in enumerate((ROWS, NESTED, ROWS.slice(0, 0), pa.table({}))):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table, path, write_page_index=True, store_schema=number % 2 == 0)
        with pa.OSFile(str(path)) as file:
            footer = read_footer(file, str(path), files)
        assert footer is not None
        assert footer.metadata.equals(pq.read_metadata(path))


def test_checkpoints_of_delta_tables_are_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "t" / "_delta_log" / f"{0:020}.checkpoint.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"add": [{"deletionVector": {"storageType": "u"}}]}), path, compression="snappy")
    body, footer = footer_of(path.read_bytes())
    changed = footer.replace(b"\x0bstorageType\x15\x02", b"\x0bstorageType\x15\x1c")
    assert changed != footer
    path.write_bytes(body + changed + len(changed).to_bytes(4, "little") + b"PAR1")
    (tmp_path / "t" / "_delta_log" / "_last_checkpoint").write_text('{"version":0,"size":1}')
    with (
        open_source("delta", str(tmp_path)) as source,
        pytest.raises(PreconditionFailed, match="unknown compression codec"),
    ):
        source.load((), "t")


def test_cached_statistics_are_those_of_the_requested_columns(tmp_path: Path) -> None:
    """Equal footers share an entry only if columns have the same ids and types."""
    files, path = Files({}, Reach(())), tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3], "b": [7, 8, 9]}), path)
    with pa.OSFile(str(path)) as file:
        footer = read_footer(file, str(path), files)
    assert footer is not None
    for names in (("a", "b"), ("b", "a")):
        source = pa.schema([with_id(pa.field(name, pa.int64()), names.index(name) + 1) for name in ("a", "b")])
        for of in (pa.int64(), pa.float64()):
            target = leaves(pa.schema([with_id(pa.field(names[0], of), 1)]))
            for _ in range(2):
                found = cached_row_groups(footer, source, target, files)
                assert found.equals(row_groups(footer.metadata, source, target))
                assert found["stats"][0]["1"]["max"].as_py() == {"a": 3, "b": 9}[names[0]]
