"""Leases of transactions: what a transaction of DuckDB with more than one statement reads.

DuckDB never says that a transaction ends, so its lease lasts as long as the transaction can be used. Ending the lease ends the
transaction: its record stays until then, and every server refuses further reads. The server holds these leases for its
callers, so their grants and policies do not matter here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from skiway.errors import AlreadyExists, LimitExceeded, NotFound, PreconditionFailed
from skiway.metastore.queries import leases, pins
from skiway.metastore.queries.leases import RULES, QueryRules
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import SNAPSHOT
from skiway.metastore.records.realm import Realm, resource_id, timestamp
from skiway.metastore.resources import hierarchy
from skiway.model import v1

__all__ = ["TransactionUse", "check_transaction", "use_in_transaction"]


@dataclass(frozen=True, slots=True)
class TransactionUse:
    """What a transaction has used: snapshots by table id, and how many statements."""

    transaction_id: str
    began: datetime
    until: datetime
    snapshots: Sequence[tuple[str, int]]
    statements: int


def use_in_transaction(realm: Realm, used: TransactionUse, *, rules: QueryRules = RULES) -> None:
    """Store what a transaction uses. Raise `PreconditionFailed` if its lease was ended.

    If the account has too many leases, the transaction has none: it can be used, but is not listed.
    """
    realm = _as_server(realm)
    try:
        lease = _active(leases.find(realm, used.transaction_id).value)
    except NotFound:
        try:
            leases.create(realm, _lease(realm, used), rules)
        except (AlreadyExists, LimitExceeded):  # another server has just stored it, or there are too many
            return
        lease = v1.QueryLease()
    known = {(each.table_id.id, each.snapshot_id) for each in lease.tables}
    new = [_pinned(realm, *each) for each in used.snapshots if each not in known]
    # The pins first: a lease must never name what is not held.
    pins.hold(realm, used.transaction_id, pins.pinned_uris(new), until=used.until)

    def edit(lease: v1.QueryLease) -> None:
        _active(lease)
        query = lease.descriptor
        query.last_used_at.CopyFrom(realm.now())
        query.statements = max(query.statements, used.statements)
        names = {(each.table_id.id, each.snapshot_id) for each in lease.tables}
        added = [each for each in new if (each.table_id.id, each.snapshot_id) not in names]
        lease.tables.extend(added)
        query.snapshots.pins.extend(
            v1.SnapshotPin(table_id=each.table_id, snapshot_id=each.snapshot_id) for each in added
        )

    leases.amended(realm, used.transaction_id, rules, edit=edit)


def check_transaction(realm: Realm, transaction_id: str) -> bool:
    """Whether a transaction has a lease. Raise `PreconditionFailed` if it was ended."""
    try:
        _active(leases.find(_as_server(realm), transaction_id).value)
    except NotFound:
        return False
    return True


def _active(lease: v1.QueryLease) -> v1.QueryLease:
    if lease.descriptor.state in leases.ENDED:
        raise failure(PreconditionFailed, "query.ended", transaction_id=lease.descriptor.query_id)
    return lease


def _as_server(realm: Realm) -> Realm:
    return replace(realm, access=None, policies=None)


def _lease(realm: Realm, used: TransactionUse) -> v1.QueryLease:
    query = v1.QueryDescriptor(
        query_id=used.transaction_id,
        account_id=realm.account_id,
        caller=realm.caller,
        kind=v1.QK_TRANSACTION,
        state=v1.LS_ACTIVE,
        statements=used.statements,
        created_at=timestamp(used.began),
        expires_at=timestamp(used.until),
        last_used_at=realm.now(),
    )
    return v1.QueryLease(descriptor=query, updated_at=realm.now())


def _pinned(realm: Realm, table_id: str, snapshot_id: int) -> v1.PinnedTable:
    """What to hold of a table. Snapshots of folders that were never synchronised have no record."""
    snapshot = realm.all(SNAPSHOT).find(keys.snapshot(realm.account_id, table_id, snapshot_id))
    try:
        table = hierarchy.table(realm, resource_id(realm, table_id, v1.RK_TABLE))
    except NotFound:  # dropped meanwhile
        table = None
    if table is None or snapshot is None:
        return v1.PinnedTable(table_id=resource_id(realm, table_id, v1.RK_TABLE), snapshot_id=snapshot_id)
    return pins.stored(realm, table, snapshot, v1.SnapshotRef()).stored
