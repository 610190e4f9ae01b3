"""The catalogs of each caller's account, found by name."""

from __future__ import annotations

from collections.abc import Sequence

from skiway.formats.kept import Kept
from skiway.lake.catalog import LakeCatalog
from skiway.lake.context import Context
from skiway.metastore import keys
from skiway.metastore.kinds import CATALOG
from skiway.metastore.names import normal_text

__all__ = ["LakeCatalogs"]


class LakeCatalogs:
    """Finds a catalog by the account of the caller and its name. Who names none means the only one there is."""

    def __init__(self, context: Context, *, keep: int = 1000) -> None:
        self.context = context
        self._kept = Kept[tuple[str, str], LakeCatalog](keep)

    def find(self, name: str) -> LakeCatalog | None:
        """The catalog, or None."""
        callers = self.context.callers
        callers.require("catalog.read")
        realm = callers.realm()
        prefix = keys.catalog_name(realm.account_id, normal_text(name))
        if name.strip():
            pointer = realm.stores.pointers.get(prefix)
        else:
            several = realm.stores.pointers.page(prefix, size=2).items
            pointer = several[0] if len(several) == 1 else None
        stored = realm.all(CATALOG).follow(pointer)
        if stored is None:
            return None
        # The same object for the same record: listings are kept with it.
        key = (realm.account_id, stored.pointer.blob_uri)
        return self._kept.get(key, lambda: LakeCatalog(self.context, stored.value))

    def names(self) -> Sequence[str]:
        """The names of the account's catalogs."""
        callers = self.context.callers
        callers.require("catalog.read")
        realm = callers.realm()
        found = map(realm.all(CATALOG).follow, realm.stores.pointers.scan(keys.catalog_name(realm.account_id, "")))
        return [stored.value.display_name for stored in found if stored is not None]
