"""How long commits wait: for clients that lost a race, for locks, and between attempts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from metastore.managed.test_commit_order import FakeTime, lose_commit, time_waited
from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.resource_factory import ResourceFactory
from skiway.errors import Conflict, Contention, InvalidArgument
from skiway.formats.iceberg.changes.commits import plain
from skiway.metastore import managed as managed_tables
from skiway.metastore.managed.commits import TableChange, wait_for_clients
from storage.homes import Clock


def test_statements_wait_two_seconds_for_a_client_that_lost_a_race(factory: ResourceFactory, clock: Clock) -> None:
    lose_commit(factory)
    assert 1.95 < time_waited(factory, clock) < 2.1


def test_statements_wait_five_seconds_at_most(factory: ResourceFactory, clock: Clock) -> None:
    fake_time, pauses = FakeTime(clock), list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        fake_time.sleep(seconds)
        lose_commit(factory)

    lose_commit(factory)
    wait_for_clients(factory.home, "t", sleep=sleep, monotonic=fake_time.monotonic)
    assert 4.95 < fake_time.seconds < 5.1
    assert 0 < max(pauses) < 0.1, "they notice soon that the client has retried"


def test_lost_races_are_retried_forty_times_with_short_pauses(
    factory: ResourceFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = ManagedTableFactory.at(factory, tmp_path)
    table, pauses, locked = managed.create("busy"), list[float](), list[float]()
    lock = type(managed.warehouse).lock

    def noted(self: Any, folder: str, *, timeout_s: float) -> Any:
        locked.append(timeout_s)
        return lock(self, folder, timeout_s=timeout_s)

    monkeypatch.setattr(type(managed.warehouse), "lock", noted)

    def lost(*_: Any) -> NoReturn:
        raise Contention("another was faster", key="commit.failed")

    with pytest.raises(Conflict, match="table busy was changed by others during all 40 attempts") as refused:
        managed_tables.change(managed.home, managed.warehouse, id_of(table), lost, sleep=pauses.append)
    assert refused.value.params["id"] == table.id
    assert locked == [10.0] * 40
    assert len(pauses) == 39
    assert all(0 <= pause <= 0.5 for pause in pauses)
    assert max(pauses[:3]) < 0.1 < max(pauses), "pauses become longer"


def test_table_can_be_changed_only_once_in_a_commit(factory: ResourceFactory, tmp_path: Path) -> None:
    managed = ManagedTableFactory.at(factory, tmp_path)
    one, two = managed.create("one"), managed.create("two")
    nothing = [TableChange(id_of(each), plain((), ())) for each in (one, two)]
    found = managed_tables.change_all(managed.home, managed.warehouse, nothing)
    assert [each.id for each in found] == [one.id, two.id]
    with pytest.raises(InvalidArgument) as refused:
        managed_tables.change_all(managed.home, managed.warehouse, [*nothing, nothing[0]])
    assert (refused.value.key, refused.value.params["id"]) == ("commit.table.repeated", one.id)
