"""The secrets of connectors and webhooks, which are in a secrets store and in no record.

A secret never changes: new credentials are a new secret, which the record then names. So a record always names the
credentials that belong to it, and a failed update leaves the old ones in place.

Every secret has a marker from before it is stored until after it is deleted, so that none is forgotten: garbage
collection finds secrets that no record names. The batch that writes the record moves the marker. Who deletes a secret also
moves it first, so only one of the two succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from skiway.errors import Conflict, Internal, SkiwayError
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import CONNECTOR, WEBHOOK
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Repository
from skiway.model import v1
from skiway.security import SecretsStore
from skiway.storage import ABSENT, Pointer, Put, Stores

OF_WEBHOOK: Final = "webhook"
"""The beginning of the ids of the secrets of webhooks. In older versions, it was the whole id of the only one."""


@dataclass(frozen=True, slots=True)
class SecretName:
    """A secret of a connector or webhook, which is its owner."""

    account_id: str
    owner_id: str
    secret_id: str

    @classmethod
    def of(cls, owner: v1.Connector | v1.Webhook) -> SecretName:
        """The secret that a record names; one with an empty id if it names none."""
        named = owner.secret_id or OF_WEBHOOK if isinstance(owner, v1.Webhook) else owner.auth.secret_id
        return cls(owner.resource_id.account_id, owner.resource_id.id, named)

    @property
    def marker_key(self) -> str:
        """The key of the marker that the secret may exist."""
        return keys.secret(self.account_id, self.owner_id, self.secret_id)

    @property
    def stored_as(self) -> tuple[str, str, str]:
        """The account, kind and id in the secrets store."""
        own_id = self.owner_id if self.secret_id == OF_WEBHOOK else f"{self.owner_id}.{self.secret_id}"
        return self.account_id, "webhooks" if self.secret_id.startswith(OF_WEBHOOK) else "connectors", own_id

    def is_used(self, stores: Stores) -> bool:
        """Whether a record names the secret."""
        kind: Any = WEBHOOK if self.secret_id.startswith(OF_WEBHOOK) else CONNECTOR
        owner = Repository(stores, kind).find(kind.by_id(self.account_id, self.owner_id))
        return owner is not None and SecretName.of(owner.value) == self


@contextmanager
def new_secret(realm: Realm, secrets: SecretsStore, owner: v1.Connector | v1.Webhook, *, data: bytes) -> Iterator[Put]:
    """Store the secret that a record names, and yield the operation that the batch needs that writes the record.

    If the block fails, the secret is deleted again.
    """
    name = SecretName.of(owner)
    marker = realm.stores.pointers.compare_and_set(name.marker_key, realm.clock().isoformat(), expect=ABSENT)
    try:
        secrets.put(*name.stored_as, data)
        yield Put(marker.key, marker.blob_uri, expect=marker.version)
    except SkiwayError:
        # Unless the record names it after all: a batch may succeed although its response is lost.
        with suppress(SkiwayError):
            removed_if_unused(realm.stores, secrets, marker)
        raise


def forget(realm: Realm, secrets: SecretsStore, before: v1.Connector | v1.Webhook) -> None:
    """Delete the secret that a record named before.

    Errors are ignored: the new secret is in use, and gc deletes the old one.
    """
    with suppress(SkiwayError):
        marker = realm.stores.pointers.get(SecretName.of(before).marker_key)
        if marker is not None:
            removed_if_unused(realm.stores, secrets, marker)


def remove_all(realm: Realm, secrets: SecretsStore, owner_id: str) -> None:
    """Delete all secrets of a deleted connector or webhook."""
    for marker in realm.stores.pointers.scan(keys.secret(realm.account_id, owner_id)):
        removed_if_unused(realm.stores, secrets, marker)


def removed_if_unused(stores: Stores, secrets: SecretsStore, marker: Pointer, *, dry_run: bool = False) -> bool:
    """Delete the secret of a marker unless a record names it. Return whether it was deleted, or would be."""
    name = SecretName(*keys.secret_ids(marker.key))
    try:
        if name.is_used(stores):
            return False
        if dry_run:
            return True
        moved = stores.pointers.compare_and_set(marker.key, marker.blob_uri, expect=marker.version)
        secrets.delete(*name.stored_as)
        stores.pointers.compare_and_delete(moved.key, expect=moved.version)
    except (Conflict, Internal):
        # Another process just used or deleted it; or the record is unreadable, and may name it.
        return False
    return True


def marked_at(marker: Pointer) -> datetime:
    """When a marker was set, which was before its secret was stored."""
    return datetime.fromisoformat(marker.blob_uri).astimezone(UTC)
