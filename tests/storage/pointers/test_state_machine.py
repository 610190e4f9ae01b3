"""Compare every pointer store with a dict, with several concurrent writers.

A concurrent step must have the same outcome as some sequential order of its writers has on the dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import permutations
from threading import Barrier
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import scope
from skiway.errors import Conflict
from skiway.storage import ABSENT, Check, Delete, Operation, Pointer, PointerStore, Put
from storage.homes import POINTER_KINDS, Clock, pointer_home

KEYS = ("/a", "/a%", "/a_", "/aa", "/b", "/é", "/\U0001f600", "/" + "x" * 2000, "/" + "x" * 1999 + "y")
PREFIXES = ("", "/", "/a", "/a%", "/x", "/" + "x" * 1999, "/none")
# Runs and steps per backend at Hypothesis' default of a hundred examples; profiles with more scale this up.
EFFORT = {
    "memory": (30, 40),
    "sqlite": (12, 30),
    "postgresql": (7, 30),
    "dynamodb": (4, 20),
    "dynamodb-local": (4, 20),
}

Model = dict[str, Pointer]

lifetimes = strategies.none() | strategies.integers(1, 4)
expectations = strategies.integers(0, 3)


@strategies.composite
def batches(draw: Callable[..., Any]) -> list[tuple[Any, ...]]:
    keys = draw(strategies.lists(strategies.sampled_from(KEYS), min_size=1, max_size=4, unique=True))
    kinds = strategies.sampled_from([Put, Put, Put, Delete, Check])
    return [(draw(kinds), key, draw(expectations), draw(lifetimes)) for key in keys]


class PointerMachine(RuleBasedStateMachine):
    """Apply the same operations to a store and a dict, which must agree after every step."""

    open_store: Callable[[Clock], PointerStore]

    @initialize()
    def start(self) -> None:
        self.clock = Clock()
        self.store = type(self).open_store(self.clock)
        self.model: Model = {}
        self.values = iter(range(1_000_000))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()

    def operations(self, drawn: Iterable[tuple[Any, ...]]) -> list[Operation]:
        made: list[Operation] = []
        for kind, key, expect, lifetime in drawn:
            if kind is Put:
                expires_at = None if lifetime is None else self.clock.later(lifetime)
                made.append(Put(key, f"value {next(self.values)}", expect=expect, expires_at=expires_at))
            else:
                made.append(kind(key, expect=max(expect, 1 if kind is Delete else ABSENT)))
        return made

    @rule(key=strategies.sampled_from(KEYS), lifetime=lifetimes)
    def write_with_current_version(self, key: str, lifetime: int | None) -> None:
        current = alive(self.model, self.clock()).get(key)
        batch = self.operations([(Put, key, current.version if current else ABSENT, lifetime)])
        assert attempt(self.store, batch)
        changed = outcome(self.model, batch, self.clock())
        assert changed is not None
        self.model = changed

    @rule(drawn=batches())
    def write(self, drawn: list[tuple[Any, ...]]) -> None:
        batch = self.operations(drawn)
        expected = outcome(self.model, batch, self.clock())
        assert attempt(self.store, batch) == (expected is not None)
        self.model = self.model if expected is None else expected

    @rule(drawn=strategies.lists(batches(), min_size=2, max_size=4))
    def write_concurrently(self, drawn: list[list[tuple[Any, ...]]]) -> None:
        writers = [self.operations(each) for each in drawn]
        barrier = Barrier(len(writers))

        def write(batch: list[Operation]) -> bool:
            barrier.wait()
            return attempt(self.store, batch)

        with ThreadPoolExecutor(len(writers)) as pool:
            won = list(pool.map(write, writers))
        found = {pointer.key: pointer for pointer in self.store.scan()}
        for order in permutations(range(len(writers))):
            final = self.in_order(writers, won, order)
            if final is not None and alive(final, self.clock()) == found:
                self.model = final
                return
        raise AssertionError(f"no order of {writers} explains the winners ({won}) and the final state ({found})")

    def in_order(self, writers: list[list[Operation]], won: list[bool], order: Sequence[int]) -> Model | None:
        """The dict after the writers ran in `order`, or None if other writers would have won."""
        model = self.model
        for writer in order:
            after = outcome(model, writers[writer], self.clock())
            if (after is not None) != won[writer]:
                return None
            model = model if after is None else after
        return model

    @rule(seconds=strategies.integers(1, 3))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(limit=strategies.integers(1, 3))
    def purge_all(self, limit: int) -> None:
        live = alive(self.model, self.clock())
        expired = len(self.model) - len(live)
        expected = [min(limit, expired - start) for start in range(0, expired + 1, limit)]
        assert [self.store.purge_expired(limit=limit) for _ in expected] == expected
        self.model = live

    @rule(prefix=strategies.sampled_from(PREFIXES), size=strategies.integers(1, 4))
    def list(self, prefix: str, size: int) -> None:
        live = alive(self.model, self.clock())
        expected = [live[key] for key in sorted(live, key=str.encode) if key.startswith(prefix)]
        assert [*self.store.scan(prefix, page_size=size)] == expected
        assert self.store.count(prefix) == len(expected)

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "store"):
            live = alive(self.model, self.clock())
            assert {pointer.key: pointer for pointer in self.store.scan()} == live
            assert {key: self.store.get(key) for key in KEYS} == {key: live.get(key) for key in KEYS}


def alive(model: Model, now: datetime) -> Model:
    return {key: found for key, found in model.items() if found.expires_at is None or found.expires_at > now}


def outcome(model: Model, batch: Sequence[Operation], now: datetime) -> Model | None:
    """The dict after `batch`, or None if it must fail."""
    live = alive(model, now)
    if any((live[each.key].version if each.key in live else 0) != each.expect for each in batch):
        return None
    after = dict(model)
    for each in batch:
        if isinstance(each, Put):
            after[each.key] = Pointer(each.key, each.blob_uri, each.expect + 1, each.expires_at)
        elif isinstance(each, Delete):
            del after[each.key]
    return after


def attempt(store: PointerStore, batch: Sequence[Operation]) -> bool:
    try:
        puts = store.apply(batch)
    except Conflict:
        return False
    assert [put.blob_uri for put in puts] == [each.blob_uri for each in batch if isinstance(each, Put)]
    return True


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", scope.sample(POINTER_KINDS, every=9, keep=lambda each: each == "sqlite"))
def test_store_behaves_like_a_dict_with_concurrent_writers(kind, tmp_path, server):
    class Machine(PointerMachine):
        @staticmethod
        def open_store(clock: Clock) -> PointerStore:
            return pointer_home(kind, tmp_path, server).pointers(clock=clock)

    runs, steps = EFFORT[kind]
    effort = settings(
        max_examples=runs * (2 if scope.ALL else 1) * max(1, settings.default.max_examples // 100),
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Machine, settings=effort)
