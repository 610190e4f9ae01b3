"""State that belongs to the platform rather than to one account: signing keys, and the accounts of a store.

These functions work on the stores directly, because they are not called on behalf of an account.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from contextlib import suppress

from skiway.errors import AlreadyExists
from skiway.metastore.records import keys
from skiway.metastore.records.names import normal_text
from skiway.storage import ABSENT, Pointer, Stores

__all__ = ["AccountDirectory", "account_ids", "blob_sizes", "pointer_count", "signing_key"]


class AccountDirectory:
    """Finds accounts by id or name. It does not cache: a deleted account is rejected at once, on every server."""

    def __init__(self, stores: Stores) -> None:
        self._pointers = stores.pointers

    def find(self, id_or_name: str) -> str | None:
        """The id of the account with this id or, if there is none, with this name."""
        if self._pointers.get(keys.account(id_or_name)) is not None:
            return id_or_name
        return _account_id(self._pointers.get(keys.account_name(normal_text(id_or_name))))

    def first(self) -> str | None:
        """The id of the account whose name sorts first."""
        page = self._pointers.page(keys.account_name(), size=1)
        return _account_id(page.items[0]) if page.items else None


def _account_id(pointer: Pointer | None) -> str | None:
    return None if pointer is None else keys.last_segment(keys.owner(pointer))


def account_ids(stores: Stores) -> Iterable[str]:
    """The ids of all accounts."""
    return (keys.last_segment(pointer.key) for pointer in stores.pointers.scan(keys.account()))


def pointer_count(stores: Stores, account_id: str) -> int:
    """The number of pointers of an account."""
    return stores.pointers.count(keys.of_account(account_id))


def blob_sizes(stores: Stores, account_id: str) -> Iterable[int]:
    """The sizes of all blobs of an account, in bytes."""
    folder = keys.folder(keys.of_account(account_id)).rstrip("/")
    return (head.size_bytes for head in stores.blobs.scan(folder))


def signing_key(stores: Stores) -> bytes:
    """The key that signs tickets and transaction ids. All servers of a store share it; the first one creates it."""
    found = stores.pointers.get(keys.AIRPORT_SIGNING_KEY)
    if found is None:
        with suppress(AlreadyExists):  # another server was first
            stores.pointers.compare_and_set(keys.AIRPORT_SIGNING_KEY, secrets.token_hex(32), expect=ABSENT)
        found = stores.pointers.get(keys.AIRPORT_SIGNING_KEY)
        assert found is not None, "the key is never deleted"
    return bytes.fromhex(found.blob_uri)
