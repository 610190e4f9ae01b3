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
from skiway.formats.parquet import pages
from skiway.formats.parquet.pages import PageCheck, page_header


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
    header, _ = page_header(bytes(data[at : at + 512]))
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
        check = PageCheck(file, "t.parquet", footer)
        for group in range(footer.num_row_groups):
            check.check(group, table.column_names)
            for place in range(footer.num_columns):
                chunk = footer.row_group(group).column(place)
                largest = check._largest_page(chunk)
                assert 0 < largest <= chunk.total_uncompressed_size
    monkeypatch.setattr(pages, "MAX_PAGES_BYTES", 5)
    with pytest.raises(LimitExceeded, match="the pages of the requested columns take"):
        rows_of(tmp_path)


@given(st.binary(max_size=200))
def test_damaged_headers_are_rejected(data: bytes) -> None:
    try:
        fields, length = page_header(data)
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
