from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from skiway.airport import TransactionStatus
from skiway.errors import PreconditionFailed
from skiway.lake.transactions import LakeTransactions

KEY = b"k" * 32


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def transactions(clock: Clock, **more: Any) -> LakeTransactions:
    return LakeTransactions(KEY, clock=clock, ttl=timedelta(minutes=10), **more)


def test_first_read_pins_a_snapshot_and_own_write_repins_it() -> None:
    store = transactions(Clock())
    unit = store.begin()
    assert store.pinned(unit, "t", "", find=lambda _: 1) == 1
    assert store.pinned(unit, "t", "", find=lambda _: 2) == 1
    assert store.pinned(unit, "other", "", find=lambda _: 2) == 2
    assert store.pinned(unit, "t", "version:7", find=lambda _: 7) == 7
    store.repin(unit, "t", 3)
    assert store.pinned(unit, "t", "", find=lambda _: 9) == 3
    assert store.pinned(store.begin(), "t", "", find=lambda _: 9) == 9


def test_table_without_snapshots_is_pinned_as_empty() -> None:
    store = transactions(Clock())
    unit = store.begin()
    assert store.pinned(unit, "t", "", find=lambda _: None) is None
    assert store.pinned(unit, "t", "", find=lambda _: 1) is None


def test_every_server_reads_as_of_the_start() -> None:
    clock = Clock()
    first, second = transactions(clock), transactions(clock)
    unit = first.begin()
    requested: list[datetime | None] = []
    clock.now += timedelta(minutes=1)
    for server in (first, second):
        server.pinned(unit, "t", "", find=lambda moment: requested.append(moment))
    assert requested == [datetime(2026, 1, 1, tzinfo=UTC)] * 2


def test_second_write_of_a_transaction_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    store = transactions(Clock())
    unit, other = store.begin(), store.begin()
    for snapshot in (1, 2, 3):
        store.repin(unit, "t", snapshot)
        assert len(caplog.messages) == (snapshot > 1)
    store.repin(other, "t", 4)
    store.repin("", "t", 5)
    assert len(caplog.messages) == 1
    assert "ROLLBACK will undo neither" in caplog.text


def test_expired_transaction_must_be_restarted() -> None:
    clock = Clock()
    store = transactions(clock)
    unit = store.begin()
    assert store.status(unit) is TransactionStatus.ACTIVE
    clock.now += timedelta(minutes=11)
    assert store.status(unit) is None
    with pytest.raises(PreconditionFailed, match="begin a new one"):
        store.pinned(unit, "t", "", find=lambda _: 1)


@pytest.mark.parametrize("unit", ["", "x", "1.2.3.4", "ff.aa.bb." + "0" * 24])
def test_foreign_transaction_id_pins_nothing(unit: str) -> None:
    store = transactions(Clock())
    assert store.status(unit) is None
    assert [store.pinned(unit, "t", "", find=lambda _, n=n: n) for n in (1, 2)] == [1, 2]  # type: ignore[misc]


@pytest.mark.parametrize("other", [("a1", "grace"), ("a2", "ada"), ("", ""), ("a", "1ada")])
def test_transaction_id_of_another_caller_is_unknown(other: tuple[str, str]) -> None:
    callers = [("a1", "ada")]
    store = transactions(Clock(), caller=lambda: callers[-1])
    unit = store.begin()
    assert store.pinned(unit, "t", "", find=lambda _: 1) == 1
    callers.append(other)
    assert store.status(unit) is None
    assert store.pinned(unit, "t", "", find=lambda _: 2) == 2  # the current snapshot, not the pinned one
    store.repin(unit, "t", 3)
    callers.pop()
    assert store.status(unit) is TransactionStatus.ACTIVE
    assert store.pinned(unit, "t", "", find=lambda _: 4) == 1


def test_number_of_pins_is_bounded() -> None:
    store = transactions(Clock())
    unit = store.begin()
    for table in range(1001):
        store.pinned(unit, str(table), "", find=lambda _: 1)
    assert store.pinned(unit, "1000", "", find=lambda _: 2) == 1
    assert store.pinned(unit, "1", "", find=lambda _: 2) == 1
    assert store.pinned(unit, "0", "", find=lambda _: 2) == 2


def test_the_oldest_transactions_are_forgotten() -> None:
    store = transactions(Clock(), keep=3)
    units = [store.begin() for _ in range(4)]
    for unit in units:
        store.pinned(unit, "t", "", find=lambda _: 1)
    assert [store.pinned(unit, "t", "", find=lambda _: 2) for unit in reversed(units)] == [1, 1, 1, 2]
