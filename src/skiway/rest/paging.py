"""Listings in pages, as the specification has them: whoever does not ask for pages gets everything at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from skiway.errors import InvalidArgument
from skiway.metastore.pages import MAX_SIZE
from skiway.model import v1
from skiway.rest.answers import Answer, said

__all__ = ["listing"]

T = TypeVar("T")


def listing(
    query: Mapping[str, str],
    field: str,
    page: Callable[[v1.PageRequest], tuple[Sequence[T], v1.PageResponse]],
    shown: Callable[[T], Any],
) -> Answer:
    """The answer that lists what `page` finds as `field`, each item as `shown`; what is shown as None is left out."""
    paged = "pageToken" in query or "pageSize" in query
    request = v1.PageRequest(page_size=_size(query.get("pageSize")), page_token=query.get("pageToken", ""))
    found, response = page(request)
    items = list(found)
    while response.next_page_token and not paged:
        found, response = page(v1.PageRequest(page_size=MAX_SIZE, page_token=response.next_page_token))
        items += found
    listed = [each for each in map(shown, items) if each is not None]
    # Always there: some clients take a list without a token for one that is not paged.
    return said({field: listed, "next-page-token": response.next_page_token or None})


def _size(text: str | None) -> int:
    if text is None:
        return MAX_SIZE
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
        raise InvalidArgument(
            f"pageSize is {text[:40]!r}: ask for a whole number from 1, of which up to {MAX_SIZE} are shown",
            key="page.size.invalid",
            field="pageSize",
        )
    return int(text)
