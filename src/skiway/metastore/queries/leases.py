"""Leases of queries, and of transactions of DuckDB with more than one statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from skiway.errors import (
    AlreadyExists,
    Conflict,
    Contention,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    PreconditionFailed,
)
from skiway.metastore.queries import pins as pinning
from skiway.metastore.queries.pins import Inputs, Pin, PinnedSnapshot, Read, pins
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import LEASE, SNAPSHOT
from skiway.metastore.records.names import MAX_NAME
from skiway.metastore.records.realm import Realm, local_id, resource_id, timestamp
from skiway.metastore.records.repository import Stored, sliced
from skiway.metastore.records.updates import copied, retrying
from skiway.metastore.resources import hierarchy
from skiway.model import v1
from skiway.storage import ABSENT, Delete, Operation, Put

ENDED = (v1.LS_ENDED_COMMIT, v1.LS_ENDED_ABORT)


@dataclass(frozen=True, slots=True)
class QueryRules:
    """How long leases last, and how many may be active. A request without a time gets the default."""

    default_ttl_s: float = 60.0
    max_ttl_s: float = 24 * 3600.0
    grace_s: float = 15.0
    max_leases: int = 10_000

    def ttl_s(self, requested_s: int) -> float:
        """The duration of a lease for the requested one."""
        return min(float(requested_s), self.max_ttl_s) if requested_s > 0 else self.default_ttl_s


RULES = QueryRules()


def begin(realm: Realm, request: v1.BeginQueryRequest, *, rules: QueryRules = RULES) -> v1.BeginQueryResponse:
    """Begin a query and pin everything it reads, as of one moment."""
    if not request.default_catalog_id.id.strip():
        raise failure(InvalidArgument, "query.catalog.required", field="default_catalog_id")
    query_id = _chosen_id(request) if request.HasField("query_id") else realm.ids()
    _require_free(realm, query_id, rules)

    def attempt() -> v1.QueryLease:
        lease, found = _resolved(realm, query_id, request, rules)
        uris = pinning.pinned_uris(lease.tables)
        pinning.hold(realm, query_id, uris, until=_removed_at(lease, rules))
        if not pinning.are_unchanged(realm, (pointer for pin in found for pointer in pin.pointers)):
            raise failure(Contention, "store.contended", what=f"the tables that query {query_id} reads")
        _store(realm, lease, rules)
        return lease

    return v1.BeginQueryResponse(query=retrying(attempt).descriptor)


def renew(realm: Realm, request: v1.RenewQueryRequest, *, rules: QueryRules = RULES) -> v1.RenewQueryResponse:
    """Extend an active query by the requested time from now on. A renewal never shortens it."""
    query_id = _checked_id(request.query_id)
    wanted = realm.clock() + timedelta(seconds=rules.ttl_s(request.ttl_seconds))

    def edit(lease: v1.QueryLease) -> None:
        if lease.descriptor.state != v1.LS_ACTIVE:
            raise _missing(query_id)
        lease.descriptor.expires_at.CopyFrom(timestamp(_latest(lease, wanted)))

    # The pins first: a lease must never outlive them.
    found = _require_own(realm, amended(realm, query_id, rules))
    edit(found)
    pinning.hold(realm, query_id, pinning.pinned_uris(found.tables), until=_removed_at(found, rules))
    lease = amended(realm, query_id, rules, edit=edit)
    return v1.RenewQueryResponse(query_id=query_id, expires_at=lease.descriptor.expires_at)


def end(realm: Realm, request: v1.EndQueryRequest, *, rules: QueryRules = RULES) -> v1.EndQueryResponse:
    """End a query and release its pins. A query that has ended already keeps its first outcome."""
    query_id = _checked_id(request.query_id)
    _require_own(realm, find(realm, query_id).value)
    stored_until = realm.clock() + timedelta(seconds=rules.grace_s)

    def edit(lease: v1.QueryLease) -> None:
        if lease.descriptor.state == v1.LS_ACTIVE:
            lease.descriptor.state = v1.LS_ENDED_COMMIT if request.commit else v1.LS_ENDED_ABORT
            lease.descriptor.expires_at.CopyFrom(timestamp(_latest(lease, stored_until)))

    lease = amended(realm, query_id, rules, edit=edit)
    pinning.release(realm, query_id, pinning.pinned_uris(lease.tables))
    return v1.EndQueryResponse(query_id=query_id)


def get(realm: Realm, request: v1.GetQueryRequest, *, rules: QueryRules = RULES) -> v1.GetQueryResponse:
    """Return the query, in any state, as long as its record exists."""
    lease = _require_own(realm, amended(realm, _checked_id(request.query_id), rules))
    return v1.GetQueryResponse(query=lease.descriptor)


def scan(realm: Realm) -> Iterator[v1.QueryDescriptor]:
    """All active queries of the caller; for administrators, those of the whole account."""
    now = realm.clock()
    found = (entry.value.descriptor for entry in realm.all(LEASE).entries(keys.lease_active(realm.account_id)))
    return (each for each in found if _is_own(realm, each) and each.expires_at.ToDatetime(UTC) > now)


def list_(realm: Realm, request: v1.ListQueriesRequest) -> v1.ListQueriesResponse:
    """List the active queries of the caller; for administrators, those of the whole account."""
    shown = sorted(scan(realm), key=lambda each: each.query_id)
    queries, page = sliced(shown, request.page, listing="queries", name=lambda each: each.query_id)
    return v1.ListQueriesResponse(queries=queries, page=page)


def pinned(realm: Realm, query_id: str, table_id: v1.ResourceId, *, rules: QueryRules = RULES) -> PinnedSnapshot:
    """A table as an active query reads it."""
    lease = _require_own(realm, amended(realm, _checked_id(query_id), rules))
    wanted = local_id(realm, table_id, v1.RK_TABLE, field="table_id")
    if lease.descriptor.state != v1.LS_ACTIVE:
        state = v1.LeaseState.Name(lease.descriptor.state).removeprefix("LS_").lower()
        raise failure(PreconditionFailed, "query.not.active", query_id=query_id, state=state)
    for table in lease.tables:
        if table.table_id.id == wanted:
            return PinnedSnapshot(realm, table)
    raise failure(NotFound, "query.table.not.pinned", query_id=query_id, table_id=wanted)


def _chosen_id(request: v1.BeginQueryRequest) -> str:
    query_id = _checked_id(request.query_id)
    if len(query_id) > MAX_NAME:
        found, limit = str(len(query_id)), str(MAX_NAME)
        raise failure(LimitExceeded, "name.too_long", field="query_id", found=found, limit=limit)
    return query_id


def _checked_id(query_id: str) -> str:
    if not query_id.strip():
        raise failure(InvalidArgument, "field", field="query_id")
    return query_id.strip()


def _require_free(realm: Realm, query_id: str, rules: QueryRules) -> None:
    """Raise if the id is in use, or too many queries are active: before anything is pinned under another query's id."""
    if realm.stores.pointers.get(keys.lease(realm.account_id, query_id)) is not None:
        raise failure(AlreadyExists, "query.already.exists", resource="query", name=query_id)
    active = realm.stores.pointers.count(keys.lease_active(realm.account_id))
    if active >= rules.max_leases:
        raise failure(LimitExceeded, "query.too_many", found=str(active), limit=str(rules.max_leases))


def _resolved(
    realm: Realm, query_id: str, request: v1.BeginQueryRequest, rules: QueryRules
) -> tuple[v1.QueryLease, list[Pin]]:
    """The lease to be stored, and what it pins."""
    catalog = hierarchy.catalog(realm, request.default_catalog_id, field="default_catalog_id").value
    inputs = Inputs(realm, catalog)
    reads = list(inputs.reads(request.inputs))
    as_of = request.as_of_default if request.HasField("as_of_default") else None
    found = pins(realm, reads, default=v1.SnapshotRef(as_of=as_of))
    now = realm.clock()
    query = v1.QueryDescriptor(
        query_id=query_id,
        account_id=realm.account_id,
        caller=realm.caller,
        state=v1.LS_ACTIVE,
        created_at=timestamp(now),
        expires_at=timestamp(now + timedelta(seconds=rules.ttl_s(request.ttl_seconds))),
        snapshots=v1.SnapshotSet(pins=[pin.reported for pin in found]),
        expansion=v1.ExpansionMap(views=inputs.expansions.values(), read_via_view_tables=_by_views_only(reads)),
    )
    lease = v1.QueryLease(
        descriptor=query,
        tables=[pin.stored for pin in found],
        default_catalog_id=catalog.resource_id,
        as_of_default=as_of,
        updated_at=timestamp(now),
    )
    return lease, found


def _by_views_only(reads: list[Read]) -> list[v1.ResourceId]:
    direct = {read.table_id.id for read in reads if not read.by_view}
    return list({read.table_id.id: read.table_id for read in reads if read.table_id.id not in direct}.values())


def _latest(lease: v1.QueryLease, other: datetime) -> datetime:
    return max(lease.descriptor.expires_at.ToDatetime(UTC), other)


# --- the stored lease -------------------------------------------------------------------------------------------------


def find(realm: Realm, query_id: str) -> Stored[v1.QueryLease]:
    """The lease as stored, which may be active although its time is over."""
    lease = realm.all(LEASE).find(keys.lease(realm.account_id, query_id))
    if lease is None:
        raise _missing(query_id)
    return lease


def amended(
    realm: Realm, query_id: str, rules: QueryRules, *, edit: Callable[[v1.QueryLease], None] = lambda _: None
) -> v1.QueryLease:
    """Apply `edit` to a copy of the lease, in which an overdue lease is expired, and return the stored result."""

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


def create(realm: Realm, lease: v1.QueryLease, rules: QueryRules) -> None:
    """Store a new lease. Raise `AlreadyExists` if there is one with its id, and `LimitExceeded` if there are too many."""
    _require_free(realm, lease.descriptor.query_id, rules)
    _store(realm, lease, rules)


def _store(realm: Realm, lease: v1.QueryLease, rules: QueryRules) -> None:
    uri, until = _put(realm, lease), _removed_at(lease, rules)
    puts = [Put(key, uri, expect=ABSENT, expires_at=until) for key in (LEASE.key(lease), *LEASE.names(lease))]
    try:
        realm.stores.pointers.apply(puts)
    except Contention:
        raise
    except Conflict:
        name = lease.descriptor.query_id
        raise failure(AlreadyExists, "query.already.exists", resource="query", name=name) from None


def _replace(realm: Realm, current: Stored[v1.QueryLease], lease: v1.QueryLease, rules: QueryRules) -> None:
    """Replace the lease that was read.

    Its pointers are created, moved and deleted together, so all of them have the version of the first.
    """
    uri, until, version = _put(realm, lease), _removed_at(lease, rules), current.pointer.version
    remaining = (current.pointer.key, *LEASE.names(lease))
    batch: list[Operation] = [Put(key, uri, expect=version, expires_at=until) for key in remaining]
    batch += (Delete(key, expect=version) for key in LEASE.names(current.value) if key not in remaining)
    try:
        realm.stores.pointers.apply(batch)
    except Conflict:
        what = f"the lease of query {lease.descriptor.query_id}"
        raise failure(Contention, "store.contended", what=what) from None


def _put(realm: Realm, lease: v1.QueryLease) -> str:
    data = lease.SerializeToString(deterministic=True)
    return realm.stores.blobs.put(data, folder=keys.folder(LEASE.key(lease)), suffix=".pb")


def _expire(lease: v1.QueryLease, now: datetime) -> None:
    query = lease.descriptor
    if query.state == v1.LS_ACTIVE and query.expires_at.ToDatetime(UTC) <= now:
        query.state = v1.LS_EXPIRED


def _removed_at(lease: v1.QueryLease, rules: QueryRules) -> datetime:
    """When the record of the lease is removed."""
    expires_at = lease.descriptor.expires_at.ToDatetime(UTC)
    # Ending a query adds the grace period to its time.
    return expires_at if lease.descriptor.state in ENDED else expires_at + timedelta(seconds=rules.grace_s)


def _is_own(realm: Realm, query: v1.QueryDescriptor) -> bool:
    """Whether the caller began the query, or administers the account."""
    return realm.administers or query.caller in ("", realm.caller)


def _require_own(realm: Realm, lease: v1.QueryLease) -> v1.QueryLease:
    """The lease. For all but its caller and administrators it does not exist."""
    if not _is_own(realm, lease.descriptor):
        raise _missing(lease.descriptor.query_id)
    return lease


def _missing(query_id: str) -> NotFound:
    """The error that there is no such query, or that it is not active."""
    return failure(NotFound, "query.not_found", query_id=query_id)


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
    realm = realm.as_server()
    try:
        lease = _active(find(realm, used.transaction_id).value)
    except NotFound:
        try:
            create(realm, _lease(realm, used), rules)
        except (AlreadyExists, LimitExceeded):  # another server has just stored it, or there are too many
            return
        lease = v1.QueryLease()
    known = {(table.table_id.id, table.snapshot_id) for table in lease.tables}
    new = [_pinned(realm, *snapshot) for snapshot in used.snapshots if snapshot not in known]
    # The pins first: a lease must never name what is not held.
    pinning.hold(realm, used.transaction_id, pinning.pinned_uris(new), until=used.until)

    def edit(lease: v1.QueryLease) -> None:
        _active(lease)
        query = lease.descriptor
        query.last_used_at.CopyFrom(realm.now())
        query.statements = max(query.statements, used.statements)
        names = {(table.table_id.id, table.snapshot_id) for table in lease.tables}
        added = [each for each in new if (each.table_id.id, each.snapshot_id) not in names]
        lease.tables.extend(added)
        query.snapshots.pins.extend(
            v1.SnapshotPin(table_id=each.table_id, snapshot_id=each.snapshot_id) for each in added
        )

    amended(realm, used.transaction_id, rules, edit=edit)


def check_transaction(realm: Realm, transaction_id: str) -> bool:
    """Whether a transaction has a lease. Raise `PreconditionFailed` if it was ended."""
    try:
        _active(find(realm.as_server(), transaction_id).value)
    except NotFound:
        return False
    return True


def _active(lease: v1.QueryLease) -> v1.QueryLease:
    if lease.descriptor.state in ENDED:
        raise failure(PreconditionFailed, "query.ended", transaction_id=lease.descriptor.query_id)
    return lease


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
    except NotFound:  # dropped in the meantime
        table = None
    if table is None or snapshot is None:
        return v1.PinnedTable(table_id=resource_id(realm, table_id, v1.RK_TABLE), snapshot_id=snapshot_id)
    return pinning.stored(realm, table, snapshot, v1.SnapshotRef()).stored
