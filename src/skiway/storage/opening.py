"""Open stores by URL.

The URL's scheme selects the backend. Other packages add backends as entry points of the groups `skiway.pointer_stores`
and `skiway.blob_stores`: functions with the signature of `OpenPointers` or `OpenBlobs`, named after the scheme.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, cast

from skiway.errors import InvalidArgument
from skiway.foundation.clock import Clock, utc_now
from skiway.foundation.extras import opener_for_url, url_scheme
from skiway.storage.blobs.store import BlobStore
from skiway.storage.calls import OnCall
from skiway.storage.pointers.store import PointerStore

POINTER_STORES = "skiway.pointer_stores"
BLOB_STORES = "skiway.blob_stores"

# Equal to the entry points in the package's metadata.
BUILT_IN = {
    POINTER_STORES: {
        "memory": "skiway.storage.pointers.memory:open_pointers",
        "sqlite": "skiway.storage.pointers.sqlite:open_pointers",
        "postgresql": "skiway.storage.pointers.postgres:open_pointers",
        "dynamodb": "skiway.storage.pointers.dynamodb:open_pointers",
    },
    BLOB_STORES: {
        "memory": "skiway.storage.blobs.objects:open_memory",
        "file": "skiway.storage.blobs.objects:open_directory",
        "s3": "skiway.storage.blobs.objects:open_s3",
    },
}


class OpenPointers(Protocol):
    """Opens a pointer store. `options` hold what does not belong in a URL, such as secrets."""

    def __call__(self, url: str, *, clock: Clock, on_call: OnCall | None, options: Mapping[str, str]) -> PointerStore:
        """The store that `url` names."""


class OpenBlobs(Protocol):
    """Opens a blob store. `options` hold what does not belong in a URL, such as secrets."""

    def __call__(self, url: str, *, clock: Clock, on_call: OnCall | None, options: Mapping[str, str]) -> BlobStore:
        """The store that `url` names."""


@dataclass(frozen=True, slots=True)
class Stores:
    """A pointer store and the blob store that its pointers refer to."""

    pointers: PointerStore
    blobs: BlobStore

    def close(self) -> None:
        """Close both stores."""
        try:
            self.pointers.close()
        finally:
            self.blobs.close()

    def __enter__(self) -> Self:
        """Return the stores; they are closed at the end of the block."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def open_pointers(
    url: str, *, clock: Clock = utc_now, on_call: OnCall | None = None, options: Mapping[str, str] | None = None
) -> PointerStore:
    """Open the pointer store at `url`, such as `sqlite:///lake/pointers.db`."""
    opener = cast(OpenPointers, opener_for_url(POINTER_STORES, url, BUILT_IN[POINTER_STORES]))
    return opener(url, clock=clock, on_call=on_call, options=options or {})


def open_blobs(
    url: str, *, clock: Clock = utc_now, on_call: OnCall | None = None, options: Mapping[str, str] | None = None
) -> BlobStore:
    """Open the blob store at `url`, such as `s3://bucket/prefix`."""
    opener = cast(OpenBlobs, opener_for_url(BLOB_STORES, url, BUILT_IN[BLOB_STORES]))
    return opener(url, clock=clock, on_call=on_call, options=options or {})


def open_stores(
    pointers: str, blobs: str | None = None, *, clock: Clock = utc_now, on_call: OnCall | None = None
) -> Stores:
    """Open both stores. `blobs` may be omitted for pointers in memory, or in SQLite, where it defaults to `FILE.blobs`.

    Secrets are taken from the environment. To pass them explicitly, use `open_pointers` and `open_blobs` with options.
    """
    blobs = _default_blobs(pointers) if blobs is None else blobs
    opened = open_pointers(pointers, clock=clock, on_call=on_call)
    try:
        return Stores(opened, open_blobs(blobs, clock=clock, on_call=on_call))
    except BaseException:
        opened.close()
        raise


def _default_blobs(pointers: str) -> str:
    match url_scheme(pointers):
        case "memory":
            return "memory://"
        case "sqlite":
            return Path(pointers.removeprefix("sqlite:///") + ".blobs").absolute().as_uri()
        case scheme:
            raise InvalidArgument(
                f"{scheme!r} pointer stores have no default blob store; give the URL of the blob store too"
            )
