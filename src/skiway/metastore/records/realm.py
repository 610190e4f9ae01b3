"""The metastore as one account, or one caller in it, sees it: what is withheld from the caller, and the ids of resources."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.errors import InvalidArgument, NotFound, PermissionDenied
from skiway.metastore.records import keys
from skiway.metastore.records.access import AccessDecision
from skiway.metastore.records.branches import branch_of
from skiway.metastore.records.errors import failure
from skiway.metastore.records.journal import RETENTION_S, journaled
from skiway.metastore.records.kinds import CATALOG, OF_TABLE, Kind
from skiway.metastore.records.names import normal_text
from skiway.metastore.records.policies import NO_FILES, NOT_CHANGED, CallerPolicies, Restriction
from skiway.metastore.records.repository import Guard, Repository, Stored
from skiway.model import v1
from skiway.storage import Clock, Stores, utc_now

GUARDED: Final = (v1.Table, v1.View, v1.Namespace, *OF_TABLE)
"""The messages of resources that policies concern."""


def columns_of(check: v1.RuleCheck) -> tuple[str, ...]:
    """The columns whose values a quality rule is about."""
    kind = check.WhichOneof("check")
    if kind == "unique":
        return tuple(check.unique.columns)
    if kind == "expectation":
        return tuple(check.expectation.columns)
    if kind in (None, "row_count", "freshness", "schema"):
        return ()
    return (getattr(check, kind).column,)


@dataclass(frozen=True, slots=True)
class PolicyGuard(Guard):
    """Hides what would tell a restricted caller about the original rows, and refuses changes by it."""

    policies: CallerPolicies

    @property
    def allows_unreadable(self) -> bool:
        """Whether no policy restricts the caller: which objects policies are about may be unknown."""
        return not self.policies.restrict_anything

    def shown(self, value: Message) -> Message | None:
        """The resource without what tells about the original rows."""
        restriction = self.policies.of_table(value.table_id.id) if isinstance(value, OF_TABLE) else None
        if restriction is None:
            return value
        match value:
            case v1.Snapshot():
                return _without_counts(value)
            case v1.TableStats():
                return None if restriction.filters else _without_upstream(value)
            case v1.ColumnStatsSet():
                return _without_masked(value, restriction)
            case v1.StatisticsHistory():
                return _history_without_masked(value, restriction)
            case v1.QualityRule():
                return None if _tells(value.check, restriction) else value
            case v1.RuleResults():
                return _without_telling(value, restriction)
        return None

    def require_change(self, *states: Message) -> None:
        """Raise if the caller is restricted on the resource, which was as in the first state.

        It must not bring values that it knows under a mask that shows something computed from them, either.
        """
        for number, state in enumerate(states):
            found = self._restriction(state)
            if found is None:
                continue
            if number and isinstance(state, v1.Table) and not found.computed_columns:
                continue
            raise found.refused(NOT_CHANGED)

    def require_create(self, value: Message) -> None:
        """Raise if the caller is restricted on the table of a snapshot or of statistics. New objects hide nothing."""
        if not isinstance(value, v1.Table | v1.View | v1.Namespace):
            self.require_change(value)

    def _restriction(self, on: Message) -> Restriction | None:
        match on:
            case v1.Table() | v1.View():
                return self.policies.of(on)
            case v1.Namespace():
                return self.policies.of_namespace(on)
            case _ if isinstance(on, OF_TABLE):
                return self.policies.of_table(on.table_id.id)
        return None


CONTENTS: Final = (v1.Namespace, v1.Table, v1.View)
"""The messages of what catalogs contain."""


@dataclass(frozen=True, slots=True)
class ProtectionGuard(Guard):
    """Refuses changes of what protected catalogs contain, because only merges of branches make them."""

    stores: Stores
    account_id: str

    @property
    def allows_unreadable(self) -> bool:
        """Whoever could delete an unreadable resource can still do so."""
        return True

    def require_change(self, *states: Any) -> None:
        """Raise if the resource is, or gets, into a protected catalog."""
        for catalog_id in {state.catalog_id.id for state in states}:
            if self.stores.pointers.get(keys.protected_catalog(self.account_id, catalog_id)) is not None:
                catalog = Repository(self.stores, CATALOG).at(keys.catalog(self.account_id, catalog_id))
                name = catalog_id if catalog is None else catalog.value.display_name
                raise failure(PermissionDenied, "catalog.protected", name=name)


def _without_counts(snapshot: v1.Snapshot) -> v1.Snapshot:
    shown = v1.Snapshot()
    shown.CopyFrom(snapshot)
    for each in ("manifest_list", "metadata_location", "format_metadata", "summary"):
        shown.ClearField(each)
    if "operation" in snapshot.summary:
        shown.summary["operation"] = snapshot.summary["operation"]
    return shown


def _without_upstream(stats: v1.TableStats) -> v1.TableStats:
    """The statistics without the location of the table."""
    shown = v1.TableStats()
    shown.CopyFrom(stats)
    shown.ClearField("upstream")
    return shown


def _without_masked(stats: v1.ColumnStatsSet, restriction: Restriction) -> v1.ColumnStatsSet | None:
    if restriction.filters:
        return None
    shown = v1.ColumnStatsSet(table_id=stats.table_id, snapshot_id=stats.snapshot_id)
    shown.columns.extend(each for each in stats.columns if _is_shown(each, restriction))
    for column in shown.columns:
        column.ClearField("upstream")
    return shown


def _history_without_masked(history: v1.StatisticsHistory, restriction: Restriction) -> v1.StatisticsHistory | None:
    if restriction.filters:
        return None
    shown = v1.StatisticsHistory()
    shown.CopyFrom(history)
    for snapshot, stored in zip(shown.snapshots, history.snapshots, strict=True):
        del snapshot.columns[:]
        snapshot.columns.extend(column for column in stored.columns if _is_shown(column, restriction))
    return shown


def _is_shown(column: v1.ColumnStats, restriction: Restriction) -> bool:
    """Whether a column is not masked. Parts of columns have names and ids of their own, so they are not shown."""
    names = [name for name, number in restriction.columns.items() if number == column.column_id]
    return bool(names) and all(
        restriction.mask_of(name, column.column_id) is None for name in (*names, column.column_name)
    )


def _tells(check: v1.RuleCheck, restriction: Restriction) -> bool:
    """Whether a rule, or its result, tells about original rows that are filtered, or about values that are masked."""
    kind = check.WhichOneof("check")
    if kind in ("freshness", "schema"):
        return False
    if restriction.filters or restriction.missing or kind is None:
        return True
    columns = columns_of(check)
    return any(
        name not in restriction.columns or restriction.mask_of(name, restriction.columns[name]) is not None
        for name in columns
    )


def _without_telling(results: v1.RuleResults, restriction: Restriction) -> v1.RuleResults:
    """The results without those that tell about what is hidden. The last status may come from such a result."""
    shown = v1.RuleResults()
    shown.CopyFrom(results)
    del shown.results[:]
    shown.results.extend(result for result in results.results if not _tells(result.check, restriction))
    shown.ClearField("last_decided")
    return shown


M = TypeVar("M", bound=Message)

PLATFORM = ""
"""The account of the operators, who manage all accounts and own no catalogs."""


def random_id() -> str:
    """A new random id."""
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class Realm:
    """The first argument of every function of the metastore: an account, the stores, a clock and an id generator.

    Nothing outside the account can be reached through it, and with `access` only what that decision allows. `policies`
    are those that restrict the caller. `caller` names who makes the call; it is empty for the server itself. It
    `administers` the account if it manages the grants of all its objects, as the server does. Only a merge, and what changes no
    contents, gets `past_protection` of catalogs. All changes are recorded as events, for `events_s` seconds.
    """

    stores: Stores
    account_id: str
    clock: Clock = utc_now
    ids: Callable[[], str] = random_id
    idempotency_ttl_s: float = 900.0
    closing_s: float = 30.0
    access: AccessDecision | None = None
    policies: CallerPolicies | None = None
    caller: str = ""
    administers: bool = True
    past_protection: bool = False
    events_s: float = RETENTION_S

    def __post_init__(self) -> None:
        stores = journaled(self.stores, clock=self.clock, caller=self.caller, retention_s=self.events_s)
        object.__setattr__(self, "stores", stores)

    def stored_state(self, *, since: float | None = None) -> Hashable | None:
        """A value that every change of the stores changes, in any account; None if they cannot tell. See `PointerStore.state`."""
        return self.stores.pointers.state(since=since)

    def all(self, kind: Kind[M]) -> Repository[M]:
        """The repository of a kind of resource."""
        by_access = None if self.access is None else self.access.guard(kind)
        by_policies = PolicyGuard(self.policies) if self.policies is not None and kind.message in GUARDED else None
        by_protection = None
        if not self.past_protection and kind.message in CONTENTS and branch_of(self.stores) is None:
            by_protection = ProtectionGuard(self.stores, self.account_id)
        guards = (by_access, by_policies, by_protection)
        return Repository(self.stores, kind, tuple(guard for guard in guards if guard is not None))

    def by_id(self, kind: Kind[M], own_id: str, *, damaged: bool = False) -> Stored[M]:
        """The resource of the account with this id; if `damaged`, also one with a damaged record. Raise `NotFound` if it is missing."""
        return self.all(kind).require(kind.by_id(self.account_id, own_id), name=own_id, damaged=damaged)

    def entry(self, kind: Kind[M], own_id: str) -> Stored[M] | None:
        """The resource of the account with this id, also one with a damaged record, or None."""
        return self.all(kind).at(kind.by_id(self.account_id, own_id))

    def without_policies(self) -> Realm:
        """The same realm, for code that applies the policies of the caller itself."""
        return replace(self, policies=None)

    def as_server(self) -> Realm:
        """The same realm without the limits of its caller: whatever anybody uses must stay."""
        return replace(self, access=None, policies=None)

    def require_unrestricted(self, on: v1.Table | v1.View, *, why: str = NO_FILES) -> None:
        """Raise `PermissionDenied` if a policy restricts what the caller sees of a table or view."""
        found = None if self.policies is None else self.policies.of(on)
        if found is not None:
            raise found.refused(why)

    def require_fillable(self, table: v1.Table) -> None:
        """Raise `PermissionDenied` if the caller cannot create a table with rows that the server does not see.

        The caller could choose values and compare their masks, such as hashes, with those of other rows.
        """
        found = None if self.policies is None else self.policies.of(table)
        if found is not None and found.computed_columns:
            raise found.refused("it cannot be created with files: create it without rows, and INSERT them")

    def require(self, permission: str, on: Message) -> None:
        """Raise `PermissionDenied` if the realm is that of a caller without the permission on an object, or if policies
        restrict the caller on an object to be changed.

        Repositories check changes by themselves; this is for changes that are made without them.
        """
        if self.access is not None:
            self.access.require(permission, on)
        if self.policies is not None and permission.endswith(".write"):
            PolicyGuard(self.policies).require_change(on)

    def require_everywhere(self, permission: str, *, what: str) -> None:
        """Raise `PermissionDenied` if the realm is that of a caller without the permission in the whole account."""
        if self.access is not None and not self.access.everywhere(permission):
            raise failure(PermissionDenied, "role.missing", permission=permission, name=what)

    @property
    def rights(self) -> str:
        """A text that differs if the roles, grants or policies of the caller change what it may do."""
        by_access = None if self.access is None else self.access.key
        by_policies = None if self.policies is None else self.policies.state
        return sha256(repr((by_access, by_policies)).encode()).hexdigest()

    def now(self) -> Timestamp:
        """The current time as a message."""
        return timestamp(self.clock())


def timestamp(moment: datetime) -> Timestamp:
    """`moment` as a message."""
    made = Timestamp()
    made.FromDatetime(moment)
    return made


def resource_id(realm: Realm, text: str, kind: v1.ResourceKind.ValueType) -> v1.ResourceId:
    """The id `text` in the realm's account."""
    return v1.ResourceId(account_id=realm.account_id, id=text, kind=kind)


def local_id(realm: Realm, given: v1.ResourceId, kind: v1.ResourceKind.ValueType, *, field: str) -> str:
    """The text of an id that the request has in `field`. The id of another account is treated as missing."""
    if given.kind not in (kind, v1.RK_UNSPECIFIED):
        raise failure(InvalidArgument, "kind", field=field, found=kind_name(given.kind), wanted=kind_name(kind))
    if not given.id.strip():
        raise failure(InvalidArgument, "field", field=field)
    if given.account_id not in ("", realm.account_id):
        raise failure(NotFound, kind_name(kind), resource=kind_name(kind), id=given.id)
    return given.id


def by_id_or_name(realm: Realm, kind: Kind[M], request: Any) -> Stored[M]:
    """The resource whose id or `display_name` the request has, also a damaged one. The field of the id is named after the kind."""
    resource, field = kind.noun, f"{kind.noun}_id"
    if request.HasField(field):
        found = name = local_id(realm, getattr(request, field), kind.number, field=field)
    else:
        name = normal_text(request.display_name)
        if not name:
            raise failure(InvalidArgument, "field", field=field)
        named = realm.all(kind).at(kind.by_name(realm.account_id, name))
        if named is None:
            raise failure(NotFound, resource, resource=resource, id=name)
        value: Any = named.value  # all kinds with names have ids
        found = value.resource_id.id
    return realm.all(kind).require(kind.by_id(realm.account_id, found), name=name, damaged=True)


def kind_name(kind: int) -> str:
    """The name of a kind of resource in messages. An unknown number has no name."""
    known = v1.ResourceKind.DESCRIPTOR.values_by_number.get(kind)
    return f"kind {kind}" if known is None else known.name.removeprefix("RK_").lower()
