"""A file system for DuckDB in the process of a query, over the remote files that the server reads for it."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any, Final

from fsspec import AbstractFileSystem  # type: ignore[import-untyped]

from skiway.sandbox.relations import Channel

_SCHEME: Final = "skiway"


def remote_path(number: int) -> str:
    """The path under which DuckDB opens a file."""
    return f"{_SCHEME}://{number}"


class ServerFiles(AbstractFileSystem):  # type: ignore[misc]  # which has no types
    """The remote files of one query. `connect` opens a channel to the server; each read uses one alone."""

    protocol = _SCHEME
    cachable = False

    def __init__(self, connect: Callable[[], Channel]) -> None:
        super().__init__()
        self._connect = connect
        self._idle: SimpleQueue[Channel] = SimpleQueue()
        self._sizes: dict[int, int] = {}

    def read_range(self, number: int, offset: int, size: int) -> bytes:
        """A range of a file."""
        found: bytes = self._with_channel(lambda channel: channel.read(number, offset, size))
        return found

    def size_of(self, number: int) -> int:
        """The size of a file."""
        if number not in self._sizes:
            self._sizes[number] = self._with_channel(lambda channel: channel.size(number))
        return self._sizes[number]

    def close(self) -> None:
        """Close all channels."""
        while True:
            try:
                self._idle.get_nowait().close()
            except Empty:
                return

    def _with_channel(self, call: Callable[[Channel], Any]) -> Any:
        try:
            channel = self._idle.get_nowait()
        except Empty:
            channel = self._connect()
        try:
            found = call(channel)
        except BaseException:
            channel.close()
            raise
        self._idle.put(channel)
        return found

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.RawIOBase:
        if mode != "rb":
            raise PermissionError(path)
        return _RemoteFile(self, _number(path))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": self.size_of(_number(path)), "type": "file"}

    def exists(self, path: str, **_: Any) -> bool:  # noqa: ARG002 - DuckDB asks for the given paths only
        return True

    def glob(self, path: str, **_: Any) -> list[str]:
        return [path]

    def modified(self, path: str) -> datetime:  # noqa: ARG002 - the files do not change
        return datetime(2024, 1, 1, tzinfo=UTC)


class _RemoteFile(io.RawIOBase):
    def __init__(self, files: ServerFiles, number: int) -> None:
        super().__init__()
        self._files, self._number, self._at = files, number, 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence)
        self._at = (self._files.size_of(self._number) if start is None else start) + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        wanted = self._files.size_of(self._number) - self._at if size < 0 else size
        found = self._files.read_range(self._number, self._at, wanted)
        self._at += len(found)
        return found

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def _number(path: str) -> int:
    return int(path.rpartition("/")[2])
