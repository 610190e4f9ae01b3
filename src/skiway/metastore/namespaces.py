"""Namespaces: where tables and views are, in a hierarchy below a catalog."""

from __future__ import annotations

from collections.abc import Sequence

from skiway.errors import AlreadyExists, Conflict, InvalidArgument
from skiway.metastore import changes, keys, places, relations
from skiway.metastore.failures import failure
from skiway.metastore.hierarchy import Below, full_path, nearest, require_path
from skiway.metastore.idempotency import Claim, once
from skiway.metastore.ids import resource_id
from skiway.metastore.kinds import NAMESPACE
from skiway.metastore.managed import is_managed, remover, writer
from skiway.metastore.masks import copy_field
from skiway.metastore.names import dotted, normal_name, normal_path
from skiway.metastore.namespace_moves import update
from skiway.metastore.parents import described, inside, remove_empty, retrying
from skiway.metastore.properties import refuse_secrets
from skiway.metastore.realm import Realm
from skiway.metastore.repository import Stored
from skiway.metastore.reserved import refuse_system_path, writable_id
from skiway.model import v1
from skiway.storage import Operation, Pointer

__all__ = ["clear", "create", "delete", "get", "list_", "update"]


def create(realm: Realm, request: v1.CreateNamespaceRequest) -> v1.CreateNamespaceResponse:
    """A new namespace, and with it those of its parents that do not exist yet."""
    spec = _normal(realm, request)
    claim = Claim(realm, "CreateNamespace", request.idempotency.key, spec, v1.CreateNamespaceResponse)
    return once(claim, lambda: retrying(lambda: _create(realm, spec, claim)))


def get(realm: Realm, request: v1.GetNamespaceRequest) -> v1.GetNamespaceResponse:
    """The namespace, and in which version it is stored."""
    found = places.namespace(realm, request.namespace_id)
    return v1.GetNamespaceResponse(namespace=found.value, meta=found.meta)


def list_(realm: Realm, request: v1.ListNamespacesRequest) -> v1.ListNamespacesResponse:
    """The namespaces below a catalog, a path in it, or a namespace, by path."""
    if request.children_only and request.recursive:
        raise failure(InvalidArgument, "selector.ambiguous", first="children_only", second="recursive")
    catalog_id, path = _parent(realm, request)
    below = Below(realm, catalog_id, path, recursive=request.recursive)
    namespaces, page = below.page(request.page, name_prefix=request.name_prefix)
    return v1.ListNamespacesResponse(namespaces=namespaces, page=page)


def delete(realm: Realm, request: v1.DeleteNamespaceRequest) -> v1.DeleteNamespaceResponse:
    """Delete a namespace. One that holds something is refused, or emptied where `require_empty` is said to be false.

    Emptying deletes one thing after the other, each wholly; who fails in between leaves the rest as it was.
    """
    namespace_id = writable_id(realm, request.namespace_id, v1.RK_NAMESPACE, field="namespace_id")

    def remove(pointer: Pointer, namespace: v1.Namespace | None) -> None:
        if request.HasField("require_empty") and not request.require_empty:
            relations.clear(realm, namespace_id)
            if namespace:
                clear(realm, namespace.catalog_id.id, full_path(namespace))
        _remove_empty(realm, pointer, namespace)

    meta = changes.delete(
        realm.all(NAMESPACE),
        keys.namespace(realm.account_id, namespace_id),
        name=namespace_id,
        precondition=request.precondition,
        remove=remove,
    )
    return v1.DeleteNamespaceResponse(meta=meta)


def clear(realm: Realm, catalog_id: str, path: Sequence[str]) -> None:
    """Delete all namespaces below a path, and all they hold, the deepest first."""
    below = Below(realm, catalog_id, tuple(path), recursive=True)
    # A path sorts before those below it.
    for pointer in reversed(list(realm.stores.pointers.scan(below.prefix))):
        owner = keys.owner(pointer)
        relations.clear(realm, owner.rpartition("/")[2])
        changes.delete(
            realm.all(NAMESPACE),
            owner,
            name=owner,
            precondition=v1.Precondition(),
            remove=lambda pointer, namespace: _remove_empty(realm, pointer, namespace),
        )


def _normal(realm: Realm, request: v1.CreateNamespaceRequest) -> v1.NamespaceSpec:
    if not request.HasField("spec"):
        raise failure(InvalidArgument, "spec.required", field="spec")
    spec = changes.copied(request.spec)
    path = normal_path(spec.path, field="path")
    spec.display_name = normal_name(spec.display_name, resource="namespace")
    refuse_system_path(normal_path((*path, spec.display_name), field="path"))
    spec.path[:] = path
    catalog_id = writable_id(realm, spec.catalog_id, v1.RK_CATALOG, field="catalog_id")
    spec.catalog_id.CopyFrom(resource_id(realm, catalog_id, v1.RK_CATALOG))
    refuse_secrets(spec.properties, field="properties")
    return spec


def _create(
    realm: Realm, spec: v1.NamespaceSpec, claim: Claim[v1.CreateNamespaceResponse]
) -> v1.CreateNamespaceResponse:
    catalog = places.catalog(realm, spec.catalog_id)
    parent, known, missing = nearest(realm, catalog, spec.path)
    if missing and is_managed(catalog.value):
        _refuse_other_case(realm, spec.catalog_id.id, (*known, missing[0]))
    namespace = _new(realm, spec.catalog_id, (*spec.path, spec.display_name))
    for path in ("description", "policy_ref", "properties"):
        copy_field(spec, namespace, path)
    repository = writer(realm, NAMESPACE)

    def also(stored: Stored[v1.Namespace]) -> tuple[Operation, ...]:
        between = [
            put
            for length in range(1, len(missing) + 1)
            for put in repository.reservation(_new(realm, spec.catalog_id, (*known, *missing[:length])))[1]
        ]
        answer = v1.CreateNamespaceResponse(namespace=stored.value, meta=stored.meta)
        return *inside(parent), *between, *claim.remembering(answer)

    created = repository.create(namespace, also=also)
    return v1.CreateNamespaceResponse(namespace=created.value, meta=created.meta)


def _refuse_other_case(realm: Realm, catalog_id: str, path: Sequence[str]) -> None:
    """A parent that is missing could be made on the way, unless there is one that differs in case only."""
    taken = realm.all(NAMESPACE).named(keys.namespace_fold(realm.account_id, catalog_id, path))
    if taken is not None and full_path(taken) != tuple(path):
        raise failure(AlreadyExists, "namespace.already.exists", resource="namespace", name=dotted(path))


def _new(realm: Realm, catalog_id: v1.ResourceId, path: Sequence[str]) -> v1.Namespace:
    now = realm.now()
    return v1.Namespace(
        resource_id=resource_id(realm, realm.ids(), v1.RK_NAMESPACE),
        catalog_id=catalog_id,
        parents=path[:-1],
        display_name=path[-1],
        created_at=now,
        updated_at=now,
    )


def _parent(realm: Realm, request: v1.ListNamespacesRequest) -> tuple[str, tuple[str, ...]]:
    path = normal_path(request.path, field="path")
    match request.WhichOneof("parent"):
        case "catalog_id":
            catalog = places.catalog(realm, request.catalog_id).value
            if path:
                require_path(realm, catalog, path)
            return catalog.resource_id.id, path
        case "namespace_id":
            if path:
                raise failure(InvalidArgument, "selector.ambiguous", first="namespace_id", second="path")
            namespace = places.namespace(realm, request.namespace_id).value
            return namespace.catalog_id.id, full_path(namespace)
        case _:
            raise failure(InvalidArgument, "selector.required", choices="catalog_id or namespace_id")


def _remove_empty(realm: Realm, pointer: Pointer, namespace: v1.Namespace | None) -> None:
    remove_empty(
        realm,
        remover(realm, NAMESPACE),
        pointer,
        namespace,
        require_empty=lambda: _require_empty(realm, pointer, namespace),
    )


def _require_empty(realm: Realm, pointer: Pointer, namespace: v1.Namespace | None) -> None:
    """A namespace that cannot be read does not tell its path, so nothing can be said about those below it."""
    namespace_id = pointer.key.rpartition("/")[2]
    path = full_path(namespace) if namespace else ()
    below = Below(realm, namespace.catalog_id.id, path).count() if namespace else 0
    found = described([*relations.counts(realm, namespace_id), (below, "namespace")])
    if found:
        name = dotted(path) or namespace_id
        raise failure(Conflict, "namespace.not_empty", display_name=name, found=found)
