"""Connectors: upstreams whose tables are mirrored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from skiway.client.metastore.collection import KEEP, Area, Keep, Listing, Turn, filled, masked, precondition, time_of
from skiway.client.metastore.jobs import Job
from skiway.client.metastore.names import Id, Name, segments
from skiway.client.metastore.resources import Meta
from skiway.errors import InvalidArgument, NotFound
from skiway.model import v1

__all__ = ["Connector", "ConnectorRef", "Connectors"]

KINDS: Final = {
    "iceberg": v1.CK_ICEBERG,
    "delta": v1.CK_DELTA,
    "glue": v1.CK_GLUE,
    "unity": v1.CK_UNITY,
    "parquet": v1.CK_PARQUET,
}


@dataclass(frozen=True, slots=True)
class Connector:
    """A connector as it was when it was read; `message` is what was received."""

    message: v1.Connector

    @property
    def id(self) -> Id:
        """Its id, which never changes."""
        return Id(self.message.resource_id.id)

    @property
    def name(self) -> str:
        """What it is called."""
        return self.message.display_name

    @property
    def uri(self) -> str:
        """Where the upstream is."""
        return self.message.uri

    @property
    def kind(self) -> str:
        """Of which kind the upstream is."""
        return next((name for name, number in KINDS.items() if number == self.message.kind), "")

    @property
    def description(self) -> str | None:
        """A text for people, if there is one."""
        return self.message.description if self.message.HasField("description") else None

    @property
    def created_at(self) -> datetime:
        """When it was created."""
        return time_of(self.message.created_at)

    @property
    def updated_at(self) -> datetime:
        """When it was changed last."""
        return time_of(self.message.updated_at)

    @property
    def is_paused(self) -> bool:
        """Whether it gets no jobs now."""
        return self.message.state == v1.CS_PAUSED


ConnectorRef = str | Connector
"""A connector by its name, its `Id`, or itself."""


class Connectors(Area):
    """`lake.connectors`: named within the account."""

    def __call__(self, *, kind: str | None = None, page_size: int | None = None) -> Listing[Connector]:
        """The connectors of the account by name, of all kinds or of one."""

        def turn(page: v1.PageRequest) -> tuple[Sequence[Connector], v1.PageResponse]:
            request = v1.ListConnectorsRequest(page=page, kind=_kind(kind) if kind else v1.CK_UNSPECIFIED)
            answer = self._calls.ask(request, v1.ListConnectorsResponse)
            return [Connector(each) for each in answer.connectors], answer.page

        def open_() -> Turn[Connector]:
            return turn

        return Listing(open_, page_size)

    def get(self, connector: ConnectorRef) -> Connector:
        """The connector; `NotFound` if there is none."""
        request = v1.GetConnectorRequest(connector_id=self._id_of(connector))
        return Connector(self._calls.ask(request, v1.GetConnectorResponse).connector)

    def find(self, connector: ConnectorRef) -> Connector | None:
        """The connector, or None."""
        try:
            return self.get(connector)
        except NotFound:
            return None

    def create(
        self,
        name: str,
        *,
        kind: str,
        uri: str,
        catalog: str = "",
        namespace: Name | None = None,
        table: str = "",
        source: v1.ConnectorSource | None = None,
        properties: Mapping[str, str] | None = None,
        auth: v1.ConnectorAuthSpec | None = None,
        policy: v1.ConnectorPolicy | None = None,
        description: str | None = None,
        idempotency_key: str | None = None,
    ) -> Connector:
        """A new connector of what is at `uri` into a `catalog`, and there into one `namespace` and `table` if given.

        `kind` is `iceberg`, `delta` or `parquet`. `source` says which tables; without it, all of a folder.
        """
        destination = filled(
            v1.ConnectorDestination,
            catalog_display_name=catalog,
            namespace=None if namespace is None else _path(namespace),
            table_display_name=table,
        )
        spec = filled(
            v1.ConnectorSpec,
            display_name=name,
            uri=uri,
            destination=destination,
            source=source,
            properties=properties,
            auth=auth,
            policy=policy,
            description=description,
        )
        spec.kind = _kind(kind)
        request = v1.CreateConnectorRequest(spec=spec, idempotency=self._calls.key(idempotency_key))
        return Connector(self._calls.ask(request, v1.CreateConnectorResponse).connector)

    def update(
        self,
        connector: ConnectorRef,
        *,
        name: str | Keep = KEEP,
        uri: str | Keep = KEEP,
        source: v1.ConnectorSource | Keep | None = KEEP,
        destination: v1.ConnectorDestination | Keep = KEEP,
        properties: Mapping[str, str] | Keep | None = KEEP,
        auth: v1.ConnectorAuthSpec | Keep | None = KEEP,
        policy: v1.ConnectorPolicy | Keep | None = KEEP,
        description: str | Keep | None = KEEP,
        paused: bool | Keep = KEEP,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> Connector:
        """The connector after what is given was changed; None clears. `paused` stops and starts it."""
        spec, mask = masked(
            v1.ConnectorSpec,
            display_name=name,
            uri=uri,
            source=source,
            destination=destination,
            properties=properties,
            auth=auth,
            policy=policy,
            description=description,
            state=paused if isinstance(paused, Keep) else (v1.CS_PAUSED if paused else v1.CS_ACTIVE),
        )
        request = v1.UpdateConnectorRequest(
            connector_id=self._id_of(connector),
            spec=spec,
            update_mask=mask,
            precondition=precondition(if_version, if_etag),
        )
        return Connector(self._calls.ask(request, v1.UpdateConnectorResponse).connector)

    def delete(self, connector: ConnectorRef, *, if_version: int | None = None, if_etag: str | None = None) -> Meta:
        """Delete a connector and its credentials. What it has mirrored stays."""
        request = v1.DeleteConnectorRequest(
            connector_id=self._id_of(connector), precondition=precondition(if_version, if_etag)
        )
        return Meta.of(self._calls.ask(request, v1.DeleteConnectorResponse).meta)

    def validate(
        self, connector: ConnectorRef | None = None, *, spec: v1.ConnectorSpec | None = None
    ) -> v1.ValidateConnectorResponse:
        """Whether the upstream answers: that of a connector, of a spec, or of a connector with what the spec changes."""
        request = filled(
            v1.ValidateConnectorRequest, spec=spec, connector_id=None if connector is None else self._id_of(connector)
        )
        return self._calls.ask(request, v1.ValidateConnectorResponse)

    def sync(
        self,
        connector: ConnectorRef,
        *,
        namespaces: Iterable[Name] = (),
        table: str = "",
        columns: Iterable[str] = (),
        full_rescan: bool = False,
    ) -> Job:
        """A job that mirrors the connector's tables, all or those named as they are here; or the one that does it already."""
        request = v1.TriggerReconcileRequest(
            connector_id=self._id_of(connector),
            full_rescan=full_rescan,
            destination_namespace_paths=map(_path, namespaces),
            destination_table_display_name=table,
            destination_table_columns=columns,
        )
        job_id = self._calls.ask(request, v1.TriggerReconcileResponse).job_id
        return Job(self._calls.ask(v1.GetReconcileJobRequest(job_id=job_id), v1.GetReconcileJobResponse).job)

    def capture(
        self,
        connector: ConnectorRef,
        *,
        statistics: bool = False,
        namespaces: Iterable[Name] = (),
        table: str = "",
        columns: Iterable[str] = (),
    ) -> v1.SyncCaptureResponse:
        """One pass at once, within the call's time: metadata, or `statistics` of what is known already."""
        request = v1.SyncCaptureRequest(
            connector_id=self._id_of(connector),
            include_statistics=statistics,
            destination_namespace_paths=map(_path, namespaces),
            destination_table_display_name=table,
            destination_table_columns=columns,
        )
        return self._calls.ask(request, v1.SyncCaptureResponse)

    def _id_of(self, connector: ConnectorRef) -> v1.ResourceId:
        """The id of a connector. By name it is looked for among all of the account."""
        if isinstance(connector, Connector):
            return connector.message.resource_id
        if isinstance(connector, Id):
            return v1.ResourceId(id=connector, kind=v1.RK_CONNECTOR)
        for each in self():
            if each.name == connector:
                return each.message.resource_id
        raise NotFound(f"there is no connector {connector}: check the spelling", key="connector", id=connector)


def _kind(name: str) -> v1.ConnectorKind.ValueType:
    if name not in KINDS:
        raise InvalidArgument(
            f"{name!r} is no kind of connector: use {', '.join(KINDS)}", key="field.invalid", field="kind"
        )
    return KINDS[name]


def _path(name: Name) -> v1.NamespacePath:
    return v1.NamespacePath(segments=segments(name, resource="namespace"))
