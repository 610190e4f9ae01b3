"""The catalogs of each caller's account, found by name."""

from __future__ import annotations

import secrets as randomness
from collections.abc import Sequence
from datetime import timedelta

from skiway.airport import AirportService, Limits
from skiway.airport.server.status import Disclosure
from skiway.airport.server.tickets import TicketOffice
from skiway.errors import AlreadyExists
from skiway.formats.cache import Kept
from skiway.lake.catalog import LakeCatalog
from skiway.lake.context import Callers, Context
from skiway.lake.opened_tables import Handles
from skiway.lake.scans import MAX_PARTS, PART_BYTES
from skiway.lake.transactions import LakeTransactions
from skiway.metastore import PLATFORM, Realm
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import CATALOG
from skiway.metastore.records.names import normal_text
from skiway.requests import Access, Observers

__all__ = ["LakeCatalogs", "airport_service", "signing_key"]


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


# --------------------
# The lake as a part of a gRPC server.


def airport_service(
    access: Access,
    observers: Observers | None = None,
    *,
    handles: Handles,
    key: bytes,
    transaction_ttl: timedelta = timedelta(hours=1),
    part_bytes: int = PART_BYTES,
    max_parts: int = MAX_PARTS,
    limits: Limits | None = None,
) -> AirportService:
    """The catalogs of the metastore, to be added to a gRPC server, beside whatever else it serves.

    `handles` opens tables, and may be shared with others who read them. `key` signs tickets and transactions; servers that
    stand for each other have the same (see `signing_key`). Large scans are offered in up to `max_parts` parts of about `part_bytes`.
    """
    callers = Callers(access, observers)
    context = Context(
        callers,
        handles,
        LakeTransactions(key, ttl=transaction_ttl),
        part_bytes=part_bytes,
        max_parts=max_parts,
    )
    return AirportService(
        LakeCatalogs(context),
        auth=callers,
        tickets=TicketOffice(key),
        limits=limits,
        observers=[callers.observe],
        disclosure=Disclosure(internal=False),
        log_failures=False,  # the pipeline logs them, with the caller
    )


def signing_key(realm: Realm) -> bytes:
    """The key kept in the stores of `realm`, the platform's; made when it is first asked for."""
    if realm.account_id != PLATFORM:
        realm = Realm(realm.stores, PLATFORM)
    where, pointers = "/platform/keys/airport", realm.stores.pointers
    while (found := pointers.get(where)) is None:
        try:
            found = pointers.compare_and_set(where, randomness.token_hex(32), expect=0)
            break
        except AlreadyExists:  # another server was first
            continue
    return bytes.fromhex(found.blob_uri)
