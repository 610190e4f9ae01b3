"""Queries: leases on what they read.

Who begins a query learns which snapshot of each table it reads, and can read all of that until the lease ends, whatever
is written, replaced or deleted meanwhile.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from skiway.errors import AlreadyExists, Contention, InvalidArgument, LimitExceeded, NotFound, PreconditionFailed
from skiway.metastore.queries import leases
from skiway.metastore.queries import pins as pinning
from skiway.metastore.queries.inputs import Inputs, Read
from skiway.metastore.queries.leases import QueryRules
from skiway.metastore.queries.pins import Pin, PinnedSnapshot, pins
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.names import MAX_NAME
from skiway.metastore.records.parents import retrying
from skiway.metastore.records.realm import Realm, local_id, timestamp
from skiway.metastore.resources import hierarchy
from skiway.model import v1

__all__ = ["RULES", "begin", "end", "get", "pinned", "renew"]

RULES = QueryRules()


def begin(realm: Realm, request: v1.BeginQueryRequest, *, rules: QueryRules = RULES) -> v1.BeginQueryResponse:
    """A new query with all that it reads pinned; all of it was so at one and the same moment."""
    if not request.default_catalog_id.id.strip():
        raise failure(InvalidArgument, "query.catalog.required", field="default_catalog_id")
    query_id = _chosen_id(request) if request.HasField("query_id") else realm.ids()
    _require_free(realm, query_id, rules)

    def attempt() -> v1.QueryLease:
        lease, found = _resolved(realm, query_id, request, rules)
        uris = pinning.pinned_uris(lease.tables)
        pinning.hold(realm, query_id, uris, until=leases.forgotten_at(lease, rules))
        if not pinning.still_there(realm, (pointer for pin in found for pointer in pin.pointers)):
            raise failure(Contention, "store.contended", what=f"what query {query_id} reads")
        leases.create(realm, lease, rules)
        return lease

    return v1.BeginQueryResponse(query=retrying(attempt).descriptor)


def renew(realm: Realm, request: v1.RenewQueryRequest, *, rules: QueryRules = RULES) -> v1.RenewQueryResponse:
    """Until when an active query now lives: as long as asked for from now on, but never shorter than before."""
    query_id = _checked_id(request.query_id)
    wanted = realm.clock() + timedelta(seconds=rules.ttl_s(request.ttl_seconds))

    def edit(lease: v1.QueryLease) -> None:
        if lease.descriptor.state != v1.LS_ACTIVE:
            raise leases.missing(query_id)
        lease.descriptor.expires_at.CopyFrom(timestamp(_latest(lease, wanted)))

    # The pins first: a lease must never outlive them.
    found = leases.amended(realm, query_id, rules)
    edit(found)
    pinning.hold(realm, query_id, pinning.pinned_uris(found.tables), until=leases.forgotten_at(found, rules))
    lease = leases.amended(realm, query_id, rules, edit=edit)
    return v1.RenewQueryResponse(query_id=query_id, expires_at=lease.descriptor.expires_at)


def end(realm: Realm, request: v1.EndQueryRequest, *, rules: QueryRules = RULES) -> v1.EndQueryResponse:
    """End a query and let go what it has pinned. One that is over already stays as it ended first."""
    query_id = _checked_id(request.query_id)
    kept_until = realm.clock() + timedelta(seconds=rules.grace_s)

    def edit(lease: v1.QueryLease) -> None:
        if lease.descriptor.state == v1.LS_ACTIVE:
            lease.descriptor.state = v1.LS_ENDED_COMMIT if request.commit else v1.LS_ENDED_ABORT
            lease.descriptor.expires_at.CopyFrom(timestamp(_latest(lease, kept_until)))

    lease = leases.amended(realm, query_id, rules, edit=edit)
    pinning.release(realm, query_id, pinning.pinned_uris(lease.tables))
    return v1.EndQueryResponse(query_id=query_id)


def get(realm: Realm, request: v1.GetQueryRequest, *, rules: QueryRules = RULES) -> v1.GetQueryResponse:
    """The query, in whatever state, as long as it is remembered."""
    lease = leases.amended(realm, _checked_id(request.query_id), rules)
    return v1.GetQueryResponse(query=lease.descriptor)


def pinned(realm: Realm, query_id: str, table_id: v1.ResourceId, *, rules: QueryRules = RULES) -> PinnedSnapshot:
    """A table as an active query reads it."""
    lease = leases.amended(realm, _checked_id(query_id), rules)
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
    """Raise where no query, or none of this id, can begin. Before anything is pinned under another's id."""
    if realm.stores.pointers.get(keys.lease(realm.account_id, query_id)) is not None:
        raise failure(AlreadyExists, "query.already.exists", resource="query", name=query_id)
    active = realm.stores.pointers.count(keys.lease_active(realm.account_id))
    if active >= rules.max_leases:
        raise failure(LimitExceeded, "query.too_many", found=str(active), limit=str(rules.max_leases))


def _resolved(
    realm: Realm, query_id: str, request: v1.BeginQueryRequest, rules: QueryRules
) -> tuple[v1.QueryLease, list[Pin]]:
    """The lease that is to be stored, and what it pins."""
    catalog = hierarchy.catalog(realm, request.default_catalog_id, field="default_catalog_id").value
    inputs = Inputs(realm, catalog)
    reads = list(inputs.reads(request.inputs))
    as_of = request.as_of_default if request.HasField("as_of_default") else None
    found = pins(realm, reads, default=v1.SnapshotRef(as_of=as_of))
    now = realm.clock()
    query = v1.QueryDescriptor(
        query_id=query_id,
        account_id=realm.account_id,
        state=v1.LS_ACTIVE,
        created_at=timestamp(now),
        expires_at=timestamp(now + timedelta(seconds=rules.ttl_s(request.ttl_seconds))),
        snapshots=v1.SnapshotSet(pins=[pin.told for pin in found]),
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
