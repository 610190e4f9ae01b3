"""The shared state of a server: catalogs, authentication, tickets and limits.

Handlers are functions of a host, a request and its body.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from msgspec import structs

from skiway.airport.catalog import Catalog, Transactional, TransactionManager, TransactionStatus
from skiway.airport.request import Authenticator, Request, authorize, call_of, enter
from skiway.airport.server.bindings import Announcements
from skiway.airport.server.discovery import ListingCache
from skiway.airport.server.lookup import Catalogs
from skiway.airport.server.scanned_tables import ScannedTables
from skiway.airport.server.tickets import ObjectPath, TicketOffice, object_path
from skiway.airport.wire import headers
from skiway.airport.wire.sizes import MAX_DECODED_BYTES
from skiway.errors import InvalidArgument, NotFound, PermissionDenied, PreconditionFailed
from skiway.model import flight_pb2 as flight

__all__ = ["Host"]


@dataclass(frozen=True, slots=True)
class Host:
    """The catalogs of a server and the settings that handlers need."""

    catalogs: Catalogs
    auth: Authenticator | None
    tickets: TicketOffice
    endpoint_location: bytes
    allowed_functions: frozenset[str]
    auto_commit: bool
    auto_rollback: bool
    memory_pool: pa.MemoryPool | None
    max_decoded_bytes: int = MAX_DECODED_BYTES
    transactions: TransactionManager | None = None
    listings: ListingCache = field(default_factory=ListingCache)
    announcements: Announcements = field(default_factory=Announcements)
    scanned_tables: ScannedTables = field(default_factory=ScannedTables)

    def open_catalog(
        self, request: Request, fallback: str = "", *, schema: str = "", name: str = ""
    ) -> tuple[Request, Catalog]:
        """Authorize the caller and return the catalog that the header names, or else `fallback` from the body.

        `schema` and `name` say which object the call is about, for observers.
        """
        catalog = request.catalog or fallback
        return self._authorized(request, catalog, schema, name), self.find(catalog)

    def open(self, request: Request, descriptor: flight.FlightDescriptor) -> tuple[Request, Catalog, ObjectPath]:
        """The catalog and the path of the object that a descriptor names, after authorization."""
        return self.open_path(request, object_path(descriptor))

    def open_path(self, request: Request, path: ObjectPath) -> tuple[Request, Catalog, ObjectPath]:
        """The catalog of `path`, after authorization, and `path` with the catalog's name."""
        catalog = request.catalog or path.catalog or ""
        request, path = self.authorize_path(request, path)
        return request, self.find(catalog), path

    def authorize_path(self, request: Request, path: ObjectPath) -> tuple[Request, ObjectPath]:
        """Authorize the caller, and return `path` with the name of its catalog, which is not looked up."""
        if path.catalog and request.catalog and path.catalog != request.catalog:
            raise InvalidArgument(
                f"the descriptor names catalog {path.catalog!r}, but the header names {request.catalog!r}"
            )
        request = self._authorized(request, request.catalog or path.catalog or "", path.schema, path.label)
        return request, path if path.catalog == request.catalog else structs.replace(path, catalog=request.catalog)

    def _authorized(self, request: Request, catalog: str, schema: str, name: str) -> Request:
        call = call_of(request)
        call.schema, call.name = schema, name
        return authorize(request.within(catalog), self.auth)

    def find(self, name: str) -> Catalog:
        """The catalog called `name`; raises `NotFound`."""
        catalog = self.catalogs.find(name)
        if catalog is None:
            raise NotFound(
                f"catalog {name!r} is not served here"
                if name
                else "the call names no catalog, and there is no default catalog",
                key="catalog",
            )
        return catalog

    def visible_catalogs(self, request: Request) -> Iterator[str]:
        """The names of the catalogs that the caller may use."""
        for name in self.catalogs.names():
            with contextlib.suppress(PermissionDenied):
                authorize(request.within(name), self.auth)
                yield name

    def transactions_of(self, catalog: Catalog) -> TransactionManager | None:
        """The transactions of the catalog, else those of the server, if any."""
        return catalog.transactions if isinstance(catalog, Transactional) else self.transactions

    @contextlib.contextmanager
    def unit_of_work(self, request: Request, catalog: Catalog) -> Iterator[None]:
        """Commit the transaction of a statement when the block succeeds, and roll it back when the block fails.

        DuckDB sends the same transaction id with all statements between BEGIN and COMMIT, but does not report the end.
        The first write therefore ends the transaction here, and later writes commit on their own. A client that ends
        transactions itself says so in a header. A write in a transaction that was rolled back, or that nobody knows, is
        an error: it must not be committed on its own.
        """
        manager = self.transactions_of(catalog)
        if manager is None or not request.transaction_id:
            yield
            return
        client_commits = request.header(headers.AUTO_COMMIT) == "0"
        status = manager.status(request.transaction_id)
        if status is not TransactionStatus.ACTIVE:
            if status is None:
                raise NotFound(
                    f"transaction {request.transaction_id!r} is unknown or ended long ago: begin a new one",
                    key="transaction",
                )
            if client_commits or status is not TransactionStatus.COMMITTED:
                raise PreconditionFailed(
                    f"transaction {request.transaction_id!r} has ended, it is {status}: begin a new one"
                )
            enter(structs.replace(request, transaction_id=""))
            yield
            return
        try:
            yield
        except BaseException:
            if self.auto_rollback and not client_commits:
                manager.rollback(request.transaction_id)
            raise
        if self.auto_commit and not client_commits:
            manager.commit(request.transaction_id)
