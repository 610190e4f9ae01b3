"""Transactions of the lake without a server: ids, pins, expiry, and what is staged."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from skiway.airport import Request, TransactionStatus
from skiway.errors import PreconditionFailed
from skiway.lake import transactions as lake_transactions
from skiway.lake.transactions import RECENT, LakeTransactions, Remembered
from skiway.metastore.transactions.staged_writes import NewWrite, TransactionState

START = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
HOUR = timedelta(hours=1)
MICROSECOND = timedelta(microseconds=1)


class Staged:
    """Remembers what is staged and ended."""

    def __init__(self) -> None:
        self.calls, self.found = list[Any](), cast("TransactionStatus | None", None)

    def add(self, transaction_id: str, write: NewWrite, *, until: datetime) -> None:
        self.calls.append(("add", transaction_id, write, until))

    def state(self, transaction_id: str, table_id: str, *, read: int | None) -> TransactionState:
        return TransactionState(transaction_id, read, ())

    def status(self, transaction_id: str) -> TransactionStatus | None:
        self.calls.append(("status", transaction_id))
        return self.found

    def commit(self, transaction_id: str, *, until: datetime) -> None:
        self.calls.append(("commit", transaction_id, until))

    def abort(self, transaction_id: str, *, until: datetime) -> None:
        self.calls.append(("abort", transaction_id, until))


class Bench:
    """Transactions with a clock that the test sets, and a call that it chooses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.caller, self.action, self.explicit = START, ("a", "me"), "", False
        self.staged = Staged()
        self.of = LakeTransactions(
            b"key", caller=lambda: self.caller, clock=lambda: self.now, staged=self.staged, keep=3
        )
        monkeypatch.setattr(lake_transactions, "_is_called", lambda *actions: self.action in actions)
        monkeypatch.setattr(lake_transactions, "is_explicit", lambda: self.explicit)

    def pin(self, transaction: str, found: int, table: str = "t", point: str = "") -> int | None:
        return self.of.pinned(transaction, table, point, find=lambda began: found if began in (None, START) else -1)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_ids_tell_when_a_transaction_began(bench: Bench) -> None:
    unit = bench.of.begin()
    assert unit != bench.of.begin()
    assert bench.of.expiry(unit) == START + HOUR
    assert bench.of.began_before(unit, START)
    assert bench.of.began_before(unit, START + MICROSECOND)
    assert not bench.of.began_before(unit, START - MICROSECOND)
    assert bench.of.expiry("") is None
    assert not bench.of.began_before("", START)


@pytest.mark.parametrize("change", [lambda unit: "x", lambda unit: unit[:-1], lambda unit: "1" + unit, lambda unit: ""])
def test_other_ids_are_unknown(bench: Bench, change: Any) -> None:
    unit = change(bench.of.begin())
    assert bench.of.status(unit) is None
    assert bench.of.expiry(unit) is None
    assert not bench.of.began_before(unit, START + HOUR)


@pytest.mark.parametrize("caller", [("a", "you"), ("b", "me"), ("am", "e")])
def test_ids_of_other_callers_are_unknown(bench: Bench, caller: tuple[str, str]) -> None:
    unit = bench.of.begin()
    bench.caller = caller
    assert bench.of.status(unit) is None
    assert len(unit.rpartition(".")[2]) == 24


def test_transactions_expire_after_an_hour(bench: Bench) -> None:
    unit = bench.of.begin()
    bench.now = START + HOUR
    assert bench.of.status(unit) == TransactionStatus.ACTIVE
    assert bench.pin(unit, 5) == 5
    bench.now += MICROSECOND
    assert bench.of.status(unit) is None
    with pytest.raises(PreconditionFailed, match="this transaction began more than 1:00:00 ago"):
        bench.pin(unit, 6)


def test_snapshots_are_pinned_by_table_and_point(bench: Bench) -> None:
    unit = bench.of.begin()
    assert [bench.pin(unit, 1), bench.pin(unit, 2), bench.pin(unit, 3, "u"), bench.pin(unit, 4, point="p")] == [1, 1, 3, 4]  # fmt: skip
    assert [bench.pin("", 5), bench.pin("", 6), bench.pin("unknown", 7)] == [5, 6, 7]
    other = bench.of.begin()
    assert [bench.pin(other, 8), bench.pin(unit, 9, "u")] == [8, 3]
    assert bench.pin(unit, 10) == 1
    for _ in range(3):
        bench.of.begin()
    assert bench.pin(unit, 10) == 10, "only the last transactions are remembered"


def test_transaction_reads_what_it_has_written(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    unit = bench.of.begin()
    bench.pin(unit, 1)
    with caplog.at_level(logging.WARNING, logger="skiway.lake"):
        for repeat in range(3):
            bench.of.repin(unit, "t", 10 + repeat)
            assert bench.pin(unit, 1) == 10 + repeat
            assert len(caplog.records) == (repeat >= 1), "the second write is reported, once"
        bench.of.repin("", "t", 1)
        bench.of.repin("unknown", "t", 1)
        bench.of.repin("unknown", "t", 1)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("action", "explicit", "looked_up"),
    [
        ("", False, False),
        ("", True, True),
        ("commit_transaction", False, True),
        ("rollback_transaction", False, True),
        ("get_transaction_status", False, True),
    ],
)
def test_status_of_staged_rows_is_looked_up_only_if_needed(
    bench: Bench, action: str, explicit: bool, looked_up: bool
) -> None:
    unit = bench.of.begin()
    bench.action, bench.explicit = action, explicit
    assert bench.of.status(unit) == TransactionStatus.ACTIVE
    bench.staged.found = TransactionStatus.COMMITTED
    expected = TransactionStatus.COMMITTED if looked_up else TransactionStatus.ACTIVE
    assert bench.of.status(unit) == expected
    assert bool(bench.staged.calls) == looked_up


def test_only_the_client_ends_a_transaction(bench: Bench) -> None:
    unit = bench.of.begin()
    bench.of.commit(unit)
    bench.of.rollback(unit)
    assert bench.staged.calls == []
    bench.action = "commit_transaction"
    bench.of.rollback(unit)
    bench.of.commit(unit)
    bench.action = "rollback_transaction"
    bench.of.commit(unit)
    bench.of.rollback(unit)
    assert bench.staged.calls == [("commit", unit, START + HOUR), ("abort", unit, START + HOUR)]
    alone = LakeTransactions(b"key")
    alone.commit(unit)
    alone.rollback(unit)


def test_rows_are_staged_until_the_transaction_expires(bench: Bench) -> None:
    unit, write = bench.of.begin(), NewWrite(cast(Any, "base"), [], 3)
    bench.of.stage(unit, write)
    assert bench.staged.calls == [("add", unit, write, START + HOUR)]
    for transactions, missing in ((bench.of, ""), (bench.of, "unknown"), (LakeTransactions(b"key"), unit)):
        with pytest.raises(PreconditionFailed, match="begin one with create_transaction"):
            transactions.stage(missing, write)


def test_calls_of_expired_transactions_fail(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = bench.of.begin()
    monkeypatch.setattr(lake_transactions, "current_request", lambda: Request(transaction_id=unit))
    bench.now = START + HOUR
    bench.of.check()
    bench.now += MICROSECOND
    with pytest.raises(PreconditionFailed, match="COMMIT or ROLLBACK, then begin a new one") as raised:
        bench.of.check()
    assert raised.value.key == "transaction.expired"
    bench.action = "get_transaction_status"
    bench.of.check()


def test_calls_of_duckdb_look_nothing_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = bench.of.begin()
    monkeypatch.setattr(lake_transactions, "current_request", lambda: Request(transaction_id=unit))
    bench.of.check()
    assert bench.staged.calls == []


class TestRemembered:
    """What a server keeps in memory about transactions that nobody ends."""

    def test_transactions_are_forgotten_two_minutes_after_their_last_call(self) -> None:
        now = [0.0]
        remembered = Remembered[str](10, is_needed=lambda value: value == "written", clock=lambda: now[0])
        for name, value in (("idle", "read"), ("changed", "written"), ("busy", "read")):
            remembered.add(name, value)
        now[0] = RECENT.total_seconds()
        assert remembered.get("busy") == "read"
        now[0] += 1
        remembered.add("new", "read")
        assert [remembered.get(name) for name in ("idle", "changed", "busy", "new")] == [
            None,
            "written",
            "read",
            "read",
        ]
        assert len(remembered) == 3

    def test_number_of_transactions_is_limited(self) -> None:
        remembered = Remembered[int](3, is_needed=bool, clock=lambda: 0.0)
        for number in range(12):
            remembered.add(str(number), number % 2)
        found = [number for number in range(12) if remembered.get(str(number)) is not None]
        assert found == [3, 5, 7, 9, 10, 11]
        assert len(remembered) == 6

    def test_transaction_can_be_ended(self) -> None:
        remembered = Remembered[int](1, is_needed=bool, clock=lambda: 0.0)
        for name in ("older", "newer"):
            remembered.add(name, 1)
        assert [remembered.pop(name) for name in ("older", "newer", "older")] == [1, 1, None]
        assert len(remembered) == 0


def test_forgotten_transaction_reads_as_of_its_begin_and_what_it_has_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_transactions, "RECENT", timedelta(0))
    reader, writer = bench.of.begin(), bench.of.begin()
    assert bench.pin(reader, 1) == 1
    bench.of.repin(writer, "t", 7)
    bench.of.begin()
    assert bench.pin(reader, 2) == 2, "it was found again, as of the begin"
    assert bench.pin(writer, 2) == 7
