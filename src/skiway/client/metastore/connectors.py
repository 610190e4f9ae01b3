"""Connectors and pipelines, which fill tables: from other systems, or with queries over other tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from skiway.client.metastore.calls import Id, Name, Ref, segments
from skiway.client.metastore.collection import (
    KEEP,
    Collection,
    FromMessages,
    Keep,
    Listing,
    NamedCollection,
    NamedRecord,
    build,
)
from skiway.client.metastore.jobs import Job
from skiway.client.metastore.resources import Described, Parents
from skiway.errors import InvalidArgument, NotFound
from skiway.foundation.resources import PIPELINE
from skiway.model import v1

KINDS: Final = {
    "iceberg": v1.CK_ICEBERG,
    "delta": v1.CK_DELTA,
    "glue": v1.CK_GLUE,
    "hive": v1.CK_HIVE,
    "unity": v1.CK_UNITY,
    "parquet": v1.CK_PARQUET,
    "csv": v1.CK_CSV,
    "json": v1.CK_JSON,
    "jdbc": v1.CK_JDBC,
    "airport": v1.CK_AIRPORT,
}
AUTH_WITHOUT_CREDENTIALS: Final = ("auth.scheme", "auth.header_hints", "auth.properties")


@dataclass(frozen=True)
class Connector(Described[v1.Connector]):
    """A connector as of when it was read. `message` is the message that the server sent."""

    message: v1.Connector

    @property
    def uri(self) -> str:
        """The address of the source."""
        return self.message.uri

    @property
    def kind(self) -> str:
        """The kind of source, such as `iceberg`."""
        return next((name for name, number in KINDS.items() if number == self.message.kind), "")

    @property
    def is_paused(self) -> bool:
        """Whether the connector is paused and gets no jobs."""
        return self.message.state == v1.CS_PAUSED


def missed_by_copies(kind: str, uri: str, tables: Mapping[str, tuple[str, str]]) -> list[str]:
    """Which changes of a source copies do not see, as lines for people.

    `tables` has the mode and the cursor column by table; an empty name stands for all others.
    """
    found = {name: (mode, _missed(kind, uri, mode, cursor)) for name, (mode, cursor) in tables.items() if mode}
    return [
        f"{f'the copy of table {name}' if name else 'a copy'} with mode {mode} can miss {missed or 'nothing'}"
        for name, (mode, missed) in found.items()
    ]


def _missed(kind: str, uri: str, mode: str, cursor: str) -> str:
    if mode == "replace" or kind in ("iceberg", "delta", "glue", "hive"):
        return ""
    if kind != "jdbc":
        return "removed files: their rows stay in the copy"
    changed = f"deleted rows, which stay, and rows that change without a higher {cursor}"
    if mode == "append":
        changed += " (changed rows with a higher one are added again)"
    where = " of views and foreign tables" if uri.startswith("postgresql:") else ""
    return f"{changed}, and rows{where} that are committed more than an hour after rows with a higher {cursor}"


class Connectors(Collection[Connector]):
    """`lake.connectors`, named within the account. A reference is a name, an `Id` or the connector itself."""

    __slots__ = ()
    _kind, _spec = "connector", v1.ConnectorSpec

    def __call__(self, *, kind: str | None = None, page_size: int | None = None) -> Listing[Connector]:
        """List the connectors of the account by name; optionally those of one kind."""
        return self._list(lambda: {"kind": _kind_number(kind) if kind else v1.CK_UNSPECIFIED}, page_size)

    def create(
        self,
        name: str,
        *,
        kind: str,
        uri: str,
        catalog: str = "",
        namespace: Name | None = None,
        table: str = "",
        destination: v1.ConnectorDestination | None = None,
        source: v1.ConnectorSource | None = None,
        properties: Mapping[str, str] | None = None,
        auth: v1.ConnectorAuthSpec | None = None,
        policy: v1.ConnectorPolicy | None = None,
        copy: v1.CopySettings | None = None,
        description: str | None = None,
        idempotency_key: str | None = None,
    ) -> Connector:
        """Create a connector from the source at `uri` to a `catalog`, optionally to one `namespace` and `table` in it.

        `kind` is `iceberg`, `delta` or `parquet`; with `copy`, which copies rows instead of mirroring tables, also `csv`, `json`
        or `jdbc`. `source` selects tables; by default all tables of a folder are mirrored. `destination` can be given in the
        place of `catalog`, `namespace` and `table`.
        """
        named = build(
            v1.ConnectorDestination,
            catalog_display_name=catalog,
            namespace=None if namespace is None else _path(namespace),
            table_display_name=table,
        )
        spec = {
            "display_name": name,
            "uri": uri,
            "destination": named if destination is None else destination,
            "source": source,
            "properties": properties,
            "auth": auth,
            "policy": policy,
            "copy": copy,
            "description": description,
            "kind": _kind_number(kind),
        }
        return self._create(spec, idempotency_key)

    def update(
        self,
        ref: Ref,
        *,
        name: str | Keep = KEEP,
        kind: str | Keep = KEEP,
        uri: str | Keep = KEEP,
        source: v1.ConnectorSource | Keep | None = KEEP,
        destination: v1.ConnectorDestination | Keep = KEEP,
        properties: Mapping[str, str] | Keep | None = KEEP,
        auth: v1.ConnectorAuthSpec | Keep | None = KEEP,
        keep_credentials: bool = False,
        policy: v1.ConnectorPolicy | Keep | None = KEEP,
        copy: v1.CopySettings | Keep | None = KEEP,
        description: str | Keep | None = KEEP,
        paused: bool | Keep = KEEP,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> Connector:
        """Change the given values; None clears a value. `paused` pauses or resumes the connector.

        An `auth` without credentials removes them, unless you set `keep_credentials`.
        """
        changes = {
            "display_name": name,
            "kind": kind if isinstance(kind, Keep) else _kind_number(kind),
            "uri": uri,
            "source": source,
            "destination": destination,
            "properties": properties,
            "auth": auth,
            "policy": policy,
            "copy": copy,
            "description": description,
            "state": paused if isinstance(paused, Keep) else (v1.CS_PAUSED if paused else v1.CS_ACTIVE),
        }
        parts = {"auth": AUTH_WITHOUT_CREDENTIALS} if keep_credentials else {}
        return self._change(ref, changes, if_version, if_etag, parts=parts)

    def validate(self, ref: Ref | None = None, *, spec: v1.ConnectorSpec | None = None) -> v1.ValidateConnectorResponse:
        """Check whether a source responds: that of a connector, of a spec, or of a connector changed by a spec."""
        request = build(v1.ValidateConnectorRequest, spec=spec, connector_id=None if ref is None else self._id(ref))
        return self._calls.call(request, v1.ValidateConnectorResponse)

    def sync(
        self,
        ref: Ref,
        *,
        namespaces: Iterable[Name] = (),
        table: str = "",
        columns: Iterable[str] = (),
        full_rescan: bool = False,
    ) -> Job:
        """Start a job that mirrors the connector's tables, or a selection of them; return it, or the running one.

        `namespaces` and `table` are names in the destination catalog.
        """
        request = v1.TriggerReconcileRequest(
            connector_id=self._id(ref), full_rescan=full_rescan, **_selection(namespaces, table, columns)
        )
        return Job.started(self._calls, request)

    def capture(
        self,
        ref: Ref,
        *,
        statistics: bool = False,
        namespaces: Iterable[Name] = (),
        table: str = "",
        columns: Iterable[str] = (),
        timeout_s: float | None = None,
    ) -> v1.SyncCaptureResponse:
        """Run one pass within this call, without a job: mirror metadata, or compute `statistics` of mirrored tables.

        A pass may take long, so it does not have the deadline of other calls: only `timeout_s` limits it.
        """
        request = v1.SyncCaptureRequest(
            connector_id=self._id(ref), include_statistics=statistics, **_selection(namespaces, table, columns)
        )
        return replace(self._calls, timeout_s=timeout_s).call(request, v1.SyncCaptureResponse)

    def _id(self, ref: Ref) -> v1.ResourceId:
        """Return the id of a connector. A name is looked up in the list of all connectors of the account."""
        if isinstance(ref, Connector):
            return ref.message.resource_id
        if isinstance(ref, Id):
            return v1.ResourceId(id=ref, kind=v1.RK_CONNECTOR)
        for connector in self():
            if connector.name == ref:
                return connector.message.resource_id
        raise NotFound(f"connector {ref!r} does not exist", key="connector", id=str(ref))

    def _wrap(
        self,
        message: v1.Connector,
        meta: v1.MutationMeta | None,  # noqa: ARG002 - a connector has no meta
        parents: Parents,  # noqa: ARG002 - nor a path
    ) -> Connector:
        return Connector(message)


def _selection(namespaces: Iterable[Name], table: str, columns: Iterable[str]) -> dict[str, Any]:
    """The fields of a request that select tables by their names in the destination catalog."""
    return {
        "destination_namespace_paths": map(_path, namespaces),
        "destination_table_display_name": table,
        "destination_table_columns": columns,
    }


def _kind_number(name: str) -> v1.ConnectorKind.ValueType:
    if name not in KINDS:
        raise InvalidArgument(
            f"{name!r} is not a kind of connector: use {', '.join(KINDS)}", key="field.invalid", field="kind"
        )
    return KINDS[name]


def _path(name: Name) -> v1.NamespacePath:
    return v1.NamespacePath(segments=segments(name, resource="namespace"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(NamedRecord):
    """A pipeline. `files` are texts by path; `owner` is the caller whose rights its runs have."""

    owner: str
    files: Mapping[str, str]
    updated_at: datetime | None = None


def _pipeline(pipeline: v1.Pipeline, *meta: v1.MutationMeta) -> Pipeline:
    return Pipeline.of(pipeline, *meta, owner=pipeline.owner.subject, files=dict(sorted(pipeline.files.items())))


@dataclass(frozen=True, slots=True)
class PlannedTable(FromMessages):
    """What a run would do to a table: `keep`, `append`, `replace` or `fail`; and why.

    `last_action` and `refreshed_at` tell about the last refresh, and `columns` from which columns each column was computed, as
    far as the query shows it: names such as `shop.orders.price`, by the names of the table's columns.
    """

    table: str
    action: str
    reason: str
    reads: list[str]
    last_action: str | None = None
    refreshed_at: datetime | None = None
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)


def _planned(planned: v1.PlannedTable) -> PlannedTable:
    columns: dict[str, list[str]] = {}
    for each in planned.columns:
        columns.setdefault(each.column, []).append(f"{each.source_table}.{each.source_column}")
    return PlannedTable.of(planned, reads=list(planned.reads), last_action=planned.last_action or None, columns=columns)


class Pipelines(NamedCollection[Pipeline]):
    """`lake.pipelines`, by name, which is unique in the account."""

    __slots__ = ()
    _resource, _record = PIPELINE, staticmethod(_pipeline)

    def create(self, files: Mapping[str, str], *, idempotency_key: str | None = None) -> Pipeline:
        """Create a pipeline from its files, by path: `pipeline.yml`, and a `.sql` file for each table."""
        return self._create(None, {"files": files}, idempotency_key)

    def update(self, name: str, files: Mapping[str, str], *, if_version: int | None = None) -> Pipeline:
        """Replace the files of a pipeline, and become its owner."""
        return self._update(name, None, {"files": files}, if_version)

    def plan(
        self, name: str | None = None, *, files: Mapping[str, str] | None = None, full: bool = False
    ) -> list[PlannedTable]:
        """Return what a run would do now, in its order; with `files`, as if the pipeline had these."""
        found = self._calls.rpc(
            "PlanPipeline",
            **({} if name is None else self._key(name)),
            spec=None if files is None else v1.PipelineSpec(files=files),
            full=full,
        )
        return list(map(_planned, found.tables))

    def start(self, name: str, *, full: bool = False) -> Job:
        """Start a run; return its job, or the running one that does the same. With `full`, all tables are refreshed in full."""
        return Job(self._calls.rpc("StartPipeline", **self._key(name), full=full).job)
