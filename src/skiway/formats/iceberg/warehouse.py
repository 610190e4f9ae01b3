"""The warehouse: the root folder of the files of managed tables, on this machine or in an object store.

Each table has its own folder. Files outside of it are neither read nor written, whatever the metadata of the table says.
Files are immutable once they are closed. Writes are durable when the call returns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

import pyarrow as pa

from skiway.errors import InvalidArgument, PermissionDenied
from skiway.formats.files import FileCache, Files, Reach
from skiway.foundation.files import sync_paths
from skiway.security.source_access import Location, location

# Engines interpret these differently in a location. They take a space on disk literally, so locations are not encoded.
_SHOWN: Final = frozenset({"s3.endpoint", "s3.region", "client.region", "s3.path-style-access", "gcs.service.host"})
_UNSAFE: Final = re.compile(r"[?#%\\\s]")
_UNSAFE_ON_DISK: Final = re.compile(r"[?#%\\]|[^\S ]")


@dataclass(frozen=True)
class Warehouse:
    """The root folder of managed tables. `properties` are those of `Files`: how to reach object stores.

    `approved` are further folders in which tables of a catalog may be, by `account/catalog`.
    """

    root: Location
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    cache: FileCache = field(default_factory=FileCache, repr=False, compare=False)
    approved: tuple[tuple[str, Location], ...] = ()
    _locks: _FolderLocks = field(default_factory=lambda: _FolderLocks(), init=False, repr=False, compare=False)

    @classmethod
    def at(
        cls,
        uri: str,
        properties: Mapping[str, str] | None = None,
        *,
        cache: FileCache | None = None,
        approved: Iterable[tuple[str, str]] = (),
    ) -> Warehouse:
        """The warehouse at a path, or at a `file:`, `s3:`, `gs:` or `abfss:` location."""
        more = tuple((name, cls.safe(location(each))) for name, each in approved)
        return cls(cls.safe(location(uri)), dict(properties or {}), FileCache() if cache is None else cache, more)

    @staticmethod
    def safe(place: Location) -> Location:
        """Return `place`, or raise if engines interpret its path differently."""
        unsafe = _UNSAFE_ON_DISK if place.scheme == "file" else _UNSAFE
        if found := unsafe.search(place.path):
            raise InvalidArgument(
                f"the path of the warehouse {str(place)!r} contains {found[0]!r}, which engines interpret differently; choose "
                "another folder, without ? # % \\ and, in an object store, without spaces",
                key="warehouse.invalid",
                location=str(place),
            )
        return place

    @property
    def shown(self) -> dict[str, str]:
        """The properties that clients receive. Credentials are not among them."""
        return {name: value for name, value in self.properties.items() if name in _SHOWN}

    def approved_for(self, account_id: str, catalog: str) -> list[Location]:
        """The further folders in which tables of this catalog may be."""
        return [place for name, place in self.approved if name == f"{account_id}/{catalog}"]

    def folder(self, *segments: str) -> str:
        """The URI of a folder below the root, as metadata contains it."""
        place = self.root
        for segment in segments:
            place = place / segment
        return uri_of(place)

    def files(
        self,
        folder: str,
        *,
        more: Iterable[str] = (),
        readable: Iterable[str] = (),
        shared: Iterable[Location] = (),
        may_read: Callable[[Location], bool] = lambda _: False,
    ) -> TableFiles:
        """The files of the table in `folder`; raises PermissionDenied if that is not below a permitted folder.

        The table may also have files in the folders `more`, and only read those in the folders `readable` and, where `may_read`
        allows it, in `shared` folders.
        """
        place = location(folder)
        roots = (self.root, *(each for _, each in self.approved))
        if not any(place != root and place.is_within(root) for root in roots):
            raise PermissionDenied(
                f"location {folder!r} is outside of the warehouse {uri_of(self.root)}",
                key="location.outside",
                location=folder,
            )
        own = dict.fromkeys((place, *map(location, more)))
        reach = _Folder(tuple(own), readable=tuple(map(location, readable)), shared=tuple(shared), may_read=may_read)
        return TableFiles(self.properties, reach, self.cache)

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
        """The files of all tables."""
        return TableFiles(self.properties, _Folder((self.root,)), self.cache)


class _FolderLocks:
    """A lock per folder, which exists as long as it is used."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._locks: WeakValueDictionary[str, Lock] = WeakValueDictionary()

    def of(self, folder: str) -> Lock:
        with self._guard:
            return self._locks.setdefault(folder, Lock())


def uri_of(place: Location) -> str:
    """The location as a URI with a scheme, as metadata contains it, so that all engines interpret it alike.

    It is not percent-encoded: PyIceberg, Spark and DuckDB do not decode it.
    """
    return f"file://{place.path}" if place.scheme == "file" else str(place)


@dataclass(frozen=True, slots=True)
class _Folder(Reach):
    """The folders of one table. Also checked in object stores, where the same credentials give access to other tables.

    Files in `readable` folders can be read, but not written, and those in `shared` folders where `may_read` allows it.
    """

    readable: tuple[Location, ...] = ()
    shared: tuple[Location, ...] = ()
    may_read: Callable[[Location], bool] = field(default=lambda _: False, compare=False)

    def check(self, place: Location) -> Location:
        if self.is_own(place) or any(place.is_within(root) for root in self.readable):
            return place
        real = place.real() if self.shared else place
        if any(real.is_within(each.real()) for each in self.shared) and self.may_read(real):
            return real
        raise self.outside(place)

    def is_own(self, place: Location) -> bool:
        return any(place.is_within(root) for root in self.roots)

    def outside(self, place: Location) -> PermissionDenied:
        return PermissionDenied(
            f"file {str(place)!r} is outside of the table's folder {', '.join(map(uri_of, self.roots))}",
            key="location.outside",
            location=str(place),
        )

    def hidden(self, folder: Location) -> frozenset[str]:  # noqa: ARG002
        return frozenset()

    def relay(self, endpoint: str, region: str) -> str:  # noqa: ARG002
        return ""


@dataclass(frozen=True)
class TableFiles(Files):
    """The files of managed tables, with write access."""

    def owned(self, place: Location) -> Location:
        """Return a location in a folder of the table; raises PermissionDenied if it is elsewhere."""
        assert isinstance(self.reach, _Folder)
        if not self.reach.is_own(place):
            raise self.reach.outside(place)
        return place

    @property
    def home(self) -> str:
        """The URI of the folder where the table writes."""
        return uri_of(self.reach.roots[0])

    @property
    def readable(self) -> tuple[str, ...]:
        """The URIs of the folders that the table can only read."""
        assert isinstance(self.reach, _Folder)
        return tuple(map(uri_of, self.reach.readable))

    def is_owned(self, uri: str) -> bool:
        """Whether a file is in a folder of the table."""
        assert isinstance(self.reach, _Folder)
        return self.reach.is_own(location(uri))

    def create(self, uri: str) -> pa.NativeFile:
        """Create a file to write to. Close it, then call `seal` to make it durable."""
        place = self.owned(location(uri))
        with self.translated(place):
            if place.scheme == "file":
                _make_folder(Path(place.path).parent)
                return self._local.open_output_stream(place.path)
            return self._storage(place).create(place)

    def seal(self, uri: str) -> None:
        """Sync a closed file to disk, so that it survives a power failure."""
        place = location(uri)
        if place.scheme == "file":
            sync_paths((place.path, place.parent.path), within=lambda: self.translated(place))

    def seal_all(self, uris: Iterable[str], folder: str) -> None:
        """Sync files that another program wrote, and the folders that it may have created below `folder`."""
        table = location(folder)
        for place in map(location, uris):
            if place.scheme == "file":
                paths = [place.path]
                while place.is_within(table) and place != table:
                    place = place.parent
                    paths.append(place.path)
                sync_paths((*paths, place.parent.path), missing_ok=True, within=lambda: self.translated(table))

    def write(self, uri: str, data: bytes, *, sealed: bool = True) -> None:
        """Write a new file. Unless it is `sealed`, call `seal` before anything refers to it."""
        place = self.owned(location(uri))
        with self.translated(uri):
            if place.scheme == "file":
                _write_local(place.path, data)
            else:
                with self._storage(place).create(place) as sink:  # closing it may fail, too
                    sink.write(data)
        if sealed:
            self.seal(uri)

    def make_folder(self, uri: str) -> None:
        """Create a folder; object stores have none."""
        place = self.owned(location(uri))
        if place.scheme == "file":
            with self.translated(uri):
                _make_folder(Path(place.path))

    def remove(self, uris: Iterable[str]) -> None:
        """Delete files; missing ones are ignored."""
        import obstore

        for uri in uris:
            place = self.owned(location(uri))
            with self.translated(place):
                if place.scheme == "file":
                    Path(place.path).unlink(missing_ok=True)
                    continue
                with suppress(FileNotFoundError):  # S3 reports none
                    obstore.delete(self._storage(place).bucket(place.bucket), place.path)

    def remove_folders(self, folder: Location) -> None:
        """Delete `folder` and the folders below it as far as they are empty; object stores have none."""
        if folder.scheme == "file":
            for path, _, _ in os.walk(self.owned(folder).path, topdown=False):
                with suppress(OSError):  # not empty
                    Path(path).rmdir()


def _write_local(path: str, data: bytes) -> None:
    """Write a small file. Arrow's file system takes 0.3 ms longer for it, and `Path` a little."""
    try:
        file = open(path, "wb")  # noqa: PTH123, SIM115 - closed below
    except FileNotFoundError:
        _make_folder(Path(path).parent)
        file = open(path, "wb")  # noqa: PTH123, SIM115 - closed below
    with file:
        file.write(data)


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_paths((folder.parent,))
