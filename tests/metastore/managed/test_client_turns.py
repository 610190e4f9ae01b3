"""Clients that lose commit races take turns: each is called when those before it are done, and nobody waits forever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import pytest

from metastore.managed.test_commit_order import time_waited
from metastore.resource_factory import ResourceFactory
from runtime.servers import eventually
from skiway.errors import Conflict, InvalidArgument, Unavailable
from skiway.metastore.managed import commits
from skiway.metastore.managed.commits import CLIENT_RETRY_S, MAX_HELD_S, TURN_S, ClientTurns
from storage.homes import Clock


def held() -> AbstractContextManager[bool]:
    return nullcontext(True)


@pytest.fixture
def turns() -> ClientTurns:
    return ClientTurns(held)


class Client:
    """A client that commits one snapshot to the table `t`."""

    def __init__(self, factory: ResourceFactory, turns: ClientTurns, snapshot: int | None) -> None:
        self.factory, self.turns, self.snapshot = factory, turns, snapshot
        self.attempts = 0

    def lose(self) -> None:
        """Commit, find out that the table has changed, and get the response."""
        self.attempts += 1
        with pytest.raises(Conflict), self.turns.taken(self.factory.home, "t", self.snapshot):
            raise Conflict("another was faster", key="commit.failed")

    def win(self) -> None:
        with self.turns.taken(self.factory.home, "t", self.snapshot):
            self.attempts += 1


@pytest.fixture
def client(factory: ResourceFactory, turns: ClientTurns) -> Callable[[int | None], Client]:
    return lambda snapshot: Client(factory, turns, snapshot)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def started(pool: ThreadPoolExecutor, act: Callable[[], None]) -> Future[None]:
    return pool.submit(act)


def at_once(pool: ThreadPoolExecutor, act: Callable[[], None]) -> None:
    """Run a function that must not wait for a turn."""
    started(pool, act).result(MAX_HELD_S / 2)


def is_held(future: Future[None]) -> bool:
    return not threading.Event().wait(0.2) and not future.done()


MakeClient = Callable[[int | None], Client]


def test_first_loss_holds_nobody(client: MakeClient, pool: ThreadPoolExecutor) -> None:
    client(1).lose()
    at_once(pool, client(2).lose)
    at_once(pool, client(3).win)


def test_second_loss_gives_the_client_a_turn_in_which_others_wait(client: MakeClient, pool: ThreadPoolExecutor) -> None:
    first, other = client(1), client(2)
    first.lose()
    first.lose()
    waiting = started(pool, other.win)
    assert is_held(waiting)
    assert other.attempts == 0
    first.win()
    waiting.result(200)


def test_clients_are_called_in_the_order_of_their_losses(
    client: MakeClient, clock: Clock, pool: ThreadPoolExecutor
) -> None:
    one, two, three = (client(number) for number in (30, 20, 10))
    for each in (one, two, three):
        each.lose()
    one.lose()
    clock.advance(0.1)
    second = started(pool, two.lose)
    assert is_held(second)
    clock.advance(0.1)
    third = started(pool, three.lose)
    assert is_held(third)
    one.win()
    second.result(200)
    assert is_held(third)
    two.win()
    third.result(200)
    three.win()


def test_client_that_waited_and_lost_is_called_next(client: MakeClient, pool: ThreadPoolExecutor) -> None:
    first, late, another = client(1), client(2), client(3)
    first.lose()
    first.lose()
    waiting = started(pool, late.lose)
    assert is_held(waiting)
    first.win()
    waiting.result(200)
    held = started(pool, another.win)
    assert is_held(held), "it is the turn of the client that waited"
    late.win()
    held.result(200)


def test_client_that_loses_in_its_turn_lets_others_go_on(client: MakeClient, pool: ThreadPoolExecutor) -> None:
    stubborn = client(1)
    for _ in range(3):
        stubborn.lose()
    at_once(pool, client(2).win)


def test_client_that_loses_in_the_turn_of_another_waits_for_it(
    client: MakeClient, factory: ResourceFactory, turns: ClientTurns, pool: ThreadPoolExecutor
) -> None:
    slow, other = client(1), client(2)
    slow.lose()
    other.lose()
    running, proceed = threading.Event(), threading.Event()

    def commit() -> None:
        with turns.taken(factory.home, "t", 1):
            running.set()
            proceed.wait(200)
            raise Conflict("another was faster", key="commit.failed")

    losing = pool.submit(commit)
    assert running.wait(200)
    other.lose()
    proceed.set()
    assert is_held(losing)
    other.win()
    with pytest.raises(Conflict):
        losing.result(200)


def test_client_that_fails_for_another_reason_lets_others_go_on(
    client: MakeClient, factory: ResourceFactory, turns: ClientTurns, pool: ThreadPoolExecutor
) -> None:
    first = client(1)
    first.lose()
    first.lose()

    def fail() -> None:
        with pytest.raises(InvalidArgument), turns.taken(factory.home, "t", 2):
            raise InvalidArgument("the updates are inconsistent")

    failing = started(pool, fail)
    assert is_held(failing)
    first.win()
    failing.result(200)
    at_once(pool, client(3).win)


def test_store_that_fails_afterwards_does_not_change_the_outcome(
    client: MakeClient, factory: ResourceFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0

    def fail(*_: object) -> None:
        nonlocal failures
        failures += 1
        raise Unavailable("the store is down")

    first = client(1)
    with monkeypatch.context() as patched, first.turns.taken(factory.home, "t", 1):
        patched.setattr(commits._Line, "get", fail)
    with monkeypatch.context() as patched:
        patched.setattr(commits._Line, "get", fail)
        first.lose()
    assert failures == 2


def test_turn_of_a_client_that_vanished_ends(client: MakeClient, clock: Clock, pool: ThreadPoolExecutor) -> None:
    vanished, other = client(1), client(2)
    vanished.lose()
    vanished.lose()
    waiting = started(pool, other.win)
    assert is_held(waiting)
    clock.advance(TURN_S + 0.1)
    waiting.result(200)


def test_request_is_held_for_a_limited_time(
    client: MakeClient, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "MAX_HELD_S", 0.3)
    slow = client(1)
    slow.lose()
    slow.lose()
    started(pool, client(2).win).result(200)  # the clock stands still, so the turn does not end


def test_commits_without_a_snapshot_take_no_turns(client: MakeClient, pool: ThreadPoolExecutor) -> None:
    first, plain = client(1), client(None)
    first.lose()
    first.lose()
    at_once(pool, plain.win)
    for _ in range(3):
        at_once(pool, plain.lose)
    at_once(pool, first.win)


def test_nobody_is_held_if_too_many_wait(factory: ResourceFactory, pool: ThreadPoolExecutor) -> None:
    turns = ClientTurns()
    first, second = (Client(factory, turns, number) for number in (1, 2))
    first.lose()
    first.lose()
    at_once(pool, second.win)


def test_servers_share_the_line(factory: ResourceFactory, pool: ThreadPoolExecutor) -> None:
    here, there = ClientTurns(held), ClientTurns(held)
    first, other = Client(factory, here, 1), Client(factory, there, 2)
    first.lose()
    first.lose()
    waiting = started(pool, other.win)
    assert is_held(waiting)
    first.win()
    waiting.result(200)


def test_statements_wait_for_the_line(client: MakeClient, factory: ResourceFactory, clock: Clock) -> None:
    first = client(1)
    first.lose()
    assert time_waited(factory, clock) == pytest.approx(CLIENT_RETRY_S, abs=0.1)
    first.lose()
    assert time_waited(factory, clock) == pytest.approx(TURN_S, abs=0.1)
    first.lose()
    first.win()
    assert time_waited(factory, clock) == 0


def test_tables_have_lines_of_their_own(
    client: MakeClient, factory: ResourceFactory, turns: ClientTurns, pool: ThreadPoolExecutor
) -> None:
    first = client(1)
    first.lose()
    first.lose()

    def commit() -> None:
        with turns.taken(factory.home, "another table", 2):
            pass

    at_once(pool, commit)


def test_eight_clients_need_few_attempts(
    factory: ResourceFactory, turns: ClientTurns, pool: ThreadPoolExecutor
) -> None:
    """Each client reads a version, works for a while, and commits if the version is unchanged."""
    version, lock, attempts = [0], threading.Lock(), list[int]()
    begin = threading.Barrier(8)

    def commit(snapshot: int) -> None:
        for attempt in range(1, 20):
            base = version[0]
            threading.Event().wait(0.02)
            try:
                with turns.taken(factory.home, "t", snapshot), lock:
                    if version[0] != base:
                        raise Conflict("another was faster", key="commit.failed")
                    version[0] += 1
            except Conflict:
                continue
            attempts.append(attempt)
            return

    def write(number: int) -> None:
        begin.wait()
        for round_ in range(4):
            commit(number * 100 + round_ + 1)

    list(pool.map(write, range(8)))
    eventually(lambda: version[0] == 32)
    assert max(attempts) <= 5, f"clients retry four times by default: {sorted(attempts)}"
