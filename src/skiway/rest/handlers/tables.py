"""Handlers for tables: list, load, drop and rename; generic tables, and reports of clients on their scans and commits.

Generic tables are mirrored tables that Iceberg clients cannot read, for clients that read Delta or Parquet themselves. The
routes are those that Apache Polaris has for tables in other formats. They are read-only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from skiway.errors import InvalidArgument, NotFound
from skiway.formats import location
from skiway.formats.iceberg.metadata import metadata_json
from skiway.formats.iceberg.warehouse import uri_of
from skiway.metastore import exports, managed
from skiway.metastore.managed.locations import files_of_table
from skiway.metastore.records.policies import NOT_CHANGED
from skiway.metastore.resources import tables
from skiway.metastore.resources.hierarchy import full_path
from skiway.metastore.usage import MetricsReport, add_report
from skiway.model import v1
from skiway.rest import resolve
from skiway.rest.bodies import FrozenBody, decoded
from skiway.rest.calls import NO_CONTENT, RestRequest, RestResponse, json_response, listing
from skiway.rest.handlers.delegation import NOTHING, Delegated, delegated_to
from skiway.rest.resolve import Resolver

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata


_SHAPES: Final = re.compile(r'"(geometry|geography)\(([^"\'()]+)\)"')


def _quoted(shape: re.Match[str]) -> str:
    """The type of a geometry or geography as PyIceberg writes it, which does not parse that of the specification."""
    parameters = ", ".join(f"'{parameter.strip()}'" for parameter in shape[2].split(","))
    return f'"{shape[1]}({parameters})"'


def loaded(
    request: RestRequest,
    metadata: str,
    location: str | None,
    *,
    headers: Mapping[str, str] | None = None,
    delegated: Delegated = NOTHING,
) -> RestResponse:
    """The response of a load, a creation or a commit; `metadata` is JSON. A staged table has no location.

    `delegated` is the access to files that the client asked for.
    """
    config = request.lake.warehouse.shown
    if request.headers.get("user-agent", "").startswith("PyIceberg/"):
        metadata = _SHAPES.sub(_quoted, metadata)
    where = f'"metadata-location": {json.dumps(location)}, ' if location else ""
    body = f'{{{where}"metadata": {metadata}, "config": {json.dumps(config)}}}'
    if delegated == NOTHING:
        return RestResponse(200, body.encode(), headers or {})
    full = (
        f'{{{where}"metadata": {metadata}, "config": {json.dumps({**config, **delegated.config})}, '
        f'"storage-credentials": {json.dumps(delegated.credentials)}}}'
    )
    return RestResponse(200, full.encode(), headers or {}, stored=body.encode())


MODES: Final = ("all", "refs")


def list_(request: RestRequest) -> RestResponse:
    """List the tables of a namespace that Iceberg clients can read."""
    return listed(request, lambda table, is_readable: bool(table.damage) or is_readable)


def listed(request: RestRequest, is_shown: Callable[[v1.Table, bool], bool]) -> RestResponse:
    """List tables of a namespace. `is_shown` chooses by a table, and by whether Iceberg clients can read it."""
    namespace = resolve.readable(request).namespace(damaged=True)
    path = list(full_path(namespace))
    everything = request.realm.without_policies()  # only names are shown
    known = exports.exports_of(everything)

    def page(wanted: v1.PageRequest) -> v1.ListTablesResponse:
        return tables.list_(everything, v1.ListTablesRequest(namespace_id=namespace.resource_id, page=wanted))

    def shown(table: v1.Table) -> dict[str, Any] | None:
        readable = resolve.is_served(table, mirrors=request.lake.mirrors)
        if readable and exports.is_exportable(table):
            readable = exports.may_be_exported(everything, table, known.get(table.resource_id.id))
        return {"namespace": path, "name": table.display_name} if is_shown(table, readable) else None

    return listing(request.query, "identifiers", page, "tables", shown)


def load(request: RestRequest) -> RestResponse:
    """Load the metadata of a table, or return 304 if the client already has it."""
    mode = _choice(request.query, "snapshots", MODES, default="all")
    table = resolve.readable(request).served_table()
    metadata, location = _metadata(request, table)
    delegated = delegated_to(request, table)
    shown_as = f"{mode} {request.branch_id}"
    etag = etag_of(table.resource_id.id, location, shown_as, delegated)
    known = {each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")}
    if known & {etag, "*"}:
        return RestResponse(304, headers={"etag": etag})

    def render() -> str:
        return metadata_json(_of_refs(metadata) if mode == "refs" else metadata)

    text = request.lake.rendered.get((request.realm.account_id, table.resource_id.id, location, shown_as), render)
    return loaded(request, text, location, headers={"etag": etag}, delegated=delegated)


def etag_of(table_id: str, location: str, mode: str, delegated: Delegated) -> str:
    """The ETag of the metadata file at `location`, as it is shown to a caller with this access to the table's files."""
    version = f"{table_id} {location} {mode}{delegated.version}"
    return f'"{sha256(version.encode()).hexdigest()[:32]}"'


def exists(request: RestRequest) -> RestResponse:
    """Check that the table exists, and that Iceberg clients can read it."""
    table = resolve.readable(request).served_table()
    if exports.is_exportable(table):
        resolve.opened(request.realm.without_policies(), request.lake, table)
    return NO_CONTENT


def drop(request: RestRequest) -> RestResponse:
    """Drop a table; delete its files at once if `purgeRequested`, else leave them to garbage collection."""
    purge = _choice(request.query, "purgeRequested", ("true", "false"), default="false") == "true"
    table = resolve.writable(request).served_table()
    request.realm.require_unrestricted(table, why=NOT_CHANGED)
    resolve.require_managed(request.realm, table)
    managed.drop(request.realm, request.lake.warehouse, table.resource_id, purge=purge)
    return NO_CONTENT


def rename(request: RestRequest) -> RestResponse:
    """Rename a table, or move it to another namespace of its catalog."""
    return resolve.renamed(request, Resolver.managed_table, managed.rename)


def _metadata(request: RestRequest, table: v1.Table) -> tuple[TableMetadata, str]:
    """The metadata and its location, which lead to all files: they are refused to restricted callers."""
    request.realm.require_unrestricted(table)
    if not table.metadata_location:
        handle = resolve.opened(request.realm, request.lake, table)
        return handle.metadata, handle.metadata_location
    files = files_of_table(request.realm, request.lake.warehouse, table)
    path = files.local_path(table.metadata_location)
    # It may be in the cache, but no other engine could use the table.
    if path is not None and not os.path.isfile(path):  # noqa: PTH113 - on every load: Path takes five times as long
        raise NotFound(
            f"Failed to open input stream for file: {table.metadata_location}; the metadata of the table is missing, restore it "
            "from a backup, or drop the table",
            key="metadata.missing",
        )
    return managed.read_state(request.realm, files, table.metadata_location), table.metadata_location


def _of_refs(metadata: TableMetadata) -> TableMetadata:
    """The metadata with only the snapshots that have a branch or tag."""
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    return metadata.model_copy(
        update={"snapshots": [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in named]}
    )


def _choice(query: Mapping[str, str], name: str, choices: Sequence[str], *, default: str) -> str:
    given = query.get(name, default).lower()
    if given not in choices:
        raise InvalidArgument(f"{name} is {given[:40]!r}: use {' or '.join(choices)}", key="query.invalid", field=name)
    return given


def list_generic(request: RestRequest) -> RestResponse:
    """List the tables of a namespace that are in another format and cannot be read as Iceberg."""
    is_known = request.lake.mirrors is not None
    return listed(request, lambda table, is_readable: is_known and exports.is_exportable(table) and not is_readable)


def load_generic(request: RestRequest) -> RestResponse:
    """Return the format and the location of a mirrored table. Restricted callers get neither."""
    table = resolve.readable(request).table(name=request.names["generic-table"])
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


class Metric(FrozenBody):
    """A counter has a value, a timer a total duration, here in its own unit."""

    value: int | None = None
    duration: Annotated[int | None, Field(alias="total-duration")] = None
    unit: Annotated[str, Field(alias="time-unit")] = "nanoseconds"

    @property
    def number(self) -> int | None:
        """The value of a counter, or the nanoseconds of a timer; None if it is neither."""
        if self.duration is None:
            return self.value
        return min(self.duration * _NANOSECONDS.get(self.unit.lower(), 1), 2**63 - 1)


_NANOSECONDS = {
    "nanoseconds": 1,
    "microseconds": 10**3,
    "milliseconds": 10**6,
    "seconds": 10**9,
    "minutes": 60 * 10**9,
    "hours": 3600 * 10**9,
    "days": 86400 * 10**9,
}


class ReportBody(FrozenBody):
    """A scan report or a commit report; fields that are not stored are ignored."""

    kind: Annotated[Literal["scan-report", "commit-report"], Field(alias="report-type")]
    snapshot_id: Annotated[int | None, Field(alias="snapshot-id")] = None
    operation: str = ""
    filter: Any = None
    columns: Annotated[tuple[str, ...], Field(alias="projected-field-names")] = ()
    metrics: dict[str, Metric] = Field(default_factory=dict)


def report(request: RestRequest) -> RestResponse:
    """Store a report on a table that the caller may read. A report on a commit counts as one if the caller may write."""
    table = resolve.readable(request).table()
    sent = decoded(request.body, ReportBody)
    is_commit = sent.kind == "commit-report"
    stored = MetricsReport(
        "commit" if is_commit else "scan",
        request.realm.caller,
        sent.snapshot_id,
        sent.operation,
        "" if sent.filter is None else json.dumps(sent.filter, separators=(",", ":")),
        sent.columns,
        {name: number for name, each in sent.metrics.items() if (number := each.number) is not None},
    )
    may_commit = request.decision is None or request.decision.may("table.write", table)
    add_report(request.realm, table.resource_id.id, stored, counts=may_commit or not is_commit)
    return NO_CONTENT
