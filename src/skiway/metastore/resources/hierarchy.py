"""The catalog, namespace or table that a caller means by an id."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from skiway.errors import InvalidArgument, NotFound
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import CATALOG, NAMESPACE, TABLE
from skiway.metastore.records.names import dotted, encoded
from skiway.metastore.records.paging import listed, sliced
from skiway.metastore.records.realm import Realm, local_id
from skiway.metastore.records.repository import Stored
from skiway.model import v1
from skiway.storage import Pointer

__all__ = ["Below", "catalog", "full_path", "namespace", "namespace_in", "nearest", "require_path", "table"]


def catalog(realm: Realm, given: v1.ResourceId, *, field: str = "catalog_id") -> Stored[v1.Catalog]:
    """The catalog whose id was sent as `field`."""
    catalog_id = local_id(realm, given, v1.RK_CATALOG, field=field)
    return realm.all(CATALOG).require(keys.catalog(realm.account_id, catalog_id), name=catalog_id)


def namespace(realm: Realm, given: v1.ResourceId, *, field: str = "namespace_id") -> Stored[v1.Namespace]:
    """The namespace whose id was sent as `field`."""
    namespace_id = local_id(realm, given, v1.RK_NAMESPACE, field=field)
    return realm.all(NAMESPACE).require(keys.namespace(realm.account_id, namespace_id), name=namespace_id)


def namespace_in(realm: Realm, namespace_id: v1.ResourceId, catalog_id: v1.ResourceId) -> Stored[v1.Namespace]:
    """The namespace, which must be in that catalog."""
    wanted = local_id(realm, catalog_id, v1.RK_CATALOG, field="catalog_id")
    found = namespace(realm, namespace_id)
    if found.value.catalog_id.id != wanted:
        catalog(realm, catalog_id)
        raise failure(
            InvalidArgument, "namespace.catalog.mismatch", namespace_id=namespace_id.id, catalog_id=catalog_id.id
        )
    return found


def table(realm: Realm, given: v1.ResourceId, *, field: str = "table_id") -> Stored[v1.Table]:
    """The table whose id was sent as `field`."""
    table_id = local_id(realm, given, v1.RK_TABLE, field=field)
    return realm.all(TABLE).require(keys.table(realm.account_id, table_id), name=table_id)


# --------------------
# Namespaces in namespaces: who is whose parent, and what is below a path.


def full_path(namespace: v1.Namespace) -> tuple[str, ...]:
    """The whole path of a namespace, its own name last."""
    return (*namespace.parents, namespace.display_name)


def require_path(realm: Realm, catalog: v1.Catalog, path: Sequence[str]) -> Stored[v1.Namespace]:
    """The namespace at a path."""
    key = keys.namespace_path(realm.account_id, catalog.resource_id.id, path)
    found = realm.all(NAMESPACE).find_named(key)
    if found is None:
        raise failure(NotFound, "namespace.by.path.missing", catalog=catalog.display_name, path=dotted(path))
    return found


def nearest(
    realm: Realm, catalog: Stored[v1.Catalog], path: Sequence[str]
) -> tuple[Pointer, tuple[str, ...], tuple[str, ...]]:
    """The deepest place on the way to `path` that exists: its pointer, its path, and the rest of the way."""
    for length in range(len(path), 0, -1):
        key = keys.namespace_path(realm.account_id, catalog.value.resource_id.id, path[:length])
        found = realm.all(NAMESPACE).find_named(key)
        if found is not None:
            return found.pointer, tuple(path[:length]), tuple(path[length:])
    return catalog.pointer, (), tuple(path)


@dataclass(frozen=True, slots=True)
class Below:
    """The namespaces below a path of a catalog: right below, or all."""

    realm: Realm
    catalog_id: str
    path: tuple[str, ...]
    recursive: bool = False

    @property
    def prefix(self) -> str:
        """What the keys of just these namespaces begin with."""
        account = self.realm.account_id
        if self.recursive:
            return keys.namespace_path(account, self.catalog_id, self.path) + "/"
        return keys.namespace_level(account, self.catalog_id, self.path, depth=len(self.path) + 1) + "/"

    def count(self) -> int:
        """How many there are."""
        return self.realm.stores.pointers.count(self.prefix)

    def page(self, request: v1.PageRequest, *, name_prefix: str) -> tuple[Sequence[v1.Namespace], v1.PageResponse]:
        """Those whose names below the path, joined by dots, begin with `name_prefix`."""
        wanted = unicodedata.normalize("NFKC", name_prefix)
        first, dot, _ = wanted.partition(".")
        # Up to the first dot the prefix can only be part of one name, so keys tell. Behind it, names must be compared.
        prefix = self.prefix + encoded(first)
        repository = self.realm.all(NAMESPACE)
        if not dot:
            return listed(repository, prefix, request)
        matches = [each for each in self.realm.stores.pointers.scan(prefix) if self._name(each).startswith(wanted)]
        listing = f"namespaces:{prefix}:{wanted}"
        shown, page = sliced(matches, request, listing=listing, name=lambda pointer: pointer.key)
        return [found.value for found in map(repository.follow, shown) if found], page

    def _name(self, pointer: Pointer) -> str:
        return dotted(map(unquote, pointer.key.removeprefix(self.prefix).split("/")))
