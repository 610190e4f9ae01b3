"""Files of a source: opened and listed the same way on local disk and in object stores, with errors that name the file.

A `Reach` says which files one source, or one managed table, may read.

Content of immutable files is cached in a `FileCache`. The process creates one and passes it to every source and
warehouse that it opens.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

import pyarrow as pa

from skiway.errors import Conflict, InvalidArgument, PermissionDenied, PreconditionFailed, SkiwayError, Unavailable
from skiway.formats.object_stores import ObjectStorage, S3Storage, etag_of, storage_for
from skiway.foundation.cache import Cache, CacheStats
from skiway.foundation.causes import BUCKET_MISSING, DISK_FULL, cause_of
from skiway.security.source_access import Location, SourceAccess, location
from skiway.security.source_access.connections import relay_of

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from pyarrow.fs import FileSystem


@dataclass(frozen=True, slots=True)
class Reach:
    """The folders that a source may read, of those that `access` permits.

    The metadata of a table may name any file. Local files are read only below `roots`, so that metadata cannot make the server
    return its own files. In S3 the credentials of the source are the limit, unless `in_s3` is false:
    then only folders in `roots` are read there as well.
    """

    roots: tuple[Location, ...]
    access: SourceAccess = field(default_factory=SourceAccess)
    in_s3: bool = True

    def check(self, place: Location) -> Location:
        """The location to open, without symbolic links; raises PermissionDenied if it is not permitted."""
        real = self.access.check(place)
        if place.scheme == "s3" and self.in_s3:
            return real
        if not any(real.is_below(root.real()) for root in self.roots):
            raise PermissionDenied(
                f"file {str(place)!r} is outside of the folders that this source may read "
                f"({', '.join(map(str, self.roots)) or 'no local folder'}); "
                "if it belongs to the source, add its folder to the option 'allowed-locations'",
                key="location.outside",
                location=str(place),
            )
        return real

    def hidden(self, folder: Location) -> frozenset[str]:
        """The names in `folder` that are left out of listings."""
        return self.access.hidden(folder)

    def relay(self, endpoint: str, region: str) -> str:
        """The URL of the proxy through which object stores at `endpoint` are accessed; empty for direct access.

        An empty endpoint is that of AWS in the region; raises PermissionDenied if sources may not connect to it.
        The endpoints of AWS and a proxy in the environment are trusted. Other endpoints could redirect requests anywhere.
        """
        if self.access.for_callers and not endpoint:
            self.access.check_aws(region)
        if not endpoint or not self.access.for_callers or getproxies().keys() & {"all", urlsplit(endpoint).scheme}:
            return ""
        return relay_of(self.access).url


T = TypeVar("T")

_DESCRIPTORS: Final = Path("/proc/self/fd")
_SETTLED_NS: Final = 3 * 10**9  # much longer than the steps in which file systems count time
_OF_SERVICE: Final = re.compile(r"AWS Error|google::cloud::Status|Error performing [A-Z]")
_ACCESS_DENIED: Final = re.compile(r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|\b40[13]\b|Forbidden")


_ENTRY_BYTES: Final = 1000


class _Entry(NamedTuple):
    value: Any
    weight: int


class FileCache:
    """Decoded content of immutable files, such as metadata, manifests and footers, up to `max_bytes` in total."""

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        self._entries = Cache[Hashable, _Entry](max_bytes, weigh=lambda entry: entry.weight)

    def get(self, key: Hashable, load: Callable[[], T], *, size_of: Callable[[T], int]) -> T:
        """Return the content that `key` stands for, calling `load` if it is not cached; `size_of` returns its bytes.

        Keys are counted, too: they name the file, and who may read it.
        """

        def entry() -> _Entry:
            value = load()
            return _Entry(value, _ENTRY_BYTES + size_of(value))

        found: T = self._entries.get(key, entry).value
        return found

    def stats(self) -> CacheStats:
        """Return the size and the counters of the cache."""
        return self._entries.stats()


@dataclass(frozen=True, slots=True)
class Found:
    """A file in a listing. `etag` changes whenever its content does."""

    location: Location
    size: int
    etag: str
    modified_us: int


class _Hashed:
    """A part of keys whose hash takes long to compute."""

    __slots__ = ("_hash", "of")

    def __init__(self, of: Hashable) -> None:
        self.of, self._hash = of, hash(of)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Hashed) and self.of == other.of)


@dataclass(frozen=True)
class Files:
    """The files that a source may read.

    `properties` are named as in Iceberg; the classes in `object_stores` list them.
    """

    properties: Mapping[str, str]
    reach: Reach
    cache: FileCache = field(default_factory=FileCache, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process, they start with an empty cache."""
        return type(self), (dict(self.properties), self.reach)

    def cached(self, kind: str, *key: Hashable, load: Callable[[], T], size_of: Callable[[T], int]) -> T:
        """Return what `load` reads from an immutable file, from the cache if possible; `kind` and `key` identify it.

        Only `Files` with the same properties and reach share entries, so the cache gives no access to other files.
        """
        return self.cache.get((kind, self._reader, *key), load, size_of=size_of)

    @cached_property
    def _reader(self) -> _Hashed:
        return _Hashed((tuple(sorted(self.properties.items())), self.reach))

    def open(self, uri: str) -> pa.NativeFile:
        """Open the file for random access."""
        return self.open_version(uri)[0]

    def open_version(self, uri: str) -> tuple[pa.NativeFile, Hashable | None]:
        """Open the file, and tell which version of it was opened; None if that is unknown.

        Only files on a local disk have versions. Every change of a file changes its version.
        """
        place = self.reach.check(location(uri))
        with self.translated(uri):
            if place.scheme == "file":
                return self._open_local(place.path)
            return self._storage(place).open(place), None

    def open_unchanged(self, uri: str, etag: str | None = None) -> pa.NativeFile:
        """Open a file; raises Conflict unless it has this `etag`."""
        if etag is not None:
            self.check_unchanged(uri, etag)
        return self.open(uri)

    def local_path(self, uri: str) -> str | None:
        """The path of a file on a local disk; None if it is elsewhere."""
        place = self.reach.check(location(uri))
        return place.path if place.scheme == "file" else None

    def _open_local(self, path: str) -> tuple[pa.NativeFile, Hashable | None]:
        """Open a file whose path has no links. For callers, it must still have none when it is open."""
        if not _DESCRIPTORS.is_dir():
            return self._local.open_input_file(path), None
        descriptor = _descriptor(path) if self.reach.access.for_callers else os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            opened = self._local.open_input_file(f"{_DESCRIPTORS}/{descriptor}")
            return opened, _version(os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def can_open_descriptor(self, uri: str) -> bool:
        """Whether `open_descriptor` can open the file: it is on a local disk, and the system lists open files."""
        return location(uri).scheme == "file" and _DESCRIPTORS.is_dir()

    def open_descriptor(self, uri: str, etag: str | None = None) -> int:
        """Open a file on a local disk for another process; raises Conflict unless it has this `etag`.

        The other process gets exactly this file, even if its path is replaced by a link afterwards.
        """
        place = self.reach.check(location(uri))
        with self.translated(uri):
            descriptor = _descriptor(place.path)
        if etag is not None and _on_disk(place, os.fstat(descriptor)).etag != etag:
            os.close(descriptor)
            raise _changed(uri)
        return descriptor

    def read(self, uri: str, *, offset: int = 0, size: int | None = None) -> bytes:
        """Read the file, or `size` bytes of it from `offset` on."""
        with self.open(uri) as file, self.translated(location(uri)):
            return bytes(file.read_at(file.size() - offset if size is None else size, offset))

    def children(self, folder: Location) -> tuple[list[Location], list[Found]]:
        """List the folders and the files in `folder`, sorted by name; both empty if it does not exist.

        The server's own folders are left out.
        """
        self.reach.check(folder)
        with self.translated(folder):
            folders, found = _disk_level(folder) if folder.scheme == "file" else self._bucket_level(folder)
        if hidden := self.reach.hidden(folder):
            folders = [each for each in folders if each.name not in hidden]
            found = [each for each in found if each.location.name not in hidden]
        return sorted(folders, key=str), sorted(found, key=lambda each: str(each.location))

    def links(self, folder: Location) -> list[Location]:
        """List the folder on this machine, and the symbolic links in it and below."""
        found = [folder]
        for parent, folders, files in os.walk(self.reach.check(folder).path):
            paths = (Path(parent, name) for name in (*folders, *files))
            found += [Location("file", "", str(path)) for path in paths if path.is_symlink()]
        return found

    def walk(self, folder: Location) -> list[Found]:
        """List all files below `folder`, sorted by name."""
        folders, found = self.children(folder)
        below = [each for inner in folders for each in self.walk(inner)]
        return sorted([*found, *below], key=lambda each: str(each.location))

    def find(self, uri: str) -> Found | None:
        """Look up a file; None if it does not exist."""
        import obstore

        place, real = location(uri), self.reach.check(location(uri))
        with self.translated(place):
            try:
                if place.scheme == "file":
                    return _on_disk(place, Path(real.path).stat()) if Path(real.path).is_file() else None
                return _in_bucket(place, obstore.head(self._storage(place).bucket(place.bucket), place.path))
            except FileNotFoundError:
                return None

    def check_unchanged(self, uri: str, etag: str) -> None:
        """Raise Conflict if the file has changed since it had this `etag`."""
        found = self.find(uri)
        if found is None:
            raise _missing(uri)
        if found.etag != etag:
            raise _changed(uri)

    def _bucket_level(self, folder: Location) -> tuple[list[Location], list[Found]]:
        import obstore

        bucket = self._storage(folder).bucket(folder.bucket)
        level = obstore.list_with_delimiter(bucket, folder.path or None)
        folders = [Location(folder.scheme, folder.bucket, path.rstrip("/")) for path in level["common_prefixes"]]
        return folders, [_in_bucket(folder, each) for each in level["objects"]]

    @cached_property
    def _local(self) -> FileSystem:
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem()

    def _storage(self, place: Location) -> ObjectStorage:
        return self._s3 if place.scheme == "s3" else storage_for(place.scheme, self.properties)

    @cached_property
    def _s3(self) -> S3Storage:
        return S3Storage(self.properties, self.relay)

    @cached_property
    def relay(self) -> str:
        """The URL of the proxy through which S3 is accessed; empty if it is accessed directly."""
        return self.reach.relay(self.properties.get("s3.endpoint", ""), self.properties.get("s3.region", ""))

    @property
    def is_anonymous(self) -> bool:
        """Whether requests to S3 are not signed."""
        return S3Storage(self.properties).is_anonymous

    @contextmanager
    def translated(self, place: Location | str) -> Iterator[None]:
        """Run a block that accesses a file; errors of libraries become ours and name the file."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (SkiwayError, NotImplementedError, MemoryError):  # Arrow's is an ArrowException, too
            raise
        except FileNotFoundError as error:
            if cause_of(error) is BUCKET_MISSING:
                raise _translated(str(place), error) from error
            raise _missing(str(place)) from error
        except (OSError, BaseError, pa.ArrowException) as error:
            raise _translated(str(place), error) from error
        except ValueError as error:
            raise InvalidArgument(
                f"file {str(place)!r} cannot be accessed like this",
                key="file.invalid",
                detail=_first_line(error),
                file=str(place),
            ) from error


def _disk_level(folder: Location) -> tuple[list[Location], list[Found]]:
    if not Path(folder.path).is_dir():
        return [], []
    with os.scandir(folder.path) as entries:
        here = [(folder / entry.name, entry) for entry in entries]
        folders, files = list[Location](), list[Found]()
        for place, entry in here:
            with suppress(FileNotFoundError):  # it has just been deleted
                if entry.is_dir():
                    folders.append(place)
                elif entry.is_file():
                    files.append(_on_disk(place, entry.stat()))
        return folders, files


def _on_disk(place: Location, stat: os.stat_result) -> Found:
    etag = f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"
    return Found(place, stat.st_size, etag, stat.st_mtime_ns // 1000)


def _in_bucket(place: Location, listed: ObjectMeta) -> Found:
    """The file that a store lists, in the bucket of `place`."""
    modified_us = round(listed["last_modified"].timestamp() * 1_000_000)
    found = Location(place.scheme, place.bucket, listed["path"])
    return Found(found, listed["size"], etag_of(place.scheme, listed["e_tag"] or ""), modified_us)


def _descriptor(path: str) -> int:
    """Open a file by its path without symbolic links; raise if a link has replaced a part of the path by then."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if str((_DESCRIPTORS / str(descriptor)).readlink()) != path:
        os.close(descriptor)
        raise _missing(path)  # a folder has been replaced by a link
    return descriptor


def _version(found: os.stat_result) -> Hashable | None:
    """A value that changes with the file. None right after a change, because a second one could have the same time.

    Programs can set the modification time of a file (mtime), but not its change time (ctime).
    """
    if time.time_ns() - found.st_ctime_ns < _SETTLED_NS:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _changed(place: str) -> Conflict:
    return Conflict(
        f"file {place!r} has changed since the table was listed; synchronise the table again",
        key="file.changed",
        file=place,
    )


def _missing(place: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"file {place!r} is missing: it was deleted or not written yet; synchronise the table again, or read a newer "
        "snapshot",
        key="file.missing",
        file=place,
    )


def _translated(place: str, error: Exception) -> SkiwayError:
    reason = _first_line(error)
    cause = cause_of(error)
    if cause is not None:
        kind = Unavailable if cause is DISK_FULL else PreconditionFailed
        return kind(f"file {place!r} cannot be accessed: {cause.sentence}", key=cause.key, detail=reason, file=place)
    if isinstance(error, PermissionError) or _ACCESS_DENIED.search(str(error)):
        return PreconditionFailed(
            f"access to file {place!r} was denied; check the credentials of the source, or the file's permissions",
            key="source.credentials",
            detail=reason,
            file=place,
        )
    # Arrow raises OSError for damaged pages too, but without an errno or an error of a service.
    is_about_content = isinstance(error, OSError) and error.errno is None and not _OF_SERVICE.search(str(error))
    if isinstance(error, pa.ArrowInvalid) or is_about_content:
        return corrupt(place, reason)
    return Unavailable(
        f"file {place!r} cannot be read; check the address, region and network of the source, then try again",
        key="source.unavailable",
        detail=reason,
        file=place,
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


@contextmanager
def decoding(files: Files, file: str) -> Iterator[None]:
    """Run a block that decodes `file`; any failure becomes PreconditionFailed with key `file.corrupt`."""
    with files.translated(file):
        try:
            yield
        except InvalidArgument as error:  # about the content of the file, not about the request
            raise corrupt(file, str(error)) from error
        except (SkiwayError, OSError, pa.ArrowException):
            raise
        except Exception as error:
            # Damage makes readers fail in any way: a missing key, a wrong type, a length that exceeds the memory.
            raise corrupt(file, f"{type(error).__name__}: {error}", what=type(error).__name__) from error


def corrupt(file: str, reason: str, *, what: str = "") -> PreconditionFailed:
    """The error for a file that cannot be decoded. The `reason` may contain parts of the file; `what` is for callers."""
    return PreconditionFailed(
        f"file {file!r} is corrupt{f' ({what} while decoding it)' if what else ''}; restore it, or remove it from the table",
        key="file.corrupt",
        detail=first_lines(reason),
        file=file,
    )


def unreadable(
    what: str, error: Exception, *, otherwise: str = "does not respond; check its address, then try again"
) -> SkiwayError:
    """The error that a source, or a table of it, cannot be read: with the cause if it is known, else with `otherwise`."""
    cause = cause_of(error)
    if cause is not None:
        message = f"{what} cannot be read: {cause.sentence}"
        return PreconditionFailed(message, key=cause.key, detail=first_lines(error))
    return Unavailable(f"{what} {otherwise}", key="source.unavailable", detail=first_lines(error))


def first_lines(error: BaseException | str) -> str:
    """The first three lines of a message in one, shortened; the rest is of no use to a caller."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:3])[:300]
