"""Quotas: what a caller, and all callers of an account together, may use of a server at a time and per second.

They are counted by each server process on its own. A server with several processes, or several servers of one store, allow as
many times as much. An account can have quotas of its own, which only lower those of the server.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final, Literal

from cachetools import TTLCache

from skiway.config.quotas import Quota
from skiway.errors import LimitExceeded
from skiway.security import Principal

__all__ = ["Kind", "Quotas", "Slot"]

Kind = Literal["calls", "scans", "exchanges", "handshakes", "queries"]
"""What a call counts as while it is open. It counts towards the rate as well."""

_BURST_S: Final = 2.0
"""For how many seconds of its rate a caller who was quiet may call at once."""

_IN_LANES: Final = frozenset({"calls", "scans", "queries"})
"""The kinds of calls that wait for threads in the lane of their account."""

_FORGET_EVERY: Final = 10_000

_OWN_S: Final = 5.0
"""How long the quotas of an account are used before they are read again."""
_MAX_ACCOUNTS: Final = 10_000


class Quotas:
    """Counts the open calls, the rate and the bytes of each caller and each account.

    A call that is too much waits for about `pause_s` before it is rejected: a client that calls again at once would otherwise keep
    the server busy with rejecting. It waits on a thread of its own lane, so nobody else waits.

    `own` returns the quotas that an account sets for itself, such as `caller.scans`.
    """

    def __init__(
        self,
        caller: Quota | None = None,
        account: Quota | None = None,
        *,
        pause_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = random.random,
        own: Callable[[str], Mapping[str, float]] = lambda _: {},
    ) -> None:
        self._pause_s, self._sleep, self._random = pause_s, sleep, random
        self._limits = {"caller": caller or Quota(), "account": account or Quota()}
        self._clock, self._own = clock, own
        self._lowered: TTLCache[str, Mapping[str, Quota]] = TTLCache(_MAX_ACCOUNTS, _OWN_S, clock)
        self._usage: dict[tuple[str, str, str], _Usage] = {}
        self._lock = threading.Lock()
        self._admitted = 0

    def enter(self, principal: Principal, kind: Kind) -> Slot:
        """Count a call until its slot is released; `LimitExceeded` if a quota is used up."""
        try:
            return self._entered(principal, kind)
        except LimitExceeded:
            if self._pause_s and kind in _IN_LANES:
                self._sleep(self._pause_s * (0.5 + self._random()))  # not all of them end at the same moment
            raise

    def _entered(self, principal: Principal, kind: Kind) -> Slot:
        owners = (
            ("caller", principal.account_id, principal.subject),
            ("account", principal.account_id, ""),
        )
        limits = self._limits_of(principal.account_id)
        now = self._clock()
        with self._lock:
            self._admitted += 1
            if self._admitted % _FORGET_EVERY == 0:
                self._forget(now)
            usages = [(owner, self._usage.setdefault(owner, _Usage(now))) for owner in owners]
            for (whose, *_), usage in usages:
                usage.refill(limits[whose], now)
                self._check(whose, limits[whose], usage, kind)
            for _, usage in usages:
                usage.enter(kind)
        return Slot(self, kind, tuple(usage for _, usage in usages))

    def _limits_of(self, account_id: str) -> Mapping[str, Quota]:
        """The quotas of an account and its callers. They are read outside of the lock, as the store may be slow."""
        with self._lock:
            found = self._lowered.get(account_id)
        if found is None:
            own = self._own(account_id)
            found = {whose: _lowered(limits, whose, own) for whose, limits in self._limits.items()}
            with self._lock:
                self._lowered[account_id] = found
        return found

    def _check(self, whose: str, limits: Quota, usage: _Usage, kind: Kind) -> None:
        most: int = getattr(limits, kind)
        if most and usage.open.get(kind, 0) >= most:
            raise _exceeded(whose, kind, f"{most} {kind} are open", "wait until some of them have ended")
        if limits.per_second and usage.calls < 1:
            raise _exceeded(whose, "per_second", f"{limits.per_second:g} calls per second", "send them more slowly")
        if limits.bytes_per_second and usage.size <= 0:
            raise _exceeded(
                whose, "bytes_per_second", f"{limits.bytes_per_second} bytes per second", "transfer them more slowly"
            )

    def release(self, kind: Kind, usages: tuple[_Usage, ...], size: int) -> None:
        """The end of a call that transferred `size` bytes."""
        with self._lock:
            for usage in usages:
                usage.leave(kind, size)

    def _forget(self, now: float) -> None:
        """Drop what callers used who are quiet, and whose rate is complete again."""
        for owner, usage in list(self._usage.items()):
            limits = self._lowered.get(owner[1], self._limits)[owner[0]]
            usage.refill(limits, now)
            if not usage.open and usage.is_full(limits):
                del self._usage[owner]


def _lowered(limits: Quota, whose: str, own: Mapping[str, float]) -> Quota:
    """The quotas of the server, or those of the account where they are lower."""
    given = {each.name: own.get(f"{whose}.{each.name}", 0.0) for each in fields(Quota)}
    lower = {
        name: type(getattr(limits, name))(value)
        for name, value in given.items()
        if value and not 0 < getattr(limits, name) <= value
    }
    return replace(limits, **lower) if lower else limits


@dataclass(slots=True)
class _Usage:
    """What a caller or an account uses: open calls by kind, and what is left of the rates."""

    since: float
    open: dict[str, int] = field(default_factory=dict)
    calls: float = float("inf")
    size: float = float("inf")

    def refill(self, limits: Quota, now: float) -> None:
        passed, self.since = now - self.since, now
        self.calls = _refilled(self.calls, passed, limits.per_second)
        self.size = _refilled(self.size, passed, limits.bytes_per_second)

    def enter(self, kind: Kind) -> None:
        self.open[kind] = self.open.get(kind, 0) + 1
        self.calls -= 1

    def leave(self, kind: Kind, size: int) -> None:
        self.size -= size
        self.open[kind] -= 1
        if not self.open[kind]:
            del self.open[kind]

    def is_full(self, limits: Quota) -> bool:
        return self.calls >= _most(limits.per_second) and self.size >= _most(limits.bytes_per_second)


def _refilled(left: float, passed_s: float, rate: float) -> float:
    """What is left of a rate after some time; without a limit, it is never used up."""
    return min(left + passed_s * rate, _most(rate)) if rate else float("inf")


def _most(rate: float) -> float:
    return max(1.0, _BURST_S * rate) if rate else float("inf")


class Slot:
    """The place of an open call in its quotas; release it exactly when the call ends."""

    __slots__ = ("_kind", "_quotas", "_released", "_usages", "size")

    def __init__(self, quotas: Quotas, kind: Kind, usages: tuple[_Usage, ...]) -> None:
        self._quotas, self._kind, self._usages = quotas, kind, usages
        self._released = False
        self.size = 0
        """The bytes that the call has received and sent."""

    def release(self) -> None:
        """Return the place; the second time, nothing happens."""
        if not self._released:
            self._released = True
            self._quotas.release(self._kind, self._usages, self.size)


def _exceeded(whose: str, what: str, found: str, advice: str) -> LimitExceeded:
    """The error for a quota that is used up; the setting that the operator can raise is in its parameters."""
    assert what in {each.name for each in fields(Quota)}
    return LimitExceeded(
        f"the quota of this {whose} is used up ({found}): {advice}, or ask for more: the operator sets quotas.{whose}.{what}, "
        f"and the account can have a lower quota {whose}.{what}",
        key="quota.exceeded",
        quota=f"quotas.{whose}.{what}",
    )
