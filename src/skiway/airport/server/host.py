"""What a server serves, and to whom. Handlers are functions of a host, a request and its body."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from msgspec import structs

from skiway.airport.catalog import Catalog, Transactional, TransactionStatus
from skiway.airport.request import Authenticator, Request, authorize, call_of, enter
from skiway.airport.server.discovery import Listings
from skiway.airport.server.lookup import Catalogs
from skiway.airport.server.tickets import ObjectPath, TicketOffice, object_path
from skiway.airport.wire import headers
from skiway.errors import InvalidArgument, NotFound, PermissionDenied, PreconditionFailed
from skiway.model import flight_pb2 as flight

__all__ = ["Host"]


@dataclass(frozen=True, slots=True)
class Host:
    """The catalogs of a server and the rules under which it serves them."""

    catalogs: Catalogs
    auth: Authenticator | None
    tickets: TicketOffice
    endpoint_location: bytes
    allowed_functions: frozenset[str]
    auto_commit: bool
    auto_rollback: bool
    memory_pool: pa.MemoryPool | None
    listings: Listings = field(default_factory=Listings)

    def open_catalog(
        self, request: Request, named: str = "", *, schema: str = "", name: str = ""
    ) -> tuple[Request, Catalog]:
        """The catalog of a call (header first, then what its body or descriptor names), once its caller may use it."""
        call = call_of(request)
        call.schema, call.name = schema, name
        wanted = request.catalog or named
        request = authorize(request.within(wanted), self.auth)
        catalog = self.catalogs.find(wanted)
        if catalog is None:
            raise NotFound(
                f"catalog {wanted!r} is not served here" if wanted else "no catalog was named, and there is no default",
                key="catalog",
            )
        return request, catalog

    def open(self, request: Request, descriptor: flight.FlightDescriptor) -> tuple[Request, Catalog, ObjectPath]:
        """The catalog that a descriptor leads to, and the object's path in it."""
        return self.open_path(request, object_path(descriptor))

    def open_path(self, request: Request, path: ObjectPath) -> tuple[Request, Catalog, ObjectPath]:
        """The same for a path that was a descriptor before."""
        if path.catalog and request.catalog and path.catalog != request.catalog:
            raise InvalidArgument(
                f"the descriptor is of catalog {path.catalog!r}, but the call is about {request.catalog!r}"
            )
        request, catalog = self.open_catalog(request, path.catalog or "", schema=path.schema, name=path.name)
        return (
            request,
            catalog,
            path if path.catalog == request.catalog else structs.replace(path, catalog=request.catalog),
        )

    def visible_catalogs(self, request: Request) -> Iterator[str]:
        """Names of the catalogs that the caller may use."""
        for name in self.catalogs.names():
            with contextlib.suppress(PermissionDenied):
                authorize(request.within(name), self.auth)
                yield name

    @contextlib.contextmanager
    def unit_of_work(self, request: Request, catalog: Catalog) -> Iterator[None]:
        """Commit the statement's transaction when it succeeds and roll it back when it fails.

        DuckDB sends the id of one transaction with all statements between BEGIN and COMMIT, and nothing at the end. Its
        first write ends the transaction here; those after it stand alone. A client that ends transactions itself says so in
        a header.
        """
        manager = catalog.transactions if isinstance(catalog, Transactional) else None
        if manager is None or not request.transaction_id:
            yield
            return
        by_client = request.header(headers.AUTO_COMMIT) == "0"
        if manager.status(request.transaction_id) is not TransactionStatus.ACTIVE:
            if by_client:
                raise PreconditionFailed("the transaction has ended or expired: begin a new one")
            enter(structs.replace(request, transaction_id=""))
            yield
            return
        try:
            yield
        except BaseException:
            if self.auto_rollback and not by_client:
                manager.rollback(request.transaction_id)
            raise
        if self.auto_commit and not by_client:
            manager.commit(request.transaction_id)
