"""From a connector to the source it stands for."""

from __future__ import annotations

from skiway.errors import NotFound, PreconditionFailed
from skiway.formats import Source
from skiway.formats.kept import Kept
from skiway.metastore import Realm, keys
from skiway.metastore.kinds import CONNECTOR
from skiway.metastore.reconcile_sources import stored_upstream
from skiway.model import v1
from skiway.security import SecretsStore

__all__ = ["Sources"]


class Sources:
    """The sources behind connectors, each opened once for as long as its connector is not changed."""

    def __init__(self, secrets: SecretsStore, *, keep: int = 64) -> None:
        self._secrets = secrets
        self._kept = Kept[tuple[str, str], Source](keep)

    def of(self, realm: Realm, connector_id: str) -> Source:
        """The source of the connector with that id."""
        found = realm.all(CONNECTOR).find(keys.connector(realm.account_id, connector_id))
        if found is None:
            raise NotFound(
                f"connector {connector_id!r}, which brought the table in, was deleted: create it again, or drop the table",
                key="connector",
            )
        connector = found.value
        if connector.state == v1.CS_DELETING:
            raise PreconditionFailed(f"connector {connector.display_name!r} is being deleted", key="connector.deleting")
        # The secret is looked up where the source is opened only: other credentials are another record of the connector.
        return self._kept.get(
            (realm.account_id, found.pointer.blob_uri),
            lambda: stored_upstream(realm, connector, self._secrets).open(),
        )
