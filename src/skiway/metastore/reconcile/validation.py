"""Trying a connector: whether its upstream answers, in a bounded time, and never with more than a sentence."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from skiway.errors import InvalidArgument, SkiwayError, TimedOut
from skiway.formats import Source
from skiway.metastore.connectors.credentials import check_credentials, credentials
from skiway.metastore.connectors.specs import check
from skiway.metastore.jobs.records import clipped
from skiway.metastore.reconcile.sources import Upstream, upstream
from skiway.metastore.records import keys, updates
from skiway.metastore.records.kinds import CONNECTOR
from skiway.metastore.records.names import dotted
from skiway.metastore.records.realm import Realm, local_id
from skiway.metastore.records.updates import copy_field
from skiway.model import v1
from skiway.security import SecretsStore

__all__ = ["PATIENCE_S", "validate"]

PATIENCE_S: Final = 15.0
WHERE = ("kind", "uri", "properties", "auth")
"""What decides where credentials are sent to."""

T = TypeVar("T")


def validate(
    realm: Realm, request: v1.ValidateConnectorRequest, *, secrets: SecretsStore, patience_s: float = PATIENCE_S
) -> v1.ValidateConnectorResponse:
    """Whether the upstream answers. Whatever is wrong with it, or with the spec, is told in the answer."""
    tried = _tried(realm, request, secrets)
    asking: Upstream | None = None
    try:
        check(tried.connector)
        if tried.given is not None:
            check_credentials(tried.given)
        asking = upstream(tried.connector, tried.given)
        found = within(patience_s, lambda: _asked(tried.connector, asking))
    except SkiwayError as error:
        said = asking.told(error) if asking is not None else str(error)
        return v1.ValidateConnectorResponse(ok=False, summary=clipped(said))
    return v1.ValidateConnectorResponse(ok=True, summary=found.summary, capabilities=found.capabilities)


def within(seconds: float, ask: Callable[[], T]) -> T:
    """What `ask` returns or raises; TimedOut if it takes longer. It is then left behind, for nobody can stop it."""
    answers: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            answers.put((ask(), None))
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            answers.put((None, error))

    threading.Thread(target=run, name="validate", daemon=True).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except Empty:
        message = f"the upstream did not answer within {seconds:g} s: check its address, or try again"
        raise TimedOut(message, key="source.silent") from None
    if isinstance(error, SkiwayError):
        raise error
    if error is not None:
        raise InvalidArgument(f"the upstream cannot be asked: {type(error).__name__}", key="source.failed") from error
    return answer  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class _Tried:
    connector: v1.Connector
    given: v1.ConnectorCredentials | None


@dataclass(frozen=True, slots=True)
class _Found:
    summary: str
    capabilities: dict[str, str]


def _tried(realm: Realm, request: v1.ValidateConnectorRequest, secrets: SecretsStore) -> _Tried:
    """What is to be tried. Stored credentials go only to where they belong: not to an address that is new."""
    spec = request.spec
    given = spec.auth.credentials if spec.auth.HasField("credentials") else None
    if not request.HasField("connector_id"):
        return _Tried(_overlaid(v1.Connector(), spec), given)
    connector_id = local_id(realm, request.connector_id, v1.RK_CONNECTOR, field="connector_id")
    stored = realm.all(CONNECTOR).require(keys.connector(realm.account_id, connector_id), name=connector_id).value
    connector = _overlaid(stored, spec)
    if given is None and all(getattr(connector, name) == getattr(stored, name) for name in WHERE):
        given = credentials(realm, secrets, connector_id)
    return _Tried(connector, given)


def _overlaid(stored: v1.Connector, spec: v1.ConnectorSpec) -> v1.Connector:
    connector = updates.copied(stored)
    for name in ("display_name", "uri", "source"):
        if spec.HasField(name):
            copy_field(spec, connector, name)
    if spec.kind:
        connector.kind = spec.kind
    if spec.properties:
        connector.properties.clear()
        connector.properties.update(spec.properties)
    if spec.HasField("auth"):
        auth = spec.auth
        connector.auth.CopyFrom(
            v1.ConnectorAuth(scheme=auth.scheme, header_hints=auth.header_hints, properties=auth.properties)
        )
    return connector


def _asked(connector: v1.Connector, asking: Upstream) -> _Found:
    with asking.open() as source:
        namespaces = source.namespaces()
        capabilities = {"kind": asking.kind, "namespaces": str(len(namespaces))}
        own = tuple(connector.source.namespace.segments)
        if not own and connector.source.HasField("table"):
            own = namespaces[0] if namespaces else ()
        if connector.source.HasField("table"):
            return _table(source, own, connector.source.table, capabilities)
        if own:
            tables = source.tables(own)
            summary = f"the upstream answers; there are {len(tables)} tables in {dotted(own)}"
            return _Found(summary, {**capabilities, "tables": str(len(tables))})
        return _Found(f"the upstream answers; it has {len(namespaces)} namespaces", capabilities)


def _table(source: Source, namespace: tuple[str, ...], table: str, capabilities: dict[str, str]) -> _Found:
    handle = source.load(namespace, table)
    columns = len(handle.schema.arrow)
    summary = f"the upstream answers; {handle.name} is a table of {columns} columns ({handle.format})"
    return _Found(summary, {**capabilities, "format": str(handle.format), "columns": str(columns)})
