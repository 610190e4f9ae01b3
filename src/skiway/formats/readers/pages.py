"""Checks the sizes that the pages of a Parquet file announce, before a reader allocates them.

A page of a few kilobytes can announce two gigabytes and decompress to them, and a reader keeps a page of each column in
memory. The header in front of each page has both sizes. The headers are in Thrift's compact protocol; the footer repeats the
sizes only as totals, which readers do not check.

The headers of a local file are read before its pages. In a remote file that would take a request per page, so the headers are
checked in the bytes that the reader requests, before the reader gets them. The columns of a row group, and of the following ones, are
requested together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import LimitExceeded
from skiway.formats.files import corrupt
from skiway.formats.readers.encodings import read_struct
from skiway.formats.readers.remote import Ranges, Readable

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

MAX_PAGE_BYTES: Final = 256 * 1024 * 1024
_AHEAD_BYTES: Final = 8 * 1024 * 1024
"""How much of the following row groups is requested with one. It grows up to this, because some readers stop early."""
MAX_PAGES_BYTES: Final = 2 * 1024 * 1024 * 1024
"""For the largest pages of all columns that are read together."""

_HEADER_BYTES: Final = (512, 4096, 32_768, 1 << 18, 1 << 20)
"""How much to read for a header: usually the first is enough, and none is longer than the last."""

_RATIOS: Final = {"UNCOMPRESSED": 1, "SNAPPY": 32, "LZ4": 256, "LZ4_RAW": 256, "GZIP": 1040}
"""How many bytes a codec can make of one. Others can make almost any number."""


Once = Callable[[Hashable, Callable[[], None]], None]
"""Runs a check, unless an equal one of the same version of the file has passed before."""


def always(_check: Hashable, run: Callable[[], None]) -> None:
    """Run every check: the version of the file is unknown."""
    run()


class PageCheck:
    """Checks the pages of one file. `check` must be called before the pages of a row group are read."""

    def __init__(self, file: Readable, path: str, once: Once = always) -> None:
        self._file, self._path, self._once = file, path, once
        self._footer: FileMetaData | None = None
        self._roots: list[str] = []

    def set_footer(self, footer: FileMetaData) -> None:
        """Set the footer, which says where the pages are."""
        self._footer = footer
        schema = footer.schema
        self._roots = [schema.column(place).path.split(".")[0] for place in range(len(schema))]

    def expect(self, groups: Sequence[int]) -> None:
        """Tell which row groups will be read, in order, unless the reader stops early."""

    def check(self, group: int, columns: Sequence[str]) -> None:
        """Raise `LimitExceeded` if pages of `columns` in a row group are too large; damaged headers are errors too."""
        self._once((group, *columns), lambda: self._check(group, columns))

    def check_all(self, groups: Iterable[int], columns: Sequence[str]) -> None:
        """Check row groups that are read one after the other."""
        for group in groups:
            self.check(group, columns)

    def _check(self, group: int, columns: Sequence[str]) -> None:
        total = 0
        for chunk in self._chunks(group, columns):
            while not chunk.is_complete:
                self._step(chunk)
            total = self._added(total, chunk.largest)

    def _chunks(self, group: int, columns: Sequence[str]) -> Iterator[_Chunk]:
        """The column chunks of `columns` in a row group."""
        assert self._footer is not None
        wanted, chunks = frozenset(columns), self._footer.row_group(group)
        for place, root in enumerate(self._roots):
            if root in wanted:
                yield _Chunk.of(chunks.column(place))

    def _step(self, chunk: _Chunk, known: bytes = b"") -> None:
        """Check the next page of a chunk; `known` are bytes of the file from the page on."""
        header, length = self._header(chunk.at, known)
        unpacked, packed = header.get(2, -1), header.get(3, -1)
        if not (isinstance(unpacked, int) and isinstance(packed, int)) or unpacked < 0 or packed < 0:
            raise corrupt(self._path, f"the page at byte {chunk.at} announces no size, or a negative one")
        if unpacked > MAX_PAGE_BYTES:
            raise self._refused("a page takes", unpacked, MAX_PAGE_BYTES)
        chunk.largest = max(chunk.largest, unpacked)
        data_page = header.get(5) or header.get(8) or {}
        found = data_page.get(1) if isinstance(data_page, dict) else 0
        chunk.values -= max(0, found) if isinstance(found, int) else 0
        chunk.at += length + packed

    def _header(self, at: int, known: bytes) -> tuple[dict[int, Any], int]:
        for size in (0, *_HEADER_BYTES):
            data = self._file.read_at(size, at) if size else known
            try:
                return read_struct(data)
            except IndexError:  # it is longer
                if len(data) < size:
                    break
            except (ValueError, RecursionError) as error:
                raise corrupt(self._path, f"the header of the page at byte {at}: {error}") from error
        raise corrupt(self._path, f"the page at byte {at} has no header")

    def _added(self, total: int, size: int) -> int:
        if total + size > MAX_PAGES_BYTES:
            raise self._refused("the pages of the requested columns take", total + size, MAX_PAGES_BYTES)
        return total + size

    def _refused(self, what: str, found: int, limit: int) -> LimitExceeded:
        return LimitExceeded(
            f"file {self._path!r}: {what} {found} bytes when decompressed, which is more than the limit of {limit} bytes: "
            "write the file with smaller pages",
            key="page.decoded_size",
            file=self._path,
            limit=str(limit),
            found=str(found),
        )


@dataclass(slots=True)
class _Chunk:
    """The pages of one column in a row group, and how far they are checked."""

    begin: int
    at: int
    """Where the next page begins."""
    end: int
    values: int
    """How many values the following pages have."""
    largest: int = 0
    """The bytes of the largest page so far, or a smaller number if no page can be too large."""

    @classmethod
    def of(cls, chunk: Any) -> _Chunk:
        size: int = chunk.total_compressed_size
        at = chunk.data_page_offset
        if chunk.dictionary_page_offset and 0 < chunk.dictionary_page_offset < at:
            at = chunk.dictionary_page_offset
        if size * _RATIOS.get(chunk.compression, MAX_PAGE_BYTES) <= MAX_PAGE_BYTES:
            return cls(at, at + size, at + size, 0, size)
        return cls(at, at, at + size, chunk.num_values)

    @property
    def is_complete(self) -> bool:
        return self.at >= self.end or self.values <= 0


class PageGuard(PageCheck):
    """A remote file, to be read through `pa.PythonFile`. It checks page headers in the bytes that are read."""

    closed = False

    def __init__(self, file: Readable, path: str) -> None:
        self._ranges = Ranges(file)
        super().__init__(self._ranges, path)
        self._pending: list[_Chunk] = []
        self._expected: Sequence[int] = ()
        self._ahead = 0
        self._position = 0

    def expect(self, groups: Sequence[int]) -> None:
        """Tell which row groups will be read, in order, unless the reader stops early."""
        self._expected = groups

    def check(self, group: int, columns: Sequence[str]) -> None:
        """Check the pages of `columns` in a row group when they are read, and request them."""
        self.check_all([group], columns)
        found = [(chunk.begin, chunk.end) for chunk in self._pending]
        if not self._ranges.holds(found):
            self._ranges.fetch([*found, *self._following(group, columns, self._ahead)])
            self._ahead = min(_AHEAD_BYTES, max(2 * self._ahead, _AHEAD_BYTES >> 3))

    def _following(self, group: int, columns: Sequence[str], limit: int) -> Iterator[tuple[int, int]]:
        """The ranges of as many of the following row groups as have `limit` bytes."""
        place = bisect_right(self._expected, group)
        for number in self._expected[place:]:
            found = [(chunk.begin, chunk.end) for chunk in self._chunks(number, columns)]
            limit -= sum(end - begin for begin, end in found)
            if limit < 0:
                return
            yield from found

    def check_all(self, groups: Iterable[int], columns: Sequence[str]) -> None:
        """Check the pages of row groups when they are read. The pages of all of them count, although not all are in memory at once."""
        self._pending = [chunk for group in groups for chunk in self._chunks(group, columns)]

    def read(self, size: int = -1) -> bytes:
        """Read the next bytes; raise `LimitExceeded` if a page that begins in them is too large."""
        at = self._position
        data: bytes = self._file.read_at(self._file.size() - at if size < 0 else size, at)
        self._position = end = at + len(data)
        for chunk in self._pending:
            if chunk.begin < end and at < chunk.end:
                while not chunk.is_complete and chunk.at < end:
                    begin = chunk.at - at
                    self._step(chunk, data[begin : begin + _HEADER_BYTES[0]] if begin >= 0 else b"")
        total = 0
        for chunk in self._pending:
            total = self._added(total, chunk.largest)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to another position."""
        base = {0: 0, 1: self._position, 2: self._file.size() if whence == 2 else 0}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """The current position."""
        return self._position

    def close(self) -> None:
        """Leave the file open; it belongs to the caller."""
        self.closed = True
