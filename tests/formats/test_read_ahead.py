"""Items that background threads produce ahead of their use."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from skiway.formats.readers.reading import ReadAhead, read_ahead

FOREVER = 10**9


class Counters:
    """Sources that count up to `depth`, by default forever; records what was drawn from each and which were closed."""

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
        """Whether `count` items are drawn from a source before the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self.drawn.get(name) == count, timeout=200)


def test_all_items_are_returned_in_order() -> None:
    counters = Counters(depth=300)
    assert list(read_ahead("abcd", counters.draw)) == [f"{name}{number}" for name in "abcd" for number in range(300)]
    assert all(each.wait(200) for each in counters.closed.values())


@pytest.mark.parametrize("short", ["", "a", "bc", "abcd"])
def test_short_sources_have_no_thread_and_the_same_items(short: str) -> None:
    threads: dict[str, str] = {}

    def draw(name: str) -> Generator[str]:
        threads[name] = threading.current_thread().name
        yield from counters.draw(name)

    counters = Counters(depth=3)
    found = list(read_ahead("abcd", draw, lambda name: name in short))
    assert found == list(read_ahead("abcd", Counters(depth=3).draw))
    assert {name for name, thread in threads.items() if thread != "read-ahead"} == set(short)


def test_short_source_is_closed_with_the_others() -> None:
    counters = Counters()
    items = read_ahead("ab", counters.draw, lambda name: name == "a")
    next(items)
    assert counters.drawn["a"] == 1
    items.close()  # type: ignore[attr-defined]
    assert counters.closed["a"].wait(200)
    assert counters.closed["b"].wait(200)


def test_no_sources_yield_no_items() -> None:
    assert list(read_ahead("", Counters().draw)) == []
    assert list(read_ahead("ab", Counters(depth=0).draw)) == []


def test_only_the_next_source_is_started_while_the_first_is_read() -> None:
    counters = Counters()
    items = read_ahead("abcd", counters.draw)
    assert next(items) == "a0"
    assert counters.reaches("a", 3)  # one in use, one waiting, one being produced
    assert counters.reaches("b", 2)
    assert counters.drawn == {"a": 3, "b": 2}
    items.close()  # type: ignore[attr-defined]
    assert counters.closed["a"].wait(200)
    assert counters.closed["b"].wait(200)
    assert set(counters.drawn) == {"a", "b"}


def test_error_is_raised_when_its_source_is_reached() -> None:
    def failing(name: str) -> Generator[str]:
        yield name
        if name == "b":
            raise KeyError("broken")

    items = read_ahead("abc", failing)
    assert [next(items), next(items)] == ["a", "b"]
    with pytest.raises(KeyError, match="broken"):
        next(items)


def test_dropping_the_iterator_ends_the_threads() -> None:
    counters = Counters()
    items = read_ahead("ab", counters.draw)
    next(items)
    del items
    assert counters.closed["a"].wait(200)
    assert counters.closed["b"].wait(200)


def test_read_ahead_is_bounded() -> None:
    counters = Counters()
    ahead = ReadAhead(counters.draw("a"), depth=3)
    assert counters.reaches("a", 4)  # three waiting, one being produced
    assert counters.drawn == {"a": 4}
    ahead.close()
    assert counters.closed["a"].wait(200)
    assert counters.drawn["a"] <= 5
