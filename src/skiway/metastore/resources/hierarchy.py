"""The hierarchy of an account: catalogs contain namespaces, which contain namespaces, tables and views; and who may change what of it."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import islice
from typing import Any, Final, Generic, TypeVar
from urllib.parse import unquote

from google.protobuf.message import Message

from skiway.errors import AlreadyExists, Conflict, InvalidArgument, NotFound, PermissionDenied, PreconditionFailed
from skiway.foundation.resources import Resource
from skiway.metastore.records import keys, updates
from skiway.metastore.records.damage import damaged_error
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import CATALOG, NAMESPACE, TABLE, VIEW, Kind, folding
from skiway.metastore.records.names import dotted, encoded, folded, normal_text
from skiway.metastore.records.realm import Realm, kind_name, local_id, resource_id
from skiway.metastore.records.repository import Repository, Stored, listed, sliced
from skiway.metastore.records.updates import inside
from skiway.metastore.resources.named import Calls
from skiway.model import v1
from skiway.storage import ABSENT, Check, Delete, Operation, Pointer

C = TypeVar("C", v1.Namespace, v1.Table, v1.View)

_COMMITTED: Final = ("schema_json", "properties", "upstream")
SYSTEM_ACCOUNT = "_system"
"""The account in the ids of system objects."""

SYSTEM_NAMESPACES = ("information_schema", "skiway")
"""The namespaces at the top of every catalog."""


def refuse_system_path(path: Sequence[str]) -> None:
    """Raise if a namespace at `path` would hide a system namespace, or be inside one.

    Names are compared case-insensitively.
    """
    if folded(path[0]) not in SYSTEM_NAMESPACES:
        return
    if len(path) == 1:
        raise failure(AlreadyExists, "namespace.reserved", resource="namespace", name=path[0])
    raise failure(PermissionDenied, "system.object.immutable", resource="namespace", name=dotted(path))


def writable_id(realm: Realm, given: v1.ResourceId, kind: v1.ResourceKind.ValueType, *, field: str) -> str:
    """The text of an id that the request has in `field`, of a resource to be changed. Raise for a system object."""
    if given.account_id == SYSTEM_ACCOUNT:
        raise failure(PermissionDenied, "system.object.immutable", resource=kind_name(kind), name=given.id)
    return local_id(realm, given, kind, field=field)


def is_managed(catalog: v1.Catalog) -> bool:
    """Whether the catalog has no connector."""
    return not catalog.connector_ref


def writer(realm: Realm, kind: Kind[C]) -> Repository[C]:
    """The repository through which one resource is created or updated. Get a new one for each resource."""

    @cache
    def managed(catalog_id: str) -> bool:
        return is_managed(realm.by_id(CATALOG, catalog_id).value)

    return realm.all(folding(kind, managed))


def remover(realm: Realm, kind: Kind[C]) -> Repository[C]:
    """The repository through which a resource is deleted, together with its case-folded reservation if it has one."""
    return realm.all(folding(kind, lambda _: True))


def refuse_fields(table: v1.Table, paths: Collection[str]) -> None:
    """Raise if the table is managed and one of the fields comes from its metadata."""
    owned = sorted(path for path in paths if path.partition(".")[0] in _COMMITTED)
    if table.metadata_location and owned:
        raise _refused(table, ", ".join(owned))


def refuse_snapshots(table: v1.Table) -> v1.Table:
    """Return the table. Raise if it is managed."""
    if table.metadata_location:
        raise _refused(table, "snapshots")
    return table


def require_managed(table: v1.Table) -> v1.Table:
    """Return the table. Raise if it is not managed."""
    if not table.metadata_location:
        raise PreconditionFailed(
            f"table {table.display_name} is not a managed table: trigger the connector that mirrors it",
            key="table.not_managed",
            id=table.resource_id.id,
        )
    return table


def _refused(table: v1.Table, what: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"{what} of managed table {table.display_name} cannot be set, because its commits define them: change the table "
        "with SQL, or commit to it as an Iceberg table",
        key="table.managed",
        id=table.resource_id.id,
    )


M = TypeVar("M", bound=Message)
R = TypeVar("R", v1.Table, v1.View)

_KINDS: Final = (keys.catalog, keys.namespace, keys.table, keys.view, keys.grant, keys.policy)


# --- by id ------------------------------------------------------------------------------------------------------------


def catalog(
    realm: Realm, given: v1.ResourceId, *, field: str = "catalog_id", damaged: bool = False
) -> Stored[v1.Catalog]:
    """The catalog with the id that the request has in `field`; if `damaged`, also one with a damaged record."""
    catalog_id = local_id(realm, given, v1.RK_CATALOG, field=field)
    return realm.by_id(CATALOG, catalog_id, damaged=damaged)


def namespace(
    realm: Realm, given: v1.ResourceId, *, field: str = "namespace_id", damaged: bool = False
) -> Stored[v1.Namespace]:
    """The namespace with the id that the request has in `field`; if `damaged`, also one with a damaged record."""
    namespace_id = local_id(realm, given, v1.RK_NAMESPACE, field=field)
    return realm.by_id(NAMESPACE, namespace_id, damaged=damaged)


def namespace_in(realm: Realm, namespace_id: v1.ResourceId, catalog_id: v1.ResourceId) -> Stored[v1.Namespace]:
    """The namespace with this id. Raise `InvalidArgument` if it is in another catalog."""
    wanted = local_id(realm, catalog_id, v1.RK_CATALOG, field="catalog_id")
    found = namespace(realm, namespace_id)
    if found.value.catalog_id.id != wanted:
        catalog(realm, catalog_id)
        raise failure(
            InvalidArgument, "namespace.catalog.mismatch", namespace_id=namespace_id.id, catalog_id=catalog_id.id
        )
    return found


def table(realm: Realm, given: v1.ResourceId, *, field: str = "table_id", damaged: bool = False) -> Stored[v1.Table]:
    """The table with the id that the request has in `field`; if `damaged`, also one with a damaged record."""
    table_id = local_id(realm, given, v1.RK_TABLE, field=field)
    return realm.by_id(TABLE, table_id, damaged=damaged)


OBJECTS: Final[Mapping[int, Kind[Any]]] = {kind.number: kind for kind in (CATALOG, NAMESPACE, TABLE, VIEW)}
"""The kinds of objects that grants and policies name."""


def named_object(realm: Realm, given: v1.ResourceId, *, field: str) -> Any:
    """The catalog, namespace, table or view with the id that the request has in `field`."""
    kind = OBJECTS.get(given.kind)
    if kind is None:
        wanted = "catalog, namespace, table or view"
        raise failure(InvalidArgument, "kind", field=field, found=kind_name(given.kind), wanted=wanted)
    return realm.by_id(kind, local_id(realm, given, kind.number, field=field)).value


def state_digest(realm: Realm) -> bytes:
    """A digest that changes whenever a catalog, namespace, table, view, grant or policy of the account does. Reads no blobs."""
    digest = blake2b(digest_size=16)
    for prefix in _KINDS:
        for pointer in realm.stores.pointers.scan(prefix(realm.account_id)):
            digest.update(f"{pointer.key}\0{pointer.version}\0{pointer.blob_uri}\n".encode())
    return digest.digest()


def relation_count(realm: Realm) -> int:
    """The number of tables and views of the account, whether or not the caller sees them."""
    return sum(realm.stores.pointers.count(prefix(realm.account_id)) for prefix in (keys.table, keys.view))


# --- namespaces by path -----------------------------------------------------------------------------------------------


def full_path(namespace: v1.Namespace) -> tuple[str, ...]:
    """The whole path of a namespace, ending with its own name."""
    return (*namespace.parents, namespace.display_name)


def require_path(
    realm: Realm, catalog: v1.Catalog, path: Sequence[str], *, damaged: bool = False
) -> Stored[v1.Namespace]:
    """Like `find_path`; raise `NotFound` if there is none."""
    found = find_path(realm, catalog, path, damaged=damaged)
    if found is None:
        raise failure(NotFound, "namespace.by.path.missing", catalog=catalog.display_name, path=dotted(path))
    return found


def find_path(
    realm: Realm, catalog: v1.Catalog, path: Sequence[str], *, damaged: bool = False
) -> Stored[v1.Namespace] | None:
    """The namespace at a path, in any case if the catalog is managed; if `damaged`, also one with a damaged record."""
    account_id, catalog_id, repository = realm.account_id, catalog.resource_id.id, realm.all(NAMESPACE)
    names = [keys.namespace_path(account_id, catalog_id, path)]
    if is_managed(catalog):
        names.append(keys.namespace_fold(account_id, catalog_id, path))
    for key in names:
        found = repository.at(key) if damaged else repository.find_named(key)
        if found is not None:
            return found
    return None


def nearest(
    realm: Realm, catalog: Stored[v1.Catalog], path: Sequence[str]
) -> tuple[Pointer, tuple[str, ...], tuple[str, ...]]:
    """The deepest existing ancestor of `path`, or the catalog: its pointer, its path, and the missing rest of `path`."""
    for length in range(len(path), 0, -1):
        found = find_path(realm, catalog.value, path[:length])
        if found is not None:
            return found.pointer, full_path(found.value), tuple(path[length:])
    return catalog.pointer, (), tuple(path)


@dataclass(frozen=True, slots=True)
class Below:
    """The namespaces below a path of a catalog: its children or, if `recursive`, all descendants."""

    realm: Realm
    catalog_id: str
    path: tuple[str, ...]
    recursive: bool = False

    @property
    def prefix(self) -> str:
        """The prefix of the keys of exactly these namespaces."""
        account = self.realm.account_id
        if self.recursive:
            return keys.namespace_path(account, self.catalog_id, self.path) + "/"
        return keys.namespace_level(account, self.catalog_id, self.path, depth=len(self.path) + 1) + "/"

    def count(self) -> int:
        """The number of namespaces."""
        return self.realm.stores.pointers.count(self.prefix)

    def page(self, request: v1.PageRequest, *, name_prefix: str) -> tuple[Sequence[v1.Namespace], v1.PageResponse]:
        """A page of the namespaces whose dotted names, relative to the path, start with `name_prefix`."""
        wanted = unicodedata.normalize("NFKC", name_prefix)
        first, dot, _ = wanted.partition(".")
        # Up to the first dot the prefix can only be part of one name, so the keys decide. Beyond it, compare names.
        prefix = self.prefix + encoded(first)
        repository = self.realm.all(NAMESPACE)
        if not dot:
            return listed(repository, prefix, request)
        matches = [each for each in self.realm.stores.pointers.scan(prefix) if self._name(each).startswith(wanted)]
        if not repository.sees_everything:
            matches = [each for each in matches if repository.entry(each)]
        listing = f"namespaces:{prefix}:{wanted}"
        shown, page = sliced(matches, request, listing=listing, name=lambda pointer: pointer.key)
        return [found.value for found in map(repository.entry, shown) if found], page

    def _name(self, pointer: Pointer) -> str:
        return dotted(map(unquote, pointer.key.removeprefix(self.prefix).split("/")))


# --- tables and views of a namespace ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Relations(Generic[R]):
    """The tables, or the views, of an account."""

    kind: Kind[R]
    by_name: Callable[[str, str, str], str]

    def page(
        self, realm: Realm, namespace_id: v1.ResourceId, request: v1.PageRequest
    ) -> tuple[Sequence[R], v1.PageResponse]:
        """A page of those in a namespace, by name."""
        parent_id = namespace(realm, namespace_id, damaged=True).value.resource_id.id
        return listed(realm.all(self.kind), self.by_name(realm.account_id, parent_id, ""), request)

    def scan(self, realm: Realm, namespace_id: str) -> Iterator[R]:
        """All of a namespace, by name. Those with a damaged record have `damage` set."""
        prefix = self.by_name(realm.account_id, namespace_id, "")
        return (stored.value for stored in realm.all(self.kind).entries(prefix))

    def count(self, realm: Realm, namespace_id: str) -> int | None:
        """How many a namespace has, without reading them; None if the caller may see only some."""
        if not realm.all(self.kind).sees_everything:
            return None
        return realm.stores.pointers.count(self.by_name(realm.account_id, namespace_id, ""))

    def find(self, realm: Realm, namespace_id: str, name: str) -> R | None:
        """The one with this name in a namespace, or None."""
        wanted = normal_text(name)
        return realm.all(self.kind).named(self.by_name(realm.account_id, namespace_id, wanted)) if wanted else None

    def lookup(self, realm: Realm, catalog: v1.Catalog, namespace_id: str, name: str) -> R | None:
        """The one with this name, in any case if the catalog is managed, or None. Raise if its record is damaged."""
        relation = self.find(realm, namespace_id, name)
        if relation is None and is_managed(catalog):
            relation = self.find_any_case(realm, catalog, namespace_id, name)
            if relation is not None and relation.damage:
                raise damaged_error(self.kind.noun, relation.display_name, relation.damage)
        return relation

    def find_any_case(self, realm: Realm, catalog: v1.Catalog, namespace_id: str, name: str) -> R | None:
        """The one with this name, or else one whose name differs in case only; None if there is none.

        One with a damaged record has `damage` set.
        """
        repository, pointers, wanted = realm.all(self.kind), realm.stores.pointers, normal_text(name)
        if not wanted:
            return None
        stored = repository.at(self.by_name(realm.account_id, namespace_id, wanted))
        if stored is None and not is_managed(catalog):
            others = self.scan(realm, namespace_id)
            return next((other for other in others if folded(other.display_name) == folded(wanted)), None)
        if stored is None:
            reserved = pointers.get(keys.relation_name(realm.account_id, namespace_id, folded(wanted)))
            if reserved is None or not keys.owner(reserved).startswith(self.kind.by_id(realm.account_id, "")):
                return None  # the name is free, or that of a relation of the other kind
            stored = repository.entry(reserved)
        return None if stored is None else stored.value

    def calls(self, resource: Resource, **own: Callable[..., Any]) -> Calls[R]:
        """The calls. An update moves one whose namespace changed."""
        return Calls(
            resource,
            self.kind,
            writing=lambda realm, wanted, _, before: nullcontext(entering(realm, wanted, before) if before else ()),
            parent=lambda realm, spec: namespace_in(realm, spec.namespace_id, spec.catalog_id),
            id_of=writable_id,
            writer=writer,
            remover=remover,
            retries=True,
            **own,
        )


TABLES: Final = Relations(TABLE, keys.table_name)
VIEWS: Final = Relations(VIEW, keys.view_name)


def check_parent_ids(realm: Realm, spec: v1.TableSpec | v1.ViewSpec) -> None:
    """Validate the ids of catalog and namespace in a spec, where set, and complete them with account and kind."""
    if spec.HasField("catalog_id"):
        catalog_id = writable_id(realm, spec.catalog_id, v1.RK_CATALOG, field="catalog_id")
        spec.catalog_id.CopyFrom(resource_id(realm, catalog_id, v1.RK_CATALOG))
    if spec.HasField("namespace_id"):
        namespace_id = writable_id(realm, spec.namespace_id, v1.RK_NAMESPACE, field="namespace_id")
        spec.namespace_id.CopyFrom(resource_id(realm, namespace_id, v1.RK_NAMESPACE))


def entering(
    realm: Realm, wanted: v1.Table | v1.View, current: v1.Table | v1.View | None = None
) -> tuple[Operation, ...]:
    """The checks of a batch that puts a table or view into its namespace; none if it is there already."""
    if current and (current.catalog_id, current.namespace_id) == (wanted.catalog_id, wanted.namespace_id):
        return ()
    return inside(namespace_in(realm, wanted.namespace_id, wanted.catalog_id).pointer)


def child_counts(realm: Realm, namespace_id: str) -> list[tuple[int, str]]:
    """The numbers of tables and views in a namespace."""
    count = realm.stores.pointers.count
    return [
        (count(keys.table_name(realm.account_id, namespace_id)), "table"),
        (count(keys.view_name(realm.account_id, namespace_id)), "view"),
    ]


def clear_namespace(realm: Realm, namespace_id: str) -> None:
    """Delete all tables and views of a namespace, one by one."""
    for pointer in realm.stores.pointers.scan(keys.table_name(realm.account_id, namespace_id)):
        _delete(remover(realm, TABLE), keys.owner(pointer))
        purge_table(realm, keys.last_segment(keys.owner(pointer)))
    for pointer in realm.stores.pointers.scan(keys.view_name(realm.account_id, namespace_id)):
        _delete(remover(realm, VIEW), keys.owner(pointer))


def _delete(repository: Repository[M], key: str) -> None:
    updates.delete(repository, key, key, v1.Precondition())


def purge_table(realm: Realm, table_id: str) -> int:
    """Delete the snapshots and statistics of a deleted table in batches, and return how many pointers were deleted.

    Garbage collection does the same after a process has died before the end.
    """
    purged = 0
    remains = realm.stores.pointers.scan(keys.of_table(realm.account_id, table_id))
    is_gone = Check(keys.table(realm.account_id, table_id), expect=ABSENT)
    # The check takes one place of the batch. DynamoDB has the smallest batches.
    size = realm.stores.pointers.max_batch - 1
    while batch := list(islice(remains, size)):
        purged += _delete_all(realm, batch, is_gone)
    return purged


def _delete_all(realm: Realm, batch: list[Pointer], is_gone: Check) -> int:
    try:
        realm.stores.pointers.apply([is_gone, *(Delete(each.key, expect=each.version) for each in batch)])
    except Conflict:
        # Another process is purging the same table.
        return 0
    return len(batch)
