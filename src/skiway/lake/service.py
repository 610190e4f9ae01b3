"""The lake as a part of a gRPC server."""

from __future__ import annotations

import secrets as randomness
from collections.abc import Callable
from datetime import timedelta

from skiway.airport import AirportService, Limits
from skiway.airport.tickets import TicketOffice
from skiway.errors import AlreadyExists
from skiway.lake.callers import Callers
from skiway.lake.catalogs import LakeCatalogs
from skiway.lake.context import Context
from skiway.lake.handles import Handles
from skiway.lake.parts import MAX_PARTS, PART_BYTES
from skiway.lake.pins import LakeTransactions
from skiway.metastore import PLATFORM, Realm
from skiway.security import Authenticator, Authorizer, Principal

__all__ = ["airport_service", "signing_key"]


def airport_service(
    realm_of: Callable[[Principal], Realm],
    authenticator: Authenticator,
    authorizer: Authorizer,
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
    callers = Callers(authenticator, authorizer, realm_of)
    context = Context(
        callers,
        handles,
        LakeTransactions(key, ttl=transaction_ttl),
        part_bytes=part_bytes,
        max_parts=max_parts,
    )
    return AirportService(LakeCatalogs(context), auth=callers, tickets=TicketOffice(key), limits=limits)


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
