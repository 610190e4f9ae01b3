"""Concurrent writers on one store: threads, store objects and processes."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, Event

import pytest
from sqlalchemy import event

import scope
from skiway.errors import Conflict
from skiway.storage import ABSENT, Check, Pointer, PointerStore, Put
from skiway.storage.pointers.sqlite import SqlitePointerStore
from storage import writers
from storage.homes import pointer_home

KEYS = [f"/contended/{number}" for number in range(3)]


def assert_one_winner_each(results, final, *, rounds):
    wins = [tuple(win) for result in results for win in result["won"]]
    assert Counter((key, version) for key, version, _ in wins) == {
        (pointer.key, version): 1 for pointer in final for version in range(1, pointer.version + 1)
    }
    values = {(key, version): value for key, version, value in wins}
    assert final == [
        Pointer(key, values[key, last.version], last.version) for key, last in zip(KEYS, final, strict=True)
    ]
    assert min(pointer.version for pointer in final) >= rounds
    errors = Counter()
    for result in results:
        errors.update(result["errors"])
    assert set(errors) == {"Conflict"}, errors


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", scope.sample(["sqlite", "postgresql", "dynamodb-local"], every=3))
def test_each_version_has_one_winner_among_two_processes_of_eight_writers(kind, tmp_path, server):
    home = pointer_home(kind, tmp_path, server)
    rounds = 60 if scope.ALL else 10
    race = {"url": home.url, "options": home.options, "keys": KEYS, "rounds": rounds, "writers": 8}
    processes = [writers.start("race", **race, name=name) for name in "ab"]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    results = [json.loads(process.communicate()[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    with home.pointers() as store:
        assert_one_winner_each(results, list(store.scan()), rounds=rounds)
    assert all(result["won"] for result in results)  # both processes took part


def test_updates_of_concurrent_threads_are_not_lost(pointers):
    def count_up(_):
        lost = 0
        for _ in range(5):
            while True:
                current = pointers.get("/n")
                number, version = (int(current.blob_uri), current.version) if current else (0, ABSENT)
                try:
                    pointers.compare_and_set("/n", str(number + 1), expect=version)
                    break
                except Conflict:
                    lost += 1
        return lost

    threads = 8 if scope.ALL else 4
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(count_up, range(threads)))
    assert pointers.get("/n") == Pointer("/n", str(5 * threads), 5 * threads)


def test_each_key_is_created_once_by_two_store_objects(shared_home):
    with shared_home.pointers() as one, shared_home.pointers() as two, ThreadPoolExecutor(4) as pool:
        for number in range(10):
            barrier = Barrier(4)

            def create(store, key=f"/{number}", barrier=barrier):
                barrier.wait()
                try:
                    return store.compare_and_set(key, "blob", expect=ABSENT)
                except Conflict:
                    return None

            created = [pointer for pointer in pool.map(create, (one, two, one, two)) if pointer]
            assert created == [Pointer(f"/{number}", "blob", 1)]


def test_batches_that_check_each_others_absence_do_not_both_succeed(shared_home):
    """If only existing keys were locked, each batch would find the other's key absent and both would succeed."""
    with shared_home.pointers() as one, shared_home.pointers() as two, ThreadPoolExecutor(2) as pool:
        for number in range(15):
            barrier = Barrier(2)
            left, right = f"/{number}/left", f"/{number}/right"

            def claim(store, mine, other, barrier=barrier):
                barrier.wait()
                try:
                    store.apply([Check(other, expect=ABSENT), Put(mine, "blob", expect=ABSENT)])
                except Conflict:
                    return 0
                return 1

            assert sum(pool.map(claim, (one, two), (left, right), (right, left))) == 1
            assert one.count(f"/{number}/") == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_large_batches_and_writers_of_their_keys_do_not_both_succeed(kind, tmp_path, server):
    """A large batch of a merge that was planned before a commit to one of its tables fails, and the other way round."""
    home = pointer_home(kind, tmp_path, server)
    keys = [f"/large/{number:04d}" for number in range(1200)]
    with home.pointers() as one, home.pointers() as other:
        one.apply([Put(key, "0", expect=ABSENT) for key in keys], large=True)

        def move(store: PointerStore, chosen: list[str], wins: int) -> Counter[str]:
            won = Counter[str]()
            while won[chosen[0]] < wins:
                found = {each.key: each.version for each in store.scan("/large/")}
                batch = [Put(key, "moved", expect=found[key]) for key in chosen]
                with suppress(Conflict):
                    store.apply(batch, large=True)
                    won.update(chosen)
            return won

        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(move, store, keys, 2) for store in (one, other)]
            jobs += [pool.submit(move, store, keys[7:8], 20) for store in (one, other)]
            won = sum((job.result() for job in jobs), Counter[str]())
        assert {each.key: each.version - 1 for each in one.scan("/large/")} == {key: won[key] for key in keys}
        assert (won[keys[0]], won[keys[7]]) == (4, 44)


def test_batches_with_keys_in_opposite_order_do_not_deadlock(shared_home):
    keys = [f"/{number}" for number in range(6)]
    with shared_home.pointers() as one, shared_home.pointers() as two, ThreadPoolExecutor(4) as pool:
        one.apply([Put(key, "0", expect=ABSENT) for key in keys])

        def rotate(store, order):
            won = 0
            while won < 5:
                version = store.get(keys[0]).version
                try:
                    store.apply([Put(key, "x", expect=version) for key in order])
                    won += 1
                except Conflict:
                    continue
            return won

        orders = (keys, keys[::-1], keys, keys[::-1])
        assert sum(pool.map(rotate, (one, two, two, one), orders)) == 20
        assert {pointer.version for pointer in one.scan()} == {21}


def announce(store, waiting):
    """Set the event when the store sends its next statement."""
    if isinstance(store, SqlitePointerStore):
        store._writing._connection.set_trace_callback(lambda _: waiting.set())
    else:
        event.listen(store._engine, "before_cursor_execute", lambda *_: waiting.set())


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_pointer_that_expires_while_a_writer_waits_is_absent(kind, tmp_path, server, clock):
    home = pointer_home(kind, tmp_path, server)
    with home.pointers(clock=clock) as holder, home.pointers(clock=clock) as waiter, ThreadPoolExecutor(2) as pool:
        holder.compare_and_set("/lease", "mine", expect=ABSENT, expires_at=clock.later(1))
        waiter.compare_and_set("/other", "blob", expect=ABSENT)  # which opens its connection
        held, waiting, release = Event(), Event(), Event()

        def hold(_):
            held.set()
            release.wait()

        holding = pool.submit(holder._write, hold, keys=["/lease"])  # type: ignore[attr-defined]
        held.wait()
        announce(waiter, waiting)
        renewing = pool.submit(waiter.compare_and_set, "/lease", "mine", expect=1, expires_at=clock.later(9))
        waiting.wait()
        clock.advance(1)
        release.set()
        holding.result()
        with pytest.raises(Conflict, match="expected at version 1, but is absent"):
            renewing.result()


def test_purging_does_not_remove_concurrently_renewed_pointers(shared_home, clock):
    keys = [f"/{number}" for number in range(10)]
    with (
        shared_home.pointers(clock=clock) as one,
        shared_home.pointers(clock=clock) as two,
        ThreadPoolExecutor(2) as pool,
    ):
        for _ in range(5):
            one.apply([Put(key, "old", expect=ABSENT, expires_at=clock.later(1)) for key in keys])
            clock.advance(1)
            renewing = pool.submit(one.apply, [Put(key, "new", expect=ABSENT) for key in keys])
            purging = pool.submit(two.purge_expired)
            renewing.result()
            assert purging.result() in range(len(keys) + 1)
            assert [pointer.blob_uri for pointer in one.scan()] == ["new"] * len(keys)
            one.apply([writers.Delete(key, expect=1) for key in keys])  # type: ignore[attr-defined]
