"""Accounts, catalogs and namespaces: the containers of tables and views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from skiway.client.metastore.collection import KEEP, Collection, Keep, Listing
from skiway.client.metastore.names import (
    HasMessage,
    Id,
    Name,
    Ref,
    account_id,
    catalog_id,
    name_ref,
    namespace_id,
    segments,
)
from skiway.client.metastore.resources import Account, Catalog, Meta, Namespace, Parents
from skiway.model import v1

__all__ = ["Accounts", "Catalogs", "Namespaces"]


class Accounts(Collection[Account]):
    """`lake.accounts`, identified by id. The platform administrator sees all accounts, other callers their own."""

    __slots__ = ()
    _kind, _spec = "account", v1.AccountSpec

    def __call__(self, *, page_size: int | None = None) -> Listing[Account]:
        """List the accounts by name."""
        return self._list(dict, page_size)

    def create(
        self,
        name: str,
        *,
        id: str | None = None,  # noqa: A002 - an id
        description: str | None = None,
        tags: Mapping[str, str] | None = None,
        quotas: Mapping[str, float] | None = None,
        idempotency_key: str | None = None,
    ) -> Account:
        """Create an account. `id` sets an id that other systems know; by default it is random."""
        own_id = None if id is None else v1.ResourceId(id=id, kind=v1.RK_ACCOUNT)
        spec = {"display_name": name, "description": description, "tags": tags, "quotas": quotas}
        return self._create(spec, idempotency_key, account_id=own_id)

    def update(
        self,
        ref: Ref,
        *,
        name: str | Keep = KEEP,
        description: str | Keep | None = KEEP,
        tags: Mapping[str, str] | Keep | None = KEEP,
        quotas: Mapping[str, float] | Keep | None = KEEP,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> Account:
        """Change the given values; None clears a value. `quotas`, such as `{"caller.scans": 4}`, lower those of the server."""
        changes = {"display_name": name, "description": description, "tags": tags, "quotas": quotas}
        return self._change(ref, changes, if_version, if_etag)

    def _id(self, ref: Ref) -> v1.ResourceId:
        return account_id(ref)

    def _wrap(self, message: v1.Account, meta: v1.MutationMeta | None, parents: Parents) -> Account:
        return Account(message, self._calls, meta, parents)


class Catalogs(Collection[Catalog]):
    """`lake.catalogs`, named by one segment, such as `lake`."""

    __slots__ = ()
    _kind, _spec = "catalog", v1.CatalogSpec

    def __call__(self, *, page_size: int | None = None) -> Listing[Catalog]:
        """List the catalogs of the caller's account by name."""
        return self._list(dict, page_size)

    def create(
        self,
        name: Name,
        *,
        description: str | None = None,
        connector_ref: str | None = None,
        policy_ref: str | None = None,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Catalog:
        """Create an empty catalog."""
        spec = {
            "display_name": name_ref(name, resource="catalog").catalog,
            "description": description,
            "connector_ref": connector_ref,
            "policy_ref": policy_ref,
            "properties": properties,
        }
        return self._create(spec, idempotency_key)

    def update(
        self,
        ref: Ref,
        *,
        name: str | Keep = KEEP,
        description: str | Keep | None = KEEP,
        connector_ref: str | Keep | None = KEEP,
        policy_ref: str | Keep | None = KEEP,
        properties: Mapping[str, str] | Keep | None = KEEP,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> Catalog:
        """Change the given values; None clears a value."""
        changes = {
            "display_name": name,
            "description": description,
            "connector_ref": connector_ref,
            "policy_ref": policy_ref,
            "properties": properties,
        }
        return self._change(ref, changes, if_version, if_etag)

    def delete(
        self, ref: Ref, *, cascade: bool = False, if_version: int | None = None, if_etag: str | None = None
    ) -> Meta:
        """Delete a catalog, with `cascade` including its contents; return its last stored version."""
        return self._delete({**self._key(ref), "require_empty": not cascade}, if_version, if_etag)

    def _id(self, ref: Ref) -> v1.ResourceId:
        return catalog_id(self._calls, ref)

    def _wrap(self, message: v1.Catalog, meta: v1.MutationMeta | None, parents: Parents) -> Catalog:
        return Catalog(message, self._calls, meta, parents)


class Namespaces(Collection[Namespace]):
    """`lake.namespaces`, named by catalog and path, such as `lake.sales.eu`."""

    __slots__ = ()
    _kind, _spec = "namespace", v1.NamespaceSpec

    def __call__(
        self, parent: Ref, *, recursive: bool = False, prefix: str = "", page_size: int | None = None
    ) -> Listing[Namespace]:
        """List the namespaces directly below a catalog or namespace, or all below it, by path.

        An `Id` is that of a catalog. `prefix` filters by the dotted path below the parent.
        """
        path = (
            () if isinstance(parent, Id | Message | HasMessage) else segments(parent, resource="catalog or namespace")
        )

        def fields() -> dict[str, Any]:
            options = {"path": path[1:], "recursive": recursive, "name_prefix": prefix}
            if path or isinstance(parent, Id):
                return {**options, "catalog_id": catalog_id(self._calls, path[:1] or parent)}
            found = namespace_id(self._calls, parent)
            return {**options, "catalog_id" if found.kind == v1.RK_CATALOG else "namespace_id": found}

        return self._list(fields, page_size)

    def create(
        self,
        name: Name,
        *,
        description: str | None = None,
        policy_ref: str | None = None,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Namespace:
        """Create a namespace, including missing parents."""
        ref = name_ref(name, resource="namespace")
        spec = {
            "catalog_id": catalog_id(self._calls, (ref.catalog,)),
            "path": ref.path,
            "display_name": ref.name,
            "description": description,
            "policy_ref": policy_ref,
            "properties": properties,
        }
        return self._create(spec, idempotency_key)

    def update(
        self,
        ref: Ref,
        *,
        name: str | Keep = KEEP,
        path: Name | Keep = KEEP,
        description: str | Keep | None = KEEP,
        policy_ref: str | Keep | None = KEEP,
        properties: Mapping[str, str] | Keep | None = KEEP,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> Namespace:
        """Change the given values; None clears a value.

        `name` is the new last segment. `path` is a whole new name such as `lake.archive.eu`, and moves the namespace.
        """
        changes: dict[str, Any] = {
            "display_name": name,
            "description": description,
            "policy_ref": policy_ref,
            "properties": properties,
        }
        if not isinstance(path, Keep):
            target = name_ref(path, resource="namespace")
            changes["catalog_id"] = catalog_id(self._calls, (target.catalog,))
            changes["path"] = [*target.path, target.name]
        return self._change(ref, changes, if_version, if_etag)

    def delete(
        self, ref: Ref, *, cascade: bool = False, if_version: int | None = None, if_etag: str | None = None
    ) -> Meta:
        """Delete a namespace, with `cascade` including its contents; return its last stored version."""
        return self._delete({**self._key(ref), "require_empty": not cascade}, if_version, if_etag)

    def _id(self, ref: Ref) -> v1.ResourceId:
        return namespace_id(self._calls, ref)

    def _wrap(self, message: v1.Namespace, meta: v1.MutationMeta | None, parents: Parents) -> Namespace:
        return Namespace(message, self._calls, meta, parents)
