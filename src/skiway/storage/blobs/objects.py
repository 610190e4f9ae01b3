"""Blobs in object storage, by obstore: this process's memory, a directory, S3, and what else obstore opens."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, MemoryStore, ObjectStore, S3Store

from skiway.clock import Clock, utc_now
from skiway.errors import InvalidArgument, Unavailable
from skiway.storage.blobs.store import REFRESH_AFTER_S, BlobHead, BlobStore
from skiway.storage.calls import OnCall
from skiway.storage.opening import FORMAT_VERSION, check_format

__all__ = ["ObjectBlobStore", "open_directory", "open_memory", "open_s3"]

FORMAT_PATH = "skiway-format"
MAX_LASTING = 10_000


class ObjectBlobStore(BlobStore):
    """Blobs as objects; an object's path is the blob's address."""

    def __init__(
        self,
        objects: ObjectStore,
        *,
        name: str,
        clock: Clock = utc_now,
        on_call: OnCall | None = None,
        refresh_after_s: float = REFRESH_AFTER_S,
    ) -> None:
        super().__init__(clock=clock, on_call=on_call, refresh_after_s=refresh_after_s)
        self._objects = objects
        self._name = name
        self._ensure_format()

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
        # Object stores list in order of the whole path.
        with self._translated():
            for chunk in obstore.list(self._objects, folder or None, offset=after or None, chunk_size=1000):
                yield from map(_blob_head, chunk)

    def _ensure_format(self) -> None:
        self._create(FORMAT_PATH, str(FORMAT_VERSION).encode())
        found = self._read(FORMAT_PATH)
        check_format("" if found is None else found[0].decode(errors="replace"), self._name)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """A block whose obstore errors become ours."""
        try:
            yield
        except (BaseError, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise Unavailable(
                f"{self._name}: {reason}: see address, credentials, room and permissions", key="store.unavailable"
            ) from error


class DirectoryBlobStore(ObjectBlobStore):
    """Blobs as files under a directory, on disk when `put` returns."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock = utc_now,
        on_call: OnCall | None = None,
        refresh_after_s: float = REFRESH_AFTER_S,
    ) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"{path} cannot be made a directory: {error}", key="store.disk") from error
        self._path = path.resolve()
        self._lasting: set[Path] = set()  # directories that are known to survive a power failure
        objects = LocalStore(self._path)
        super().__init__(objects, name=str(path), clock=clock, on_call=on_call, refresh_after_s=refresh_after_s)

    def _create(self, uri: str, data: bytes) -> bool:
        created = super()._create(uri, data)
        # Also when it was there: whoever wrote it may not have come this far.
        self._sync(uri)
        return created

    def _overwrite(self, uri: str, data: bytes) -> None:
        super()._overwrite(uri, data)
        self._sync(uri)

    def _sync(self, uri: str) -> None:
        """Make the file, and the directories that lead to it, survive a power failure."""
        with self._translated():
            file = self._path / uri
            new = [*takewhile(lambda folder: folder not in self._lasting, file.parents[: len(Path(uri).parts) - 1])]
            for path in (file, file.parent, *(folder.parent for folder in new)):
                _fsync(path)
        # Nobody removes directories. Told only now: whoever finds one here relies on all above it.
        if len(self._lasting) > MAX_LASTING:
            self._lasting.clear()
        self._lasting.update(new)

    def _walk(self, folder: str, after: str) -> Iterator[BlobHead]:
        """Directory by directory, passing over those that lie before `after`: a page costs what it shows."""
        with self._translated():
            level = obstore.list_with_delimiter(self._objects, folder or None)
        # With a slash behind them, directories sort among files as the paths in them do.
        entries: list[tuple[str, Any]] = [(f"{path}/", None) for path in level["common_prefixes"]]
        entries += [(each["path"], each) for each in level["objects"]]
        for path, found in sorted(entries, key=lambda entry: entry[0]):
            if found is not None and path > after:
                yield _blob_head(found)
            elif found is None and (path > after or after.startswith(path)):
                yield from self._walk(path.rstrip("/"), after)


def _fsync(path: Path) -> None:
    try:
        opened = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # deleted meanwhile: nothing to keep
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _blob_head(meta: Any) -> BlobHead:
    return BlobHead(meta["path"], meta["size"], meta["last_modified"])


def open_memory(
    url: str, *, clock: Clock = utc_now, on_call: OnCall | None = None, options: Mapping[str, str]
) -> ObjectBlobStore:
    """An empty store, from `memory://`."""
    if url.removeprefix("memory:").strip("/") or options:
        raise InvalidArgument(
            f"{url} names something, or has options, but a store in memory has neither: write memory://"
        )
    return ObjectBlobStore(MemoryStore(), name=url, clock=clock, on_call=on_call)


def open_directory(
    url: str, *, clock: Clock = utc_now, on_call: OnCall | None = None, options: Mapping[str, str]
) -> DirectoryBlobStore:
    """The store in the directory that `file:///absolute/path` names, made when missing."""
    parsed = urlsplit(url)
    if parsed.netloc or not parsed.path.startswith("/") or parsed.query or options:
        raise InvalidArgument(f"{url} does not name a directory, or has options: write file:///absolute/path")
    return DirectoryBlobStore(Path(unquote(parsed.path)), clock=clock, on_call=on_call)


def open_s3(
    url: str, *, clock: Clock = utc_now, on_call: OnCall | None = None, options: Mapping[str, str]
) -> ObjectBlobStore:
    """The store in the bucket that `s3://bucket/prefix?region=...` names; see `docs/storage.md` for the parameters."""
    parsed = urlsplit(url)
    name = f"s3://{parsed.netloc}{parsed.path}"
    settings: dict[str, Any] = dict(parse_qsl(parsed.query)) | dict(options)
    plain = settings.get("endpoint", "").startswith("http://")
    try:
        # S3 checks the digest of what it receives before it stores it.
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
        raise InvalidArgument(f"{name} cannot be opened: {reason}: write s3://bucket/prefix?region=...") from error
    return ObjectBlobStore(objects, name=name, clock=clock, on_call=on_call)
