"""From a connector to the source it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from skiway.errors import NotFound, PreconditionFailed, Unsupported
from skiway.formats import Source, open_source
from skiway.formats.kept import Kept
from skiway.metastore import Realm, keys
from skiway.metastore.connector_secrets import credentials
from skiway.metastore.kinds import CONNECTOR
from skiway.model import v1
from skiway.security import SecretsStore

__all__ = ["Sources"]

_KINDS: Final = {v1.CK_ICEBERG: "iceberg", v1.CK_DELTA: "delta", v1.CK_PARQUET: "parquet"}


class Sources:
    """The sources behind connectors, each opened once for as long as its connector is not changed."""

    def __init__(self, secrets: SecretsStore, *, keep: int = 64) -> None:
        self._secrets = secrets
        self._kept = Kept[tuple[str, str], Source](keep)

    def of(self, realm: Realm, connector_id: str) -> tuple[v1.Connector, Source]:
        """The connector with that id, and its source."""
        found = realm.all(CONNECTOR).find(keys.connector(realm.account_id, connector_id))
        if found is None:
            raise NotFound(
                f"connector {connector_id!r}, which brought the table in, was deleted: create it again, or drop the table",
                key="connector",
            )
        connector = found.value
        if connector.state == v1.CS_DELETING:
            raise PreconditionFailed(f"connector {connector.display_name!r} is being deleted", key="connector.deleting")
        opened = self._kept.get(
            (realm.account_id, found.pointer.blob_uri), lambda: _opened(connector, self._credentials(realm, connector))
        )
        return connector, opened

    def _credentials(self, realm: Realm, connector: v1.Connector) -> dict[str, str]:
        found = credentials(realm, self._secrets, connector.resource_id.id)
        return {} if found is None else _spelled(found, connector.display_name)


def _opened(connector: v1.Connector, secret: Mapping[str, str]) -> Source:
    kind = _KINDS.get(connector.kind) or v1.ConnectorKind.Name(connector.kind).removeprefix("CK_").lower()
    return open_source(kind, connector.uri, options=dict(connector.properties), credentials=secret)


def _spelled(found: v1.ConnectorCredentials, connector: str) -> dict[str, str]:
    """Credentials by the names that sources know them by."""
    known = dict(found.properties) | {f"header.{name}": value for name, value in found.headers.items()}
    match found.WhichOneof("which"):
        case None:
            return known
        case "bearer":
            return known | {"token": found.bearer.token}
        case "client":
            credential = f"{found.client.client_id}:{found.client.client_secret}"
            return known | {"credential": credential, "oauth2-server-uri": found.client.endpoint}
        case "aws":
            named = {
                "s3.access-key-id": found.aws.access_key_id,
                "s3.secret-access-key": found.aws.secret_access_key,
                "s3.session-token": found.aws.session_token,
            }
            return known | {name: value for name, value in named.items() if value}
        case other:
            raise Unsupported(
                f"connector {connector!r} has credentials of kind {other!r}, with which tables cannot be read here: give it a "
                "token, a client's id and secret, or keys of AWS",
                key="source.credentials",
            )
