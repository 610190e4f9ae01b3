"""Checks the sizes that the pages of a Parquet file announce, before a reader allocates them.

A page of a few kilobytes can announce two gigabytes and decompress to them, and a reader keeps a page of each column in
memory. The header in front of each page has both sizes. The headers are in Thrift's compact protocol; the footer repeats the
sizes only as totals, which nobody checks.

Pages are checked in files on local disks. Reading the headers of a remote file would take a request per page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from skiway.errors import LimitExceeded
from skiway.formats.files import Files, corrupt
from skiway.security.source_access import location

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

__all__ = ["MAX_PAGES_BYTES", "MAX_PAGE_BYTES", "PageCheck", "checked_pages", "page_header"]

MAX_PAGE_BYTES: Final = 256 * 1024 * 1024
MAX_PAGES_BYTES: Final = 2 * 1024 * 1024 * 1024
"""For the largest pages of all columns that are read together."""

_SHORT, _LONGEST = 512, 1 << 20  # bytes of a header: usually, and at most
_RATIOS: Final = {"UNCOMPRESSED": 1, "SNAPPY": 32, "LZ4": 256, "LZ4_RAW": 256, "GZIP": 1040}
"""How many bytes a codec can make of one. Others can make almost any number."""


@contextmanager
def checked_pages(files: Files, path: str, footer: FileMetaData) -> Iterator[PageCheck]:
    """The check of a file, for the duration of the block."""
    if location(path).scheme != "file":
        yield PageCheck(None, path, footer)
        return
    with files.open(path) as file:
        yield PageCheck(file, path, footer)


class PageCheck:
    """Checks the pages of row groups of one file; without a `file`, nothing."""

    def __init__(self, file: pa.NativeFile | None, path: str, footer: FileMetaData) -> None:
        self._file, self._path, self._footer = file, path, footer
        self._roots: list[str] | None = None

    def check(self, group: int, columns: Sequence[str]) -> None:
        """Raise `LimitExceeded` if pages of `columns` in a row group are too large; damaged headers are errors too."""
        if self._file is None:
            return
        wanted, total = frozenset(columns), 0
        chunks = self._footer.row_group(group)
        for place, root in enumerate(self._columns()):
            if root in wanted:
                total += self._largest_page(chunks.column(place))
                if total > MAX_PAGES_BYTES:
                    raise self._refused("the pages of the requested columns take", total, MAX_PAGES_BYTES)

    def _columns(self) -> list[str]:
        """The column of the table that each column of the file belongs to."""
        if self._roots is None:
            schema = self._footer.schema
            self._roots = [schema.column(place).path.split(".")[0] for place in range(len(schema))]
        return self._roots

    def _largest_page(self, chunk: Any) -> int:
        """The bytes of the largest page of a column chunk, or a smaller number if no page can be too large."""
        size: int = chunk.total_compressed_size
        if size * _RATIOS.get(chunk.compression, MAX_PAGE_BYTES) <= MAX_PAGE_BYTES:
            return min(size, MAX_PAGE_BYTES)
        at = chunk.data_page_offset
        if chunk.dictionary_page_offset and 0 < chunk.dictionary_page_offset < at:
            at = chunk.dictionary_page_offset
        end, values, largest = at + size, 0, 0
        while at < end and values < chunk.num_values:
            header, length = self._header(at)
            unpacked, packed = header.get(2, -1), header.get(3, -1)
            if unpacked < 0 or packed < 0:
                raise corrupt(self._path, f"the page at byte {at} announces a negative size")
            if unpacked > MAX_PAGE_BYTES:
                raise self._refused("a page takes", unpacked, MAX_PAGE_BYTES)
            largest = max(largest, unpacked)
            data_page = header.get(5) or header.get(8) or {}
            values += max(0, data_page.get(1, 0))
            at += length + packed
        return largest

    def _header(self, at: int) -> tuple[dict[int, Any], int]:
        assert self._file is not None
        size = _SHORT
        while True:
            data = self._file.read_at(size, at)
            try:
                return page_header(data)
            except IndexError:  # it is longer
                if size >= _LONGEST or len(data) < size:
                    raise corrupt(self._path, f"the page at byte {at} has no header") from None
                size *= 8
            except (ValueError, RecursionError) as error:
                raise corrupt(self._path, f"the header of the page at byte {at}: {error}") from error

    def _refused(self, what: str, found: int, limit: int) -> LimitExceeded:
        return LimitExceeded(
            f"file {self._path!r}: {what} {found} bytes when decompressed, which is more than the limit of {limit} bytes: "
            "write the file with smaller pages",
            key="page.decoded_size",
            file=self._path,
            limit=str(limit),
            found=str(found),
        )


# -- Thrift's compact protocol ----------------------------------------------------------------------------------------


def page_header(data: bytes) -> tuple[dict[int, Any], int]:
    """The fields of a page header by number, and its length; `IndexError` if the data ends within it."""
    return _struct(data, 0)


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    found: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        kind = head & 15
        found[number], at = (kind == 1, at) if kind in (1, 2) else _value(data, at, kind)
    return found, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    match kind:
        case 1 | 2 | 3:
            return data[at], at + 1
        case 4 | 5 | 6:
            return _integer(data, at)
        case 7:
            return None, _within(data, at + 8)
        case 8:
            size, at = _varint(data, at)
            return None, _within(data, at + size)
        case 9 | 10:
            return None, _skip_list(data, at)
        case 12:
            return _struct(data, at)
        case _:
            raise ValueError(f"unexpected type {kind}")


def _skip_list(data: bytes, at: int) -> int:
    head, at = data[at], at + 1
    size, kind = head >> 4, head & 15
    if size == 15:
        size, at = _varint(data, at)
    for _ in range(size):
        _, at = _value(data, at, kind)
    return at


def _within(data: bytes, end: int) -> int:
    if end > len(data):
        raise IndexError(end)
    return end


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
