"""Pointers: small versioned entries that map a key to a blob and change only by compare-and-set.

The uniqueness of names, lookups by name and optimistic concurrency of everything else are built on this interface.

Keys sort by their UTF-8 bytes on every backend. Indexes limit the size of their entries (PostgreSQL to 2.7 kB, a DynamoDB
sort key to 1 kB), but keys may be longer. A key is therefore stored in two parts: a head that is indexed, and a tail that
is empty for all but very long keys. As the head of every long key has exactly `HEAD_BYTES` bytes, (head, tail) sorts
like the whole key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import ClassVar, Final, Self, TypeAlias

from skiway.errors import AlreadyExists, Conflict, InvalidArgument, LimitExceeded, PreconditionFailed, Unsupported
from skiway.foundation.clock import Clock, utc_moment, utc_now
from skiway.foundation.files import sync_waiting
from skiway.storage.calls import (
    FORMAT_VERSION,
    OnCall,
    Page,
    StoreFormat,
    Transfer,
    check_page_size,
    first_page,
    open_token,
    reported,
    seal_token,
)

ABSENT: Final = 0
"""The version of a pointer that does not exist; `expect=ABSENT` creates it."""

MAX_VERSION = 2**63 - 1
MAX_URI_BYTES = 65_536
MAX_KEY_BYTES = 40_000  # 10,000 characters of any script
HEAD_BYTES = 960  # leaves room for the digest of a tail within DynamoDB's 1,024 bytes


@dataclass(frozen=True, slots=True)
class Pointer:
    """A key, the address of a blob (or any short text), and a version that counts how often it was set.

    A pointer with `expires_at` counts as absent from that time on.
    """

    key: str
    blob_uri: str
    version: int
    expires_at: datetime | None = None

    def expired(self, now: datetime) -> bool:
        """Has the pointer expired at the time `now`?"""
        return self.expires_at is not None and self.expires_at <= now


@dataclass(frozen=True, slots=True)
class Put:
    """Set a pointer at version `expect`, or create it if that is ABSENT. Its new version is `expect + 1`."""

    key: str
    blob_uri: str
    _: KW_ONLY
    expect: int
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a pointer at version `expect`."""

    key: str
    _: KW_ONLY
    expect: int


@dataclass(frozen=True, slots=True)
class Check:
    """Fail the batch unless the pointer is at version `expect`, or absent if that is ABSENT."""

    key: str
    _: KW_ONLY
    expect: int


Operation: TypeAlias = Put | Delete | Check


class PointerStore(ABC):
    """A map from keys to pointers with linearizable reads and writes. Safe to use from many threads.

    A write that expects another version than the current one raises `Conflict` (`AlreadyExists` if it expects none) and
    changes nothing. A backend implements the abstract methods, which get validated arguments.
    """

    max_batch: ClassVar[int] = 1000
    """The maximum number of operations in a batch."""
    max_large_batch: ClassVar[int] = 1000
    """The maximum number in a batch that may take long, during which others cannot write."""

    def __init__(self, *, clock: Clock = utc_now, on_call: OnCall | None = None) -> None:
        self._clock = clock
        self._on_call = on_call
        self._retired = ""

    # --- public methods -----------------------------------------------------------------------------------------------

    def get(self, key: str) -> Pointer | None:
        """Return the pointer at `key`; None if it does not exist."""
        _check_key(key)
        with self._reported("get"):
            found = self._get(key)
            return None if found is None or found.expired(self._clock()) else found

    def compare_and_set(self, key: str, blob_uri: str, *, expect: int, expires_at: datetime | None = None) -> Pointer:
        """Set a pointer and return it; see `Put`."""
        put = _checked_put(Put(key, blob_uri, expect=expect, expires_at=expires_at))
        self._write_synced("compare_and_set", (put,))
        return outcome(put)

    def compare_and_delete(self, key: str, *, expect: int) -> None:
        """Delete a pointer; see `Delete`."""
        delete = _checked(Delete(key, expect=expect))
        self._write_synced("compare_and_delete", (delete,))

    def apply(self, operations: Iterable[Operation], *, large: bool = False) -> tuple[Pointer, ...]:
        """Apply all operations atomically and return the pointers set by each `Put`. One operation per key.

        A `large` batch may have up to `max_large_batch` operations.
        """
        batch = tuple(map(_checked, operations))
        self._check_batch(batch, large=large)
        self._write_synced("apply", batch)
        return tuple(outcome(operation) for operation in batch if isinstance(operation, Put))

    def page(self, prefix: str = "", *, size: int = 100, token: str | None = None) -> Page[Pointer]:
        """List the next `size` pointers whose keys begin with `prefix`, sorted by the UTF-8 bytes of the keys.

        A listing includes every pointer that exists throughout exactly once, despite concurrent changes.
        """
        check_page_size(size)
        _check_prefix(prefix)
        after = open_token(_listing(prefix), token) if token else ""
        with self._reported("page", items=size):
            found = self._scan(prefix, after=after, limit=size + 1, now=self._clock())
        items, more = first_page(found, size)
        return Page(items, self.token_after(prefix, items[-1].key) if more else None)

    def token_after(self, prefix: str, key: str) -> str:
        """Make a token that resumes `page(prefix)` right after `key`, for callers that filter a listing."""
        return seal_token(_listing(prefix), _check_key(key))

    def scan(self, prefix: str = "", *, page_size: int = 1000) -> Iterator[Pointer]:
        """Iterate over all pointers whose keys begin with `prefix`, reading them page by page."""
        token: str | None = None
        while True:
            page = self.page(prefix, size=page_size, token=token)
            yield from page.items
            if (token := page.next_token) is None:
                return

    def count(self, prefix: str = "") -> int:
        """Count the pointers whose keys begin with `prefix`. Takes time linear in their number."""
        _check_prefix(prefix)
        with self._reported("count"):
            return self._count(prefix, now=self._clock())

    def state(self, *, since: float | None = None) -> Hashable | None:  # noqa: ARG002 - for backends
        """A value that every change of the store changes, wherever it is made; None if the backend cannot tell.

        To compare it takes much less time than to read a pointer. Pointers expire without changing it. It is the value of now
        or, with a time of `time.monotonic()`, of any moment since that time, which spares a backend further requests.
        """
        return None

    def purge_expired(self, *, limit: int = 1000) -> int:
        """Delete up to `limit` expired pointers and return their number. This has no visible effect."""
        if limit < 1:
            raise InvalidArgument(f"invalid limit {limit}; it must be at least 1", key="limit.invalid")
        with self._reported("purge_expired", items=limit):
            return self._purge(limit, now=self._clock())

    def snapshot(self) -> Iterator[Pointer]:
        """Iterate over all pointers as of one moment, for a backup. Raise `Unsupported` if the backend cannot do that."""
        now = self._clock()
        with self._reported("snapshot"):
            yield from (pointer for pointer in self._snapshot() if not pointer.expired(now))

    def load(self, pointers: Iterable[Pointer]) -> None:
        """Write the pointers of a backup, with their versions, into an empty store without other users."""
        with self._reported("load"):
            self._load(
                Put(pointer.key, pointer.blob_uri, expect=pointer.version - 1, expires_at=pointer.expires_at)
                for pointer in pointers
            )

    def format(self) -> StoreFormat:
        """Read the format of the store from the store."""
        with reported(self._on_call, "pointers", "format"):
            return self._format()

    def change_format(self, expected: StoreFormat, new: StoreFormat) -> None:
        """Record another format. Raise `Conflict` if the store does not have the expected one any more."""
        with reported(self._on_call, "pointers", "change_format"):
            self._change_format(expected, new)

    def retire(self, reason: str) -> None:
        """Fail all further calls with this reason: another program has migrated the store to a newer format."""
        self._retired = reason

    def close(self) -> None:  # noqa: B027 - optional for backends
        """Close connections and files. The store cannot be used afterwards."""

    def __enter__(self) -> Self:
        """Return the store; it is closed at the end of the block."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _reported(self, operation: str, *, items: int = 1) -> AbstractContextManager[Transfer]:
        """Report the block as a call, unless the store is retired."""
        if self._retired:
            raise PreconditionFailed(self._retired, key="store.format.newer")
        return reported(self._on_call, "pointers", operation, items=items)

    def _write_synced(self, operation: str, batch: Sequence[Operation]) -> None:
        if batch:
            sync_waiting()  # the batch may refer to files that are not yet synced
        with self._reported(operation, items=len(batch)):
            if batch:
                self._apply(batch)

    def _check_batch(self, batch: Sequence[Operation], *, large: bool = False) -> None:
        limit = self.max_large_batch if large else self.max_batch
        if len(batch) > limit:
            raise LimitExceeded(
                f"a batch of {len(batch)} operations exceeds the limit of {limit} of this store; split it if its "
                "parts may succeed independently",
                key="pointer.batch.too_large",
            )
        keys: set[str] = set()
        for operation in batch:
            if operation.key in keys:
                raise InvalidArgument(
                    f"pointer {_quoted(operation.key)} occurs twice in one batch; merge its operations",
                    key="pointer.batch.duplicate",
                )
            keys.add(operation.key)

    # --- implemented by backends --------------------------------------------------------------------------------------

    @abstractmethod
    def _get(self, key: str) -> Pointer | None:
        """Return the stored pointer, expired or not."""

    @abstractmethod
    def _apply(self, batch: Sequence[Operation]) -> None:
        """Apply `batch` atomically; raises what `require` raises.

        Expired pointers count as absent. The clock must be read after all locks have been acquired.
        """

    @abstractmethod
    def _scan(self, prefix: str, *, after: str, limit: int, now: datetime) -> Sequence[Pointer]:
        """Return the first `limit` live pointers with this prefix whose keys are greater than `after`."""

    @abstractmethod
    def _count(self, prefix: str, *, now: datetime) -> int:
        """Count the live pointers with this prefix."""

    @abstractmethod
    def _purge(self, limit: int, *, now: datetime) -> int:
        """Delete up to `limit` pointers that have expired at `now` and return their number."""

    def _snapshot(self) -> Iterator[Pointer]:
        """Iterate over all pointers as of one moment, expired or not."""
        raise _no_backups(self)

    def _load(self, puts: Iterable[Put]) -> None:  # noqa: ARG002 - for backends
        """Write pointers into an empty store, whatever versions they expect; if possible, all of them or none."""
        raise _no_backups(self)

    def _format(self) -> StoreFormat:
        """Return the recorded format. A store that lives no longer than this program has its format."""
        return StoreFormat(FORMAT_VERSION)

    def _change_format(self, expected: StoreFormat, new: StoreFormat) -> None:  # noqa: ARG002 - for backends
        """Record a format if the recorded one is the expected one; raises what `require_format` raises."""
        raise Unsupported(f"{type(self).__name__} does not record a format, so it cannot be migrated")


def _no_backups(store: PointerStore) -> Unsupported:
    return Unsupported(
        f"{type(store).__name__} cannot be backed up by Skiway: use the backups of the database itself",
        key="store.backup.unsupported",
    )


def require(operation: Operation, found: Pointer | None, now: datetime) -> None:
    """Raise `Conflict` unless `found`, the stored pointer, is at the version that `operation` expects."""
    version = ABSENT if found is None or found.expired(now) else found.version
    if version == operation.expect:
        return
    name = _quoted(operation.key)
    facts = {"pointer": name, "expected": str(operation.expect), "found": str(version)}
    if operation.expect == ABSENT:
        raise AlreadyExists(
            f"pointer {name} already exists at version {version}; read it and retry",
            key="pointer.exists",
            **facts,
        )
    what = "is absent" if version == ABSENT else f"is at version {version}"
    raise Conflict(
        f"pointer {name} was expected at version {operation.expect}, but {what}; read it and retry",
        key="pointer.version",
        **facts,
    )


def outcome(put: Put) -> Pointer:
    """The pointer that `put` sets."""
    return Pointer(put.key, put.blob_uri, put.expect + 1, put.expires_at)


def _listing(prefix: str) -> str:
    return f"pointers:{prefix}"


def _checked(operation: Operation) -> Operation:
    if isinstance(operation, Put):
        return _checked_put(operation)
    _check_key(operation.key)
    _check_version(operation, lowest=1 if isinstance(operation, Delete) else ABSENT)
    return operation


def _checked_put(put: Put) -> Put:
    _check_key(put.key)
    _check_version(put, lowest=ABSENT)
    _check_uri(put)
    return put if put.expires_at is None else replace(put, expires_at=utc_moment(put.expires_at))


def _check_version(operation: Operation, *, lowest: int) -> None:
    if not lowest <= operation.expect < MAX_VERSION:
        raise InvalidArgument(
            f"{type(operation).__name__} of pointer {_quoted(operation.key)} expects version {operation.expect}; "
            f"use the version that was read{', or ABSENT' if lowest == ABSENT else ''}",
            key="pointer.expect.invalid",
        )


def _check_uri(put: Put) -> None:
    try:
        size = len(put.blob_uri.encode())
    except UnicodeEncodeError:
        size = None
    if size is None or "\0" in put.blob_uri:  # PostgreSQL cannot store NUL in text
        raise InvalidArgument(
            f"the blob address for pointer {_quoted(put.key)} contains NUL or an unpaired surrogate",
            key="pointer.blob_uri.invalid",
        )
    if size > MAX_URI_BYTES:
        raise LimitExceeded(
            f"the blob address for pointer {_quoted(put.key)} has {size} bytes, but at most {MAX_URI_BYTES} are allowed; "
            "store the content as a blob",
            key="pointer.blob_uri.too_long",
        )


@dataclass(frozen=True, slots=True)
class KeyParts:
    """A key, or a bound of a key range, in its stored form."""

    head: bytes
    tail: bytes

    @classmethod
    def of(cls, key: bytes) -> KeyParts:
        """Split an encoded key."""
        return cls(key[:HEAD_BYTES], key[HEAD_BYTES:])

    @property
    def tail_digest(self) -> bytes:
        """Distinguishes keys with the same head in an index; empty for an empty tail."""
        return sha256(self.tail).digest() if self.tail else b""

    @property
    def key(self) -> str:
        """The whole key as text."""
        return (self.head + self.tail).decode()


def _check_key(key: str) -> str:
    """Return `key` if it is valid."""
    if not key:
        raise InvalidArgument("a pointer key must not be empty", key="pointer.key.invalid")
    return _check_prefix(key)


def _check_prefix(prefix: str) -> str:
    """Return `prefix` if keys can begin with it; an empty prefix matches all keys."""
    try:
        size = len(prefix.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"pointer key {_quoted(prefix)} contains an unpaired surrogate at position {error.start}, which UTF-8 cannot encode",
            key="pointer.key.invalid",
        ) from None
    if size > MAX_KEY_BYTES:
        raise LimitExceeded(
            f"pointer key {_quoted(prefix)} has {size} bytes in UTF-8, but at most {MAX_KEY_BYTES} are allowed; "
            "use a shorter key",
            key="pointer.key.too_long",
        )
    return prefix


def key_range(prefix: str, after: str) -> tuple[bytes, bytes | None]:
    """The bounds `low <= key < high` of the keys that begin with `prefix` and are greater than `after`.

    `high` is None if there is no upper bound.
    """
    start = prefix.encode()
    # No key sorts between a key and the same key followed by NUL.
    low = max(start, after.encode() + b"\0") if after else start
    # UTF-8 never contains the byte 0xFF, so the last byte can always be incremented.
    high = start[:-1] + bytes([start[-1] + 1]) if start else None
    return low, high


def _quoted(key: str) -> str:
    """Format `key` for a message: quoted, and shortened if it is long."""
    return repr(key if len(key) <= 120 else f"{key[:100]}…{key[-19:]}")
