"""Scans that the server planned for Iceberg clients, so that they can fetch the files in parts.

Only the question is stored, not the files: a snapshot never changes, so every server finds the same files again. A plan belongs
to its caller and expires after an hour; of each caller and table, the newest ones are kept.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Final

import msgspec

from skiway.clock import to_micros
from skiway.errors import Conflict, LimitExceeded, NotFound
from skiway.metastore.records import keys
from skiway.metastore.records.realm import Realm
from skiway.storage import ABSENT, Delete, Put

__all__ = ["MAX_PLANS", "ScanPlan", "add_plan", "cancel_plan", "check_size", "find_plan"]

MAX_PLANS: Final = 100
MAX_BYTES: Final = 100_000
KEPT: Final = timedelta(hours=1)


class ScanPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asked for. `filter` is JSON, or empty. Without a snapshot, the table was empty."""

    snapshot_id: int | None = None
    start_id: int | None = None
    filter: str = ""
    case_sensitive: bool = True
    snapshot_schema: bool = False


def check_size(plan: ScanPlan) -> None:
    """Raise `LimitExceeded` if the plan cannot be stored. Call this before the plan is made."""
    if len(plan.filter) > MAX_BYTES:
        raise LimitExceeded(
            f"the filter of the scan has {len(plan.filter)} characters, the maximum is {MAX_BYTES}: send a shorter one, and filter "
            "the rows in the client",
            key="plan.too_large",
        )


def add_plan(realm: Realm, table_id: str, plan: ScanPlan) -> str:
    """Store a plan and return its id."""
    text, now = msgspec.json.encode(plan).decode(), realm.clock()
    plan_id = f"{to_micros(now):020d}-{realm.ids()}"
    key = keys.scan_plan(realm.account_id, table_id, realm.caller, plan_id)
    realm.stores.pointers.apply([Put(key, text, expect=ABSENT, expires_at=now + KEPT)])
    prefix = keys.scan_plan(realm.account_id, table_id, realm.caller)
    for each in realm.stores.pointers.page(prefix, size=2 * MAX_PLANS).items[:-MAX_PLANS]:
        with suppress(Conflict, NotFound):  # another server was first
            realm.stores.pointers.apply([Delete(each.key, expect=each.version)])
    return plan_id


def find_plan(realm: Realm, table_id: str, plan_id: str) -> ScanPlan:
    """The caller's plan with this id; raises `NotFound`."""
    found = (
        realm.stores.pointers.get(keys.scan_plan(realm.account_id, table_id, realm.caller, plan_id))
        if plan_id
        else None
    )
    if found is None:
        raise _missing(plan_id)
    return msgspec.json.decode(found.blob_uri, type=ScanPlan)


def cancel_plan(realm: Realm, table_id: str, plan_id: str) -> None:
    """Forget the caller's plan with this id; raises `NotFound`."""
    key = keys.scan_plan(realm.account_id, table_id, realm.caller, plan_id)
    found = realm.stores.pointers.get(key) if plan_id else None
    if found is None:
        raise _missing(plan_id)
    with suppress(Conflict, NotFound):
        realm.stores.pointers.apply([Delete(key, expect=found.version)])


def _missing(plan_id: str) -> NotFound:
    return NotFound(
        f"plan {plan_id[:100]!r} does not exist: it was cancelled, has expired, or belongs to another caller or table; plan the "
        "scan again",
        key="plan.missing",
    )
