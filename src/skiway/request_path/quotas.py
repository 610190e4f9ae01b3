"""Quotas and lanes: what a caller, and all callers of an account together, may use of a server at a time and per second.

They are counted by each server process on its own. A server with several processes, or several servers of one store, allow
as many times as much. An account can have quotas of its own, which only lower those of the server.

A call waits for a thread in the lane of its caller's account. The lane is needed before anybody is authenticated, so it is
remembered which account each credential belongs to. All calls with unknown credentials share one lane: inventing tokens
gains nothing.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from typing import Final, Literal

from cachetools import FIFOCache

from skiway.config.server import Quota
from skiway.errors import LimitExceeded
from skiway.security import Principal

UNKNOWN_LANE: Final = "unknown"
_REMEMBERED: Final = 10_000


class Lanes:
    """The account of each credential that was used lately; `credentials` are the headers that callers authenticate with."""

    def __init__(self, credentials: Iterable[str] = ("authorization",)) -> None:
        self.credentials = tuple(credentials)
        self._accounts: FIFOCache[bytes, str] = FIFOCache(_REMEMBERED)
        self._lock = threading.Lock()

    def of(self, headers: Mapping[str, str | bytes]) -> str:
        """The lane of a call with these headers."""
        digest = self._digest(headers)
        with self._lock:
            return self._accounts.get(digest, UNKNOWN_LANE)

    def learn(self, headers: Mapping[str, str | bytes], account_id: str) -> None:
        """Remember the account of the caller who was authenticated by these headers."""
        digest, lane = self._digest(headers), f"account {account_id}"
        with self._lock:
            if self._accounts.get(digest) != lane:
                self._accounts[digest] = lane

    def _digest(self, headers: Mapping[str, str | bytes]) -> bytes:
        given = repr([headers.get(name) for name in self.credentials])
        return blake2b(given.encode("utf-8", "replace"), digest_size=16).digest()


Kind = Literal["calls", "scans", "exchanges", "handshakes", "queries"]
"""What a call counts as while it is open. It counts towards the rate as well."""

_BURST_S: Final = 2.0
"""For how many seconds of its rate a caller who was quiet may call at once."""

_IN_LANES: Final = frozenset({"calls", "scans", "queries"})
"""The kinds of calls that wait for threads in the lane of their account."""

_FORGET_EVERY: Final = 10_000
_NO_LIMIT: Final = float("inf")

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
        self._lowered: dict[str, tuple[float, Mapping[str, Quota]]] = {}
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
        owners = (("caller", principal.account_id, principal.subject), ("account", principal.account_id, ""))
        limits = self._limits_of(principal.account_id, self._clock())
        now = self._clock()  # reading the limits may have taken a while
        usages = []
        with self._lock:
            self._admitted += 1
            if self._admitted % _FORGET_EVERY == 0:
                self._forget(now)
            for owner in owners:
                usage = self._usage.get(owner)
                if usage is None:
                    usage = self._usage[owner] = _Usage(now)
                whose = owner[0]
                usage.refill(limits[whose], now)
                self._check(whose, limits[whose], usage, kind)
                usages.append(usage)
            for usage in usages:
                usage.enter(kind)
        return Slot(self, kind, usages)

    def _limits_of(self, account_id: str, now: float) -> Mapping[str, Quota]:
        """The quotas of an account and its callers. They are read outside of the lock, as the store may be slow."""
        known = self._lowered.get(account_id)
        if known is not None and now < known[0] + _OWN_S:
            return known[1]
        own = self._own(account_id)
        found = {whose: _lowered(limits, whose, own) for whose, limits in self._limits.items()}
        with self._lock:
            if len(self._lowered) >= _MAX_ACCOUNTS:
                self._lowered.clear()
            self._lowered[account_id] = now, found
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

    def release(self, kind: Kind, usages: Sequence[_Usage], size: int) -> None:
        """The end of a call that transferred `size` bytes."""
        with self._lock:
            for usage in usages:
                usage.leave(kind, size)

    def _forget(self, now: float) -> None:
        """Drop what callers used who are quiet, and whose rate is complete again."""
        for owner, usage in list(self._usage.items()):
            known = self._lowered.get(owner[1])
            limits = (self._limits if known is None else known[1])[owner[0]]
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
    calls: float = _NO_LIMIT
    size: float = _NO_LIMIT

    def refill(self, limits: Quota, now: float) -> None:
        passed, self.since = now - self.since, now
        calls, size = limits.per_second, limits.bytes_per_second
        self.calls = min(self.calls + passed * calls, _most(calls)) if calls else _NO_LIMIT
        self.size = min(self.size + passed * size, _most(size)) if size else _NO_LIMIT

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


def _most(rate: float) -> float:
    """What is left at most; without a limit, it is never used up."""
    return max(1.0, _BURST_S * rate) if rate else _NO_LIMIT


class Slot:
    """The place of an open call in its quotas; release it exactly when the call ends."""

    __slots__ = ("_kind", "_quotas", "_released", "_usages", "size")

    def __init__(self, quotas: Quotas, kind: Kind, usages: Sequence[_Usage]) -> None:
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
