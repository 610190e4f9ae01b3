"""Rotated files of lines, which several threads and processes may write at the same time.

    audit.log       the current file
    audit.log.1     the last rotated file
    audit.log.2     the one before, and so on

A line is written completely or not at all, and rotation neither loses nor splits lines: every write holds an operating
system lock (`flock` on `audit.log.lock`). This works for the processes of one machine on a local disk. Without `flock`
(on Windows), only one process may write a file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Lock
from weakref import WeakSet

from skiway.config.telemetry import Rotation

if sys.platform != "win32":
    import fcntl

__all__ = ["LineFile"]

FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
OWNER_ONLY = 0o600

# Process-wide, because `os.register_at_fork` is: after a fork, the child must reset every open file.
_open_files: WeakSet[LineFile] = WeakSet()


class LineFile:
    """Appends lines to `path`. The file is rotated before a line that would make it exceed `rotation.max_bytes`.

    The first write opens the file. A failed write raises OSError and leaves the file unchanged.
    """

    def __init__(self, path: Path, rotation: Rotation, *, fsync: bool = False) -> None:
        self._path = path
        self._lock_path = path.with_name(f"{path.name}.lock")
        self._rotation = rotation
        self._fsync = fsync
        self._mutex = Lock()
        self._file: int | None = None
        self._lock: int | None = None
        _open_files.add(self)

    def write(self, line: str) -> None:
        """Append one line, given without its line break. With `fsync`, it is on disk when this returns."""
        data = line.replace("\n", "\\n").encode("utf-8", "backslashreplace") + b"\n"
        with self._mutex:
            self._exclude_others()
            try:
                file, size = self._current()
                if size and size + len(data) > self._rotation.max_bytes:
                    self._rotate()
                    file, size = self._current()
                self._append(file, data, size)
            finally:
                self._admit_others()

    def close(self) -> None:
        """Close the file. A later write reopens it."""
        with self._mutex:
            self._close_descriptors()

    def _append(self, file: int, data: bytes, size: int) -> None:
        try:
            written = os.write(file, data)
            if written < len(data):
                raise OSError(f"only {written} of {len(data)} bytes of a line could be written to {self._path}")
            if self._fsync:
                os.fsync(file)
        except OSError:
            os.ftruncate(file, size)  # a partial line would look like a complete one
            raise

    def _current(self) -> tuple[int, int]:
        """The descriptor and size of the file at our path, which another process may have rotated."""
        if self._file is not None:
            ours = os.fstat(self._file)
            if _is_at(self._path, ours):
                return self._file, ours.st_size
            os.close(self._file)
            self._file = None
        self._file = os.open(self._path, FLAGS, OWNER_ONLY)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":  # a crash of the machine cut off the last line
            size += os.write(self._file, b"\n")
        return self._file, size

    def _rotate(self) -> None:
        """Rename each file to the next number; the oldest is overwritten."""
        names = [
            self._path,
            *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._rotation.keep + 1)),
        ]
        for older, newer in reversed(list(zip(names[1:], names, strict=False))):
            if newer.exists():
                newer.replace(older)

    def _exclude_others(self) -> None:
        """Take the lock that all processes share."""
        if self._lock is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._lock_path, FLAGS, OWNER_ONLY)
        if sys.platform != "win32":
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def _admit_others(self) -> None:
        if sys.platform != "win32" and self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _close_descriptors(self) -> None:
        for descriptor in (self._file, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._file = self._lock = None

    def after_fork(self) -> None:
        """Reset in a forked child: the thread that held the mutex is gone, and parent and child would share the file lock."""
        self._mutex = Lock()
        self._close_descriptors()

    def __del__(self) -> None:
        self._close_descriptors()


def _is_at(path: Path, file: os.stat_result) -> bool:
    try:
        there = os.stat(path)  # noqa: PTH116 - for every line, and twice as fast
    except FileNotFoundError:
        return False
    return (there.st_ino, there.st_dev) == (file.st_ino, file.st_dev)


def _after_fork() -> None:
    for file in list(_open_files):
        file.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
