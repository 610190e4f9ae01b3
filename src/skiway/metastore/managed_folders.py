"""Which folders of the warehouse are this store's: those of tables that were made here, or were about to be.

A warehouse may hold other things: tables of another store, such as one that was lost and has a new one in its place, or
whatever people put there. So a folder is claimed before the first file is written to it, and gc takes a folder whose
table is gone for a dropped or unfinished one only if it was claimed.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from skiway.errors import AlreadyExists, Conflict, NotFound
from skiway.metastore.names import encoded
from skiway.metastore.realm import Realm
from skiway.storage import ABSENT

__all__ = ["claim", "claimed_at", "release"]


def claim(realm: Realm, table_id: str) -> None:
    """Let the folder of the table with this id be ours; nothing happens if it is already."""
    if claimed_at(realm, table_id) is None:
        with suppress(AlreadyExists):  # another server was faster
            realm.stores.pointers.compare_and_set(_key(realm, table_id), realm.clock().isoformat(), expect=ABSENT)


def claimed_at(realm: Realm, table_id: str) -> datetime | None:
    """When the folder became one of ours; None if it is not."""
    pointer = realm.stores.pointers.get(_key(realm, table_id))
    return None if pointer is None else datetime.fromisoformat(pointer.blob_uri)


def release(realm: Realm, table_id: str) -> None:
    """Forget a folder that is gone."""
    pointer = realm.stores.pointers.get(_key(realm, table_id))
    if pointer is not None:
        with suppress(Conflict, NotFound):  # another server was faster
            realm.stores.pointers.compare_and_delete(pointer.key, expect=pointer.version)


def _key(realm: Realm, table_id: str) -> str:
    return f"/folders/{encoded(realm.account_id)}/{encoded(table_id)}"
