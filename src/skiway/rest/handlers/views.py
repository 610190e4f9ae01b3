"""Handlers for views: list, create, load, replace, drop, rename and register.

Callers who are restricted on a view do not get its SQL: their engine would run it without the policies.
"""

from __future__ import annotations

from typing import Any

from skiway.metastore import managed, views
from skiway.metastore.managed import IcebergView
from skiway.metastore.records.policies import NOT_CHANGED
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1
from skiway.rest import resolve
from skiway.rest.bodies import Registration, decoded
from skiway.rest.calls import NO_CONTENT, RestRequest, RestResponse, json_response, listing
from skiway.rest.handlers.namespaces import properties_of_new
from skiway.rest.resolve import Resolver


def list_(request: RestRequest) -> RestResponse:
    """List the views of a namespace that Iceberg clients can read."""
    namespace = resolve.readable(request).namespace(damaged=True)
    path = list(full_path(namespace))

    def page(wanted: v1.PageRequest) -> v1.ListViewsResponse:
        everything = request.realm.without_policies()  # only names are shown
        return views.list_(everything, v1.ListViewsRequest(namespace_id=namespace.resource_id, page=wanted))

    def shown(view: v1.View) -> dict[str, Any] | None:
        served = view.damage or managed.has_columns(view)
        return {"namespace": path, "name": view.display_name} if served else None

    return listing(request.query, "identifiers", page, "views", shown)


def create(request: RestRequest) -> RestResponse:
    """Create a view."""
    from skiway.rest.models import CreateView

    resolver = resolve.writable(request)
    namespace = resolver.namespace()
    wanted = decoded(request.body, CreateView)
    with resolve.claiming(request.realm, namespace, wanted.name, kind="view"):
        made = managed.create_view(
            request.realm,
            request.lake.warehouse,
            namespace_id=namespace.resource_id,
            name=wanted.name,
            schema=wanted.schema_,
            version=wanted.view_version,
            properties=properties_of_new("view", resolver.catalog, wanted.properties),
            location=wanted.location,
        )
    return _response(made)


def register(request: RestRequest) -> RestResponse:
    """Create a view from an existing metadata file."""
    namespace = resolve.writable(request).namespace()
    wanted = decoded(request.body, Registration)
    with resolve.claiming(request.realm, namespace, wanted.name, kind="view"):
        resolve.require_free(request.realm, namespace, wanted.name, kind="view")
        made = managed.register_view(
            request.realm,
            request.lake.warehouse,
            namespace_id=namespace.resource_id,
            name=wanted.name,
            metadata_location=wanted.metadata_location,
        )
    return _response(made)


def load(request: RestRequest) -> RestResponse:
    """Load the metadata of a view."""
    view = resolve.readable(request).view()
    request.realm.require_unrestricted(view)
    return _response(managed.load_view(request.realm, request.lake.warehouse, view))


def exists(request: RestRequest) -> RestResponse:
    """Check that the view exists."""
    resolve.readable(request).view()
    return NO_CONTENT


def replace(request: RestRequest) -> RestResponse:
    """Apply updates to a view, if it is the required one, and return it."""
    from skiway.rest.models import CommitView

    view = resolve.writable(request).view()
    request.realm.require_unrestricted(view)
    wanted = decoded(request.body, CommitView)
    resolve.check_identifier(request, wanted.identifier, request.names["view"])
    required = wanted.requirements[-1].uuid if wanted.requirements else None
    made = managed.commit_view(
        request.realm, request.lake.warehouse, view.resource_id, wanted.updates, required_uuid=required
    )
    return _response(made)


def drop(request: RestRequest) -> RestResponse:
    """Drop a view."""
    view = resolve.writable(request).view()
    request.realm.require_unrestricted(view, why=NOT_CHANGED)
    managed.drop_view(request.realm, request.lake.warehouse, view)
    return NO_CONTENT


def rename(request: RestRequest) -> RestResponse:
    """Rename a view, or move it to another namespace of its catalog."""
    return resolve.renamed(request, Resolver.view, managed.rename_view)


def _response(found: IcebergView) -> RestResponse:
    metadata = found.metadata.model_dump(mode="json", by_alias=True, exclude_none=True)
    return json_response({"metadata-location": found.metadata_location, "metadata": metadata, "config": {}})
