"""The order of concurrent commits to one table."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.resource_factory import ResourceFactory
from skiway.errors import Conflict
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import managed as managed_tables
from skiway.metastore.managed import commits
from skiway.metastore.managed.commits import CLIENT_RETRY_S, LOCK_TIMEOUT_S, MAX_WAIT_S, ClientTurns, wait_for_clients
from storage.homes import Clock


class FakeTime:
    """A clock that advances only while somebody sleeps, together with the clock of the stores."""

    def __init__(self, clock: Clock) -> None:
        self.seconds, self._clock = 0.0, clock

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self._clock.advance(seconds)

    def monotonic(self) -> float:
        return self.seconds


def time_waited(factory: ResourceFactory, clock: Clock, table_id: str = "t") -> float:
    fake_time = FakeTime(clock)
    wait_for_clients(factory.home, table_id, sleep=fake_time.sleep, monotonic=fake_time.monotonic)
    return fake_time.seconds


def lose_commit(factory: ResourceFactory, table_id: str = "t") -> None:
    with pytest.raises(Conflict), ClientTurns().taken(factory.home, table_id, None):
        raise Conflict("another was faster", key="commit.failed")


def test_statement_does_not_wait_without_a_conflict(factory: ResourceFactory, clock: Clock) -> None:
    with ClientTurns().taken(factory.home, "t", None):
        pass
    assert time_waited(factory, clock) == 0


def test_statement_waits_for_the_retry_of_a_client_that_lost(factory: ResourceFactory, clock: Clock) -> None:
    lose_commit(factory)
    assert time_waited(factory, clock, "another table") == 0
    assert time_waited(factory, clock) == pytest.approx(CLIENT_RETRY_S, abs=0.1)
    assert time_waited(factory, clock) == 0


def test_statement_waits_a_limited_time_for_clients_that_keep_losing(factory: ResourceFactory, clock: Clock) -> None:
    fake_time = FakeTime(clock)

    def sleep(seconds: float) -> None:
        fake_time.sleep(seconds)
        lose_commit(factory)

    lose_commit(factory)
    wait_for_clients(factory.home, "t", sleep=sleep, monotonic=fake_time.monotonic)
    assert fake_time.seconds == pytest.approx(MAX_WAIT_S, abs=0.1)


def test_statement_after_a_stale_commit_waits_and_then_succeeds(
    factory: ResourceFactory, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate

    managed = ManagedTableFactory.at(factory, tmp_path)
    table = managed.append(managed.create(), 1)
    stale = AssertRefSnapshotId(ref="main", snapshot_id=1)
    update = SetPropertiesUpdate(updates={"a": "b"})
    with pytest.raises(Conflict, match="the table has changed"):
        managed_tables.commit(managed.home, managed.warehouse, id_of(table), [stale], [update])
    assert time_waited(factory, clock, table.id) > 0
    waited_for = []
    monkeypatch.setattr(commits, "wait_for_clients", lambda realm, table_id: waited_for.append(table_id))
    managed.append(table, 2)
    assert (waited_for, managed.rows(table)) == ([table.id], [1, 2])


def test_commits_to_a_table_hold_its_lock(
    factory: ResourceFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = ManagedTableFactory.at(factory, tmp_path)
    table = managed.create()
    locked = []

    @contextmanager
    def lock(warehouse: Warehouse, folder: str, *, timeout_s: float) -> Iterator[None]:
        locked.append((folder, timeout_s))
        yield

    monkeypatch.setattr(Warehouse, "lock", lock)
    managed.append(table, 1)
    assert locked == [(table.metadata.location, LOCK_TIMEOUT_S)]


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse.at(str(tmp_path))


def test_folder_lock_is_held_by_one_thread_at_a_time(warehouse: Warehouse) -> None:
    with ThreadPoolExecutor(1) as pool:

        def acquire_lock() -> None:
            with warehouse.lock("t", timeout_s=10):
                pass

        with warehouse.lock("t", timeout_s=10):
            future = pool.submit(acquire_lock)
            with pytest.raises(TimeoutError):
                future.result(0.2)
        future.result(200)


def test_lock_of_one_folder_does_not_block_another(warehouse: Warehouse) -> None:
    with warehouse.lock("t", timeout_s=10), ThreadPoolExecutor(1) as pool:

        def acquire_lock() -> bool:
            with warehouse.lock("u", timeout_s=10):
                return True

        assert pool.submit(acquire_lock).result(200)


def test_lock_that_is_never_released_does_not_block_others_forever(warehouse: Warehouse) -> None:
    with warehouse.lock("t", timeout_s=10), ThreadPoolExecutor(1) as pool:

        def acquire_lock() -> bool:
            with warehouse.lock("t", timeout_s=0.01):
                return True

        assert pool.submit(acquire_lock).result(200)
