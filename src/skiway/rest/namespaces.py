"""Namespaces: list, create, load, exists, drop, and their properties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from skiway.errors import Contention, InvalidArgument, NotFound, PreconditionFailed
from skiway.metastore import managed
from skiway.metastore.resources import hierarchy, namespaces
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1
from skiway.rest import places
from skiway.rest.bodies import CreateNamespace, UpdateProperties, decoded
from skiway.rest.calls import NOTHING, Answer, Asked, listing, said

__all__ = ["create", "drop", "exists", "list_", "load", "update_properties"]

COMMENT = "comment"
"""The property that engines write descriptions to."""


def list_(asked: Asked) -> Answer:
    """The namespaces right below `parent`, or the topmost ones."""
    catalog = places.catalog(asked)
    given = asked.query.get("parent", "")
    path = _parent(asked, catalog, given) if given else ()

    def page(request: v1.PageRequest) -> tuple[Sequence[v1.Namespace], v1.PageResponse]:
        found = namespaces.list_(
            asked.realm, v1.ListNamespacesRequest(catalog_id=catalog.resource_id, path=path, page=request)
        )
        return found.namespaces, found.page

    return listing(asked.query, "namespaces", page, lambda found: list(full_path(found)))


def create(asked: Asked) -> Answer:
    """A new namespace, and with it those of its parents that do not exist yet."""
    catalog = places.writable(asked)
    wanted = decoded(asked.body, CreateNamespace)
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
    return _said(namespaces.create(asked.realm, v1.CreateNamespaceRequest(spec=spec)).namespace)


def load(asked: Asked) -> Answer:
    """The namespace and its properties."""
    return _said(places.namespace(asked, places.catalog(asked)))


def exists(asked: Asked) -> Answer:
    """Nothing, if the namespace is there."""
    places.namespace(asked, places.catalog(asked))
    return NOTHING


def drop(asked: Asked) -> Answer:
    """Delete a namespace, which must be empty."""
    found = places.namespace(asked, places.writable(asked))
    namespaces.delete(asked.realm, v1.DeleteNamespaceRequest(namespace_id=found.resource_id))
    return NOTHING


def update_properties(asked: Asked) -> Answer:
    """Set some properties and remove others, in one step."""
    wanted = decoded(asked.body, UpdateProperties)
    removals, updates = set(wanted.removals or ()), wanted.updates or {}
    both = sorted(removals & updates.keys())
    if both:
        raise InvalidArgument(
            f"properties {', '.join(both)} are to be removed and updated: decide for one",
            key="properties.contradict",
            field="removals",
        )
    found = places.namespace(asked, places.writable(asked))
    before = _update(asked, found.resource_id, removals, updates)
    return said(
        {
            "updated": sorted(updates),
            "removed": sorted(removals & before.keys()),
            "missing": sorted(removals - before.keys()),
        }
    )


def _update(asked: Asked, which: v1.ResourceId, removals: set[str], updates: dict[str, str]) -> dict[str, str]:
    """The properties as they were before. Who was overtaken says so by `Contention`, and is called again."""
    current = hierarchy.namespace(asked.realm, which)
    before = _properties(current.value)
    after = {name: value for name, value in before.items() if name not in removals} | updates
    request = v1.UpdateNamespaceRequest(
        namespace_id=which, spec=v1.NamespaceSpec(properties=after, description=after.get(COMMENT, ""))
    )
    request.update_mask.paths.extend(["properties", "description"])
    request.precondition.expected_version = current.pointer.version
    try:
        namespaces.update(asked.realm, request)
    except PreconditionFailed as error:
        if error.key != "version.mismatch":
            raise
        raise Contention(error.message, key="store.contended") from error
    return before


def _parent(asked: Asked, catalog: v1.Catalog, given: str) -> tuple[str, ...]:
    """The path of the parent. Some clients encode its levels once more than the parameter needs."""
    path = places.levels(given)
    try:
        return full_path(places.namespace_at(asked.realm, catalog, path))
    except NotFound:
        again = tuple(map(unquote, path))
        if again == path:
            raise
        return full_path(places.namespace_at(asked.realm, catalog, again))


def _properties(namespace: v1.Namespace) -> dict[str, str]:
    described = {COMMENT: namespace.description} if namespace.description else {}
    return described | dict(namespace.properties)


def _said(namespace: v1.Namespace) -> Answer:
    shown: dict[str, Any] = {"namespace": list(full_path(namespace)), "properties": _properties(namespace)}
    return said(shown)
