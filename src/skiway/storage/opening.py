"""Stores by URL. The scheme chooses the backend; packages add theirs as entry points.

An entry point of the group `skiway.pointer_stores` or `skiway.blob_stores` is named after its URL scheme and leads to a
function with the signature of `OpenPointers` or `OpenBlobs`. Backends are imported when first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, Self, cast

from skiway import extras
from skiway.clock import Clock, utc_now
from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.storage.blobs.store import BlobStore
from skiway.storage.calls import OnCall
from skiway.storage.pointers.store import PointerStore

__all__ = ["OpenBlobs", "OpenPointers", "Stores", "open_blobs", "open_pointers", "open_stores"]

POINTER_STORES = "skiway.pointer_stores"
BLOB_STORES = "skiway.blob_stores"

# The same as in the package's metadata, so that they are found without it.
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
    """Opens a pointer store. `options` hold what does not belong into a URL, such as secrets."""

    def __call__(self, url: str, *, clock: Clock, on_call: OnCall | None, options: Mapping[str, str]) -> PointerStore:
        """The store that `url` names."""


class OpenBlobs(Protocol):
    """Opens a blob store. `options` hold what does not belong into a URL, such as secrets."""

    def __call__(self, url: str, *, clock: Clock, on_call: OnCall | None, options: Mapping[str, str]) -> BlobStore:
        """The store that `url` names."""


@dataclass(frozen=True, slots=True)
class Stores:
    """A pointer store and the blob store its pointers lead to."""

    pointers: PointerStore
    blobs: BlobStore

    def close(self) -> None:
        """Close both."""
        try:
            self.pointers.close()
        finally:
            self.blobs.close()

    def __enter__(self) -> Self:
        """The stores themselves, closed at the end of the block."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def open_pointers(
    url: str, *, clock: Clock = utc_now, on_call: OnCall | None = None, options: Mapping[str, str] | None = None
) -> PointerStore:
    """The pointer store that `url` names, such as `sqlite:///lake/pointers.db`."""
    opener = cast(OpenPointers, _backend(POINTER_STORES, url))
    return opener(url, clock=clock, on_call=on_call, options=options or {})


def open_blobs(
    url: str, *, clock: Clock = utc_now, on_call: OnCall | None = None, options: Mapping[str, str] | None = None
) -> BlobStore:
    """The blob store that `url` names, such as `s3://bucket/prefix`."""
    opener = cast(OpenBlobs, _backend(BLOB_STORES, url))
    return opener(url, clock=clock, on_call=on_call, options=options or {})


def open_stores(
    pointers: str, blobs: str | None = None, *, clock: Clock = utc_now, on_call: OnCall | None = None
) -> Stores:
    """Both stores. For pointers in memory or in SQLite, blobs may be left out: they are in memory, or beside the file.

    Secrets come from the environment; where they cannot, use `open_pointers` and `open_blobs` with options.
    """
    beside = _blobs_beside(pointers) if blobs is None else blobs
    opened = open_pointers(pointers, clock=clock, on_call=on_call)
    try:
        return Stores(opened, open_blobs(beside, clock=clock, on_call=on_call))
    except BaseException:
        opened.close()
        raise


def _blobs_beside(pointers: str) -> str:
    match _scheme(pointers):
        case "memory":
            return "memory://"
        case "sqlite":
            return Path(pointers.removeprefix("sqlite:///") + ".blobs").absolute().as_uri()
        case scheme:
            raise InvalidArgument(f"pointers in {scheme!r} do not say where the blobs are: give a URL for them too")


def _backend(group: str, url: str) -> Any:
    scheme = _scheme(url)
    known = {entry.name: entry for entry in _built_in(group)}
    for entry in entry_points(group=group):
        if known.setdefault(entry.name, entry).value != entry.value:
            raise PreconditionFailed(
                f"both {known[entry.name].value} and {entry.value} are installed for {entry.name}: URLs: remove one"
            )
    if scheme not in known:
        raise InvalidArgument(
            f"no backend of {group} is called {scheme!r}: begin the URL with one of "
            f"{', '.join(f'{name}:' for name in sorted(known))}, or install the package that adds it",
            key="store.scheme.unknown",
        )
    with extras.needed("lake", f"a store at {scheme}:", when=scheme in BUILT_IN[group]):
        return known[scheme].load()


def _built_in(group: str) -> list[EntryPoint]:
    return [EntryPoint(name, value, group) for name, value in BUILT_IN[group].items()]


def _scheme(url: str) -> str:
    """The part before the colon; never more of the URL, which may hold a password."""
    scheme, colon, _ = url.partition(":")
    return scheme if colon else ""
