"""The metadata graph: catalogs, namespaces, tables and views, by name and by id, without reading their blobs again.

A resource's content is an immutable blob, so it can be kept for ever; what changes are pointers, and these are always
read from the store. A lookup is therefore as fresh as the store, on every server of it: a change is visible to all at
once, nothing has to be invalidated, and that something is absent is never remembered. As addresses begin with the
account, nothing of one account can be served to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from skiway.cache import Cache
from skiway.storage import BlobHead, BlobStore, Stores

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
        self._cache = Cache[str, bytes](
            max_bytes, weigh=len, max_entries=max_blobs, max_entry_weight=max_bytes // MAX_SHARE
        )

    def get(self, uri: str) -> bytes:
        """The blob's content, verified when it was first read."""
        return self._cache.get(uri, lambda: self._inner.get(uri))

    def put(self, data: bytes, *, folder: str = "", suffix: str = "", sha256_hex: str | None = None) -> str:
        """Store `data`, and keep it."""
        uri = self._inner.put(data, folder=folder, suffix=suffix, sha256_hex=sha256_hex)
        self._cache.put(uri, data)
        return uri

    def close(self) -> None:
        """Close the store below."""
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
