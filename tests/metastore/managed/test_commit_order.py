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
from skiway.metastore.managed.commits import CLIENT_RETRY_S, LOCK_TIMEOUT_S, MAX_WAIT_S
from storage.homes import Clock


class Waited:
    """Time that passes only while somebody waits, for him and for the stores."""

    def __init__(self, clock: Clock) -> None:
        self.seconds, self._clock = 0.0, clock

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self._clock.advance(seconds)

    def monotonic(self) -> float:
        return self.seconds


def waits_s(factory: ResourceFactory, clock: Clock, table_id: str = "t") -> float:
    waited = Waited(clock)
    commits.wait_for_clients(factory.home, table_id, sleep=waited.sleep, monotonic=waited.monotonic)
    return waited.seconds


def loses(factory: ResourceFactory, table_id: str = "t") -> None:
    with pytest.raises(Conflict), commits.expecting_retry(factory.home, table_id):
        raise Conflict("another was faster", key="commit.failed")


def test_nobody_waits_without_a_reason(factory: ResourceFactory, clock: Clock) -> None:
    with commits.expecting_retry(factory.home, "t"):
        pass
    assert waits_s(factory, clock) == 0


def test_a_client_that_lost_is_waited_for_until_it_should_be_back(factory: ResourceFactory, clock: Clock) -> None:
    loses(factory)
    assert waits_s(factory, clock, "another table") == 0
    assert waits_s(factory, clock) == pytest.approx(CLIENT_RETRY_S, abs=0.1)
    assert waits_s(factory, clock) == 0


def test_a_statement_does_not_wait_for_ever_for_clients_that_lose_again_and_again(
    factory: ResourceFactory, clock: Clock
) -> None:
    waited = Waited(clock)

    def sleep(seconds: float) -> None:
        waited.sleep(seconds)
        loses(factory)

    loses(factory)
    commits.wait_for_clients(factory.home, "t", sleep=sleep, monotonic=waited.monotonic)
    assert waited.seconds == pytest.approx(MAX_WAIT_S, abs=0.1)


def test_a_stale_commit_lets_the_next_statement_wait_and_then_succeed(
    factory: ResourceFactory, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate

    managed = ManagedTableFactory.at(factory, tmp_path)
    table = managed.append(managed.create(), 1)
    stale = AssertRefSnapshotId(ref="main", snapshot_id=1)
    update = SetPropertiesUpdate(updates={"a": "b"})
    with pytest.raises(Conflict, match="the table has changed"):
        managed_tables.commit(managed.home, managed.warehouse, id_of(table), [stale], [update])
    assert waits_s(factory, clock, table.id) > 0
    waited = []
    monkeypatch.setattr(commits, "wait_for_clients", lambda realm, table_id: waited.append(table_id))
    managed.append(table, 2)
    assert (waited, managed.rows(table)) == ([table.id], [1, 2])


def test_commits_of_a_server_to_one_table_are_made_under_its_lock(
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


def test_one_thread_at_a_time_has_the_lock_of_a_folder(warehouse: Warehouse) -> None:
    with ThreadPoolExecutor(1) as pool:

        def other() -> None:
            with warehouse.lock("t", timeout_s=10):
                pass

        with warehouse.lock("t", timeout_s=10):
            waiting = pool.submit(other)
            with pytest.raises(TimeoutError):
                waiting.result(0.2)
        waiting.result(5)


def test_the_lock_of_one_folder_does_not_hold_up_another(warehouse: Warehouse) -> None:
    with warehouse.lock("t", timeout_s=10), ThreadPoolExecutor(1) as pool:

        def other() -> bool:
            with warehouse.lock("u", timeout_s=10):
                return True

        assert pool.submit(other).result(5)


def test_who_never_releases_a_lock_does_not_stop_the_others(warehouse: Warehouse) -> None:
    with warehouse.lock("t", timeout_s=10), ThreadPoolExecutor(1) as pool:

        def other() -> bool:
            with warehouse.lock("t", timeout_s=0.01):
                return True

        assert pool.submit(other).result(5)
