"""`GET /v1/config`, the first request of every client: the prefix of its paths, and the supported endpoints."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from skiway.errors import InvalidArgument
from skiway.metastore.resources import catalogs
from skiway.model import v1
from skiway.rest.calls import Handler, RestRequest, RestResponse, Route, json_response
from skiway.rest.catalog_properties import shown_properties
from skiway.rest.resolve import named_catalog

__all__ = ["config_of"]


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
