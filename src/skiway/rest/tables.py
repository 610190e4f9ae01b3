"""A table as clients load it: where its metadata is, the metadata itself, and how its files are reached."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import InvalidArgument
from skiway.formats.iceberg.metadata import metadata_json, read_metadata
from skiway.metastore import managed
from skiway.metastore.managed.locations import folder_of
from skiway.metastore.resources import tables
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1
from skiway.rest import mirrored, places
from skiway.rest.bodies import Renaming, Report, decoded
from skiway.rest.calls import NOTHING, Answer, Asked, listing

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["drop", "exists", "list_", "load", "loaded", "rename", "report"]

_SHOWN: Final = ("s3.endpoint", "s3.region", "client.region", "s3.path-style-access", "s3.force-virtual-addressing")
"""What of the warehouse's settings clients are told: never credentials, they bring their own."""


def loaded(asked: Asked, metadata: str, location: str | None, *, headers: Mapping[str, str] | None = None) -> Answer:
    """The answer of a load, a creation or a commit; `metadata` is JSON already. A table that is staged has no location."""
    properties = asked.lake.warehouse.properties
    config = {name: properties[name] for name in _SHOWN if name in properties}
    where = f'"metadata-location": {json.dumps(location)}, ' if location else ""
    body = f'{{{where}"metadata": {metadata}, "config": {json.dumps(config)}}}'
    return Answer(200, body.encode(), headers or {})


# --------------------
# Tables: list, load, exists, drop, rename, and reports about them.


MODES: Final = ("all", "refs")

log = logging.getLogger("skiway.rest.reports")


def list_(asked: Asked) -> Answer:
    """The tables of a namespace that clients of Iceberg can read."""
    namespace = places.namespace(asked, places.catalog(asked))
    path = list(full_path(namespace))

    def page(request: v1.PageRequest) -> tuple[Sequence[v1.Table], v1.PageResponse]:
        found = tables.list_(asked.realm, v1.ListTablesRequest(namespace_id=namespace.resource_id, page=request))
        return found.tables, found.page

    def shown(table: v1.Table) -> dict[str, Any] | None:
        served = mirrored.is_served(table, mirrors=asked.lake.mirrors)
        return {"namespace": path, "name": table.display_name} if served else None

    return listing(asked.query, "identifiers", page, shown)


def load(asked: Asked) -> Answer:
    """The table's metadata; nothing new if the client has it already."""
    mode = _choice(asked.query, "snapshots", MODES, default="all")
    table = _served(asked)
    metadata, location = _metadata(asked, table)
    etag = f'"{sha256(f"{table.resource_id.id} {location} {mode}".encode()).hexdigest()[:32]}"'
    if _known(asked.headers.get("if-none-match", ""), etag):
        return Answer(304, headers={"etag": etag})

    def render() -> str:
        return metadata_json(_of_refs(metadata) if mode == "refs" else metadata)

    text = asked.lake.rendered.get((asked.realm.account_id, table.resource_id.id, location, mode), render)
    return loaded(asked, text, location, headers={"etag": etag})


def exists(asked: Asked) -> Answer:
    """Nothing, if the table is there."""
    _served(asked)
    return NOTHING


def drop(asked: Asked) -> Answer:
    """Delete a table; its files at once if `purgeRequested`, else after a while."""
    purge = _choice(asked.query, "purgeRequested", ("true", "false"), default="false") == "true"
    table = _changeable(asked)
    managed.drop(asked.realm, asked.lake.warehouse, table.resource_id, purge=purge)
    return NOTHING


def rename(asked: Asked) -> Answer:
    """Give a table another name, or another namespace of its catalog."""
    wanted = decoded(asked.body, Renaming)
    catalog = places.writable(asked)
    table = places.table_at(asked.realm, catalog, wanted.source.namespace, wanted.source.name)
    places.require_managed(asked.realm, mirrored.require_served(table, mirrors=asked.lake.mirrors))
    destination = places.namespace_at(asked.realm, catalog, wanted.destination.namespace)
    name = wanted.destination.name
    with places.claiming(wanted.destination.namespace, name):
        managed.rename(asked.realm, table.resource_id, name=name, namespace_id=destination.resource_id)
    return NOTHING


def report(asked: Asked) -> Answer:
    """Take note of what a client measured."""
    sent = decoded(asked.body, Report)
    log.debug("%s of table %s: %d bytes", sent.kind[:40], asked.names["table"][:100], len(asked.body))
    return NOTHING


def _served(asked: Asked) -> v1.Table:
    found = places.table(asked, places.catalog(asked))
    return mirrored.require_served(found, mirrors=asked.lake.mirrors)


def _changeable(asked: Asked) -> v1.Table:
    found = places.table(asked, places.writable(asked))
    mirrored.require_served(found, mirrors=asked.lake.mirrors)
    return places.require_managed(asked.realm, found)


def _metadata(asked: Asked, table: v1.Table) -> tuple[TableMetadata, str]:
    """The metadata, and where it is."""
    if not table.metadata_location:
        handle = mirrored.opened(asked.realm, table, mirrors=asked.lake.mirrors)
        return handle.metadata, handle.metadata_location
    warehouse = asked.lake.warehouse
    files = warehouse.files(folder_of(asked.realm, warehouse, table.resource_id.id))
    return read_metadata(files, table.metadata_location), table.metadata_location


def _of_refs(metadata: TableMetadata) -> TableMetadata:
    """The metadata with those snapshots only that a branch or tag names."""
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    return metadata.model_copy(update={"snapshots": [each for each in metadata.snapshots if each.snapshot_id in named]})


def _known(header: str, etag: str) -> bool:
    given = [each.strip().removeprefix("W/") for each in header.split(",")]
    return etag in given or "*" in given


def _choice(query: Mapping[str, str], name: str, choices: Sequence[str], *, default: str) -> str:
    given = query.get(name, default).lower()
    if given not in choices:
        raise InvalidArgument(f"{name} is {given[:40]!r}: say {' or '.join(choices)}", key="query.invalid", field=name)
    return given
