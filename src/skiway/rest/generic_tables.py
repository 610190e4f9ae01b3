"""Generic tables: mirrored tables that Iceberg clients cannot read, for clients that read Delta or Parquet themselves.

The routes are those that Apache Polaris has for tables in other formats. They are read-only.
"""

from __future__ import annotations

from skiway.errors import NotFound
from skiway.formats import location
from skiway.formats.iceberg.warehouse import uri_of
from skiway.metastore import exports
from skiway.rest import resolve
from skiway.rest.calls import RestRequest, RestResponse, json_response
from skiway.rest.tables import listed

__all__ = ["list_", "load"]


def list_(request: RestRequest) -> RestResponse:
    """List the tables of a namespace that are in another format and cannot be read as Iceberg."""
    is_known = request.lake.mirrors is not None
    return listed(request, lambda table, is_readable: is_known and exports.is_exportable(table) and not is_readable)


def load(request: RestRequest) -> RestResponse:
    """Return the format and the location of a mirrored table. Callers whom policies restrict get neither."""
    name = request.names["generic-table"]
    table = resolve.table_at(request.realm, resolve.catalog(request), resolve.levels(request.names["namespace"]), name)
    request.realm.require_unrestricted(table)
    if request.lake.mirrors is None or not exports.is_exportable(table):
        raise NotFound(
            f"table {table.display_name} is not a generic table: load it as an Iceberg table",
            key="table.not_generic",
            display_name=table.display_name,
        )
    body = {
        "name": table.display_name,
        "format": resolve.format_name(table),
        "base-location": uri_of(location(table.upstream.uri)),
        **({"doc": table.description} if table.description else {}),
        "properties": {},
    }
    return json_response({"table": body})
