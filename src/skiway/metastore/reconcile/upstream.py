"""The upstream of a connector: opening it with the connector's credentials, and checking that it responds.

Credentials never appear in a message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from skiway.errors import InvalidArgument, SkiwayError, TimedOut, Unsupported
from skiway.formats import Source, open_source
from skiway.foundation.clock import TooLate, call_within
from skiway.metastore.connectors.credentials import are_sent_alike, check_credentials, credentials
from skiway.metastore.connectors.specs import ROWS_ONLY, check
from skiway.metastore.jobs.attempts import clipped
from skiway.metastore.records import updates
from skiway.metastore.records.kinds import CONNECTOR
from skiway.metastore.records.names import dotted
from skiway.metastore.records.realm import Realm, local_id
from skiway.metastore.records.updates import copy_field
from skiway.model import v1
from skiway.security import MASK, SecretsStore
from skiway.security.redaction import without_secrets

log = logging.getLogger("skiway.reconcile")

T = TypeVar("T")

Opener = Callable[..., Source]

AMBIENT: Final = "s3.ambient-credentials"
PATIENCE_S: Final = 15.0
KINDS: Mapping[int, str] = {
    number: name.removeprefix("CK_").lower() for name, number in v1.ConnectorKind.items() if number
}


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a connector's tables are, and the credentials to read them."""

    kind: str
    uri: str
    options: Mapping[str, str]
    credentials: Mapping[str, str]
    account_id: str = ""

    def __repr__(self) -> str:
        return f"Upstream({self.kind!r}, {without_secrets(self.uri)!r})"

    def open(self, opener: Opener = open_source) -> Source:
        """Open the source, which is a context manager."""
        return opener(self.kind, self.uri, options=self.options, credentials=self.credentials, account=self.account_id)

    def describe(self, error: BaseException) -> str:
        """The message of an error without secrets. Of an exception that is not ours, only its class."""
        text = error.message if isinstance(error, SkiwayError) else f"{type(error).__name__} while reading {self.uri}"
        text = text.replace(self.uri, without_secrets(self.uri))
        for part in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(part, MASK)
        return text

    def _secrets(self) -> set[str]:
        found = {part for value in self.credentials.values() for part in (value, *value.split(":"))}
        return {part for part in found if len(part) > 2 and part not in ("true", "false")}


def stored_upstream(realm: Realm, connector: v1.Connector, secrets: SecretsStore) -> Upstream:
    """The upstream of a stored connector, with its credentials."""
    given = credentials(realm, secrets, connector)
    return upstream(connector, given, account_id=realm.account_id)


def upstream(connector: v1.Connector, given: v1.ConnectorCredentials | None, *, account_id: str = "") -> Upstream:
    """The upstream that a connector of the account describes."""
    hints = {f"header.{name}": value for name, value in connector.auth.header_hints.items()}
    options = {**connector.properties, **connector.auth.properties, **hints}
    if AMBIENT in options:
        log.warning(
            "connector %s has the property %s, which is replaced by credentials of kind cli, and by the setting "
            "sources.ambient_credentials of the server",
            connector.display_name,
            AMBIENT,
        )
    secret = _options(given) if given else {}
    return Upstream(KINDS.get(connector.kind, ""), connector.uri, options, secret, account_id)


def _options(given: v1.ConnectorCredentials) -> dict[str, str]:
    """Credentials as options of a source; see docs/formats.md."""
    more = {**given.properties, **{f"header.{name}": value for name, value in given.headers.items()}}
    match given.WhichOneof("which"):
        case "bearer":
            return {"token": given.bearer.token, **more}
        case "client":
            pair = f"{given.client.client_id}:{given.client.client_secret}"
            return {"credential": pair, "oauth2-server-uri": given.client.endpoint, **more}
        case "aws":
            access = {
                "s3.access-key-id": given.aws.access_key_id,
                "s3.secret-access-key": given.aws.secret_access_key,
                "s3.session-token": given.aws.session_token,
            }
            return {**{name: value for name, value in access.items() if value}, **more}
        case "cli" if given.cli.provider == "aws":
            return {AMBIENT: "true", **more}
        case None:
            return more
        case which:
            raise Unsupported(
                f"credentials of kind {which} are not supported yet: use bearer, client, aws, cli (aws) or properties",
                key="connector.credentials.unsupported",
                which=which,
            )


# --- validation -------------------------------------------------------------------------------------------------------


def validate(
    realm: Realm,
    request: v1.ValidateConnectorRequest,
    *,
    secrets: SecretsStore,
    opener: Opener = open_source,
    patience_s: float = PATIENCE_S,
) -> v1.ValidateConnectorResponse:
    """Check whether the upstream responds in time. Every error, of the upstream or of the spec, is in the response."""
    candidate = _candidate(realm, request, secrets)
    tested: Upstream | None = None
    try:
        check(candidate.connector)
        if candidate.credentials is not None:
            check_credentials(candidate.credentials)
        if candidate.connector.kind in ROWS_ONLY:
            raise Unsupported(
                "a database or an Airport server cannot be checked, because only workers open it: sync the connector",
                key="source.kind",
            )
        tested = upstream(candidate.connector, candidate.credentials, account_id=realm.account_id)
        found = within(patience_s, lambda: _explored(candidate.connector, tested, opener))
    except SkiwayError as error:
        summary = tested.describe(error) if tested is not None else error.message
        return v1.ValidateConnectorResponse(ok=False, summary=clipped(summary))
    return v1.ValidateConnectorResponse(ok=True, summary=found.summary, capabilities=found.capabilities)


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return or raise what `call` does; raise `TimedOut` if it takes longer."""
    try:
        return call_within(seconds, call, name="validate")
    except TooLate:
        message = f"the upstream did not respond within {seconds:g} s: check its address, or try again"
        raise TimedOut(message, key="source.silent") from None
    except SkiwayError:
        raise
    except Exception as error:
        raise InvalidArgument(f"the upstream cannot be read: {type(error).__name__}", key="source.failed") from error


@dataclass(frozen=True, slots=True)
class _Candidate:
    connector: v1.Connector
    credentials: v1.ConnectorCredentials | None


@dataclass(frozen=True, slots=True)
class _Found:
    summary: str
    capabilities: dict[str, str]


def _candidate(realm: Realm, request: v1.ValidateConnectorRequest, secrets: SecretsStore) -> _Candidate:
    """The connector to check. Stored credentials are used only for the stored address, never for a new one."""
    spec = request.spec
    given = spec.auth.credentials if spec.auth.HasField("credentials") else None
    if not request.HasField("connector_id"):
        return _Candidate(_merged(v1.Connector(), spec), given)
    connector_id = local_id(realm, request.connector_id, v1.RK_CONNECTOR, field="connector_id")
    stored = realm.by_id(CONNECTOR, connector_id).value
    connector = _merged(stored, spec)
    if given is None and are_sent_alike(connector, stored):
        given = credentials(realm, secrets, stored)
    return _Candidate(connector, given)


def _merged(stored: v1.Connector, spec: v1.ConnectorSpec) -> v1.Connector:
    connector = updates.copied(stored)
    for name in ("display_name", "uri", "source", "copy"):
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


def _explored(connector: v1.Connector, tested: Upstream, opener: Opener) -> _Found:
    with tested.open(opener) as source:
        namespaces = source.namespaces()
        capabilities = {"kind": tested.kind, "namespaces": str(len(namespaces))}
        own = tuple(connector.source.namespace.segments)
        if not own and connector.source.HasField("table"):
            own = namespaces[0] if namespaces else ()
        if connector.source.HasField("table"):
            return _table(source, own, connector.source.table, capabilities)
        if own:
            tables = source.tables(own)
            summary = f"the upstream answers; {dotted(own)} has {len(tables)} tables"
            return _Found(summary, {**capabilities, "tables": str(len(tables))})
        return _Found(f"the upstream answers; it has {len(namespaces)} namespaces", capabilities)


def _table(source: Source, namespace: tuple[str, ...], table: str, capabilities: dict[str, str]) -> _Found:
    handle = source.load(namespace, table)
    columns = len(handle.schema.arrow)
    summary = f"the upstream answers; {handle.name} is a table of {columns} columns ({handle.format})"
    return _Found(summary, {**capabilities, "format": str(handle.format), "columns": str(columns)})
