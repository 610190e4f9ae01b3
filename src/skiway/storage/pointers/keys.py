"""Pointer keys as bytes: UTF-8, so that every backend sorts them alike.

Indexes limit the size of what they hold (PostgreSQL to 2.7 kB, a DynamoDB sort key to 1 kB), keys may be longer. So a
key is stored in two parts: a head that the index sorts, and a tail that is empty for all but very long keys. As the
head of every longer key has exactly `HEAD_BYTES` bytes, (head, tail) sorts as the whole key does.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from skiway.errors import InvalidArgument, LimitExceeded

__all__ = ["HEAD_BYTES", "MAX_KEY_BYTES", "KeyParts", "check_key", "check_prefix", "key_range", "shown"]

MAX_KEY_BYTES = 40_000  # 10,000 characters of any script
HEAD_BYTES = 960  # with the digest of a tail still within DynamoDB's 1,024


@dataclass(frozen=True, slots=True)
class KeyParts:
    """A key, or a bound of a range of keys, as it is stored."""

    head: bytes
    tail: bytes

    @classmethod
    def of(cls, key: bytes) -> KeyParts:
        """The parts of an encoded key."""
        return cls(key[:HEAD_BYTES], key[HEAD_BYTES:])

    @property
    def tail_digest(self) -> bytes:
        """What tells keys of the same head apart in an index: empty for an empty tail."""
        return sha256(self.tail).digest() if self.tail else b""

    @property
    def key(self) -> str:
        """The key as its owner wrote it."""
        return (self.head + self.tail).decode()


def check_key(key: str) -> str:
    """`key`, if it can be stored."""
    if not key:
        raise InvalidArgument("a pointer key is empty: name the pointer", key="pointer.key.invalid")
    return check_prefix(key)


def check_prefix(prefix: str) -> str:
    """`prefix`, if keys can begin with it; the empty one is the beginning of all keys."""
    try:
        size = len(prefix.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"pointer key {shown(prefix)} holds half of a surrogate pair at position {error.start}, which UTF-8 cannot "
            "encode: decode the text it came from properly",
            key="pointer.key.invalid",
        ) from None
    if size > MAX_KEY_BYTES:
        raise LimitExceeded(
            f"pointer key {shown(prefix)} has {size} bytes in UTF-8, at most {MAX_KEY_BYTES} can be stored: "
            "use a shorter key",
            key="pointer.key.too_long",
        )
    return prefix


def key_range(prefix: str, after: str) -> tuple[bytes, bytes | None]:
    """Bounds `low <= key < high` of the keys that begin with `prefix` and follow `after`; no `high` means no bound."""
    start = prefix.encode()
    # Nothing sorts between a key and the same key with a NUL behind it.
    low = max(start, after.encode() + b"\0") if after else start
    # UTF-8 never holds the byte 0xFF, so the last byte can always be counted up.
    high = start[:-1] + bytes([start[-1] + 1]) if start else None
    return low, high


def shown(key: str) -> str:
    """`key` for a message: quoted, and cut when long."""
    return repr(key if len(key) <= 120 else f"{key[:100]}…{key[-19:]}")
