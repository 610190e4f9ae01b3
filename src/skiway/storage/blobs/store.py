"""Blobs: immutable bytes, stored under the SHA-256 digest of their content.

An address is `folder/ab/abcdef….suffix`: a folder chosen by the owner, the first two digits of the digest, which keep
directories small, the digest, and a suffix for human readers. Every read is verified with the digest in the address.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final, Self

from skiway.errors import Internal, InvalidArgument, NotFound
from skiway.foundation.clock import Clock, utc_now
from skiway.storage.calls import OnCall, Page, check_page_size, first_page, open_token, reported, seal_token

REFRESH_AFTER: Final = timedelta(seconds=10)

SEGMENT = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9._~%=-]{1,200}"
FOLDER = re.compile(rf"(?:{SEGMENT}(?:/{SEGMENT})*)?")
SUFFIX = re.compile(r"(?:\.[a-z0-9]{1,16})?")
ADDRESS = re.compile(rf"(?:{SEGMENT}/)*([0-9a-f]{{2}})/(\1[0-9a-f]{{62}}){SUFFIX.pattern}")
MAX_FOLDER = 800


@dataclass(frozen=True, slots=True)
class BlobHead:
    """A blob's size and age. `modified_at` is the time of the last `put`, by the clock of the storage."""

    uri: str
    size_bytes: int
    modified_at: datetime


class BlobStore(ABC):
    """A blob store. Safe to use from many threads. A backend implements the abstract methods."""

    def __init__(self, *, clock: Clock = utc_now, on_call: OnCall | None = None) -> None:
        self._clock = clock
        self._on_call = on_call

    # --- public methods -----------------------------------------------------------------------------------------------

    def put(self, data: bytes, *, folder: str = "", suffix: str = "", sha256_hex: str | None = None) -> str:
        """Store `data` and return its address. If `sha256_hex` is given, the data must have this digest.

        If the blob exists, it is written again only if it is corrupt or older than `REFRESH_AFTER`. This resets its
        age, so that garbage collection, which spares young blobs, does not delete it before a pointer refers to it.
        """
        uri = blob_uri(data, folder=folder, suffix=suffix)
        if sha256_hex is not None and sha256_hex != blob_digest(uri):
            raise InvalidArgument(
                f"the data has SHA-256 {blob_digest(uri)}, but {sha256_hex} was expected; send it again",
                key="blob.digest.mismatch",
            )
        with reported(self._on_call, "blobs", "put") as call:
            call.size_bytes = len(data)
            if not self._create(uri, data) and not self._is_fresh(uri):
                self._overwrite(uri, data)
        return uri

    def get(self, uri: str) -> bytes:
        """Return the content of a blob, verified; raises NotFound, or Internal if it is corrupt."""
        digest = blob_digest(uri)
        with reported(self._on_call, "blobs", "get") as call:
            stored = self._read(uri)
            if stored is None:
                raise NotFound(f"blob {uri} does not exist", key="blob", uri=uri)
            data, _ = stored
            call.size_bytes = len(data)
            if (found := sha256(data).hexdigest()) != digest:
                raise Internal(
                    f"blob {uri} is corrupt: its {len(data)} bytes have SHA-256 {found}; "
                    "put the content again, or restore it from a backup",
                    key="blob.corrupt",
                    uri=uri,
                )
            return data

    def head(self, uri: str) -> BlobHead | None:
        """Return the size and age of a blob; None if it does not exist."""
        blob_digest(uri)
        with reported(self._on_call, "blobs", "head"):
            return self._head(uri)

    def delete(self, uri: str) -> None:
        """Delete a blob, if it exists."""
        blob_digest(uri)
        with reported(self._on_call, "blobs", "delete"):
            self._delete(uri)

    def page(self, folder: str = "", *, size: int = 1000, token: str | None = None) -> Page[BlobHead]:
        """List the next `size` blobs in `folder` and its subfolders, sorted by address."""
        check_page_size(size)
        _check_folder(folder)
        listing = f"blobs:{folder}"
        after = open_token(listing, token) if token else ""
        with reported(self._on_call, "blobs", "page", items=size):
            found = (head for head in self._walk(folder, after) if ADDRESS.fullmatch(head.uri))
            items, more = first_page(found, size)
        return Page(items, seal_token(listing, items[-1].uri) if more else None)

    def scan(self, folder: str = "", *, page_size: int = 1000) -> Iterator[BlobHead]:
        """Iterate over all blobs of `folder`, reading them page by page."""
        token: str | None = None
        while True:
            page = self.page(folder, size=page_size, token=token)
            yield from page.items
            if (token := page.next_token) is None:
                return

    def close(self) -> None:  # noqa: B027 - optional for backends
        """Close the connections. The store cannot be used afterwards."""

    def __enter__(self) -> Self:
        """Return the store; it is closed at the end of the block."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _is_fresh(self, uri: str) -> bool:
        """Does the blob exist, with the right content, and is it young?"""
        stored = self._read(uri)
        if stored is None or sha256(stored[0]).hexdigest() != blob_digest(uri):
            return False
        return self._clock() - stored[1] < REFRESH_AFTER

    # --- implemented by backends --------------------------------------------------------------------------------------

    @abstractmethod
    def _create(self, uri: str, data: bytes) -> bool:
        """Store `data` atomically and durably unless `uri` exists; return whether it was stored."""

    @abstractmethod
    def _overwrite(self, uri: str, data: bytes) -> None:
        """Store `data` atomically and durably, replacing what is at `uri`, and reset its age."""

    @abstractmethod
    def _read(self, uri: str) -> tuple[bytes, datetime] | None:
        """Return the content at `uri` and the time of its last write; None if it does not exist."""

    @abstractmethod
    def _head(self, uri: str) -> BlobHead | None:
        """Return the size and age of `uri`; None if it does not exist."""

    @abstractmethod
    def _delete(self, uri: str) -> None:
        """Delete `uri`, if it exists."""

    @abstractmethod
    def _walk(self, folder: str, after: str) -> Iterator[BlobHead]:
        """Iterate over all objects in `folder` whose address is greater than `after`, sorted by address."""


def blob_uri(data: bytes, *, folder: str = "", suffix: str = "") -> str:
    """The address of `data` in `folder`."""
    _check_folder(folder)
    if not SUFFIX.fullmatch(suffix):
        raise InvalidArgument(f"invalid blob suffix {suffix!r}; use a dot and up to 16 characters of a-z and 0-9")
    digest = sha256(data).hexdigest()
    return f"{folder}/{digest[:2]}/{digest}{suffix}".lstrip("/")


def blob_digest(uri: str) -> str:
    """The SHA-256 digest in a blob's address, in hexadecimal."""
    found = ADDRESS.fullmatch(uri)
    if found is None:
        raise InvalidArgument(
            f"{uri[:200]!r} is not the address of a blob; use one that `put` returned", key="blob.uri.invalid"
        )
    return found[2]


def _check_folder(folder: str) -> None:
    if len(folder) > MAX_FOLDER or not FOLDER.fullmatch(folder):
        raise InvalidArgument(
            f"invalid blob folder {folder[:200]!r}; use segments of A-Z, a-z, 0-9 and ._~%=- (but not . or ..), "
            f"separated by single slashes, up to {MAX_FOLDER} characters",
            key="blob.folder.invalid",
        )
