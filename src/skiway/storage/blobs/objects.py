"""Blob stores based on obstore: in memory, in a directory, in S3, and in any other store that obstore supports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import FileIO
from os import fstat
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, MemoryStore, ObjectStore, S3Store

from skiway.errors import InvalidArgument, Unavailable
from skiway.foundation.causes import cause_of
from skiway.foundation.clock import Clock, utc_now
from skiway.foundation.files import sync_paths
from skiway.storage.blobs.store import BlobHead, BlobStore
from skiway.storage.calls import BLOB_FORMAT_VERSION, OnCall, check_version

FORMAT_PATH = "skiway-format"
MAX_SYNCED = 10_000  # directories to remember


class ObjectBlobStore(BlobStore):
    """Stores each blob as an object whose path is the blob's address."""

    def __init__(
        self, objects: ObjectStore, *, name: str, clock: Clock = utc_now, on_call: OnCall | None = None
    ) -> None:
        super().__init__(clock=clock, on_call=on_call)
        self._objects = objects
        self._name = name
        self._create(FORMAT_PATH, str(BLOB_FORMAT_VERSION).encode())
        found = self._read(FORMAT_PATH)
        text = "" if found is None else found[0].decode(errors="replace")
        check_version(text, self._name, newest=BLOB_FORMAT_VERSION)

    def _create(self, uri: str, data: bytes) -> bool:
        with self._translated():
            try:
                obstore.put(self._objects, uri, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def _overwrite(self, uri: str, data: bytes) -> None:
        with self._translated():
            obstore.put(self._objects, uri, data, use_multipart=False)

    def _read(self, uri: str) -> tuple[bytes, datetime] | None:
        with self._translated():
            try:
                found = obstore.get(self._objects, uri)
                return bytes(found.bytes()), found.meta["last_modified"]
            except FileNotFoundError:
                return None

    def _head(self, uri: str) -> BlobHead | None:
        with self._translated():
            try:
                return _blob_head(obstore.head(self._objects, uri))
            except FileNotFoundError:
                return None

    def _delete(self, uri: str) -> None:
        with self._translated():
            try:
                obstore.delete(self._objects, uri)
            except FileNotFoundError:
                return

    def _walk(self, folder: str, after: str) -> Iterator[BlobHead]:
        # Object stores list by the whole path.
        with self._translated():
            for chunk in obstore.list(self._objects, folder or None, offset=after or None, chunk_size=1000):
                yield from map(_blob_head, chunk)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Run a block in which errors of obstore become Unavailable."""
        try:
            yield
        except (BaseError, OSError) as error:
            cause, reason = cause_of(error), str(error).partition("\n")[0]
            what = "check the address, credentials and permissions" if cause is None else cause.sentence
            raise Unavailable(
                f"the blob store is unavailable{';' if cause is None else ':'} {what}",
                key="store.unavailable" if cause is None else cause.key,
                detail=f"{self._name}: {reason}",
            ) from error


class DirectoryBlobStore(ObjectBlobStore):
    """Stores blobs as files in a directory; they are synced to disk when `put` returns, or a block of `synced_together` ends."""

    def __init__(self, path: Path, *, clock: Clock = utc_now, on_call: OnCall | None = None) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"directory {path} cannot be created: {error}", key="store.disk") from error
        self._path = path.resolve()
        self._synced: set[str] = set()  # directories that are known to survive a power failure
        super().__init__(LocalStore(self._path), name=str(path), clock=clock, on_call=on_call)

    def _read(self, uri: str) -> tuple[bytes, datetime] | None:
        # A third of the time that obstore takes, which reads files on threads of its own. Listings read thousands.
        with self._translated():
            try:
                with FileIO(f"{self._path}/{uri}") as file:
                    return file.readall(), datetime.fromtimestamp(fstat(file.fileno()).st_mtime, UTC)
            except FileNotFoundError:
                return None

    def _create(self, uri: str, data: bytes) -> bool:
        created = super()._create(uri, data)
        # Also if it existed: its writer may have crashed before this.
        self._sync(uri)
        return created

    def _overwrite(self, uri: str, data: bytes) -> None:
        super()._overwrite(uri, data)
        self._sync(uri)

    def _sync(self, uri: str) -> None:
        """Sync the file and its parent directories to disk, so that they survive a power failure."""
        folder, new = uri.rpartition("/")[0], list[str]()
        while folder and folder not in self._synced:
            new.append(folder)
            folder = folder.rpartition("/")[0]
        parents = {path.rpartition("/")[0] for path in (uri, *new)}
        sync_paths(
            (f"{self._path}/{each}".rstrip("/") for each in (uri, *parents)),
            missing_ok=True,
            within=self._translated,
            then=lambda: self._remember(new),
        )

    def _remember(self, synced: Sequence[str]) -> None:
        """Add directories that are never removed, once they are synced: an entry implies that all its parents are, too."""
        if len(self._synced) > MAX_SYNCED:
            self._synced.clear()
        self._synced.update(synced)

    def _walk(self, folder: str, after: str) -> Iterator[BlobHead]:
        """Walk directory by directory and skip those before `after`, so that a page costs no more than its items."""
        with self._translated():
            level = obstore.list_with_delimiter(self._objects, folder or None)
        # With a trailing slash, directories sort among files like the paths in them.
        entries: list[tuple[str, Any]] = [(f"{path}/", None) for path in level["common_prefixes"]]
        entries += [(each["path"], each) for each in level["objects"]]
        for path, found in sorted(entries, key=lambda entry: entry[0]):
            if found is not None and path > after:
                yield _blob_head(found)
            elif found is None and (path > after or after.startswith(path)):
                yield from self._walk(path.rstrip("/"), after)


def _blob_head(meta: Any) -> BlobHead:
    return BlobHead(meta["path"], meta["size"], meta["last_modified"])


def open_memory(
    url: str, *, clock: Clock = utc_now, on_call: OnCall | None = None, options: Mapping[str, str]
) -> ObjectBlobStore:
    """Open an empty store for `memory://`."""
    if url.removeprefix("memory:").strip("/") or options:
        raise InvalidArgument(f"{url} has a path or options, but an in-memory store has neither; use memory://")
    return ObjectBlobStore(MemoryStore(), name=url, clock=clock, on_call=on_call)


def open_directory(
    url: str, *, clock: Clock = utc_now, on_call: OnCall | None = None, options: Mapping[str, str]
) -> DirectoryBlobStore:
    """Open the store in the directory `file:///absolute/path`, creating it if it does not exist."""
    parsed = urlsplit(url)
    if parsed.netloc or not parsed.path.startswith("/") or parsed.query or options:
        raise InvalidArgument(f"{url} is not a directory, or has options; use file:///absolute/path")
    return DirectoryBlobStore(Path(unquote(parsed.path)), clock=clock, on_call=on_call)


def open_s3(
    url: str, *, clock: Clock = utc_now, on_call: OnCall | None = None, options: Mapping[str, str]
) -> ObjectBlobStore:
    """Open the store at `s3://bucket/prefix?region=...`; see docs/configuration.md for the stores."""
    parsed = urlsplit(url)
    name = f"s3://{parsed.netloc}{parsed.path}"
    settings: dict[str, Any] = dict(parse_qsl(parsed.query)) | dict(options)
    plain = settings.get("endpoint", "").startswith("http://")
    try:
        # S3 verifies the digest of an object before it stores it.
        objects = S3Store(
            parsed.netloc,
            prefix=parsed.path.strip("/") or None,
            client_options={"allow_http": plain, "connect_timeout": "5s", "timeout": "60s"},
            retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=30)},
            checksum_algorithm="SHA256",
            **settings,
        )
    except (BaseError, ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidArgument(f"{name} cannot be opened: {reason}; use s3://bucket/prefix?region=...") from error
    return ObjectBlobStore(objects, name=name, clock=clock, on_call=on_call)
