"""What one caller may do with each object of an account: decided once per call, and part of the call's realm.

The permissions of a caller's roles hold in the whole account. Grants add privileges on single objects: on a catalog,
namespace, table or view, and on everything in it. A caller who may read an object also sees the catalog and the namespaces
that contain it, but nothing else in them. What a caller does not see does not exist for them.

Grants are read when a permission is first asked for that the roles do not have, so they cost nothing to callers whose roles
suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from google.protobuf.message import Message

from skiway.errors import PermissionDenied
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import CATALOG, GRANT, NAMESPACE, OF_TABLE, TABLE, VIEW, Kind
from skiway.metastore.records.policies import CallerPolicies
from skiway.metastore.records.repository import Guard, Repository
from skiway.model import v1
from skiway.storage import Stores

NO_ACCESS: Final = 0
READ: Final = ("catalog.read", "namespace.read", "table.read", "view.read")
WRITE: Final = ("namespace.write", "table.write", "view.write")
MANAGE: Final = ("catalog.write", "grant.manage")

PRIVILEGES: Final[Mapping[str, int]] = {"read": v1.PV_READ, "write": v1.PV_WRITE, "manage": v1.PV_MANAGE}

GRANTABLE: Final[Mapping[str, int]] = {
    **dict.fromkeys(READ, v1.PV_READ),
    **dict.fromkeys(WRITE, v1.PV_WRITE),
    **dict.fromkeys(MANAGE, v1.PV_MANAGE),
}
"""The privilege that includes a permission. All other permissions come from roles only."""


def grantees_of(subject: str, roles: Sequence[str]) -> tuple[str, ...]:
    """The names under which a caller may have been granted privileges."""
    return (f"user:{subject}", *(f"role:{role}" for role in roles))


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permissions that reading and changing a kind of resource require; any one of `read` suffices."""

    read: tuple[str, ...]
    write: str


OF_TABLES: Final = Permissions(("table.read",), "table.write")
BY_KIND: Final[Mapping[str, Permissions]] = {
    "catalog": Permissions(("catalog.read",), "catalog.write"),
    "namespace": Permissions(("namespace.read", "catalog.read"), "namespace.write"),
    "table": OF_TABLES,
    "view": Permissions(("view.read",), "view.write"),
    **dict.fromkeys(("snapshot", "table_stats", "column_stats", "file_stats", "statistics_history"), OF_TABLES),
    **dict.fromkeys(("rule", "rule_results"), OF_TABLES),
    "lease": Permissions(("table.read",), "table.read"),
    "grant": Permissions(("grant.manage",), "grant.manage"),
}
"""The kinds of resources that belong to an object. The others are protected by the permissions of roles alone."""

Place = tuple[str, tuple[str, ...]]
"""A catalog id and the path of a namespace in it."""


@dataclass
class Reach:
    """The objects on which a caller has privileges, and the containers of these objects."""

    catalogs: dict[str, int] = field(default_factory=dict)
    namespaces: dict[Place, int] = field(default_factory=dict)
    relations: dict[str, int] = field(default_factory=dict)
    containers: set[Place] = field(default_factory=set)

    def at(self, place: Place) -> int:
        """The privilege on the namespace at `place`, including those on what contains it; an empty path is the catalog."""
        catalog_id, path = place
        above = (self.namespaces.get((catalog_id, path[:length]), NO_ACCESS) for length in range(1, len(path) + 1))
        return max(self.catalogs.get(catalog_id, NO_ACCESS), *above, NO_ACCESS)

    def contain(self, place: Place) -> None:
        """Remember that there is something to see in the namespace at `place`."""
        catalog_id, path = place
        self.containers.update((catalog_id, path[:length]) for length in range(len(path) + 1))


class AccessDecision:
    """What a caller may do in an account.

    `allows` says whether the caller has a permission in the whole account. `grantees` are the names by which it may have
    been granted more; the first one identifies the caller. `policies` restrict what it sees of tables and views. `table_id` is a
    table that the caller may write without a grant, and `reads` are tables that it may read without one.
    If it is `read_only`, every privilege is one to read.
    """

    def __init__(
        self,
        stores: Callable[[], Stores],
        account_id: str,
        *,
        allows: Callable[[str], bool],
        grantees: Sequence[str] = (),
        policies: CallerPolicies | None = None,
        table_id: str = "",
        reads: Collection[str] = (),
        read_only: bool = False,
    ) -> None:
        self._open, self._account_id = stores, account_id
        self._implied = {**dict.fromkeys(reads, v1.PV_READ), **({table_id: v1.PV_WRITE} if table_id else {})}
        self._allows, self._grantees = allows, tuple(grantees)
        self.policies = policies
        self._most = v1.PV_READ if read_only else v1.PV_MANAGE
        self._allowed: dict[str, bool] = {}
        self._places: dict[str, Place | None] = {}
        self._deciding: Callable[[Message], Message] = lambda on: on

    def on_branch(self, branch: Stores, rights: Stores, deciding: Callable[[Any], Any]) -> AccessDecision:
        """The same on a branch of the lake, whose objects have the rights of those that `deciding` returns for them.

        `branch` has the objects of the branch, and `rights` what decides about rights on them.
        """
        policies = None if self.policies is None else self.policies.on_branch(branch, rights, deciding)
        made = AccessDecision(lambda: rights, self._account_id, allows=self._allows, policies=policies)
        made._grantees, made._implied, made._most = self._grantees, self._implied, self._most
        made._deciding = deciding
        return made

    def everywhere(self, permission: str) -> bool:
        """Whether the caller has the permission in the whole account."""
        if permission not in self._allowed:
            self._allowed[permission] = self._allows(permission)
        return self._allowed[permission]

    def somewhere(self, *any_of: str) -> bool:
        """Whether the caller has one of the permissions in the account, or on some object in it."""
        if any(map(self.everywhere, any_of)):
            return True
        needed = [GRANTABLE[each] for each in any_of if each in GRANTABLE]
        return bool(needed) and max(self._privileges.values(), default=NO_ACCESS) >= min(needed)

    def may(self, permission: str, on: Message) -> bool:
        """Whether the caller has the permission on an object: a catalog, namespace, table or view, or what belongs to one."""
        if self.everywhere(permission):
            return True
        needed = GRANTABLE.get(permission)
        return needed is not None and bool(self._privileges) and self._privilege(on) >= needed

    def require(self, permission: str, on: Message) -> None:
        """Raise `PermissionDenied` unless the caller has the permission on the object."""
        if not self.may(permission, on):
            raise _denied(permission, _title(on))

    def require_inside(self, permission: str, on: Message) -> None:
        """Raise `PermissionDenied` unless the caller has the permission on what contains the object."""
        if self.everywhere(permission):
            return
        parent = _parent(self._deciding(on))
        place = self._namespace(parent) if isinstance(parent, str) else parent
        if place is None or self._reach.at(place) < GRANTABLE.get(permission, v1.PV_MANAGE + 1):
            raise _denied(permission, f"namespace {'.'.join(place[1])}" if place and place[1] else "the catalog")

    @property
    def by_roles(self) -> tuple[bool, ...]:
        """Which kinds of objects the caller's roles show it in the whole account."""
        return tuple(map(self.everywhere, READ))

    @property
    def visibility(self) -> Hashable:
        """Equal for callers who see the same of all objects: they have the same grants, unless roles show them everything,
        and are restricted by the same policies.
        """
        everything = self.by_roles
        restricted = () if self.policies is None else self.policies.key
        return (everything, () if all(everything) else tuple(sorted(self._privileges.items())), restricted)

    @property
    def key(self) -> Hashable:
        """Equal for callers with the same permissions, by roles in the whole account and by grants on objects."""
        return tuple(map(self.everywhere, GRANTABLE)), tuple(sorted(self._privileges.items()))

    @property
    def granted_ids(self) -> Collection[str]:
        """The ids of all objects on which the caller has grants."""
        return self._privileges.keys()

    def guard(self, kind: Kind[Any]) -> Guard | None:
        """What protects the resources of a kind; None if the caller may do everything with them, or roles decide alone."""
        needed = BY_KIND.get(kind.noun)
        if needed is None or (any(map(self.everywhere, needed.read)) and self.everywhere(needed.write)):
            return None
        return ObjectGuard(self, needed)

    def sees(self, on: Message, read: Sequence[str]) -> bool:
        """Whether the caller may read the object, or something in it."""
        return any(self.may(permission, on) for permission in read) or self._contains(on)

    @cached_property
    def _stores(self) -> Stores:
        return self._open()

    # --- grants -------------------------------------------------------------------------------------------------------

    @cached_property
    def _grants(self) -> Sequence[v1.Grant]:
        repository = Repository(self._stores, GRANT)
        prefixes = (keys.grant_of(self._account_id, grantee) for grantee in self._grantees)
        if not self._account_id:
            return []
        # A damaged grant is in listings, but gives nothing.
        found = (each.value for prefix in prefixes for each in repository.entries(prefix))
        implied = (
            v1.Grant(
                object_id=v1.ResourceId(account_id=self._account_id, id=table_id, kind=v1.RK_TABLE), privilege=privilege
            )
            for table_id, privilege in self._implied.items()
        )
        return [*implied, *(grant for grant in found if not grant.damage)]

    @cached_property
    def _privileges(self) -> Mapping[str, int]:
        """The privilege on each object, by its id."""
        found: dict[str, int] = {}
        for grant in self._grants:
            privilege = min(grant.privilege, self._most)
            found[grant.object_id.id] = max(privilege, found.get(grant.object_id.id, NO_ACCESS))
        return found

    @cached_property
    def _reach(self) -> Reach:
        reach = Reach()
        kinds = {grant.object_id.id: grant.object_id.kind for grant in self._grants}
        for object_id, privilege in self._privileges.items():
            if kinds[object_id] == v1.RK_CATALOG:
                reach.catalogs[object_id] = privilege
                continue
            place = self._place_of(object_id, kinds[object_id])
            if place is None:
                continue  # deleted in the meantime
            if kinds[object_id] == v1.RK_NAMESPACE:
                reach.namespaces[place] = privilege
            else:
                reach.relations[object_id] = privilege
            reach.contain(place)
        return reach

    def _place_of(self, object_id: str, kind: int) -> Place | None:
        """Where a namespace is, or the namespace of a table or view."""
        if kind == v1.RK_NAMESPACE:
            return self._namespace(object_id)
        relations: Kind[Any] = TABLE if kind == v1.RK_TABLE else VIEW
        found = self._entry(relations, object_id)
        return None if found is None else self._namespace(found.namespace_id.id)

    def _namespace(self, namespace_id: str) -> Place | None:
        if namespace_id not in self._places:
            found = self._entry(NAMESPACE, namespace_id)
            self._places[namespace_id] = None if found is None else _place(found)
        return self._places[namespace_id]

    def _entry(self, kind: Kind[Any], own_id: str) -> Any:
        """The resource with an id, or None. A damaged one has at least its place."""
        key = kind.by_id(self._account_id, own_id)
        found = Repository(self._stores, kind).at(key)
        return None if found is None else found.value

    def _privilege(self, on: Message) -> int:
        on = self._deciding(on)
        match on:
            case v1.Catalog():
                return self._reach.at((on.resource_id.id, ()))
            case v1.Namespace():
                return self._reach.at(_place(on))
            case v1.Table() | v1.View():
                return max(self._reach.relations.get(on.resource_id.id, NO_ACCESS), self._inside(on.namespace_id.id))
            case _ if isinstance(on, OF_TABLE):
                return self._on(on.table_id.id, v1.RK_TABLE)
            case v1.QueryLease():
                return min((self._on(table.table_id.id, v1.RK_TABLE) for table in on.tables), default=v1.PV_READ)
            case v1.Grant():
                return self._on(on.object_id.id, on.object_id.kind)
        raise TypeError(f"grants do not apply to {type(on).__name__}")

    def _on(self, object_id: str, kind: int) -> int:
        """The privilege on an object that is only known by its id."""
        if kind == v1.RK_CATALOG:
            return self._reach.at((object_id, ()))
        place = self._place_of(object_id, kind)
        inside = NO_ACCESS if place is None else self._reach.at(place)
        return max(self._reach.relations.get(object_id, NO_ACCESS), inside)

    def _inside(self, namespace_id: str) -> int:
        place = self._namespace(namespace_id)
        return NO_ACCESS if place is None else self._reach.at(place)

    def _contains(self, on: Message) -> bool:
        if not self._privileges:
            return False
        on = self._deciding(on)
        match on:
            case v1.Catalog():
                return (on.resource_id.id, ()) in self._reach.containers
            case v1.Namespace():
                return _place(on) in self._reach.containers
        return False


@dataclass(frozen=True, slots=True)
class ObjectGuard(Guard):
    """Protects the resources of one kind from a caller whose roles do not allow everything."""

    decision: AccessDecision
    needed: Permissions

    @property
    def sees_everything(self) -> bool:
        """Whether the caller's roles allow it to read all resources of the kind."""
        return any(map(self.decision.everywhere, self.needed.read))

    def sees(self, value: Message) -> bool:
        """Whether the caller may read the resource, or something in it."""
        return self.sees_everything or self.decision.sees(value, self.needed.read)

    def require_change(self, *states: Message) -> None:
        """Raise unless the caller may change the resource, and write to where it is moved to, if it is moved."""
        before, *after = states
        self.decision.require(self.needed.write, before)
        for state in after:
            if _parent(state) != _parent(before):
                self.decision.require_inside(self.needed.write, state)


def _place(namespace: v1.Namespace) -> Place:
    return namespace.catalog_id.id, (*namespace.parents, namespace.display_name)


def _parent(on: Message) -> str | Place | None:
    """Where a table, view or namespace is: the id of its namespace, or the place of its parent."""
    match on:
        case v1.Table() | v1.View():
            return on.namespace_id.id
        case v1.Namespace():
            return on.catalog_id.id, tuple(on.parents)
    return None


def _denied(permission: str, name: str) -> PermissionDenied:
    privilege = next((word for word, rank in PRIVILEGES.items() if rank == GRANTABLE.get(permission)), "none")
    return failure(PermissionDenied, "grant.missing", permission=permission, privilege=privilege, name=name)


def _title(on: Message) -> str:
    named: tuple[Kind[Any], ...] = (CATALOG, NAMESPACE, TABLE, VIEW)
    found = (f"{kind.noun} {kind.title(on)}" for kind in named if isinstance(on, kind.message))
    return next(found, "the object" if isinstance(on, v1.Grant) else "its table")
