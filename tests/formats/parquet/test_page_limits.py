"""Sizes of pages at the limits, and chunks of pages that contradict the footer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from skiway.errors import LimitExceeded, PreconditionFailed
from skiway.formats.readers import pages
from skiway.formats.readers.pages import PageCheck, PageGuard, _Chunk


class Bytes:
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def read_at(self, size: int, at: int) -> bytes:
        return self._data[at : at + size]


def number(value: int) -> bytes:
    """A zigzag varint."""
    value, out = (value << 1) ^ (value >> 63), bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def page(unpacked: int | None, packed: int | None, values: int = 1, *, kind: int = 5, padding: int = 0) -> bytes:
    """A page with a header in Thrift's compact protocol, and `packed` bytes."""
    header, last = bytearray(b"\x15\x00"), 1  # field 1: the type of the page
    for field, value in ((2, unpacked), (3, packed)):
        if value is not None:
            header += bytes([(field - last) << 4 | 5]) + number(value)
            last = field
    if padding:
        header += bytes([(4 - last) << 4 | 8]) + bytes([*leb128(padding)]) + b"\0" * padding
        last = 4
    header += bytes([(kind - last) << 4 | 12]) + b"\x15" + number(values) + b"\x00"
    return bytes(header) + b"\x00" + b"\0" * max(0, packed or 0)


def leb128(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def chunk(size: int, at: int = 0, **more: Any) -> SimpleNamespace:
    found = {"total_compressed_size": size, "data_page_offset": at, "dictionary_page_offset": None}
    return SimpleNamespace(**{**found, "compression": "ZSTD", "num_values": 1, **more})


class Footer:
    """The footer of a file with one row group, and the columns `a`, `b`, ... without groups."""

    def __init__(self, *chunks: SimpleNamespace) -> None:
        self._chunks = chunks
        self.schema = self

    def __len__(self) -> int:
        return len(self._chunks)

    def row_group(self, group: int) -> Footer:
        assert group == 0
        return self

    def column(self, place: int) -> Any:
        found = self._chunks[place]
        found.path = "abcdef"[place]
        return found


@pytest.fixture(params=["local", "remote"])
def checked(request: pytest.FixtureRequest) -> Any:
    """Read the pages of a file with this content and these chunks; return how many reads that took."""

    def check(data: bytes, *chunks: SimpleNamespace, columns: str = "abcdef") -> None:
        guard = PageGuard(Bytes(data), "f") if request.param == "remote" else PageCheck(Bytes(data), "f")  # type: ignore[arg-type]
        guard.set_footer(Footer(*chunks))  # type: ignore[arg-type]
        guard.check(0, list(columns))
        if isinstance(guard, PageGuard):
            guard.seek(0)
            assert guard.read() == data
            assert guard.tell() == len(data)

    return check


@pytest.mark.parametrize(
    ("at", "end", "values", "complete"),
    [(99, 100, 1, False), (100, 100, 1, True), (101, 100, 1, True), (50, 100, 0, True), (50, 100, -1, True)],
)
def test_chunk_is_complete_at_its_end_or_without_further_values(at: int, end: int, values: int, complete: bool) -> None:
    assert _Chunk(0, at, end, values).is_complete == complete


@pytest.mark.parametrize("kind", [5, 8])
def test_pages_after_the_last_value_are_not_read(checked: Any, kind: int) -> None:
    data = page(10, 4, values=3, kind=kind) + page(10, 4, values=2, kind=kind)
    checked(data + b"\xff" * 10, chunk(len(data) + 10, num_values=5))
    with pytest.raises(PreconditionFailed, match="corrupt"):
        checked(data + b"\xff" * 10, chunk(len(data) + 10, num_values=6))


def test_chunk_with_too_many_values_in_the_footer_ends_at_its_end(checked: Any) -> None:
    data = page(10, 4, values=3)
    checked(data + b"\xff" * 10, chunk(len(data), num_values=100))


def test_page_may_be_as_large_as_the_limit(checked: Any) -> None:
    limit = pages.MAX_PAGE_BYTES
    for sizes, allowed in ([limit], True), ([limit + 1], False), ([5, limit + 1], False):
        data = b"".join(page(size, 4) for size in sizes)
        if allowed:
            checked(data, chunk(len(data), num_values=len(sizes)))
        else:
            with pytest.raises(LimitExceeded, match=f"a page takes {limit + 1} bytes") as refused:
                checked(data, chunk(len(data), num_values=len(sizes)))
            assert refused.value.params == {"file": "f", "limit": str(limit), "found": str(limit + 1)}


def test_largest_pages_of_all_columns_count_together(checked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_PAGES_BYTES", 1000)
    a, b = page(600, 4) + page(100, 4), page(200, 4) + page(400, 4)
    chunks = chunk(len(a), num_values=2), chunk(len(b), at=len(a), num_values=2)
    checked(a + b, *chunks)
    checked(a + b.replace(page(400, 4), page(500, 4)), *chunks, columns="a")
    with pytest.raises(LimitExceeded, match="the pages of the requested columns take 1001 bytes"):
        checked(a + b.replace(page(400, 4), page(401, 4)), *chunks)


@pytest.mark.parametrize(("unpacked", "packed"), [(-1, 4), (10, -1), (None, 4), (10, None)])
def test_pages_without_a_size_are_corrupt(checked: Any, unpacked: int | None, packed: int | None) -> None:
    data = page(unpacked, packed) + bytes(100)
    with pytest.raises(PreconditionFailed, match="corrupt") as refused:
        checked(data, chunk(len(data)))
    assert refused.value.detail == "the page at byte 0 announces no size, or a negative one"
    checked(page(0, 0), chunk(len(page(0, 0))))


@pytest.mark.parametrize("length", [450, 600, 5000, 40_000, 300_000, 1_000_000])
def test_long_headers_are_read(checked: Any, length: int) -> None:
    data = page(10, 4, padding=length) + page(pages.MAX_PAGE_BYTES + 1, 4)
    checked(data, chunk(len(data), num_values=1))
    with pytest.raises(LimitExceeded):
        checked(data, chunk(len(data), num_values=2))


@pytest.mark.parametrize("data", [page(10, 4)[:6], page(10, 4, padding=2_000_000), b"\x15\x00"])
def test_header_that_does_not_end_is_corrupt(checked: Any, data: bytes) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        checked(data, chunk(len(data)))
    assert refused.value.detail == "the page at byte 0 has no header"


def test_dictionary_page_in_front_of_the_data_is_checked(checked: Any) -> None:
    dictionary, data = page(pages.MAX_PAGE_BYTES + 1, 4, kind=7), page(10, 4)
    first = b"PAR1"
    at = len(first) + len(dictionary)
    both = {"size": len(dictionary + data), "at": at}
    with pytest.raises(LimitExceeded):
        checked(first + dictionary + data, chunk(**both, dictionary_page_offset=len(first)))
    for none in (None, 0, -1, at, at + 1):
        checked(first + dictionary + data, chunk(len(data), at, dictionary_page_offset=none))


@pytest.mark.parametrize(("codec", "ratio"), [("UNCOMPRESSED", 1), ("SNAPPY", 32), ("LZ4", 256), ("GZIP", 1040)])
def test_pages_that_cannot_be_too_large_are_not_read(codec: str, ratio: int) -> None:
    size = pages.MAX_PAGE_BYTES // ratio
    assert _Chunk.of(chunk(size, at=4, compression=codec)) == _Chunk(4, 4 + size, 4 + size, 0, size)
    more = _Chunk.of(chunk(size + 1, at=4, compression=codec, num_values=9))
    assert more == _Chunk(4, 4, 4 + size + 1, 9)
    assert not more.is_complete


def test_position_of_a_remote_file_follows_reads_and_seeks() -> None:
    guard = PageGuard(Bytes(b"0123456789"), "f")  # type: ignore[arg-type]
    assert (guard.read(3), guard.tell()) == (b"012", 3)
    assert (guard.seek(2, 1), guard.read(1)) == (5, b"5")
    assert (guard.seek(-2, 2), guard.read()) == (8, b"89")
    assert (guard.seek(1), guard.read(2), guard.tell()) == (1, b"12", 3)
    assert not guard.closed
    guard.close()
    assert guard.closed


def test_page_between_two_reads_of_a_remote_file_is_checked() -> None:
    data = page(10, 40) + page(pages.MAX_PAGE_BYTES + 1, 4)
    guard = PageGuard(Bytes(data), "f")  # type: ignore[arg-type]
    guard.set_footer(Footer(chunk(len(data), num_values=2)))  # type: ignore[arg-type]
    guard.check(0, ["a"])
    second = len(page(10, 40))
    assert len(guard.read(second)) == second
    with pytest.raises(LimitExceeded):
        guard.read(1)


@pytest.mark.parametrize("start", [1, 2, 20])
def test_page_that_begins_before_the_read_is_checked_with_its_own_header(start: int) -> None:
    data = page(10, 40) + page(10, 4)
    guard = PageGuard(Bytes(data), "f")  # type: ignore[arg-type]
    guard.set_footer(Footer(chunk(len(data), num_values=2)))  # type: ignore[arg-type]
    guard.check(0, ["a"])
    guard.seek(start)
    assert guard.read() == data[start:]
