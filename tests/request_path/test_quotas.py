"""Callers and accounts use only so much of a server, and nobody else pays for it."""

from __future__ import annotations

import pytest

from skiway.config.server import Quota
from skiway.errors import LimitExceeded
from skiway.request_path import Lanes, Quotas
from skiway.security import Principal

NO_LIMIT = Quota(calls=0, scans=0, exchanges=0, handshakes=0, queries=0, per_second=0)


def principal(subject: str, account: str = "a1") -> Principal:
    return Principal(subject, account, frozenset(), frozenset())


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("kind", ["calls", "scans", "exchanges", "handshakes", "queries"])
@pytest.mark.parametrize("whose", ["caller", "account"])
def test_open_calls_are_limited_by_kind(kind, whose) -> None:
    limits = {"caller": NO_LIMIT, "account": NO_LIMIT} | {whose: Quota(**{kind: 2})}
    quotas = Quotas(limits["caller"], limits["account"])
    first, second = quotas.enter(principal("ada"), kind), quotas.enter(principal("ada"), kind)
    with pytest.raises(LimitExceeded, match=rf"the quota of this {whose} is used up \(2 {kind} are open\)") as refused:
        quotas.enter(principal("ada"), kind)
    assert refused.value.key == "quota.exceeded"
    assert refused.value.params == {"quota": f"quotas.{whose}.{kind}"}
    quotas.enter(principal("ada"), "calls" if kind != "calls" else "scans").release()
    quotas.enter(principal("bob", "a2"), kind).release()
    if whose == "caller":
        quotas.enter(principal("bob"), kind).release()
    else:
        with pytest.raises(LimitExceeded):
            quotas.enter(principal("bob"), kind)
    first.release()
    first.release()  # again: nothing happens
    third = quotas.enter(principal("ada"), kind)
    with pytest.raises(LimitExceeded):
        quotas.enter(principal("ada"), kind)
    second.release()
    third.release()


def test_quotas_of_an_account_only_lower_those_of_the_server() -> None:
    own: dict[str, dict[str, float]] = {
        "a1": {"caller.scans": 1, "account.scans": 99, "caller.per_second": 2.0},
        "a2": {"caller.scans": 0},
    }
    clock = Clock()
    quotas = Quotas(
        Quota(scans=2, per_second=0),
        Quota(scans=3, per_second=0),
        clock=clock,
        own=lambda account: own.get(account, {}),
    )
    held = quotas.enter(principal("ada"), "scans")
    with pytest.raises(LimitExceeded, match=r"of this caller is used up \(1 scans are open\)"):
        quotas.enter(principal("ada"), "scans")
    more = [quotas.enter(principal(each), "scans") for each in ("bob", "eve")]
    with pytest.raises(LimitExceeded, match=r"of this account is used up \(3 scans are open\)"):
        quotas.enter(principal("joe"), "scans")
    other = [quotas.enter(principal("ada", "a2"), "scans") for _ in range(2)]
    for slot in (held, *more, *other):
        slot.release()
    for _ in range(3):  # a burst of twice the rate, of which one was used
        quotas.enter(principal("ada"), "calls").release()
    with pytest.raises(LimitExceeded, match="2 calls per second"):
        quotas.enter(principal("ada"), "calls")


def test_changed_quotas_of_an_account_take_effect_after_some_seconds() -> None:
    own, clock, asked = {"caller.scans": 1.0}, Clock(), []
    quotas = Quotas(NO_LIMIT, NO_LIMIT, clock=clock, own=lambda account: asked.append(account) or dict(own))
    held = quotas.enter(principal("ada"), "scans")
    own["caller.scans"] = 2.0
    with pytest.raises(LimitExceeded):
        quotas.enter(principal("ada"), "scans")
    assert asked == ["a1"], "they are not read for each call"
    clock.now += 5
    quotas.enter(principal("ada"), "scans").release()
    held.release()


def test_quiet_callers_with_own_quotas_are_forgotten() -> None:
    clock = Clock()
    quotas = Quotas(Quota(per_second=100), NO_LIMIT, clock=clock, own=lambda _: {"caller.per_second": 1.0})
    quotas.enter(principal("ada"), "calls").release()
    for later in (1.0, 60.0):  # known, and expired
        clock.now += later
        quotas._forget(clock.now)
    assert not quotas._usage


def test_a_rejected_call_uses_nothing() -> None:
    quotas = Quotas(Quota(calls=5), Quota(calls=1))
    slot = quotas.enter(principal("ada"), "calls")
    for _ in range(20):
        with pytest.raises(LimitExceeded, match="of this account"):
            quotas.enter(principal("bob"), "calls")
    slot.release()
    quotas.enter(principal("bob"), "calls").release()


def test_rate_is_limited_and_recovers() -> None:
    clock = Clock()
    quotas = Quotas(Quota(per_second=10), NO_LIMIT, clock=clock)
    for _ in range(20):  # two seconds' worth at once
        quotas.enter(principal("ada"), "calls").release()
    with pytest.raises(LimitExceeded, match="10 calls per second"):
        quotas.enter(principal("ada"), "calls")
    quotas.enter(principal("bob"), "calls").release()
    clock.now += 0.5
    for _ in range(5):
        quotas.enter(principal("ada"), "scans").release()
    with pytest.raises(LimitExceeded):
        quotas.enter(principal("ada"), "calls")
    clock.now += 3600
    for _ in range(20):
        quotas.enter(principal("ada"), "calls").release()
    with pytest.raises(LimitExceeded):
        quotas.enter(principal("ada"), "calls")


def test_a_rejected_call_waits_in_its_lane_first() -> None:
    waited: list[float] = []
    quotas = Quotas(Quota(calls=1, exchanges=1), NO_LIMIT, pause_s=0.05, sleep=waited.append, random=lambda: 0.5)
    for kind in ("calls", "exchanges"):
        quotas.enter(principal("ada"), kind)
        with pytest.raises(LimitExceeded):
            quotas.enter(principal("ada"), kind)
    assert waited == [0.05], "exchanges have no lanes: waiting would occupy threads of others"


def test_a_rate_below_one_allows_single_calls() -> None:
    clock = Clock()
    quotas = Quotas(Quota(per_second=0.1), NO_LIMIT, clock=clock)
    quotas.enter(principal("ada"), "calls").release()
    with pytest.raises(LimitExceeded):
        quotas.enter(principal("ada"), "calls")
    clock.now += 10
    quotas.enter(principal("ada"), "calls").release()


def test_bytes_are_charged_when_a_call_ends() -> None:
    clock = Clock()
    quotas = Quotas(NO_LIMIT, Quota(bytes_per_second=1000), clock=clock)
    slot = quotas.enter(principal("ada"), "scans")
    slot.size += 12_000
    quotas.enter(principal("ada"), "scans").release()
    slot.release()
    with pytest.raises(LimitExceeded, match="1000 bytes per second"):
        quotas.enter(principal("bob"), "calls")
    clock.now += 10.5
    quotas.enter(principal("bob"), "calls").release()


def test_quiet_callers_are_forgotten() -> None:
    clock = Clock()
    quotas = Quotas(Quota(per_second=10), Quota(bytes_per_second=10), clock=clock)
    for number in range(9_999):
        quotas.enter(principal(f"caller {number}", f"account {number}"), "calls").release()
    clock.now += 60
    quotas.enter(principal("ada"), "calls").release()
    assert len(quotas._usage) == 2


def test_lanes_are_those_of_accounts_and_strangers_share_one() -> None:
    lanes = Lanes(("authorization", "x-session"))
    ada, bob, eve = ({"authorization": f"Bearer {name}", "x": name} for name in ("ada", "bob", "eve"))
    assert lanes.of(ada) == lanes.of(eve) == lanes.of({}) == "unknown"
    lanes.learn(ada, "a1")
    lanes.learn(bob, "a1")
    lanes.learn({**ada, "x-session": "s"}, "a2")
    assert lanes.of(ada) == lanes.of(bob) == "account a1"
    assert lanes.of({**ada, "x-session": "s"}) == "account a2"
    assert lanes.of(eve) == "unknown"
    lanes.learn(bob, "a4")
    assert lanes.of(bob) == "account a4"
    for number in range(10_001):
        lanes.learn({"authorization": str(number)}, "a3")
    assert lanes.of(ada) == "unknown"
    assert len(lanes._accounts) == 10_000
