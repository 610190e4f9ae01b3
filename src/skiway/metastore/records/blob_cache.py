"""The metadata graph: catalogs, namespaces, tables and views, by name and by id, without reading their blobs again.

A resource's content is an immutable blob, so it can be kept for ever; what changes are pointers, and these are always
read from the store. A lookup is therefore as fresh as the store, on every server of it: a change is visible to all at
once, nothing has to be invalidated, and that something is absent is never remembered. As addresses begin with the
account, nothing of one account can be served to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from threading import Lock

from cachetools import LRUCache

from skiway.storage import BlobHead, BlobStore, Stores
from skiway.telemetry.metrics import CacheStatistics

__all__ = ["RememberedBlobs", "remembering"]

MAX_BYTES = 256 * 1024 * 1024
MAX_BLOBS = 50_000
MAX_SHARE = 64
"""One blob may take this part of the room; what is larger is read each time."""


def remembering(stores: Stores, *, max_bytes: int = MAX_BYTES, max_blobs: int = MAX_BLOBS) -> Stores:
    """The same stores, with the blobs that were read or written last kept in memory, within both limits."""
    return Stores(stores.pointers, RememberedBlobs(stores.blobs, max_bytes=max_bytes, max_blobs=max_blobs))


class RememberedBlobs(BlobStore):
    """A blob store that keeps the content it has seen. What is asked of a blob's presence or age goes to the store."""

    def __init__(self, inner: BlobStore, *, max_bytes: int = MAX_BYTES, max_blobs: int = MAX_BLOBS) -> None:
        super().__init__()
        self._inner = inner
        self._largest = max_bytes // MAX_SHARE
        self._most = max_blobs
        self._kept: LRUCache[str, bytes] = LRUCache(max_bytes, getsizeof=len)
        self._lock = Lock()
        self._hits = self._misses = 0

    def statistics(self) -> CacheStatistics:
        """The current size of the cache, its limits, and how often it had what was read."""
        with self._lock:
            return CacheStatistics(
                entries=len(self._kept),
                size_bytes=int(self._kept.currsize),
                hits=self._hits,
                misses=self._misses,
                max_entries=self._most,
                max_bytes=int(self._kept.maxsize),
            )

    def get(self, uri: str) -> bytes:
        """The blob's content, verified when it was first read."""
        with self._lock:
            kept: bytes | None = self._kept.get(uri)
            if kept is None:
                self._misses += 1
            else:
                self._hits += 1
        if kept is not None:
            return kept
        return self._keep(uri, self._inner.get(uri))

    def put(self, data: bytes, *, folder: str = "", suffix: str = "", sha256_hex: str | None = None) -> str:
        """Store `data`, and keep it."""
        uri = self._inner.put(data, folder=folder, suffix=suffix, sha256_hex=sha256_hex)
        self._keep(uri, data)
        return uri

    def close(self) -> None:
        """Close the store below."""
        self._inner.close()

    def _keep(self, uri: str, data: bytes) -> bytes:
        if len(data) <= self._largest:
            with self._lock:
                self._kept[uri] = data
                if len(self._kept) > self._most:
                    self._kept.popitem()
        return data

    def _create(self, uri: str, data: bytes) -> bool:
        return self._inner._create(uri, data)

    def _overwrite(self, uri: str, data: bytes) -> None:
        self._inner._overwrite(uri, data)

    def _read(self, uri: str) -> tuple[bytes, datetime] | None:
        return self._inner._read(uri)

    def _head(self, uri: str) -> BlobHead | None:
        return self._inner._head(uri)

    def _delete(self, uri: str) -> None:
        self._inner._delete(uri)

    def _walk(self, folder: str, after: str) -> Iterator[BlobHead]:
        return self._inner._walk(folder, after)
