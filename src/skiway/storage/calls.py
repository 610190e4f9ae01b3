"""What pointer and blob stores share: observed calls, pages of listings, and the version of the format of stored data.

Stores report one `StoreCall` per public call, for metrics, benchmarks and tests.

A page token contains the last item of its page, so the next page starts right after it, whatever was added or deleted since.
A digest binds it to its listing: a token that was modified, or belongs to another listing, is rejected. The digest is not
secret and need not be, because a listing never leaves its own prefix.

A pointer store records the version of everything in it: its own tables, the keys, and the records behind them. Migrations
increase it (`skiway.metastore.migrations`). A blob store records the version of its layout only. A backend calls
`check_version` when it opens a store, so that an older program rejects a store that it cannot read.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from threading import Lock
from types import TracebackType
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from skiway.errors import Conflict, Internal, InvalidArgument, PreconditionFailed


class StoreCall(NamedTuple):  # made on every call, and cheaper so than as a frozen dataclass
    """One finished call. `error` is the name of the exception's class, or None when the call succeeded.

    `size_bytes` is the size of the blob that was read or written, 0 for other calls.
    """

    store: Literal["pointers", "blobs"]
    operation: str
    items: int
    seconds: float
    error: str | None
    size_bytes: int = 0


OnCall = Callable[[StoreCall], None]


class CallCounter:
    """An `OnCall` that counts calls by `store.operation`. Stores and threads may share it.

    >>> counter = CallCounter()
    >>> counter(StoreCall("pointers", "get", items=1, seconds=0.001, error=None))
    >>> counter.counts
    Counter({'pointers.get': 1})
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = Lock()

    def __call__(self, call: StoreCall) -> None:
        """Count a call."""
        with self._lock:
            self._counts[f"{call.store}.{call.operation}"] += 1

    @property
    def counts(self) -> Counter[str]:
        """A copy of the counts so far."""
        with self._lock:
            return self._counts.copy()

    @property
    def total(self) -> int:
        """The number of calls so far."""
        return self.counts.total()

    def reset(self) -> None:
        """Reset all counts to zero."""
        with self._lock:
            self._counts.clear()


class Transfer:
    """The number of bytes that a call read or wrote, set while it runs."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0


def reported(
    on_call: OnCall | None, store: Literal["pointers", "blobs"], operation: str, *, items: int = 1
) -> AbstractContextManager[Transfer]:
    """Report the block to `on_call` when it ends, whether or not it fails. Without `on_call`, it costs nothing."""
    return nullcontext(Transfer()) if on_call is None else _Reported(on_call, store, operation, items)


class _Reported:  # a class, because a generator takes three times as long
    __slots__ = ("_items", "_on_call", "_operation", "_started", "_store", "_transfer")

    def __init__(self, on_call: OnCall, store: Literal["pointers", "blobs"], operation: str, items: int) -> None:
        self._on_call, self._store, self._operation, self._items = on_call, store, operation, items

    def __enter__(self) -> Transfer:
        self._started, self._transfer = time.perf_counter(), Transfer()
        return self._transfer

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        seconds, error = time.perf_counter() - self._started, None if kind is None else kind.__name__
        self._on_call(StoreCall(self._store, self._operation, self._items, seconds, error, self._transfer.size_bytes))


T = TypeVar("T")

MAX_PAGE_SIZE = 10_000
DIGEST_BYTES = 12


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a listing. `next_token` is None if there were no more items when the page was read."""

    items: tuple[T, ...]
    next_token: str | None


def first_page(found: Iterable[T], size: int) -> tuple[tuple[T, ...], bool]:
    """Return up to `size` items of `found`, and whether there are more."""
    items = tuple(islice(found, size + 1))
    return items[:size], len(items) > size


def check_page_size(size: int) -> int:
    """Return `size` if it is a valid page size; raise InvalidArgument otherwise."""
    if not 1 <= size <= MAX_PAGE_SIZE:
        raise InvalidArgument(
            f"invalid page size {size}; use 1 to {MAX_PAGE_SIZE}",
            key="page.size.invalid",
        )
    return size


def seal_token(listing: str, last: str) -> str:
    """Make a token that resumes `listing` right after the item `last`."""
    name, scope = last.encode(), listing.encode()
    digest = sha256(len(scope).to_bytes(4, "big") + scope + name).digest()[:DIGEST_BYTES]
    return base64.urlsafe_b64encode(digest + name).rstrip(b"=").decode()


def open_token(listing: str, token: str) -> str:
    """Return the item in `token`; raises InvalidArgument if the token is not one of `listing`."""
    try:
        last = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))[DIGEST_BYTES:].decode()
    except (binascii.Error, ValueError) as error:
        raise _invalid_token(token) from error
    # Comparing the whole token also catches stray characters and spare bits, which base64 ignores.
    if seal_token(listing, last) != token:
        raise _invalid_token(token)
    return last


def _invalid_token(token: str) -> InvalidArgument:
    return InvalidArgument(
        "the page token does not belong to this listing; pass the token of the previous page unchanged, with the same "
        "prefix, or no token to start over",
        key="page.token.invalid",
        page_token=token[:100],
    )


FORMAT_VERSION: Final = 2
"""The format of new pointer stores, and the newest that this program reads."""

BLOB_FORMAT_VERSION: Final = 1
"""The layout of new blob stores, and the newest that this program reads."""


@dataclass(frozen=True, slots=True)
class StoreFormat:
    """The format of a pointer store. It is not `complete` from the start of a migration to this version until its end."""

    version: int
    complete: bool = True


def check_version(found: str, where: str, *, newest: int) -> int:
    """Return the recorded version as a number. Raise unless this program can read the store named `where`."""
    if not (found.isascii() and found.isdigit()):
        raise Internal(
            f"store {where} has the format {found[:40]!r}, which is not a number; it is damaged or not a Skiway store",
            key="store.format.corrupt",
        )
    if int(found) > newest:
        raise PreconditionFailed(
            f"store {where} has format {found}, but this version of Skiway reads up to {newest}; upgrade Skiway",
            key="store.format.newer",
            found=found,
            supported=str(newest),
        )
    return int(found)


def require_format(expected: StoreFormat, found: StoreFormat) -> None:
    """Raise `Conflict` unless the store has the expected format."""
    if found != expected:
        raise Conflict(
            f"the store was expected to have {expected}, but has {found}; read it and retry", key="store.format.changed"
        )
