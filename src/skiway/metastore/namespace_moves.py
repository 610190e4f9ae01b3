"""Updates of namespaces, among them the one that takes a namespace elsewhere.

Namespaces keep the path of their parents, tables the id of their catalog. So a namespace moves only while it holds no
namespaces, and to another catalog only while it holds nothing; meanwhile it is closed, as for a deletion.
"""

from __future__ import annotations

from skiway.errors import Conflict, InvalidArgument
from skiway.metastore import changes, keys, places, relations
from skiway.metastore.failures import failure
from skiway.metastore.hierarchy import Below, full_path, require_path
from skiway.metastore.ids import resource_id
from skiway.metastore.kinds import NAMESPACE
from skiway.metastore.managed import writer
from skiway.metastore.masks import copy_field, masked_paths
from skiway.metastore.names import dotted, normal_name, normal_path
from skiway.metastore.parents import closed, described, inside, opened, reopen, retrying
from skiway.metastore.properties import refuse_secrets
from skiway.metastore.realm import Realm
from skiway.metastore.repository import Stored
from skiway.metastore.reserved import refuse_system_path, writable_id
from skiway.model import v1
from skiway.storage import Pointer

__all__ = ["update"]

MUTABLE = ("display_name", "description", "path", "policy_ref", "properties", "catalog_id")


def update(realm: Realm, request: v1.UpdateNamespaceRequest) -> v1.UpdateNamespaceResponse:
    """The namespace after the masked fields were taken over; it moves if its name, path or catalog changed."""
    namespace_id = writable_id(realm, request.namespace_id, v1.RK_NAMESPACE, field="namespace_id")
    paths = masked_paths(request.update_mask, allowed=MUTABLE, resource="namespace")
    spec = _normal(realm, request.spec, paths)

    def attempt() -> Stored[v1.Namespace]:
        return changes.update(
            realm,
            realm.all(NAMESPACE),
            keys.namespace(realm.account_id, namespace_id),
            name=namespace_id,
            precondition=request.precondition,
            edit=lambda namespace: _edit(namespace, spec, paths),
            write=lambda current, desired: _write(realm, current, desired),
        )

    updated = retrying(attempt)
    return v1.UpdateNamespaceResponse(namespace=updated.value, meta=updated.meta)


def _normal(realm: Realm, given: v1.NamespaceSpec, paths: set[str]) -> v1.NamespaceSpec:
    if {"path", "display_name"} <= paths:
        raise failure(InvalidArgument, "update.mask.path.mix", field="update_mask")
    spec = changes.copied(given)
    if "display_name" in paths and spec.HasField("display_name"):
        spec.display_name = normal_name(spec.display_name, resource="namespace")
    if "path" in paths:
        spec.path[:] = normal_path(spec.path, field="path")
    if "catalog_id" in paths and spec.HasField("catalog_id"):
        catalog_id = writable_id(realm, spec.catalog_id, v1.RK_CATALOG, field="catalog_id")
        spec.catalog_id.CopyFrom(resource_id(realm, catalog_id, v1.RK_CATALOG))
    if "properties" in paths:
        refuse_secrets(spec.properties, field="properties")
    return spec


def _edit(namespace: v1.Namespace, spec: v1.NamespaceSpec, paths: set[str]) -> None:
    for path in paths - {"path"}:
        copy_field(spec, namespace, path, required=path in ("display_name", "catalog_id"))
    if "path" in paths:
        # An empty path only takes the parents away.
        *parents, name = spec.path or [namespace.display_name]
        namespace.parents[:], namespace.display_name = parents, name


def _write(realm: Realm, current: Stored[v1.Namespace], desired: v1.Namespace) -> Stored[v1.Namespace]:
    repository = writer(realm, NAMESPACE)
    if _place(current.value) == _place(desired):
        return repository.update(current, desired)
    refuse_system_path(full_path(desired))
    parent = _new_parent(realm, current.value, desired)
    elsewhere = current.value.catalog_id.id != desired.catalog_id.id
    _require_movable(realm, current.value, elsewhere=elsewhere)
    moved = closed(realm, current.pointer, resource="namespace")
    try:
        _require_movable(realm, current.value, elsewhere=elsewhere)
        batch = *opened(moved), *inside(parent)
        return repository.update(Stored(current.value, moved), desired, also=lambda _: batch)
    except Conflict:
        reopen(realm, moved)
        raise


def _place(namespace: v1.Namespace) -> tuple[str, tuple[str, ...]]:
    return namespace.catalog_id.id, full_path(namespace)


def _new_parent(realm: Realm, current: v1.Namespace, desired: v1.Namespace) -> Pointer:
    """The pointer of what the namespace moves into. Parents are not created on the way: a typo would be a new place."""
    catalog = places.catalog(realm, desired.catalog_id)
    if not desired.parents:
        return catalog.pointer
    path = full_path(current)
    if current.catalog_id.id == desired.catalog_id.id and tuple(desired.parents)[: len(path)] == path:
        wanted = "choose a path outside of the namespace itself"
        raise failure(InvalidArgument, "field.invalid", field="path", found=dotted(full_path(desired)), wanted=wanted)
    return require_path(realm, catalog.value, desired.parents).pointer


def _require_movable(realm: Realm, namespace: v1.Namespace, *, elsewhere: bool) -> None:
    below = Below(realm, namespace.catalog_id.id, full_path(namespace)).count()
    held = relations.counts(realm, namespace.resource_id.id) if elsewhere else []
    found = described([*held, (below, "namespace")])
    if found:
        name = dotted(full_path(namespace))
        raise failure(Conflict, "namespace.has.children", display_name=name, found=found)
