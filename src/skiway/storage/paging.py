"""Pages of a listing, and the tokens that lead from one to the next.

A token names the last item handed out, so the next page starts right after it, whatever was added or deleted since.
It is bound to its listing by a digest: a token that was altered, or comes from another listing, is refused. The digest
is no secret and need not be one, for a listing never leaves its own prefix.
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
    """Some items of a listing. `next_token` is None on the last page; else there was more when this page was read."""

    items: tuple[T, ...]
    next_token: str | None


def first_page(found: Iterable[T], size: int) -> tuple[tuple[T, ...], bool]:
    """Up to `size` items of `found`, and whether there are more."""
    items = tuple(islice(found, size + 1))
    return items[:size], len(items) > size


def check_page_size(size: int) -> int:
    """`size`, if a page may have it."""
    if not 1 <= size <= MAX_PAGE_SIZE:
        raise InvalidArgument(
            f"a page of {size} items was asked for: ask for 1 to {MAX_PAGE_SIZE}",
            key="page.size.invalid",
        )
    return size


def seal_token(listing: str, last: str) -> str:
    """A token that resumes `listing` right after the item called `last`."""
    name = last.encode()
    return base64.urlsafe_b64encode(_digest(listing, name) + name).rstrip(b"=").decode()


def open_token(listing: str, token: str) -> str:
    """The name sealed in `token`, if it was sealed for `listing`."""
    try:
        last = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))[DIGEST_BYTES:].decode()
    except (binascii.Error, ValueError) as error:
        raise _unusable(token) from error
    # Compared as a whole, which also catches what base64 lets pass: stray characters and spare bits.
    if seal_token(listing, last) != token:
        raise _unusable(token)
    return last


def _digest(listing: str, name: bytes) -> bytes:
    scope = listing.encode()
    return sha256(len(scope).to_bytes(4, "big") + scope + name).digest()[:DIGEST_BYTES]


def _unusable(token: str) -> InvalidArgument:
    return InvalidArgument(
        "the page token does not belong to this listing: pass the token of the previous page unchanged, with the same "
        "prefix, or none to start over",
        key="page.token.invalid",
        page_token=token[:100],
    )
