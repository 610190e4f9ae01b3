"""The warehouse: the folder, on this machine or in S3, below which managed tables keep their files.

Each table has a folder of its own. What is read or written for a table is inside of it, whatever its metadata says.
A file is never changed once it is closed; what is written here survives a power failure when the call returns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

import pyarrow as pa

from skiway.errors import InvalidArgument, PermissionDenied
from skiway.formats.files import Files
from skiway.formats.locations import Location, Reach, location

__all__ = ["TableFiles", "Warehouse", "uri_of"]

_UNSAFE: Final = re.compile(r"[?#%\\\s]")  # engines read these differently in a location


@dataclass(frozen=True)
class Warehouse:
    """Where managed tables are. `properties` are those of `Files`: how S3 is reached."""

    root: Location
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    _locks: _FolderLocks = field(default_factory=lambda: _FolderLocks(), init=False, repr=False, compare=False)

    @classmethod
    def at(cls, uri: str, properties: Mapping[str, str] | None = None) -> Warehouse:
        """The warehouse at a path, or a `file:` or `s3:` location."""
        root = location(uri)
        if _UNSAFE.search(root.path):
            raise InvalidArgument(
                f"the warehouse {uri!r} has blanks or one of ? # % \\ in its path, which engines read differently; "
                "choose another folder",
                key="warehouse.invalid",
                location=uri,
            )
        return cls(root, dict(properties or {}))

    def folder(self, *segments: str) -> str:
        """The location of a folder below the root, as metadata holds it."""
        place = self.root
        for segment in segments:
            place = place / segment
        return uri_of(place)

    def files(self, folder: str) -> TableFiles:
        """What may be read and written of the table in `folder`, which must be below the root."""
        place = location(folder)
        if place == self.root or not place.is_within(self.root):
            raise PermissionDenied(
                f"location {folder!r} is outside of the warehouse; tables are kept below {uri_of(self.root)}",
                key="location.outside",
                location=folder,
            )
        return TableFiles(self.properties, _Folder((place,)))

    @contextmanager
    def lock(self, folder: str, *, timeout_s: float) -> Iterator[None]:
        """A block that one thread at a time enters per folder. After `timeout_s` it is entered without the lock."""
        lock = self._locks.of(folder)
        acquired = lock.acquire(timeout=timeout_s)
        try:
            yield
        finally:
            if acquired:
                lock.release()

    def everything(self) -> TableFiles:
        """What may be read and written of all tables."""
        return TableFiles(self.properties, _Folder((self.root,)))


class _FolderLocks:
    """A lock per folder, which exists as long as somebody uses it."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._locks: WeakValueDictionary[str, _FolderLock] = WeakValueDictionary()

    def of(self, folder: str) -> _FolderLock:
        with self._guard:
            return self._locks.setdefault(folder, _FolderLock())


class _FolderLock:
    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = Lock()

    def acquire(self, *, timeout: float) -> bool:
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()


def uri_of(place: Location) -> str:
    """The location as metadata holds it: with its scheme, so that no engine takes it for one of another store."""
    return f"file://{place.path}" if place.scheme == "file" else str(place)


class _Folder(Reach):
    """One folder; also in S3, where other tables are behind the same credentials."""

    __slots__ = ()

    def check(self, place: Location) -> Location:
        if not any(place.is_within(root) for root in self.roots):
            raise PermissionDenied(
                f"file {str(place)!r} is outside of the table's folder {', '.join(map(uri_of, self.roots))}, where all "
                "its files must be",
                key="location.outside",
                location=str(place),
            )
        return place


@dataclass(frozen=True)
class TableFiles(Files):
    """The files of managed tables, read and written."""

    def create(self, uri: str) -> pa.NativeFile:
        """A new file to write to. It is to be closed, and then made lasting by `seal`."""
        place = self.reach.check(location(uri))
        with self.translated(place):
            if place.scheme == "file":
                _make_folder(Path(place.path).parent)
                return self._local.open_output_stream(place.path)
            return self._s3.open_output_stream(f"{place.bucket}/{place.path}")

    def seal(self, uri: str) -> None:
        """Make a file that was closed survive a power failure."""
        place = location(uri)
        if place.scheme == "file":
            with self.translated(place):
                _sync(Path(place.path))
                _sync(Path(place.path).parent)

    def write(self, uri: str, data: bytes) -> None:
        """A new file with this content."""
        with self.create(uri) as sink, self.translated(uri):
            sink.write(data)
        self.seal(uri)

    def remove(self, uris: Iterable[str]) -> None:
        """Delete files; those that are not there are passed over."""
        import obstore

        for uri in uris:
            place = self.reach.check(location(uri))
            with self.translated(place):
                if place.scheme == "file":
                    Path(place.path).unlink(missing_ok=True)
                else:
                    obstore.delete(self._bucket(place.bucket), place.path)

    def remove_folders(self, folder: Location) -> None:
        """Delete the folders below `folder`, and itself, that are empty; object stores have none."""
        if folder.scheme == "file":
            for path, _, _ in os.walk(self.reach.check(folder).path, topdown=False):
                with suppress(OSError):  # not empty
                    Path(path).rmdir()


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
