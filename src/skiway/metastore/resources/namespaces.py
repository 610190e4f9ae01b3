"""Namespaces: they contain tables, views and further namespaces, in a hierarchy below a catalog.

A namespace stores the path of its parents, and a table the id of its catalog. So a namespace can be moved only while it
contains no namespaces, and to another catalog only while it is empty. During the move it is closed, as for a deletion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Final

from skiway.errors import Conflict, InvalidArgument
from skiway.foundation import resources
from skiway.metastore.records import keys, updates
from skiway.metastore.records.errors import failure, invalid_field
from skiway.metastore.records.kinds import NAMESPACE
from skiway.metastore.records.names import (
    check_properties,
    dotted,
    exact_name,
    exact_path,
    folded,
    normal_path,
    normal_text,
)
from skiway.metastore.records.realm import Realm, resource_id
from skiway.metastore.records.repository import Stored
from skiway.metastore.records.updates import (
    Claim,
    closed,
    copy_fields,
    counted,
    inside,
    once,
    remove_empty,
    reopening,
    retrying,
)
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.hierarchy import (
    Below,
    find_path,
    full_path,
    is_managed,
    nearest,
    refuse_system_path,
    remover,
    require_path,
    writable_id,
    writer,
)
from skiway.metastore.resources.named import Calls
from skiway.model import v1
from skiway.storage import Operation, Pointer


def create(realm: Realm, request: v1.CreateNamespaceRequest) -> v1.CreateNamespaceResponse:
    """Create a namespace, and its missing parents."""
    spec = _normal(realm, request)
    claim = Claim(realm, "CreateNamespace", request.idempotency.key, spec, v1.CreateNamespaceResponse)
    return once(claim, lambda: retrying(lambda: _create(realm, spec, claim)))


def list_(realm: Realm, request: v1.ListNamespacesRequest) -> v1.ListNamespacesResponse:
    """List the namespaces below a catalog, a path in it, or a namespace, by path."""
    if request.children_only and request.recursive:
        raise failure(InvalidArgument, "selector.ambiguous", first="children_only", second="recursive")
    catalog_id, path = _parent(realm, request)
    below = Below(realm, catalog_id, path, recursive=request.recursive)
    namespaces, page = below.page(request.page, name_prefix=request.name_prefix)
    return v1.ListNamespacesResponse(namespaces=namespaces, page=page)


def lookup(realm: Realm, catalog_id: v1.ResourceId, path: Sequence[str]) -> v1.Namespace | None:
    """The namespace at a path, in any case if the catalog is managed, or None. One with a damaged record has `damage` set."""
    return _lookup(realm, hierarchy.catalog(realm, catalog_id, damaged=True).value, path)


def find_any_case(realm: Realm, catalog: v1.Catalog, path: Sequence[str]) -> v1.Namespace | None:
    """The namespace at a path, or else one whose path differs in case only; None if there is none."""
    exact = _lookup(realm, catalog, path)
    if exact is not None or is_managed(catalog):
        return exact
    wanted = [folded(normal_text(segment)) for segment in path]
    others = scan(realm, catalog.resource_id.id)
    return next((each for each in others if list(map(folded, full_path(each))) == wanted), None)


def _lookup(realm: Realm, catalog: v1.Catalog, path: Sequence[str]) -> v1.Namespace | None:
    wanted = tuple(map(normal_text, path))
    stored = find_path(realm, catalog, wanted, damaged=True) if wanted and all(wanted) else None
    return None if stored is None else stored.value


def scan(realm: Realm, catalog_id: str) -> Iterator[v1.Namespace]:
    """All namespaces of a catalog at all depths, by path. Those with a damaged record have `damage` set."""
    return (found.value for found in realm.all(NAMESPACE).entries(Below(realm, catalog_id, (), recursive=True).prefix))


def nearest_property(realm: Realm, catalog: v1.Catalog, namespace: v1.Namespace, name: str) -> str:
    """A property of a namespace, or else of the nearest one above it or of its catalog; empty if none has it."""
    realm, path = realm.as_server(), full_path(namespace)
    if text := namespace.properties.get(name):
        return text
    for length in range(len(path) - 1, 0, -1):
        above = hierarchy.find_path(realm, catalog, path[:length], damaged=True)
        if above is not None and (text := above.value.properties.get(name)):
            return text
    return catalog.properties.get(name, "")


def clear(realm: Realm, catalog_id: str, path: Sequence[str]) -> None:
    """Delete all namespaces below a path with their contents, the deepest first."""
    below = Below(realm, catalog_id, tuple(path), recursive=True)
    # A path sorts before its children.
    for pointer in reversed(list(realm.stores.pointers.scan(below.prefix))):
        owner = keys.owner(pointer)
        hierarchy.clear_namespace(realm, keys.last_segment(owner))
        updates.delete(
            realm.all(NAMESPACE),
            owner,
            owner,
            v1.Precondition(),
            lambda pointer, namespace: _remove_empty(realm, pointer, namespace),
        )


def _normal(realm: Realm, request: v1.CreateNamespaceRequest) -> v1.NamespaceSpec:
    if not request.HasField("spec"):
        raise failure(InvalidArgument, "spec.required", field="spec")
    spec = updates.copied(request.spec)
    path = exact_path(spec.path, field="path")
    spec.display_name = exact_name(spec.display_name, resource="namespace")
    refuse_system_path(exact_path((*path, spec.display_name), field="path"))
    spec.path[:] = path
    catalog_id = writable_id(realm, spec.catalog_id, v1.RK_CATALOG, field="catalog_id")
    spec.catalog_id.CopyFrom(resource_id(realm, catalog_id, v1.RK_CATALOG))
    check_properties(spec.properties)
    return spec


def _create(
    realm: Realm, spec: v1.NamespaceSpec, claim: Claim[v1.CreateNamespaceResponse]
) -> v1.CreateNamespaceResponse:
    catalog = hierarchy.catalog(realm, spec.catalog_id)
    parent, known, missing = nearest(realm, catalog, spec.path)
    namespace = _new(realm, spec.catalog_id, (*known, *missing, spec.display_name))
    copy_fields(namespace, spec, ("description", "policy_ref", "properties"))
    repository = writer(realm, NAMESPACE)

    def batch() -> Iterator[Operation]:
        yield from inside(parent)
        for length in range(1, len(missing) + 1):
            yield from repository.reservation(_new(realm, spec.catalog_id, (*known, *missing[:length])))[1]

    return claim.created(repository, namespace, batch())


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
            catalog = hierarchy.catalog(realm, request.catalog_id, damaged=True).value
            if path:
                path = full_path(require_path(realm, catalog, path, damaged=True).value)
            return catalog.resource_id.id, path
        case "namespace_id":
            if path:
                raise failure(InvalidArgument, "selector.ambiguous", first="namespace_id", second="path")
            namespace = hierarchy.namespace(realm, request.namespace_id, damaged=True).value
            return namespace.catalog_id.id, full_path(namespace)
        case _:
            raise failure(InvalidArgument, "selector.required", choices="catalog_id or namespace_id")


def _remove(realm: Realm, request: v1.DeleteNamespaceRequest, pointer: Pointer, namespace: v1.Namespace | None) -> None:
    """Delete a namespace. If it is not empty, raise an error or, if `require_empty` is false, delete its contents first.

    Contents are deleted one by one. If one cannot be deleted, it and the rest stay.
    """
    if request.HasField("require_empty") and not request.require_empty:
        hierarchy.clear_namespace(realm, keys.last_segment(pointer.key))
        if namespace:
            clear(realm, namespace.catalog_id.id, full_path(namespace))
    _remove_empty(realm, pointer, namespace)


def _remove_empty(realm: Realm, pointer: Pointer, namespace: v1.Namespace | None) -> None:
    def held() -> str:
        # The path of an unreadable namespace is unknown, so its children are not counted.
        below = Below(realm, namespace.catalog_id.id, full_path(namespace)).count() if namespace else 0
        return counted([*hierarchy.child_counts(realm, keys.last_segment(pointer.key)), (below, "namespace")])

    remove_empty(realm, remover(realm, NAMESPACE), pointer, namespace, held=held)


# --- moving a namespace ----------------------------------------------------------------------------------------------


def _normal_update(realm: Realm, spec: v1.NamespaceSpec, paths: Set[str]) -> None:
    if {"path", "display_name"} <= paths:
        raise failure(InvalidArgument, "update.mask.path.mix", field="update_mask")
    if "path" in paths:
        exact_path(spec.path, field="path")
    if "catalog_id" in paths and spec.HasField("catalog_id"):
        catalog_id = writable_id(realm, spec.catalog_id, v1.RK_CATALOG, field="catalog_id")
        spec.catalog_id.CopyFrom(resource_id(realm, catalog_id, v1.RK_CATALOG))
    if "properties" in paths:
        check_properties(spec.properties)


def _edit(_: Realm, namespace: v1.Namespace, spec: v1.NamespaceSpec, paths: Set[str], required: Set[str]) -> None:
    copy_fields(namespace, spec, paths - {"path"}, required)
    if "path" in paths:
        # An empty path moves the namespace to the top level.
        *parents, name = spec.path or [namespace.display_name]
        namespace.parents[:], namespace.display_name = parents, name


def _write(realm: Realm, current: Stored[v1.Namespace], desired: v1.Namespace) -> Stored[v1.Namespace]:
    repository = writer(realm, NAMESPACE)
    if _place(current.value) == _place(desired):
        return repository.update(current, desired)
    refuse_system_path(full_path(desired))
    parent, desired.parents[:] = _new_parent(realm, current.value, desired)
    elsewhere = current.value.catalog_id.id != desired.catalog_id.id

    def require() -> None:
        _require_movable(realm, current.value, elsewhere=elsewhere)

    with closed(realm, current.pointer, resource="namespace", require=require) as moved:
        batch = *reopening(moved), *inside(parent)
        return repository.update(Stored(current.value, moved), desired, also=lambda _: batch)


def _place(namespace: v1.Namespace) -> tuple[str, tuple[str, ...]]:
    return namespace.catalog_id.id, full_path(namespace)


def _new_parent(realm: Realm, current: v1.Namespace, desired: v1.Namespace) -> tuple[Pointer, tuple[str, ...]]:
    """The pointer and the path of the new parent. It is not created if it is missing: a typo would create a namespace."""
    catalog = hierarchy.catalog(realm, desired.catalog_id)
    if not desired.parents:
        return catalog.pointer, ()
    path = full_path(current)
    above = find_path(realm, catalog.value, desired.parents[: len(path)])
    if above is not None and above.value.resource_id == current.resource_id:
        raise invalid_field("path", dotted(full_path(desired)), "choose a path outside of the namespace itself")
    parent = require_path(realm, catalog.value, desired.parents)
    return parent.pointer, full_path(parent.value)


def _require_movable(realm: Realm, namespace: v1.Namespace, *, elsewhere: bool) -> None:
    below = Below(realm, namespace.catalog_id.id, full_path(namespace)).count()
    held = hierarchy.child_counts(realm, namespace.resource_id.id) if elsewhere else []
    found = counted([*held, (below, "namespace")])
    if found:
        name = dotted(full_path(namespace))
        raise failure(Conflict, "namespace.has.children", display_name=name, found=found)


CALLS: Final = Calls(
    resources.NAMESPACE,
    NAMESPACE,
    normal=_normal_update,
    id_of=writable_id,
    edit=_edit,
    write=_write,
    remove=_remove,
    retries=True,
)
get, update, delete = CALLS.get, CALLS.update, CALLS.delete
