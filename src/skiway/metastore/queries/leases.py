"""How long a query lives, and how many there may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from skiway.errors import AlreadyExists, Conflict, Contention, NotFound
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import LEASE
from skiway.metastore.records.parents import retrying
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Stored
from skiway.metastore.records.updates import copied
from skiway.model import v1
from skiway.storage import ABSENT, Delete, Operation, Put

__all__ = ["QueryRules", "amended", "create", "find", "forgotten_at", "missing"]


@dataclass(frozen=True, slots=True)
class QueryRules:
    """The rules of leases. Who asks for no time gets the default; who asks for more than the most gets the most."""

    default_ttl_s: float = 60.0
    max_ttl_s: float = 24 * 3600.0
    grace_s: float = 15.0
    max_leases: int = 10_000

    def ttl_s(self, asked_s: int) -> float:
        """How long a lease is given that was asked for this long."""
        return min(float(asked_s), self.max_ttl_s) if asked_s > 0 else self.default_ttl_s


# --------------------
# The leases of queries, stored so that every server of the store can answer for them.
#
# A lease is active until it is ended or its time is over. Who finds it active after its time writes down that it has
# expired, but only as it was read: a renewal that came first stays. Its record can be read for a while after, then its
# pointers expire and it is gone.


ENDED = (v1.LS_ENDED_COMMIT, v1.LS_ENDED_ABORT)


def find(realm: Realm, query_id: str) -> Stored[v1.QueryLease]:
    """The lease as it was last written, which may be active although its time is over."""
    found = realm.all(LEASE).find(keys.lease(realm.account_id, query_id))
    if found is None:
        raise missing(query_id)
    return found


def create(realm: Realm, lease: v1.QueryLease, rules: QueryRules) -> None:
    """Store a new lease."""
    uri, until = _put(realm, lease), forgotten_at(lease, rules)
    puts = [Put(key, uri, expect=ABSENT, expires_at=until) for key in (LEASE.key(lease), *LEASE.names(lease))]
    try:
        realm.stores.pointers.apply(puts)
    except Contention:
        raise
    except Conflict:
        name = lease.descriptor.query_id
        raise failure(AlreadyExists, "query.already.exists", resource="query", name=name) from None


def amended(
    realm: Realm, query_id: str, rules: QueryRules, *, edit: Callable[[v1.QueryLease], None] = lambda _: None
) -> v1.QueryLease:
    """The lease after `edit`, which is given one that is active only if it still has time."""

    def attempt() -> v1.QueryLease:
        current = find(realm, query_id)
        desired = copied(current.value)
        _expire(desired, realm.clock())
        edit(desired)
        if desired != current.value:
            desired.updated_at.CopyFrom(realm.now())
            _replace(realm, current, desired, rules)
        return desired

    return retrying(attempt)


def forgotten_at(lease: v1.QueryLease, rules: QueryRules) -> datetime:
    """When nobody can ask for the lease any more."""
    expires_at = lease.descriptor.expires_at.ToDatetime(UTC)
    # An end has set the time so that it holds the grace already.
    return expires_at if lease.descriptor.state in ENDED else expires_at + timedelta(seconds=rules.grace_s)


def missing(query_id: str) -> NotFound:
    """The error that there is no such query, or none that is active where one must be."""
    return failure(NotFound, "query.not.found", query_id=query_id)


def _expire(lease: v1.QueryLease, now: datetime) -> None:
    query = lease.descriptor
    if query.state == v1.LS_ACTIVE and query.expires_at.ToDatetime(UTC) <= now:
        query.state = v1.LS_EXPIRED


def _put(realm: Realm, lease: v1.QueryLease) -> str:
    data = lease.SerializeToString(deterministic=True)
    return realm.stores.blobs.put(data, folder=keys.folder(LEASE.key(lease)), suffix=".pb")


def _replace(realm: Realm, current: Stored[v1.QueryLease], lease: v1.QueryLease, rules: QueryRules) -> None:
    """Write the lease in place of the one that was read. Its pointers are made, moved and forgotten together, so they
    all have the version of the first.
    """
    uri, until, version = _put(realm, lease), forgotten_at(lease, rules), current.pointer.version
    kept = (current.pointer.key, *LEASE.names(lease))
    batch: list[Operation] = [Put(key, uri, expect=version, expires_at=until) for key in kept]
    batch += (Delete(key, expect=version) for key in LEASE.names(current.value) if key not in kept)
    try:
        realm.stores.pointers.apply(batch)
    except Conflict:
        what = f"the lease of query {lease.descriptor.query_id}"
        raise failure(Contention, "store.contended", what=what) from None
