"""The lake as an Airport service: the catalogs of each caller's account, found by name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from skiway.airport import AirportService, Limits
from skiway.airport.server.status import Disclosure
from skiway.airport.server.tickets import TicketOffice
from skiway.cache import Cache
from skiway.lake.catalog import LakeCatalog
from skiway.lake.context import Callers, Context
from skiway.lake.opened_tables import Handles
from skiway.lake.scans import MAX_PARTS, PART_BYTES
from skiway.lake.transactions import LakeTransactions
from skiway.metastore import Realm, catalogs, platform
from skiway.requests import Access, Observers

__all__ = ["LakeCatalogs", "airport_service", "signing_key"]


class LakeCatalogs:
    """Finds the catalogs of the caller's account by name. Without a name, the only catalog of the account is used."""

    def __init__(self, context: Context, *, keep: int = 1000) -> None:
        self.context = context
        self._cache = Cache[tuple[str, str], LakeCatalog](keep)

    def find(self, name: str) -> LakeCatalog | None:
        """The catalog with this name, or None."""
        callers = self.context.callers
        callers.require("catalog.read")
        realm = callers.realm()
        found = catalogs.find(realm, name) if name.strip() else catalogs.only(realm)
        if found is None:
            return None
        # The same object for the same record, because listings are cached with the object.
        return self._cache.get((realm.account_id, found.etag), lambda: LakeCatalog(self.context, found.value))

    def names(self) -> Sequence[str]:
        """The names of the account's catalogs."""
        callers = self.context.callers
        callers.require("catalog.read")
        return [catalog.display_name for catalog in catalogs.scan(callers.realm())]


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
    """The catalogs of the metastore as a service that can be added to a gRPC server.

    `handles` opens tables and may be shared. `key` signs tickets and transaction ids; all servers of a store need the
    same key (see `signing_key`). Large scans are split into up to `max_parts` parts of about `part_bytes`.
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
    """The key that signs tickets and transaction ids, shared by all servers of the realm's stores."""
    return platform.signing_key(realm.stores)
