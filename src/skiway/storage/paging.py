"""Pages of a listing, and page tokens.

A token contains the last item of its page, so the next page starts right after it, whatever was added or deleted since.
A digest binds it to its listing: a token that was modified, or belongs to another listing, is rejected. The digest is not
secret and need not be, because a listing never leaves its own prefix.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Generic, TypeVar

from skiway.errors import InvalidArgument

__all__ = ["MAX_PAGE_SIZE", "Page", "check_page_size", "first_page", "open_token", "seal_token"]

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
    name = last.encode()
    return base64.urlsafe_b64encode(_digest(listing, name) + name).rstrip(b"=").decode()


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


def _digest(listing: str, name: bytes) -> bytes:
    scope = listing.encode()
    return sha256(len(scope).to_bytes(4, "big") + scope + name).digest()[:DIGEST_BYTES]


def _invalid_token(token: str) -> InvalidArgument:
    return InvalidArgument(
        "the page token does not belong to this listing; pass the token of the previous page unchanged, with the same "
        "prefix, or no token to start over",
        key="page.token.invalid",
        page_token=token[:100],
    )
