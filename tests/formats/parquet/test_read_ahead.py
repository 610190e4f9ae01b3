"""Items that threads make ahead of their use."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from skiway.formats.parquet.reading import ReadAhead, read_ahead

FOREVER = 10**9


class Wells:
    """Sources that count for ever, or as far as they are deep; what was drawn of each, and which were closed."""

    def __init__(self, depth: int = FOREVER) -> None:
        self.depth = depth
        self.drawn: dict[str, int] = {}
        self.closed = {name: threading.Event() for name in "abcd"}
        self._changed = threading.Condition()

    def draw(self, name: str) -> Generator[str]:
        try:
            for number in range(self.depth):
                with self._changed:
                    self.drawn[name] = number + 1
                    self._changed.notify_all()
                yield f"{name}{number}"
        finally:
            self.closed[name].set()

    def reaches(self, name: str, count: int) -> bool:
        """Whether so many are drawn of a source, sooner or later."""
        with self._changed:
            return self._changed.wait_for(lambda: self.drawn.get(name) == count, timeout=10)


def test_items_come_in_order_and_to_the_end() -> None:
    wells = Wells(depth=300)
    assert list(read_ahead("abcd", wells.draw)) == [f"{name}{number}" for name in "abcd" for number in range(300)]
    assert all(each.wait(10) for each in wells.closed.values())


def test_without_sources_there_is_nothing() -> None:
    assert list(read_ahead("", Wells().draw)) == []
    assert list(read_ahead("ab", Wells(depth=0).draw)) == []


def test_the_next_source_is_begun_while_the_first_is_read_and_no_other() -> None:
    wells = Wells()
    items = read_ahead("abcd", wells.draw)
    assert next(items) == "a0"
    assert wells.reaches("a", 3)  # one in use, one that waits, one that is being made
    assert wells.reaches("b", 2)
    assert wells.drawn == {"a": 3, "b": 2}
    items.close()  # type: ignore[attr-defined]
    assert wells.closed["a"].wait(10)
    assert wells.closed["b"].wait(10)
    assert set(wells.drawn) == {"a", "b"}


def test_an_error_comes_when_it_is_the_turn_of_its_source() -> None:
    def failing(name: str) -> Generator[str]:
        yield name
        if name == "b":
            raise KeyError("broken")

    items = read_ahead("abc", failing)
    assert [next(items), next(items)] == ["a", "b"]
    with pytest.raises(KeyError, match="broken"):
        next(items)


def test_whoever_forgets_the_items_ends_the_threads() -> None:
    wells = Wells()
    items = read_ahead("ab", wells.draw)
    next(items)
    del items
    assert wells.closed["a"].wait(10)
    assert wells.closed["b"].wait(10)


def test_no_more_is_made_than_may_wait() -> None:
    wells = Wells()
    ahead = ReadAhead(wells.draw("a"), depth=3)
    assert wells.reaches("a", 4)  # three that wait, one that is being made
    assert wells.drawn == {"a": 4}
    ahead.close()
    assert wells.closed["a"].wait(10)
    assert wells.drawn["a"] <= 5
