"""Blobs: immutable bytes, stored under the SHA-256 of their content.

An address reads `folder/ab/abcdef….suffix`: a folder of the owner's choice, two digits that keep directories small, the
digest, and a suffix for people. As the address holds the digest, every read can be verified, and is.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Self

from skiway.clock import Clock, utc_now
from skiway.errors import Internal, InvalidArgument, NotFound
from skiway.storage.calls import OnCall, reported
from skiway.storage.paging import Page, check_page_size, first_page, open_token, seal_token

__all__ = ["REFRESH_AFTER_S", "BlobHead", "BlobStore", "blob_digest", "blob_uri"]

REFRESH_AFTER_S = 10.0

SEGMENT = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9._~%=-]{1,200}"
FOLDER = re.compile(rf"(?:{SEGMENT}(?:/{SEGMENT})*)?")
SUFFIX = re.compile(r"(?:\.[a-z0-9]{1,16})?")
ADDRESS = re.compile(rf"(?:{SEGMENT}/)*([0-9a-f]{{2}})/(\1[0-9a-f]{{62}}){SUFFIX.pattern}")
MAX_FOLDER = 800


@dataclass(frozen=True, slots=True)
class BlobHead:
    """What is known of a blob without reading it. `modified_at` is when it was last put, by the storage's clock."""

    uri: str
    size_bytes: int
    modified_at: datetime


class BlobStore(ABC):
    """Blobs by address. Safe to use from many threads; a backend implements the abstract methods below."""

    def __init__(
        self, *, clock: Clock = utc_now, on_call: OnCall | None = None, refresh_after_s: float = REFRESH_AFTER_S
    ) -> None:
        self._clock = clock
        self._on_call = on_call
        self._refresh_after = timedelta(seconds=refresh_after_s)

    # --- what callers use ---------------------------------------------------------------------------------------------

    def put(self, data: bytes, *, folder: str = "", suffix: str = "", sha256_hex: str | None = None) -> str:
        """Store `data`; its address. If the caller knows the digest (`sha256_hex`), the data is checked against it.

        Putting again what is there and young writes nothing. What is older than `refresh_after_s` is written again, so
        that its age starts anew: a collector that spares the young then spares what is about to be pointed to. What is
        there but damaged is repaired.
        """
        uri = blob_uri(data, folder=folder, suffix=suffix)
        if sha256_hex is not None and sha256_hex != blob_digest(uri):
            raise InvalidArgument(
                f"data with SHA-256 {sha256_hex} was announced, but {blob_digest(uri)} arrived: send it again",
                key="blob.digest.mismatch",
            )
        with reported(self._on_call, "blobs", "put") as call:
            call.size_bytes = len(data)
            if not self._create(uri, data) and not self._is_fresh(uri):
                self._overwrite(uri, data)
        return uri

    def get(self, uri: str) -> bytes:
        """The blob's content, verified."""
        digest = blob_digest(uri)
        with reported(self._on_call, "blobs", "get") as call:
            stored = self._read(uri)
            if stored is None:
                raise NotFound(f"there is no blob {uri}: it was deleted, or never put", key="blob", uri=uri)
            data, _ = stored
            call.size_bytes = len(data)
            if (found := sha256(data).hexdigest()) != digest:
                raise Internal(
                    f"blob {uri} is corrupt: its {len(data)} bytes have SHA-256 {found}: "
                    "put the right content again, or restore it from a backup",
                    key="blob.corrupt",
                    uri=uri,
                )
            return data

    def head(self, uri: str) -> BlobHead | None:
        """Size and age of the blob, or None if there is none."""
        blob_digest(uri)
        with reported(self._on_call, "blobs", "head"):
            return self._head(uri)

    def delete(self, uri: str) -> None:
        """Delete the blob, if it is there."""
        blob_digest(uri)
        with reported(self._on_call, "blobs", "delete"):
            self._delete(uri)

    def page(self, folder: str = "", *, size: int = 1000, token: str | None = None) -> Page[BlobHead]:
        """The next `size` blobs in `folder` and the folders in it, in order of their addresses."""
        check_page_size(size)
        _check_folder(folder)
        listing = f"blobs:{folder}"
        after = open_token(listing, token) if token else ""
        with reported(self._on_call, "blobs", "page", items=size):
            found = (head for head in self._walk(folder, after) if ADDRESS.fullmatch(head.uri))
            items, more = first_page(found, size)
        return Page(items, seal_token(listing, items[-1].uri) if more else None)

    def scan(self, folder: str = "", *, page_size: int = 1000) -> Iterator[BlobHead]:
        """All blobs of `folder`, read page by page as they are asked for."""
        token: str | None = None
        while True:
            page = self.page(folder, size=page_size, token=token)
            yield from page.items
            if (token := page.next_token) is None:
                return

    def close(self) -> None:  # noqa: B027 - a backend that holds nothing has nothing to do
        """Give back connections. The store cannot be used afterwards."""

    def __enter__(self) -> Self:
        """The store itself, closed at the end of the block."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _is_fresh(self, uri: str) -> bool:
        """Whether the blob is there, undamaged, and young."""
        stored = self._read(uri)
        if stored is None or sha256(stored[0]).hexdigest() != blob_digest(uri):
            return False
        return self._clock() - stored[1] < self._refresh_after

    # --- what backends implement --------------------------------------------------------------------------------------

    @abstractmethod
    def _create(self, uri: str, data: bytes) -> bool:
        """Store `data` whole and durably unless something is at `uri`; whether it was stored."""

    @abstractmethod
    def _overwrite(self, uri: str, data: bytes) -> None:
        """Store `data` whole and durably, whatever is at `uri`; its age starts anew."""

    @abstractmethod
    def _read(self, uri: str) -> tuple[bytes, datetime] | None:
        """What is at `uri`, and when it was last written."""

    @abstractmethod
    def _head(self, uri: str) -> BlobHead | None:
        """What is known of `uri` without reading it."""

    @abstractmethod
    def _delete(self, uri: str) -> None:
        """Delete what is at `uri`, if anything is."""

    @abstractmethod
    def _walk(self, folder: str, after: str) -> Iterator[BlobHead]:
        """Everything under `folder` whose address follows `after`, in order of the addresses."""


def blob_uri(data: bytes, *, folder: str = "", suffix: str = "") -> str:
    """The address that `data` has, or would have, in `folder`."""
    _check_folder(folder)
    if not SUFFIX.fullmatch(suffix):
        raise InvalidArgument(f"{suffix!r} cannot end a blob's address: use a dot and up to 16 of a-z and 0-9")
    digest = sha256(data).hexdigest()
    return f"{folder}/{digest[:2]}/{digest}{suffix}".lstrip("/")


def blob_digest(uri: str) -> str:
    """The SHA-256 of the content, in hexadecimal, as a blob's address tells it."""
    found = ADDRESS.fullmatch(uri)
    if found is None:
        raise InvalidArgument(
            f"{uri[:200]!r} is not the address of a blob: give one that `put` returned", key="blob.uri.invalid"
        )
    return found[2]


def _check_folder(folder: str) -> None:
    if len(folder) > MAX_FOLDER or not FOLDER.fullmatch(folder):
        raise InvalidArgument(
            f"{folder[:200]!r} cannot be a folder of blobs: join segments of A-Z, a-z, 0-9 and ._~%=- by single "
            f"slashes, up to {MAX_FOLDER} characters, none of them . or ..",
            key="blob.folder.invalid",
        )
