"""The metastore as one account, or one caller in it, sees it, and the ids of resources in it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.errors import InvalidArgument, NotFound, PermissionDenied
from skiway.metastore.records.access import AccessDecision
from skiway.metastore.records.errors import failure
from skiway.metastore.records.journal import RETENTION_S, journaled
from skiway.metastore.records.kinds import Kind
from skiway.metastore.records.names import normal_text
from skiway.metastore.records.policies import NO_FILES, CallerPolicies
from skiway.metastore.records.policy_guard import GUARDED, BothGuards, PolicyGuard
from skiway.metastore.records.repository import Guard, Repository, Stored
from skiway.model import v1
from skiway.storage import Clock, Stores, utc_now

__all__ = ["PLATFORM", "Realm", "by_id_or_name", "kind_name", "local_id", "random_id", "resource_id", "timestamp"]

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
    `administers` the account if it manages the grants of all its objects, as the server does. All changes are recorded as
    events, for `events_s` seconds.
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
    events_s: float = RETENTION_S

    def __post_init__(self) -> None:
        stores = journaled(self.stores, clock=self.clock, caller=self.caller, retention_s=self.events_s)
        object.__setattr__(self, "stores", stores)

    def stored_state(self) -> Hashable | None:
        """A value that every change of the stores changes, in any account; None if they cannot tell."""
        return self.stores.pointers.state()

    def all(self, kind: Kind[M]) -> Repository[M]:
        """The repository of a kind of resource."""
        by_access: Guard | None = None if self.access is None else self.access.guard(kind)
        concerned = self.policies if kind.message in GUARDED else None
        by_policies: Guard | None = None if concerned is None else PolicyGuard(concerned)
        guard = BothGuards(by_access, by_policies) if by_access and by_policies else by_access or by_policies
        return Repository(self.stores, kind, guard)

    def without_policies(self) -> Realm:
        """The same realm, for code that applies the policies of the caller itself."""
        return replace(self, policies=None)

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


def by_id_or_name(
    realm: Realm,
    kind: Kind[M],
    request: Any,
    number: v1.ResourceKind.ValueType,
    *,
    key: Callable[[str, str], str],
    name_key: Callable[[str, str], str],
) -> Stored[M]:
    """The resource whose id or `display_name` the request has, also a damaged one. The field of the id is named after the kind."""
    resource = kind_name(number)
    field = f"{resource}_id"
    if request.HasField(field):
        found = name = local_id(realm, getattr(request, field), number, field=field)
    else:
        name = normal_text(request.display_name)
        if not name:
            raise failure(InvalidArgument, "field", field=field)
        named = realm.all(kind).entry(realm.stores.pointers.get(name_key(realm.account_id, name)))
        if named is None:
            raise failure(NotFound, resource, resource=resource, id=name)
        value: Any = named.value  # all kinds with names have ids
        found = value.resource_id.id
    return realm.all(kind).require(key(realm.account_id, found), name=name, damaged=True)


def kind_name(kind: int) -> str:
    """The name of a kind of resource in messages. An unknown number has no name."""
    known = v1.ResourceKind.DESCRIPTOR.values_by_number.get(kind)
    return f"kind {kind}" if known is None else known.name.removeprefix("RK_").lower()
