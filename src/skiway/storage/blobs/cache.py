"""A cache of blobs, in front of a blob store.

A blob is immutable, so its content can be cached forever. Only pointers change, and these are always read from the
store. So a lookup is as fresh as the store on every server: nothing has to be invalidated, and the absence of something
is never cached. Addresses start with the account, so no account can be served the blobs of another.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from skiway.foundation.cache import Cache, CacheStats
from skiway.storage import BlobHead, BlobStore, Stores

MAX_BYTES = 256 * 1024 * 1024
MAX_BLOBS = 50_000
MAX_SHARE = 64
"""One blob may take this fraction of the cache; larger blobs are not cached."""


def with_blob_cache(stores: Stores, *, max_bytes: int = MAX_BYTES, max_blobs: int = MAX_BLOBS) -> Stores:
    """The same stores with a cache of the most recently used blobs, bounded in bytes and number."""
    return Stores(stores.pointers, CachedBlobs(stores.blobs, max_bytes=max_bytes, max_blobs=max_blobs))


class CachedBlobs(BlobStore):
    """A blob store with a cache of contents. Existence and age of a blob are always read from the store."""

    def __init__(self, inner: BlobStore, *, max_bytes: int = MAX_BYTES, max_blobs: int = MAX_BLOBS) -> None:
        super().__init__()
        self._inner = inner
        self._cache = Cache[str, bytes](
            max_bytes, weigh=len, max_entries=max_blobs, max_entry_weight=max_bytes // MAX_SHARE
        )

    def stats(self) -> CacheStats:
        """The size of the cache and its counters."""
        return self._cache.stats()

    def get(self, uri: str) -> bytes:
        """The blob's content, verified when it was first read."""
        return self._cache.get(uri, lambda: self._inner.get(uri))

    def put(self, data: bytes, *, folder: str = "", suffix: str = "", sha256_hex: str | None = None) -> str:
        """Store `data`, and cache it."""
        uri = self._inner.put(data, folder=folder, suffix=suffix, sha256_hex=sha256_hex)
        self._cache.put(uri, data)
        return uri

    def close(self) -> None:
        """Close the underlying store."""
        self._inner.close()

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
