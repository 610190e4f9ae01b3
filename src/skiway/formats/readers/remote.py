"""Reads files in object stores with few requests: one takes longer than a megabyte on its way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import pyarrow as pa

_GAP_BYTES: Final = 1 << 20
"""Ranges with a smaller gap between them are read in one request."""
MAX_HELD_BYTES: Final = 32 << 20
"""How much is requested in advance. Longer ranges are requested as they are read, a part at a time."""

Range = tuple[int, int]
"""The first byte, and the one after the last."""


class Readable(Protocol):
    """A file with random access."""

    def size(self) -> int:
        """The bytes of the file."""

    def read_at(self, nbytes: int, offset: int) -> bytes:
        """The bytes from an offset on."""


class LateFile:
    """A file that is opened when it is first read: opening takes a request, even if nothing is read."""

    def __init__(self, open_file: Callable[[], pa.NativeFile]) -> None:
        self._open = open_file
        self._file: pa.NativeFile | None = None
        self.known_size: int | None = None

    @property
    def opened(self) -> pa.NativeFile:
        """The open file."""
        if self._file is None:
            self._file = self._open()
        return self._file

    def size(self) -> int:
        """The bytes of the file."""
        return int(self.opened.size()) if self.known_size is None else self.known_size

    def read_at(self, nbytes: int, offset: int) -> bytes:
        """The bytes from an offset on."""
        return bytes(self.opened.read_at(nbytes, offset))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class Ranges:
    """Reads a file. `fetch` requests ranges in advance, from which later reads are answered."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._held: list[tuple[int, bytes]] = []

    def size(self) -> int:
        """The bytes of the file."""
        return self._file.size()

    def read_at(self, nbytes: int, offset: int) -> bytes:
        """The bytes from an offset on."""
        end, at, parts = offset + nbytes, offset, list[bytes]()
        while at < end:
            held = self._holding(at, at + 1)
            if held is None:
                return self._file.read_at(nbytes, offset)
            start, data = held
            parts.append(data[at - start : end - start])
            at = start + len(data)
        return b"".join(parts)

    def holds(self, ranges: Sequence[Range]) -> bool:
        """Whether all ranges are at hand."""
        return all(self._holding(*each) is not None for each in ranges)

    def fetch(self, ranges: Sequence[Range]) -> None:
        """Read ranges into memory, and release those that are no longer wanted. If they take too much memory, none is read in advance."""
        wanted = [each for each in ranges if 0 <= each[0] < each[1] <= self.size()]
        self._held = [
            (at, data) for at, data in self._held if any(at < end and start < at + len(data) for start, end in wanted)
        ]
        missing = merged([each for each in wanted if self._holding(*each) is None], gap=_GAP_BYTES)
        held = sum(len(data) for _, data in self._held)
        if held + sum(end - start for start, end in missing) <= MAX_HELD_BYTES:
            self._held += [(start, self._file.read_at(end - start, start)) for start, end in missing]

    def _holding(self, start: int, end: int) -> tuple[int, bytes] | None:
        """The held bytes that contain a range; None if none do."""
        for at, data in self._held:
            if at <= start and end <= at + len(data):
                return at, data
        return None


def merged(ranges: Sequence[Range], *, gap: int) -> list[Range]:
    """The ranges in order. Those with at most `gap` bytes between them become one."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1] + gap:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found
