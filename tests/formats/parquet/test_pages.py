"""Pages that announce too many bytes are rejected before anything is allocated for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skiway.errors import LimitExceeded, PreconditionFailed
from skiway.formats import open_source
from skiway.formats.readers import pages
from skiway.formats.readers import parquet as reading
from skiway.formats.readers.encodings import read_struct
from skiway.formats.readers.pages import PageCheck


@pytest.fixture(params=["local", "remote"], autouse=True)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read the files of the tests as local and as remote ones."""
    if request.param == "remote":
        monkeypatch.setattr(reading, "is_local", lambda path: False)
    return str(request.param)


def rows_of(folder: Path) -> int:
    with open_source("parquet", str(folder)) as source:
        table = source.load((), "t")
        return sum(batch.num_rows for batch in table.read(table.current()))


@pytest.mark.parametrize("codec", ["zstd", "gzip", "brotli"])
def test_page_that_decompresses_to_more_than_the_limit_is_rejected(
    tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", 1 << 20)
    pq.write_table(
        pa.table({"n": pa.array(np.zeros(1 << 18, np.int64))}),
        tmp_path / "t.parquet",
        compression=codec,
        use_dictionary=False,
        data_page_size=1 << 30,
        max_rows_per_page=1 << 30,
    )
    assert (tmp_path / "t.parquet").stat().st_size < 8000
    with pytest.raises(LimitExceeded, match=r"a page takes 2097\d\d\d bytes when decompressed"):
        rows_of(tmp_path)


def test_header_that_announces_more_than_the_footer_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"n": range(10_000)}), path, compression="zstd", use_dictionary=False)
    data = bytearray(path.read_bytes())
    at = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    header, _ = read_struct(bytes(data[at : at + 512]))
    old, new = zigzag(header[2]), zigzag(pages.MAX_PAGE_BYTES + 1)
    place = data.index(old, at)
    data[place : place + len(old)] = new
    shifted = len(new) - len(old)
    path.write_bytes(with_footer_moved(bytes(data), shifted))
    with pytest.raises(LimitExceeded, match=f"a page takes {pages.MAX_PAGE_BYTES + 1} bytes"):
        rows_of(tmp_path)


def zigzag(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def with_footer_moved(data: bytes, shifted: int) -> bytes:
    """The footer is found from the end of the file, so that only the page has moved."""
    return data if shifted >= 0 else data + b"\0" * -shifted


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd"},
        {"compression": "gzip", "data_page_version": "2.0"},
        {"compression": "brotli", "data_page_size": 1000, "write_page_index": True},
        {"compression": "snappy", "write_page_checksum": True},
        {"compression": "lz4", "use_dictionary": False},
        {"compression": "none", "use_dictionary": False},
        {"compression": "zstd", "use_dictionary": False, "column_encoding": {"id": "DELTA_BINARY_PACKED"}},
    ],
)
def test_pages_of_all_writers_pass(tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest page is found, and every header can be read: with a limit of one page, nothing is left out."""
    count = 3000
    table = pa.table(
        {
            "id": range(count),
            "text": [f"{i % 97:0>50}" for i in range(count)],
            "long": ["x" * (i % 3000) for i in range(count)],
            "nested": [{"a": [i, i], "b": {"c": None if i % 3 else i}} for i in range(count)],
        }
    )
    if "column_encoding" in options:
        table = table.select(["id"])
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1000, **options)
    monkeypatch.setattr(pages, "_RATIOS", {})  # every page is checked, whatever its codec
    assert rows_of(tmp_path) == count
    footer = pq.read_metadata(tmp_path / "t.parquet")
    with pa.OSFile(str(tmp_path / "t.parquet")) as file:
        check = PageCheck(file, "t.parquet")
        check.set_footer(footer)
        for group in range(footer.num_row_groups):
            check.check(group, table.column_names)
            for place, chunk in enumerate(check._chunks(group, table.column_names)):
                while not chunk.is_complete:
                    check._step(chunk)
                assert 0 < chunk.largest <= footer.row_group(group).column(place).total_uncompressed_size
    monkeypatch.setattr(pages, "MAX_PAGES_BYTES", 5)
    with pytest.raises(LimitExceeded, match="the pages of the requested columns take"):
        rows_of(tmp_path)


class Counted:
    """A file that counts how it is read."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file, self.reads = file, list[tuple[int, int]]()

    def size(self) -> int:
        return int(self._file.size())

    def read_at(self, size: int, at: int) -> bytes:
        self.reads.append((at, size))
        return bytes(self._file.read_at(size, at))


def test_headers_of_remote_files_are_checked_without_further_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    table = pa.table({name: rng.integers(0, 1 << 60, 400_000) for name in ("a", "b", "c")})
    pq.write_table(table, tmp_path / "t.parquet", compression="zstd", use_dictionary=False, data_page_size=1 << 14)
    with pa.OSFile(str(tmp_path / "t.parquet")) as file:
        counted = Counted(file)
        guard = pages.PageGuard(counted, "t.parquet")
        parquet = pq.ParquetFile(pa.PythonFile(guard, "r"), buffer_size=1 << 20)
        guard.set_footer(parquet.metadata)
        stepped = list[int]()
        step: Any = guard._step
        monkeypatch.setattr(guard, "_step", lambda chunk, known: (stepped.append(chunk.at), step(chunk, known)))
        guard.check(0, ["a", "c"])
        found = pa.Table.from_batches(parquet.iter_batches(10_000, row_groups=[0], columns=["a", "c"]))
        assert found == table.select(["a", "c"])
        assert all(chunk.is_complete for chunk in guard._pending)
        assert len(stepped) > 300
        spanning = [read for read in counted.reads if read[1] == 512]  # headers at the end of what was read
        assert len(spanning) <= 8
        assert len(counted.reads) < 30


@pytest.mark.parametrize("is_remote", [False, True])
def test_row_groups_that_are_read_one_after_the_other_are_all_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_remote: bool
) -> None:
    with pq.ParquetWriter(tmp_path / "t.parquet", pa.schema({"n": pa.int64()}), use_dictionary=False) as writer:
        for rows in (10, 10_000):
            writer.write_table(pa.table({"n": range(rows)}))
    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", 1_000)
    with pa.OSFile(str(tmp_path / "t.parquet")) as file:
        check = pages.PageGuard(file, "t.parquet") if is_remote else pages.PageCheck(file, "t.parquet")
        parquet = pq.ParquetFile(pa.PythonFile(check, "r") if is_remote else file)
        check.set_footer(parquet.metadata)

        def read(*groups: int) -> pa.Table:
            check.check_all(groups, ["n"])
            return parquet.read_row_groups(groups)

        assert read(0).num_rows == 10
        with pytest.raises(LimitExceeded, match="a page takes"):
            read(0, 1)


@given(st.binary(max_size=200))
def test_damaged_headers_are_rejected(data: bytes) -> None:
    try:
        fields, length = read_struct(data)
    except (IndexError, ValueError, RecursionError):
        return
    assert length <= len(data)
    assert isinstance(fields, dict)


def test_file_without_headers_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"n": range(10_000)}), path, compression="zstd", use_dictionary=False)
    data = bytearray(path.read_bytes())
    at = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    data[at : at + 64] = b"\xff" * 64
    path.write_bytes(data)
    with pytest.raises(PreconditionFailed, match="is corrupt"):
        rows_of(tmp_path)
