"""Turns at a table that many commit to."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from metastore.managed_world import ManagedWorld, id_of
from metastore.world import World
from skiway.errors import Conflict
from skiway.metastore import managed as managed_tables
from skiway.metastore.managed import turns
from skiway.metastore.managed.turns import AGAIN_WITHIN_S, PATIENCE_S
from storage.homes import Clock


class Waited:
    """Time that passes only while somebody waits, for him and for the stores."""

    def __init__(self, clock: Clock) -> None:
        self.seconds, self._clock = 0.0, clock

    def pause(self, seconds: float) -> None:
        self.seconds += seconds
        self._clock.advance(seconds)

    def monotonic(self) -> float:
        return self.seconds


def stands_aside_s(world: World, clock: Clock, table_id: str = "t") -> float:
    waited = Waited(clock)
    turns.stand_aside(world.home, table_id, pause=waited.pause, monotonic=waited.monotonic)
    return waited.seconds


def loses(world: World, table_id: str = "t") -> None:
    with pytest.raises(Conflict), turns.from_afar(world.home, table_id):
        raise Conflict("another was faster", key="commit.failed")


def test_nobody_waits_without_a_reason(world: World, clock: Clock) -> None:
    with turns.from_afar(world.home, "t"):
        pass
    assert stands_aside_s(world, clock) == 0


def test_a_client_that_lost_is_waited_for_until_it_should_be_back(world: World, clock: Clock) -> None:
    loses(world)
    assert stands_aside_s(world, clock, "another table") == 0
    assert stands_aside_s(world, clock) == pytest.approx(AGAIN_WITHIN_S, abs=0.1)
    assert stands_aside_s(world, clock) == 0


def test_a_statement_does_not_wait_for_ever_for_clients_that_lose_again_and_again(world: World, clock: Clock) -> None:
    waited = Waited(clock)

    def pause(seconds: float) -> None:
        waited.pause(seconds)
        loses(world)

    loses(world)
    turns.stand_aside(world.home, "t", pause=pause, monotonic=waited.monotonic)
    assert waited.seconds == pytest.approx(PATIENCE_S, abs=0.1)


def test_a_stale_commit_lets_the_next_statement_wait_and_then_succeed(
    world: World, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate

    managed = ManagedWorld.at(world, tmp_path)
    table = managed.append(managed.create(), 1)
    stale = AssertRefSnapshotId(ref="main", snapshot_id=1)
    update = SetPropertiesUpdate(updates={"a": "b"})
    with pytest.raises(Conflict, match="the table has changed"):
        managed_tables.commit(managed.home, managed.warehouse, id_of(table), [stale], [update])
    assert stands_aside_s(world, clock, table.id) > 0
    stood_aside = []
    monkeypatch.setattr(turns, "stand_aside", lambda realm, table_id: stood_aside.append(table_id))
    managed.append(table, 2)
    assert (stood_aside, managed.rows(table)) == ([table.id], [1, 2])


def test_one_thread_at_a_time_has_its_turn_at_a_table(world: World) -> None:
    with ThreadPoolExecutor(1) as pool:

        def other() -> None:
            with turns.turn(world.home, "t"):
                pass

        with turns.turn(world.home, "t"):
            waiting = pool.submit(other)
            with pytest.raises(TimeoutError):
                waiting.result(0.2)
        waiting.result(5)


def test_a_turn_at_one_table_does_not_hold_up_another(world: World) -> None:
    with turns.turn(world.home, "t"), ThreadPoolExecutor(1) as pool:

        def other() -> bool:
            with turns.turn(world.home, "u"):
                return True

        assert pool.submit(other).result(5)


def test_who_never_ends_his_turn_does_not_stop_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LONGEST_TURN_S", 0.01)
    with turns.turn(world.home, "t"), ThreadPoolExecutor(1) as pool:

        def other() -> bool:
            with turns.turn(world.home, "t"):
                return True

        assert pool.submit(other).result(5)
