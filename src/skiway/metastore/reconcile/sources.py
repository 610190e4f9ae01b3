"""The upstream of a connector, opened with its credentials; and what can be told of it when that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from skiway.errors import SkiwayError, Unsupported
from skiway.formats import Source, open_source
from skiway.metastore.connectors.credentials import credentials
from skiway.metastore.records.realm import Realm
from skiway.model import v1
from skiway.security import MASK, SecretsStore

__all__ = ["KINDS", "Opener", "Upstream", "stored_upstream", "upstream"]

Opener = Callable[..., Source]

KINDS: Mapping[int, str] = {
    v1.CK_ICEBERG: "iceberg",
    v1.CK_DELTA: "delta",
    v1.CK_PARQUET: "parquet",
    v1.CK_GLUE: "glue",
    v1.CK_UNITY: "unity",
}


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a connector's tables are, and the credentials for it, which nothing that is told may hold."""

    kind: str
    uri: str
    options: Mapping[str, str]
    credentials: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Upstream({self.kind!r}, {self.uri!r})"

    def open(self, opener: Opener = open_source) -> Source:
        """The source; a context manager."""
        return opener(self.kind, self.uri, options=self.options, credentials=self.credentials)

    def told(self, error: BaseException) -> str:
        """What can be said of an error: its words without any secret; of errors that are not ours, only their kind."""
        said = str(error) if isinstance(error, SkiwayError) else f"{type(error).__name__} while asking {self.uri}"
        for part in sorted(self._secrets(), key=len, reverse=True):
            said = said.replace(part, MASK)
        return said

    def _secrets(self) -> set[str]:
        found = {part for value in self.credentials.values() for part in (value, *value.split(":"))}
        return {part for part in found if len(part) > 2 and part not in ("true", "false")}


def stored_upstream(realm: Realm, connector: v1.Connector, secrets: SecretsStore) -> Upstream:
    """The upstream of a stored connector, with the credentials it has now."""
    return upstream(connector, credentials(realm, secrets, connector.resource_id.id))


def upstream(connector: v1.Connector, given: v1.ConnectorCredentials | None) -> Upstream:
    """The upstream that a connector describes."""
    hints = {f"header.{name}": value for name, value in connector.auth.header_hints.items()}
    options = {**connector.properties, **connector.auth.properties, **hints}
    return Upstream(KINDS.get(connector.kind, ""), connector.uri, options, _said(given) if given else {})


def _said(given: v1.ConnectorCredentials) -> dict[str, str]:
    """Credentials in the words that sources know; see docs/formats.md."""
    more = {**given.properties, **{f"header.{name}": value for name, value in given.headers.items()}}
    match given.WhichOneof("which"):
        case "bearer":
            return {"token": given.bearer.token, **more}
        case "client":
            pair = f"{given.client.client_id}:{given.client.client_secret}"
            return {"credential": pair, "oauth2-server-uri": given.client.endpoint, **more}
        case "aws":
            keys = {
                "s3.access-key-id": given.aws.access_key_id,
                "s3.secret-access-key": given.aws.secret_access_key,
                "s3.session-token": given.aws.session_token,
            }
            return {**{name: value for name, value in keys.items() if value}, **more}
        case "cli" if given.cli.provider == "aws":
            return {"s3.ambient-credentials": "true", **more}
        case which:
            raise Unsupported(
                f"credentials of kind {which or 'none'} cannot be used yet: give bearer, client or aws ones, or cli of aws",
                key="connector.credentials.unsupported",
                which=which or "",
            )
