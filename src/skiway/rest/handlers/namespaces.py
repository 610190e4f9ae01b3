"""Handlers for catalogs and namespaces: the configuration of clients, namespaces and their properties.

`GET /v1/config` is the first request of every client: it returns the prefix of its paths, and the supported endpoints.

The properties of a catalog that start with `table-default.` are defaults of new tables, which clients can override; those
that start with `table-override.` always apply. `view-default.` and `view-override.` do the same for views.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from skiway.errors import Contention, InvalidArgument, NotFound, PreconditionFailed
from skiway.metastore import managed
from skiway.metastore.managed.locations import folder_of_namespace
from skiway.metastore.resources import catalogs, hierarchy, namespaces
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1
from skiway.rest import resolve
from skiway.rest.bodies import CreateNamespace, UpdateProperties, decoded
from skiway.rest.calls import NO_CONTENT, Handler, RestRequest, RestResponse, Route, json_response, listing
from skiway.rest.resolve import Resolver, named_catalog

_KINDS: Final = ("table", "view")


def properties_of_new(kind: str, catalog: v1.Catalog, given: Mapping[str, str]) -> dict[str, str]:
    """The properties of a new table or view for which a client gave some."""
    return _with(f"{kind}-default.", catalog) | dict(given) | _with(f"{kind}-override.", catalog)


def shown_properties(catalog: v1.Catalog, rule: str) -> dict[str, str]:
    """The defaults or overrides that clients receive with the configuration, so that they can apply them, too."""
    prefixes = tuple(f"{kind}-{rule}." for kind in _KINDS)
    return {name: value for name, value in sorted(catalog.properties.items()) if name.startswith(prefixes)}


def _with(prefix: str, catalog: v1.Catalog) -> dict[str, str]:
    found = catalog.properties.items()
    return {name.removeprefix(prefix): value for name, value in found if name.startswith(prefix)}


def config_of(routes: Iterable[Route]) -> Handler:
    """The handler of `/v1/config`."""
    listed = sorted(routes, key=lambda route: route.endpoint)

    def config(request: RestRequest) -> RestResponse:
        """The catalog named by `warehouse`, or the only one, is the prefix of all paths."""
        name = request.query.get("warehouse", "")
        found = named_catalog(request.realm, name) if name else _only(request)
        return json_response(
            {
                "defaults": shown_properties(found, "default"),
                "overrides": {"prefix": quote(found.display_name, safe=""), **shown_properties(found, "override")},
                "endpoints": [route.endpoint for route in listed if route.offered(request.lake)],
                "idempotency-key-lifetime": f"PT{int(request.realm.idempotency_ttl_s)}S",
            }
        )

    return config


def _only(request: RestRequest) -> v1.Catalog:
    page = catalogs.list_(request.realm, v1.ListCatalogsRequest(page=v1.PageRequest(page_size=20)))
    found = list(page.catalogs)
    if len(found) != 1:
        names = ", ".join(each.display_name for each in found) or "none yet"
        raise InvalidArgument(
            f"no warehouse was named, and the account does not have exactly one catalog: set `warehouse` to one of: {names}",
            key="warehouse.required",
            field="warehouse",
        )
    return found[0]


COMMENT = "comment"
"""The property in which engines store descriptions."""
LOCATION = "location"
"""The property from which some engines derive the locations of new tables."""


def list_(request: RestRequest) -> RestResponse:
    """List the children of `parent`, or the top-level namespaces."""
    resolver = resolve.readable(request)
    parent = request.query.get("parent", "")
    path = _parent(resolver, parent) if parent else ()

    def page(wanted: v1.PageRequest) -> v1.ListNamespacesResponse:
        catalog_id = resolver.catalog.resource_id
        return namespaces.list_(request.realm, v1.ListNamespacesRequest(catalog_id=catalog_id, path=path, page=wanted))

    return listing(request.query, "namespaces", page, "namespaces", lambda namespace: list(full_path(namespace)))


def create(request: RestRequest) -> RestResponse:
    """Create a namespace and its missing parents."""
    catalog = resolve.writable(request).catalog
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
    return _response(request, catalog, namespaces.create(request.realm, v1.CreateNamespaceRequest(spec=spec)).namespace)


def load(request: RestRequest) -> RestResponse:
    """Load a namespace with its properties."""
    resolver = resolve.readable(request)
    return _response(request, resolver.catalog, resolver.namespace())


def exists(request: RestRequest) -> RestResponse:
    """Check that the namespace exists."""
    resolve.readable(request).namespace()
    return NO_CONTENT


def drop(request: RestRequest) -> RestResponse:
    """Delete an empty namespace."""
    found = resolve.writable(request).namespace()
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
    found = resolve.writable(request).namespace()
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


def _parent(resolver: Resolver, parent: str) -> tuple[str, ...]:
    """The path of the parent. Some clients encode its levels twice."""
    path = resolve.levels(parent)
    try:
        return full_path(resolver.namespace(path, damaged=True))
    except NotFound:
        again = tuple(map(unquote, path))
        if again == path:
            raise
        return full_path(resolver.namespace(again))


def _properties(namespace: v1.Namespace) -> dict[str, str]:
    described = {COMMENT: namespace.description} if namespace.description else {}
    return described | dict(namespace.properties)


def _response(request: RestRequest, catalog: v1.Catalog, namespace: v1.Namespace) -> RestResponse:
    properties, policies = _properties(namespace), request.realm.policies
    is_restricted = policies is not None and policies.restrict_anything
    if is_restricted and request.decision is not None:  # who creates tables learns their locations anyway
        is_restricted = not request.decision.may("table.write", namespace)
    if hierarchy.is_managed(catalog) and not is_restricted:
        where = folder_of_namespace(request.realm, request.lake.warehouse, namespace.resource_id.id)
        properties = {LOCATION: where} | properties
    shown: dict[str, Any] = {"namespace": list(full_path(namespace)), "properties": properties}
    return json_response(shown)
