"""Connectors and pipelines, which fill tables: from other systems, or with queries over other tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack

from skiway.client.metastore.calls import Id, Name, Ref, segments
from skiway.client.metastore.collection import Collection, Listing, NamedCollection, build
from skiway.client.metastore.jobs import Job
from skiway.client.metastore.resources import Attribute, Described, FromMessages, NamedRecord, enum_name
from skiway.errors import InvalidArgument, NotFound
from skiway.foundation.resources import CONNECTOR, PIPELINE
from skiway.model import v1

KINDS: Final = {enum_name(name): number for name, number in v1.ConnectorKind.items() if number}
AUTH_WITHOUT_CREDENTIALS: Final = ("auth.scheme", "auth.header_hints", "auth.properties")


@dataclass(frozen=True)
class Connector(Described):
    """A connector as of when it was read. `message` is the message that the server sent."""

    message: v1.Connector

    uri = Attribute[str]()
    """The address of the source."""
    kind = Attribute[str]()
    """The kind of source, such as `iceberg`."""

    @property
    def is_paused(self) -> bool:
        """Whether the connector is paused and gets no jobs."""
        return self.message.state == v1.CS_PAUSED


def slots_of(connector_id: str) -> str:
    """How the names of the replication slots of a connector begin in PostgreSQL."""
    return f"skiway_{re.sub('[^a-z0-9]', '', connector_id.lower())[:32]}_"


def missed_by_copies(kind: str, uri: str, tables: Mapping[str, tuple[str, str]], *, changes: bool = False) -> list[str]:
    """Which changes of a source copies do not see, as lines for people.

    `tables` has the mode and the cursor column by table; an empty name stands for all others. Copies of `changes` see all.
    """
    found = {
        name: (mode, "" if changes else _missed(kind, uri, mode, cursor))
        for name, (mode, cursor) in tables.items()
        if mode
    }
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


class ConnectorFields(TypedDict, total=False):
    """What people set, besides the name, the kind and the address. `source` selects tables; by default it is a whole folder.

    With `copy`, rows are copied, and tables are not mirrored.
    """

    source: v1.ConnectorSource | None
    properties: Mapping[str, str] | None
    auth: v1.ConnectorAuthSpec | None
    policy: v1.ConnectorPolicy | None
    copy: v1.CopySettings | None
    description: str | None


class ConnectorChanges(ConnectorFields, total=False):
    """What can be changed. `paused` pauses or resumes the connector."""

    name: str
    kind: str
    uri: str
    destination: v1.ConnectorDestination
    paused: bool


class Connectors(Collection[Connector]):
    """`lake.connectors`, named within the account. A reference is a name, an `Id` or the connector itself."""

    __slots__ = ()
    _kind, _record = CONNECTOR, staticmethod(lambda message, *_: Connector(message))

    def __call__(self, *, kind: str | None = None, page_size: int | None = None) -> Listing[Connector]:
        """List the connectors of the account by name; optionally those of one kind."""
        return self._list(page_size, lambda: {"kind": _kind_number(kind) if kind else v1.CK_UNSPECIFIED})

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
        idempotency_key: str | None = None,
        **fields: Unpack[ConnectorFields],
    ) -> Connector:
        """Create a connector from the source at `uri` to a `catalog`, optionally to one `namespace` and `table` in it.

        `kind` is `iceberg`, `delta` or `parquet`; with `copy`, which copies rows instead of mirroring tables, also `csv`, `json`
        or `jdbc`. `destination` can be given in the place of `catalog`, `namespace` and `table`.
        """
        place = destination or build(
            v1.ConnectorDestination,
            catalog_display_name=catalog,
            namespace=None if namespace is None else _path(namespace),
            table_display_name=table,
        )
        return self._create({"name": name, "kind": kind, "uri": uri, "destination": place, **fields}, idempotency_key)

    def update(
        self,
        ref: Ref,
        *,
        keep_credentials: bool = False,
        if_version: int | None = None,
        if_etag: str | None = None,
        **changes: Unpack[ConnectorChanges],
    ) -> Connector:
        """Change the given values; None clears a value. An `auth` without credentials removes them, unless you set
        `keep_credentials`.
        """
        parts = {"auth": AUTH_WITHOUT_CREDENTIALS} if keep_credentials else {}
        return self._change(ref, changes, if_version, if_etag, parts=parts)

    def validate(self, ref: Ref | None = None, *, spec: v1.ConnectorSpec | None = None) -> v1.ValidateConnectorResponse:
        """Check whether a source responds: that of a connector, of a spec, or of a connector changed by a spec."""
        request = build(v1.ValidateConnectorRequest, spec=spec, **({} if ref is None else self._key(ref)))
        return self._calls.call(request, v1.ValidateConnectorResponse)

    def sync(
        self,
        ref: Ref,
        *,
        namespaces: Iterable[Name] = (),
        table: str = "",
        columns: Iterable[str] = (),
        full_rescan: bool = False,
        dry_run: bool = False,
    ) -> Job:
        """Start a job that mirrors the connector's tables, or a selection of them; return it, or the running one.

        `namespaces` and `table` are names in the destination catalog. With `dry_run`, the message of the job says what a copy would
        load, and nothing changes.
        """
        selection = _selection(namespaces, table, columns)
        request = v1.TriggerReconcileRequest(**self._key(ref), full_rescan=full_rescan, dry_run=dry_run, **selection)
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
        selection = _selection(namespaces, table, columns)
        request = v1.SyncCaptureRequest(**self._key(ref), include_statistics=statistics, **selection)
        return replace(self._calls, timeout_s=timeout_s).call(request, v1.SyncCaptureResponse)

    def _key(self, ref: Ref) -> dict[str, Any]:
        """A name is looked up in the list of all connectors of the account."""
        if isinstance(ref, Connector):
            return {"connector_id": ref.message.resource_id}
        if isinstance(ref, Id):
            return {"connector_id": v1.ResourceId(id=ref, kind=v1.RK_CONNECTOR)}
        for connector in self():
            if connector.name == ref:
                return {"connector_id": connector.message.resource_id}
        raise NotFound(f"connector {ref!r} does not exist", key="connector", id=str(ref))

    def _spec(self, given: Mapping[str, Any]) -> dict[str, Any]:
        spec = super()._spec(given)
        if "kind" in spec:
            spec["kind"] = _kind_number(spec["kind"])
        if "paused" in spec:
            spec["state"] = v1.CS_PAUSED if spec.pop("paused") else v1.CS_ACTIVE
        return spec


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
    _kind, _record = PIPELINE, staticmethod(_pipeline)

    def create(self, files: Mapping[str, str], *, idempotency_key: str | None = None) -> Pipeline:
        """Create a pipeline from its files, by path: `pipeline.yml`, and a `.sql` file for each table."""
        return self._create({"files": files}, idempotency_key)

    def update(self, name: str, files: Mapping[str, str], *, if_version: int | None = None) -> Pipeline:
        """Replace the files of a pipeline, and become its owner."""
        return self._change(name, {"files": files}, if_version, None)

    def plan(
        self,
        name: str | None = None,
        *,
        files: Mapping[str, str] | None = None,
        full: bool = False,
        select: Iterable[str] = (),
        branch: str = "",
    ) -> list[PlannedTable]:
        """Return what a run would do now, in its order; with `files`, as if the pipeline had these.

        `select` names tables, and `branch` a branch, as in `start`.
        """
        spec = None if files is None else v1.PipelineSpec(files=files)
        key = {} if name is None else self._key(name)
        given: dict[str, Any] = {"spec": spec, "full": full, "select": select, "branch": branch}
        return list(map(_planned, self._calls.rpc("PlanPipeline", **key, **given).tables))

    def start(
        self, name: str, *, full: bool = False, select: Iterable[str] = (), branch: str = "", on_branch: bool = False
    ) -> Job:
        """Start a run; return its job, or the running one that does the same. With `full`, all tables are refreshed in full.

        `select` names the tables of the run: `totals`, `+totals` with what it reads, `totals+` with what reads it, `state:changed`. The run
        is on main, on a `branch` such as `dev`, or `on_branch` of its own, which is merged and deleted if everything succeeds.
        """
        given: dict[str, Any] = {"full": full, "select": select, "branch": branch, "on_branch": on_branch}
        return Job(self._calls.rpc("StartPipeline", **self._key(name), **given).job)
