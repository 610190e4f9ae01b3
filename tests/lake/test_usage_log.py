"""The log of how tables are used: what a statement reads becomes the source of what it writes."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from skiway.airport import Request
from skiway.errors import Unavailable
from skiway.lake import context as lake_usage
from skiway.lake.context import UsageLog, unit_of_work
from skiway.metastore import Realm
from skiway.metastore.usage import Usage

NOW = datetime(2026, 1, 2, 23, 59, tzinfo=UTC)


class Stored(dict[tuple[str, str, str], Usage]):
    """What was stored, by account, table and day."""

    def __call__(self, realm: Any, table_id: str, day: Any, usage: Usage) -> None:
        if table_id == "broken":
            raise Unavailable("the store is away")
        self[realm.account_id, table_id, day.isoformat()] = usage


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    found = Stored()
    monkeypatch.setattr(lake_usage, "add_usage", found)
    return found


def realm(account: str = "a") -> Realm:
    return cast(Realm, SimpleNamespace(account_id=account))


def read(log: UsageLog, table: str, unit: str = "", account: str = "a", **more: Any) -> None:
    options: dict[str, Any] = {"caller": "me", "unit": unit, "columns": ["x"], "size_bytes": 10, **more}
    log.read(realm(account), table, **options)


def test_uses_are_added_by_account_table_and_day(stored: Stored) -> None:
    now = NOW
    log = UsageLog(every_s=3600, clock=lambda: now)
    read(log, "t")
    read(log, "t", columns=["x", "y"], size_bytes=5, caller="you")
    log.written(realm(), "t", caller="me", unit="")
    read(log, "t", account="b")
    now = datetime(2026, 1, 3, tzinfo=UTC)
    read(log, "t")
    log.flush()
    used = stored["a", "t", "2026-01-02"]
    assert (used.reads, used.writes, used.bytes_read) == (2, 1, 15)
    assert (used.columns, used.callers, used.sources) == ({"x": 2, "y": 1}, {"me": 2, "you": 1}, {})
    assert {(key, each.reads) for key, each in stored.items()} == {
        (("a", "t", "2026-01-02"), 2),
        (("b", "t", "2026-01-02"), 1),
        (("a", "t", "2026-01-03"), 1),
    }
    stored.clear()
    log.close()
    assert stored == {}, "everything was stored before"


def test_sources_are_the_other_tables_of_the_same_unit(stored: Stored) -> None:
    log = UsageLog(every_s=3600, clock=lambda: NOW)
    for table in ("one", "two", "target"):
        read(log, table, "unit")
    read(log, "other", "another unit")
    read(log, "call without a unit")
    log.written(realm(), "target", caller="me", unit="unit")
    log.written(realm(), "loose", caller="me", unit="")
    log.close()
    assert stored["a", "target", "2026-01-02"].sources == {"one": 1, "two": 1}
    assert stored["a", "loose", "2026-01-02"].sources == {}


def test_unit_has_a_hundred_sources_at_most(stored: Stored) -> None:
    log = UsageLog(every_s=3600, clock=lambda: NOW)
    for number in range(102):
        read(log, f"t{number}", "unit")
    log.written(realm(), "target", caller="me", unit="unit")
    log.close()
    assert len(stored["a", "target", "2026-01-02"].sources) == 100


def test_only_the_last_units_are_remembered(stored: Stored) -> None:
    log = UsageLog(every_s=3600, clock=lambda: NOW)
    for number in range(1_001):
        read(log, "t", f"unit {number}")
    for number in (0, 1):
        log.written(realm(), f"target {number}", caller="me", unit=f"unit {number}")
    log.close()
    assert stored["a", "target 0", "2026-01-02"].sources == {}
    assert stored["a", "target 1", "2026-01-02"].sources == {"t": 1}


def test_uses_that_cannot_be_stored_are_dropped(stored: Stored, caplog: pytest.LogCaptureFixture) -> None:
    log = UsageLog(every_s=3600, clock=lambda: NOW)
    read(log, "broken")
    read(log, "t")
    log.close()
    assert list(stored) == [("a", "t", "2026-01-02")]
    assert "the use of table broken could not be stored" in caplog.text
    read(log, "late")
    assert log._thread is not None
    assert not log._thread.is_alive(), "a closed log starts no thread"


def test_unit_of_work_is_the_transaction_or_the_call() -> None:
    call = cast(Any, SimpleNamespace(correlation_id="call"))
    assert unit_of_work(Request(transaction_id="tx", call=call)) == "tx"
    assert unit_of_work(Request(call=call)) == "call"
