"""The accounts of a store, as security asks for them."""

from __future__ import annotations

from skiway.metastore import keys
from skiway.metastore.names import normal_text
from skiway.storage import Pointer, PointerStore

__all__ = ["AccountDirectory"]


class AccountDirectory:
    """Always as fresh as the store: an account that was just deleted on another server lets nobody in here."""

    def __init__(self, pointers: PointerStore) -> None:
        self._pointers = pointers

    def find(self, id_or_name: str) -> str | None:
        """The id of the account with this id, or else with this name."""
        if self._pointers.get(keys.account(id_or_name)) is not None:
            return id_or_name
        return _id(self._pointers.get(keys.account_name(normal_text(id_or_name))))

    def first(self) -> str | None:
        """The id of the account whose name comes first."""
        page = self._pointers.page(keys.account_name(), size=1)
        return _id(page.items[0]) if page.items else None


def _id(pointer: Pointer | None) -> str | None:
    return None if pointer is None else keys.owner(pointer).rpartition("/")[2]
