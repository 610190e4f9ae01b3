"""Handlers for namespaces and their properties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from skiway.errors import Contention, InvalidArgument, NotFound, PreconditionFailed
from skiway.metastore import managed
from skiway.metastore.resources import hierarchy, namespaces
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1
from skiway.rest import resolve
from skiway.rest.bodies import CreateNamespace, UpdateProperties, decoded
from skiway.rest.calls import NO_CONTENT, RestRequest, RestResponse, json_response, listing

__all__ = ["create", "drop", "exists", "list_", "load", "update_properties"]

COMMENT = "comment"
"""The property in which engines store descriptions."""


def list_(request: RestRequest) -> RestResponse:
    """List the children of `parent`, or the top-level namespaces."""
    catalog = resolve.catalog(request)
    given = request.query.get("parent", "")
    path = _parent(request, catalog, given) if given else ()

    def page(wanted: v1.PageRequest) -> tuple[Sequence[v1.Namespace], v1.PageResponse]:
        found = namespaces.list_(
            request.realm, v1.ListNamespacesRequest(catalog_id=catalog.resource_id, path=path, page=wanted)
        )
        return found.namespaces, found.page

    return listing(request.query, "namespaces", page, lambda found: list(full_path(found)))


def create(request: RestRequest) -> RestResponse:
    """Create a namespace and its missing parents."""
    catalog = resolve.writable(request)
    wanted = decoded(request.body, CreateNamespace)
    managed.require_addressable(*wanted.namespace)
    properties = wanted.properties or {}
    *parents, name = wanted.namespace
    spec = v1.NamespaceSpec(
        catalog_id=catalog.resource_id,
        path=parents,
        display_name=name,
        properties=properties,
        description=properties.get(COMMENT),
    )
    return _response(namespaces.create(request.realm, v1.CreateNamespaceRequest(spec=spec)).namespace)


def load(request: RestRequest) -> RestResponse:
    """Load a namespace with its properties."""
    return _response(resolve.namespace(request, resolve.catalog(request)))


def exists(request: RestRequest) -> RestResponse:
    """Check that the namespace exists."""
    resolve.namespace(request, resolve.catalog(request))
    return NO_CONTENT


def drop(request: RestRequest) -> RestResponse:
    """Delete an empty namespace."""
    found = resolve.namespace(request, resolve.writable(request))
    namespaces.delete(request.realm, v1.DeleteNamespaceRequest(namespace_id=found.resource_id))
    return NO_CONTENT


def update_properties(request: RestRequest) -> RestResponse:
    """Set some properties and remove others, atomically."""
    wanted = decoded(request.body, UpdateProperties)
    removals, updates = set(wanted.removals or ()), wanted.updates or {}
    both = sorted(removals & updates.keys())
    if both:
        raise InvalidArgument(
            f"properties {', '.join(both)} are in both removals and updates: send each in only one of them",
            key="properties.contradict",
            field="removals",
        )
    found = resolve.namespace(request, resolve.writable(request))
    before = _update(request, found.resource_id, removals, updates)
    return json_response(
        {
            "updated": sorted(updates),
            "removed": sorted(removals & before.keys()),
            "missing": sorted(removals - before.keys()),
        }
    )


def _update(request: RestRequest, which: v1.ResourceId, removals: set[str], updates: dict[str, str]) -> dict[str, str]:
    """Update the properties and return the previous ones; raises `Contention` after a concurrent change, to be retried."""
    current = hierarchy.namespace(request.realm, which)
    before = _properties(current.value)
    after = {name: value for name, value in before.items() if name not in removals} | updates
    update = v1.UpdateNamespaceRequest(
        namespace_id=which, spec=v1.NamespaceSpec(properties=after, description=after.get(COMMENT, ""))
    )
    update.update_mask.paths.extend(["properties", "description"])
    update.precondition.expected_version = current.pointer.version
    try:
        namespaces.update(request.realm, update)
    except PreconditionFailed as error:
        if error.key != "version.mismatch":
            raise
        raise Contention(error.message, key="store.contended") from error
    return before


def _parent(request: RestRequest, catalog: v1.Catalog, given: str) -> tuple[str, ...]:
    """The path of the parent. Some clients encode its levels twice."""
    path = resolve.levels(given)
    try:
        return full_path(resolve.namespace_at(request.realm, catalog, path, damaged=True))
    except NotFound:
        again = tuple(map(unquote, path))
        if again == path:
            raise
        return full_path(resolve.namespace_at(request.realm, catalog, again))


def _properties(namespace: v1.Namespace) -> dict[str, str]:
    described = {COMMENT: namespace.description} if namespace.description else {}
    return described | dict(namespace.properties)


def _response(namespace: v1.Namespace) -> RestResponse:
    shown: dict[str, Any] = {"namespace": list(full_path(namespace)), "properties": _properties(namespace)}
    return json_response(shown)
