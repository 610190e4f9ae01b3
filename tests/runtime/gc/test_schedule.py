from __future__ import annotations

import json
import logging
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest

from metastore.resource_factory import behavior
from skiway.errors import InvalidArgument, Unavailable
from skiway.metastore.gc import Slice
from skiway.runtime.gc.schedule import GRACE_S, Schedule, Sweep, Tick
from skiway.storage import Stores, open_stores
from storage.homes import Clock

EVERY_S, SLICE_S = 600.0, 4.0
STATE = "/platform/gc/pages"


class Pages:
    """A sweep over numbered pages that records which ones were swept; each page takes `per_page_s`."""

    def __init__(self, count: int, clock: Clock, *, per_page_s: float = 0.0, removed: int = 1) -> None:
        self.swept: list[int] = []
        self._count, self._clock, self._per_page_s, self._removed = count, clock, per_page_s, removed

    def __call__(self, token: str | None) -> Slice:
        page = int(token or 0)
        self.swept.append(page)
        self._clock.advance(self._per_page_s)
        return Slice(10, unnamed=self._removed, next_token=str(page + 1) if page + 1 < self._count else None)


class Ticks(list[Tick]):
    """All ticks; `running` lists the sweeps that have begun and not ended."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = []

    def began(self, sweep: Sweep) -> None:
        self.running.append(sweep.name)

    def ended(self, tick: Tick) -> None:
        if tick.sweep in self.running:
            self.running.remove(tick.sweep)
        self.append(tick)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stores(clock):
    with open_stores("memory://", clock=clock) as opened:
        yield opened


def sweep(step: Callable[[str | None], Slice], **options: Any) -> Sweep:
    return Sweep("pages", step, **{"every_s": EVERY_S, "slice_s": SLICE_S, **options})


def schedule(stores: Stores, clock: Clock, *sweeps: Sweep, observer: Ticks | None = None) -> Schedule:
    return Schedule(stores.pointers, sweeps, clock=clock, monotonic=lambda: clock.now.timestamp(), observer=observer)


@behavior(77)
def test_sweep_runs_immediately_and_then_at_its_interval(stores, clock):
    pages = Pages(1, clock)
    server = schedule(stores, clock, sweep(pages))
    assert server.tick() == EVERY_S
    clock.advance(EVERY_S - 1)
    assert server.tick() == 1.0
    assert pages.swept == [0]
    clock.advance(1)
    server.tick()
    assert pages.swept == [0, 0]


@behavior(77)
def test_slice_resumes_where_the_last_one_ended(stores, clock):
    pages = Pages(5, clock, per_page_s=2.0)
    server = schedule(stores, clock, sweep(pages))
    server.tick()
    assert pages.swept == [0, 1]
    clock.advance(EVERY_S)
    server.tick()
    assert pages.swept == [0, 1, 2, 3]


@behavior(77)
def test_restarted_server_resumes_where_the_last_one_ended(stores, clock):
    pages = Pages(5, clock, per_page_s=2.0)
    schedule(stores, clock, sweep(pages)).tick()
    clock.advance(EVERY_S)
    schedule(stores, clock, sweep(pages)).tick()
    clock.advance(EVERY_S)
    schedule(stores, clock, sweep(pages)).tick()
    assert pages.swept == [0, 1, 2, 3, 4]
    clock.advance(EVERY_S)
    schedule(stores, clock, sweep(pages)).tick()
    assert pages.swept[5:] == [0, 1]


@behavior(77)
def test_page_that_takes_longer_than_a_slice_still_makes_progress(stores, clock):
    pages = Pages(3, clock, per_page_s=60.0)
    server = schedule(stores, clock, sweep(pages))
    for _ in range(3):
        server.tick()
        clock.advance(EVERY_S)
    assert pages.swept == [0, 1, 2]


def test_tick_ends_at_the_batch_limit(stores, clock):
    pages = Pages(9, clock, removed=500)
    schedule(stores, clock, sweep(pages, batch_limit=1000)).tick()
    assert pages.swept == [0, 1]


@behavior(77)
def test_disabled_sweep_does_nothing(stores, clock):
    pages = Pages(1, clock)
    server = schedule(stores, clock, sweep(pages, enabled=False))
    server.tick()
    server.run(Event())  # returns because there is nothing to wait for
    assert pages.swept == []
    assert stores.pointers.get(STATE) is None


def test_servers_of_one_store_share_the_interval(stores, clock):
    pages = Pages(1, clock)
    first, second = schedule(stores, clock, sweep(pages)), schedule(stores, clock, sweep(pages))
    first.tick()
    assert second.tick() == EVERY_S
    assert pages.swept == [0]


def test_sweep_that_runs_on_another_server_is_not_started(stores, clock):
    waits = []

    def meanwhile(_: str | None) -> Slice:
        waits.append(schedule(stores, clock, sweep(Pages(1, clock))).tick())
        return Slice()

    schedule(stores, clock, sweep(meanwhile)).tick()
    assert waits == [SLICE_S + GRACE_S]


def test_only_one_of_two_competing_servers_gets_the_lease(stores, clock, monkeypatch):
    get, pages = stores.pointers.get, Pages(1, clock)

    def overtaken(key: str) -> Any:
        found = get(key)
        monkeypatch.setattr(stores.pointers, "get", get)
        schedule(stores, clock, sweep(pages)).tick()
        return found

    monkeypatch.setattr(stores.pointers, "get", overtaken)
    schedule(stores, clock, sweep(pages)).tick()
    assert pages.swept == [0]


def test_lease_of_a_dead_server_expires(stores, clock):
    pages = Pages(1, clock)
    stores.pointers.compare_and_set(
        STATE,
        json.dumps({"token": "7", "due_at": clock().isoformat(), "held_until": clock.later(100).isoformat()}),
        expect=0,
    )
    server = schedule(stores, clock, sweep(pages))
    assert server.tick() == 100
    clock.advance(100)
    server.tick()
    assert pages.swept == [7]


def test_server_with_an_expired_lease_does_not_move_the_cursor_back(stores, clock, caplog):
    def exceed_lease(_: str | None) -> Slice:
        clock.advance(SLICE_S + GRACE_S)
        schedule(stores, clock, sweep(Pages(9, clock, per_page_s=2.0))).tick()
        return Slice(next_token="old")

    schedule(stores, clock, sweep(exceed_lease)).tick()
    pointer = stores.pointers.get(STATE)
    assert pointer is not None
    assert json.loads(pointer.blob_uri)["token"] == "2"
    assert "took longer than its lease" in caplog.text


@pytest.mark.parametrize("ahead_s", [EVERY_S + 1, 1e9])
def test_clock_that_was_once_ahead_does_not_stop_gc(stores, clock, ahead_s):
    pages, ahead = Pages(1, clock), Clock(clock.later(ahead_s))
    schedule(stores, ahead, sweep(pages)).tick()
    schedule(stores, clock, sweep(pages)).tick()
    assert pages.swept == [0, 0]


def test_unreadable_state_restarts_the_sweep(stores, clock, caplog):
    stores.pointers.compare_and_set(STATE, "{}", expect=0)
    pages = Pages(1, clock)
    schedule(stores, clock, sweep(pages)).tick()
    assert pages.swept == [0]
    assert "starts from the beginning" in caplog.text


def test_errors_are_reported_and_other_sweeps_continue(stores, clock, caplog):
    ticks = Ticks()
    pages, fails = Pages(1, clock), [Unavailable("the store is away"), RuntimeError("a bug"), None]

    def step(token: str | None) -> Slice:
        if error := fails.pop(0):
            raise error
        return pages(token)

    others = Pages(1, clock)
    both = sweep(step), Sweep("others", others, every_s=EVERY_S, slice_s=SLICE_S)
    server = schedule(stores, clock, *both, observer=ticks)
    for _ in range(3):
        assert server.tick() == EVERY_S
        clock.advance(EVERY_S)
    assert [(tick.sweep, tick.error) for tick in ticks if tick.sweep == "pages"] == [
        ("pages", "Unavailable"),
        ("pages", "RuntimeError"),
        ("pages", None),
    ]
    assert others.swept == [0, 0, 0]
    assert "gc pages failed, retrying in 600 s: the store is away" in caplog.text


def test_error_keeps_the_cursor_but_invalid_token_restarts_the_sweep(stores, clock):
    seen: list[str | None] = []
    fails: list[Exception | None] = [None, Unavailable("away"), InvalidArgument("no such page"), None]

    def step(token: str | None) -> Slice:
        seen.append(token)
        if error := fails.pop(0):
            raise error
        clock.advance(SLICE_S)
        return Slice(next_token="next")

    server = schedule(stores, clock, sweep(step))
    for _ in range(4):
        server.tick()
        clock.advance(EVERY_S)
    assert seen == [None, "next", "next", None]


def test_unavailable_store_is_retried_at_the_next_tick(stores, clock, monkeypatch):
    ticks = Ticks()
    server = schedule(stores, clock, sweep(Pages(1, clock)), observer=ticks)
    with monkeypatch.context() as broken:

        def unavailable(key: str) -> None:
            raise Unavailable("no route")

        broken.setattr(stores.pointers, "get", unavailable)
        assert server.tick() == EVERY_S
    clock.advance(EVERY_S)
    server.tick()
    assert [tick.error for tick in ticks] == ["Unavailable", None]


def test_results_are_reported_and_logged(stores, clock, caplog):
    caplog.set_level(logging.INFO, "skiway.gc")
    ticks = Ticks()
    step = lambda token: Slice(20, unnamed=3, damaged=("/accounts/a/tables/by-id/t",))  # noqa: E731
    schedule(stores, clock, sweep(step), observer=ticks).tick()
    assert ticks == [Tick("pages", clock(), 0.0, step(None))]
    assert "deleted 3 of 20" in caplog.text
    assert "the content of /accounts/a/tables/by-id/t is missing" in caplog.text


def test_failed_records_are_logged_and_counted_as_an_error(stores, clock, caplog):
    ticks = Ticks()
    step = lambda token: Slice(20, unnamed=3, failed=("/transactions/due/1: its folder is away",))  # noqa: E731
    schedule(stores, clock, sweep(step), observer=ticks).tick()
    assert [(tick.done.count, tick.error) for tick in ticks] == [(3, "failed records")]
    assert "gc pages: one record cannot be processed" in caplog.text
    assert "/transactions/due/1: its folder is away" in caplog.text


def test_stopping_ends_a_sweep_between_pages_and_then_the_thread(stores, clock):
    stop, pages = Event(), Pages(1000, clock)

    def step(token: str | None) -> Slice:
        if token == "2":
            stop.set()
        return pages(token)

    others = Pages(1, clock)
    both = sweep(step), Sweep("others", others, every_s=EVERY_S, slice_s=SLICE_S)
    thread = Thread(target=schedule(stores, clock, *both).run, args=(stop,))
    thread.start()
    thread.join(200)
    assert not thread.is_alive()
    assert pages.swept == [0, 1, 2]
    assert others.swept == []
    pointer = stores.pointers.get(STATE)
    assert pointer is not None
    assert json.loads(pointer.blob_uri)["token"] == "3"
