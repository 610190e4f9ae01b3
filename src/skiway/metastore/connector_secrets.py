"""The credentials of connectors, in a store of secrets, never in a record.

A secret never changes: new credentials are a new secret, which the record then names. So the record always names
credentials that go with it, and if its update fails, nothing has happened to the old ones.

A marker stands for every secret from before it is stored until after it is deleted, so that none can be forgotten: gc
finds those that no record names. The batch that writes the record moves the marker. Whoever removes a secret moves it
first as well, so of the two only one succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import unquote

from skiway.errors import Conflict, Internal, NotFound, PreconditionFailed, SkiwayError
from skiway.metastore import keys
from skiway.metastore.failures import failure
from skiway.metastore.kinds import CONNECTOR
from skiway.metastore.realm import Realm
from skiway.metastore.repository import Repository
from skiway.model import v1
from skiway.security import SecretsStore
from skiway.storage import ABSENT, Pointer, Put, Stores

__all__ = ["NewSecret", "credentials", "forget", "marked_at", "new_secret", "remove_all", "removed_if_unused"]

KIND = "connectors"


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A secret that is stored; `taken` is what the batch must do that makes a record name it."""

    secret_id: str
    taken: Put


@contextmanager
def new_secret(realm: Realm, secrets: SecretsStore, connector_id: str, *, data: bytes) -> Iterator[NewSecret]:
    """A secret to be named by a record in the block; if the block fails, it is removed again."""
    secret_id = realm.ids()
    where = keys.secret(realm.account_id, connector_id, secret_id)
    marker = realm.stores.pointers.compare_and_set(where, realm.clock().isoformat(), expect=ABSENT)
    try:
        secrets.put(realm.account_id, KIND, _stored_as(connector_id, secret_id), data)
        yield NewSecret(secret_id, Put(where, marker.blob_uri, expect=marker.version))
    except SkiwayError:
        # Unless the record names it after all: a batch may succeed although its answer is lost.
        with suppress(SkiwayError):
            removed_if_unused(realm.stores, secrets, marker)
        raise


def credentials(realm: Realm, secrets: SecretsStore, connector_id: str) -> v1.ConnectorCredentials | None:
    """The credentials that a connector has now, or None. For those who talk to the upstream, and for no answer."""
    key = keys.connector(realm.account_id, connector_id)
    while True:
        found = realm.all(CONNECTOR).require(key, name=connector_id)
        secret_id = found.value.auth.secret_id
        if not secret_id:
            return None
        try:
            data = secrets.get(realm.account_id, KIND, _stored_as(connector_id, secret_id))
        except NotFound:
            if realm.stores.pointers.get(key) != found.pointer:
                continue  # it has others meanwhile
            name = found.value.display_name
            raise failure(PreconditionFailed, "connector.credentials.lost", name=name) from None
        return v1.ConnectorCredentials.FromString(data)


def forget(realm: Realm, secrets: SecretsStore, before: v1.Connector) -> None:
    """Remove the secret that a connector named before. The new one is in force, so what goes wrong is left to gc."""
    with suppress(SkiwayError):
        marker = realm.stores.pointers.get(keys.secret(realm.account_id, before.resource_id.id, before.auth.secret_id))
        if marker is not None:
            removed_if_unused(realm.stores, secrets, marker)


def remove_all(realm: Realm, secrets: SecretsStore, connector_id: str) -> None:
    """Remove all secrets of a connector that is gone."""
    for marker in realm.stores.pointers.scan(keys.secret(realm.account_id, connector_id)):
        removed_if_unused(realm.stores, secrets, marker)


def removed_if_unused(stores: Stores, secrets: SecretsStore, marker: Pointer, *, dry_run: bool = False) -> bool:
    """Remove the secret that a marker stands for, unless a record names it; whether it was, or would be, removed."""
    account_id, connector_id, secret_id = map(unquote, marker.key.split("/")[2:])
    try:
        found = Repository(stores, CONNECTOR).find(keys.connector(account_id, connector_id))
        if found is not None and found.value.auth.secret_id == secret_id:
            return False
        if dry_run:
            return True
        moved = stores.pointers.compare_and_set(marker.key, marker.blob_uri, expect=marker.version)
        secrets.delete(account_id, KIND, _stored_as(connector_id, secret_id))
        stores.pointers.compare_and_delete(moved.key, expect=moved.version)
    except (Conflict, Internal):
        # Just named or removed by another; or the record cannot be read, and nobody knows what it names.
        return False
    return True


def marked_at(marker: Pointer) -> datetime:
    """When a marker was set, before its secret was."""
    return datetime.fromisoformat(marker.blob_uri).astimezone(UTC)


def _stored_as(connector_id: str, secret_id: str) -> str:
    return f"{connector_id}.{secret_id}"
