"""Listings that are read page by page, as far as somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from skiway.errors import Internal, InvalidArgument
from skiway.model import v1

__all__ = ["Listing", "Turn"]

T = TypeVar("T", covariant=True)
Turn = Callable[[v1.PageRequest], tuple[Sequence[T], v1.PageResponse]]
"""Gives one page."""


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """What a call lists. Nothing is asked for before it is iterated over, and each iteration asks anew.

    One page is held at a time. What comes and goes meanwhile is shown or not; all else is shown once.
    """

    _open: Callable[[], Turn[T]]
    page_size: int | None = None

    def __post_init__(self) -> None:
        if self.page_size is not None and self.page_size < 1:
            raise InvalidArgument(
                f"page_size is {self.page_size}: give a number from 1 on, or None for the server's choice",
                key="field.invalid",
                field="page_size",
            )

    def __iter__(self) -> Iterator[T]:
        for page in self.pages():
            yield from page

    def pages(self) -> Iterator[Sequence[T]]:
        """The same in pages, none of them empty."""
        turn, token = self._open(), ""
        while True:
            items, page = turn(v1.PageRequest(page_size=self.page_size or 0, page_token=token))
            if items:
                yield items
            if not page.next_page_token:
                return
            if page.next_page_token == token:
                raise Internal("the server answered a page with the token of the page itself", key="answer.malformed")
            token = page.next_page_token

    @property
    def total(self) -> int:
        """How many there are now, on all pages together: one call."""
        _, page = self._open()(v1.PageRequest(page_size=1))
        return page.total_size

    def __repr__(self) -> str:
        return f"Listing(page_size={self.page_size}): iterate over it"
