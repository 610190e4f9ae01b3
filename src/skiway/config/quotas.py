"""Quotas of callers and accounts."""

from __future__ import annotations

from skiway.config.fields import number, section, setting, whole

__all__ = ["AccountQuota", "Quota", "Quotas"]

BYTES = "Bytes per second, received and sent. They count when a call ends; calls are rejected while too many were used."
AMOUNT = whole(at_least=0)
RATE = number(at_least=0)


@section
class Quota:
    """What a caller may use of each server process; 0 means no limit."""

    calls: int = setting(64, AMOUNT, "Open calls of all kinds that are not listed here.")
    scans: int = setting(48, AMOUNT, "Open scans.")
    exchanges: int = setting(48, AMOUNT, "Open exchanges: INSERT, UPDATE, DELETE and functions over rows.")
    handshakes: int = setting(4, AMOUNT, "Open handshakes.")
    queries: int = setting(64, AMOUNT, "Open calls about queries: planning, and reading scan bundles.")
    per_second: float = setting(5000.0, RATE, "Calls per second of all kinds; twice as many at once after a pause.")
    bytes_per_second: int = setting(0, AMOUNT, BYTES)


@section
class AccountQuota(Quota):
    """What all callers of an account together may use of each server process; 0 means no limit."""

    calls: int = setting(128, AMOUNT, "Open calls of all kinds that are not listed here.")
    scans: int = setting(56, AMOUNT, "Open scans.")
    exchanges: int = setting(56, AMOUNT, "Open exchanges: INSERT, UPDATE, DELETE and functions over rows.")
    handshakes: int = setting(6, AMOUNT, "Open handshakes.")
    queries: int = setting(128, AMOUNT, "Open calls about queries: planning, and reading scan bundles.")
    per_second: float = setting(10_000.0, RATE, "Calls per second of all kinds; twice as many at once after a pause.")
    bytes_per_second: int = setting(0, AMOUNT, BYTES)


@section
class Quotas:
    """The quotas of each caller, and of all callers of an account together, in each server process."""

    caller: Quota = Quota()
    account: AccountQuota = AccountQuota()
