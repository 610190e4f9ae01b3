"""Listings in pages. A token names the last resource shown, so pages survive whatever comes and goes between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from skiway.metastore.records.repository import Repository
from skiway.model import v1
from skiway.storage.paging import first_page, open_token, seal_token

__all__ = ["DEFAULT_SIZE", "MAX_SIZE", "listed", "page_size", "sliced"]

M = TypeVar("M", bound=Message)
T = TypeVar("T")

DEFAULT_SIZE = 50
MAX_SIZE = 1000


def page_size(request: v1.PageRequest, *, default: int = DEFAULT_SIZE) -> int:
    """How many to show: what was asked for, up to `MAX_SIZE`, or the default."""
    return min(request.page_size, MAX_SIZE) if request.page_size > 0 else default


def listed(repository: Repository[M], prefix: str, request: v1.PageRequest) -> tuple[Sequence[M], v1.PageResponse]:
    """A page of the resources whose pointers begin with `prefix`, in the order of their keys."""
    page = repository.page(prefix, size=page_size(request), token=request.page_token or None)
    return page.items, v1.PageResponse(next_page_token=page.next_token or "", total_size=repository.count(prefix))


def sliced(
    items: Sequence[T], request: v1.PageRequest, *, listing: str, name: Callable[[T], str], default: int = DEFAULT_SIZE
) -> tuple[Sequence[T], v1.PageResponse]:
    """A page of `items`, which are sorted by `name`; `listing` tells this listing from all others."""
    after = open_token(listing, request.page_token) if request.page_token else ""
    rest = (item for item in items if name(item) > after)
    shown, more = first_page(rest, page_size(request, default=default))
    token = seal_token(listing, name(shown[-1])) if more else ""
    return shown, v1.PageResponse(next_page_token=token, total_size=len(items))
