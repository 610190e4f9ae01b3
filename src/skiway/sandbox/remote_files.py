"""Files of object stores that a query reads: DuckDB asks for ranges of bytes, and the server reads them.

So the process of the query has neither credentials nor access to a network, and can read the given files only. It asks over
channels, which are sockets; as many as it needs to read at a time. A request is the number of a file, an offset and a size. The
response is the number of bytes and the bytes; if there is no response, the server has failed to read, and knows why. A request for
a negative size returns the size of the file.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

__all__ = ["Channel", "ReadableFile", "RemoteFiles", "serve_channel"]

_REQUEST: Final = struct.Struct("<qqq")
_COUNT: Final = struct.Struct("<q")
_PIECE_BYTES: Final = 4 << 20
"""How much the server reads at a time."""


class ReadableFile(Protocol):
    """An open file, such as one of Arrow. Several threads may read it."""

    def size(self) -> int:
        """The size in bytes."""

    def read_at(self, nbytes: int, offset: int) -> bytes:
        """So many bytes from `offset` on."""


class RemoteFiles:
    """The files of one query by number. Each is opened once, when it is read first."""

    def __init__(self, openers: Sequence[Callable[[], ReadableFile]]) -> None:
        self._openers = openers
        self._locks = [threading.Lock() for _ in openers]
        self._opened: dict[int, ReadableFile] = {}

    def __getitem__(self, number: int) -> ReadableFile:
        if not 0 <= number < len(self._openers):
            raise IndexError(number)
        with self._locks[number]:
            if number not in self._opened:
                self._opened[number] = self._openers[number]()
            return self._opened[number]


def serve_channel(channel: socket.socket, files: RemoteFiles, failures: list[BaseException]) -> None:
    """Answer the requests that arrive in a channel, until it is closed. A failure is remembered, and closes it."""
    with channel, contextlib.suppress(OSError, EOFError):  # the process may end at any time
        while True:
            number, offset, size = _REQUEST.unpack(_exactly(channel, _REQUEST.size))
            try:
                file = files[number]
                end = file.size()
            except BaseException as error:  # noqa: BLE001 - raised to the caller of the query
                failures.append(error)
                return
            if size < 0:
                channel.sendall(_COUNT.pack(_COUNT.size) + _COUNT.pack(end))
                continue
            count = max(0, min(size, end - offset)) if offset >= 0 else 0
            channel.sendall(_COUNT.pack(count))
            if not _send_range(channel, file, offset, count, failures):
                return


def _send_range(
    channel: socket.socket, file: ReadableFile, offset: int, count: int, failures: list[BaseException]
) -> bool:
    """Send a range of a file in pieces; return whether all of it could be read."""
    while count > 0:
        try:
            piece = file.read_at(min(count, _PIECE_BYTES), offset)
            if not piece:
                raise EOFError("the file is shorter than before")
        except BaseException as error:  # noqa: BLE001 - raised to the caller of the query
            failures.append(error)
            return False
        channel.sendall(piece)
        offset, count = offset + len(piece), count - len(piece)
    return True


class Channel:
    """The other end of a channel, in the process of the query."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def size(self, number: int) -> int:
        """The size of a file."""
        found: int = _COUNT.unpack(self._ask(number, 0, -1))[0]
        return found

    def read(self, number: int, offset: int, size: int) -> bytes:
        """So many bytes of a file from `offset` on, or those up to its end."""
        return self._ask(number, offset, size)

    def close(self) -> None:
        """End the channel."""
        self._socket.close()

    def _ask(self, number: int, offset: int, size: int) -> bytes:
        self._socket.sendall(_REQUEST.pack(number, offset, size))
        (count,) = _COUNT.unpack(_exactly(self._socket, _COUNT.size))
        return _exactly(self._socket, count)


def _exactly(connected: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    view, seen = memoryview(data), 0
    while seen < count:
        found = connected.recv_into(view[seen:])
        if not found:
            raise EOFError("the channel was closed")
        seen += found
    return bytes(data)
