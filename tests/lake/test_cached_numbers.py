"""Numbers of account states are cached for a moment, and forgotten after changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from skiway.airport import ServedCall
from skiway.lake import context as lake_context
from skiway.lake.callers import Callers, _details, operation_of
from skiway.lake.context import Versions
from skiway.metastore import Realm
from skiway.security import NOBODY


class State:
    """The state of accounts, which counts how often it is read."""

    def __init__(self) -> None:
        self.now, self.content, self.reads = 0.0, b"one", 0

    def digest(self, _realm: Any) -> bytes:
        self.reads += 1
        return self.content


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> State:
    found = State()
    monkeypatch.setattr(lake_context, "state_digest", found.digest)
    return found


def realm(account: str = "a", stored: object = None) -> Realm:
    return cast(Realm, SimpleNamespace(account_id=account, stored_state=lambda: stored))


def test_number_is_cached_for_a_second(state: State) -> None:
    versions = Versions(clock=lambda: state.now)
    first = versions.of(realm())
    state.content = b"two"
    assert versions.of(realm()) == first
    assert versions.of(realm("b")) != first, "each account has its own"
    state.now = 0.9
    assert versions.of(realm()) == first
    state.now = 1.1
    second = versions.of(realm())
    assert second != first
    assert 0 <= first < 2**63


def test_fresh_numbers_and_own_changes_are_visible_at_once(state: State) -> None:
    versions = Versions(clock=lambda: state.now)
    first = versions.of(realm())
    state.content = b"two"
    second = versions.of(realm(), fresh=True)
    assert second != first
    assert versions.of(realm()) == second, "the fresh number is cached"
    state.content = b"three"
    versions.changed(realm("b"))
    assert versions.of(realm()) == second
    versions.changed(realm())
    assert versions.of(realm()) not in (first, second)
    assert state.reads == 3


def test_accounts_are_read_again_only_if_the_store_has_changed_or_cannot_tell(state: State) -> None:
    versions = Versions(clock=lambda: state.now)
    first = versions.of(realm(stored=1))
    assert [versions.of(realm(stored=1), fresh=True) for _ in range(3)] == [first] * 3
    assert state.reads == 1
    state.content = b"two"
    assert versions.of(realm(stored=2), fresh=True) != first
    assert versions.of(realm("b", stored=2)) is not None
    assert state.reads == 3, "each account has its own"
    for _ in range(2):
        versions.of(realm(stored=None), fresh=True)
    assert state.reads == 5


def test_number_changes_every_minute(state: State) -> None:
    versions = Versions(clock=lambda: state.now)
    numbers = []
    for now in (0.0, 30.0, 58.0, 60.0, 118.0, 120.0):
        state.now = now
        numbers.append(versions.of(realm()))
    assert numbers[0] == numbers[1] == numbers[2] != numbers[3] == numbers[4] != numbers[5]


@pytest.mark.parametrize(
    ("name", "counts_as"),
    [("scan", "scans"), ("exchange", "exchanges"), ("put", "exchanges"), ("handshake", "handshakes"), ("x", "calls")],
)
def test_operations_count_in_the_quotas(name: str, counts_as: str) -> None:
    assert operation_of(name).counts_as == counts_as


def test_details_of_a_call_name_the_table_and_the_amounts() -> None:
    request = SimpleNamespace(catalog="c")
    served = cast(
        ServedCall,
        SimpleNamespace(
            request=request, operation="scan", schema="", name="t", rows_in=0, rows_out=2, bytes_in=3, bytes_out=4
        ),
    )
    assert _details(served) == {
        "statement": "scan",
        "catalog": "c",
        "table": "t",
        "rows_in": 0,
        "rows_out": 2,
        "bytes_in": 3,
        "bytes_out": 4,
    }


def test_nobody_calls_outside_of_a_call() -> None:
    callers = Callers(cast(Any, SimpleNamespace()))
    assert callers.principal is NOBODY
    assert callers.visibility is None
    assert callers.claims == {}
    assert not callers.may("table.read")
    assert callers.restriction(cast(Any, None)) is None
