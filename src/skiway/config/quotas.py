"""Quotas of callers and accounts."""

from __future__ import annotations

from skiway.config.fields import number, section, setting, whole

__all__ = ["AccountQuota", "Quota", "Quotas"]

CALLS = "Open calls of all kinds that are not listed here."
SCANS = "Open scans."
EXCHANGES = "Open exchanges: INSERT, UPDATE, DELETE and functions over rows."
HANDSHAKES = "Open handshakes."
QUERIES = "Open calls about queries: planning, and reading scan bundles."
PER_SECOND = "Calls per second of all kinds; twice as many at once after a pause."
BYTES = "Bytes per second, received and sent. They count when a call ends; calls are rejected while too many were used."
AMOUNT = whole(at_least=0)
RATE = number(at_least=0)


@section
class Quota:
    """What a caller may use of each server process; 0 means no limit."""

    calls: int = setting(64, AMOUNT, CALLS)
    scans: int = setting(48, AMOUNT, SCANS)
    exchanges: int = setting(48, AMOUNT, EXCHANGES)
    handshakes: int = setting(4, AMOUNT, HANDSHAKES)
    queries: int = setting(64, AMOUNT, QUERIES)
    per_second: float = setting(5000.0, RATE, PER_SECOND)
    bytes_per_second: int = setting(0, AMOUNT, BYTES)


@section
class AccountQuota(Quota):
    """What all callers of an account together may use of each server process; 0 means no limit."""

    calls: int = setting(128, AMOUNT, CALLS)
    scans: int = setting(56, AMOUNT, SCANS)
    exchanges: int = setting(56, AMOUNT, EXCHANGES)
    handshakes: int = setting(6, AMOUNT, HANDSHAKES)
    queries: int = setting(128, AMOUNT, QUERIES)
    per_second: float = setting(10_000.0, RATE, PER_SECOND)
    bytes_per_second: int = setting(0, AMOUNT, BYTES)


@section
class Quotas:
    """The quotas of each caller, and of all callers of an account together, in each server process."""

    caller: Quota = Quota()
    account: AccountQuota = AccountQuota()
