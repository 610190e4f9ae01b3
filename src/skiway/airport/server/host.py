"""The shared state of a server: catalogs, authentication, tickets, limits, and the tables that clients are planning scans of.

Handlers are functions of a host, a request and its body.

DuckDB requests the statistics of a scan column by column, and twice for each column: a query over 1,500 columns makes 3,000
calls. All calls of a scan have the same id. If the server knows that nothing has changed since the first of them, the
others use the table that the first one found, and the same response.

A server can serve other protocols over the same Flight service, such as Flight SQL. The first protocol that recognizes a command, a
ticket or an action gets the call; all others are calls of Airport. Authentication, observers, limits and errors are the same
for all.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

import pyarrow as pa
from msgspec import structs

from skiway.airport.catalog import Catalog, Transactional, TransactionManager, TransactionStatus
from skiway.airport.request import Authenticator, Request, authorize, call_of, enter
from skiway.airport.server.discovery import ListingCache
from skiway.airport.server.lookup import Catalogs, OpenedTable
from skiway.airport.server.tickets import Announcements, ObjectPath, TicketOffice, object_path
from skiway.airport.wire import protocol
from skiway.airport.wire.frames import BatchReader
from skiway.airport.wire.sizes import MAX_DECODED_BYTES
from skiway.errors import InvalidArgument, NotFound, PermissionDenied, PreconditionFailed
from skiway.model import flight_pb2 as flight
from skiway.model.flight_pb2 import FlightDescriptor, FlightInfo

MAX_TABLES: Final = 256
MAX_BYTES: Final = 32 << 20


@runtime_checkable
class HasState(Protocol):
    """Catalogs that can tell whether anything has changed."""

    def state(self) -> Hashable | None:
        """A value that changes whenever the caller could find or see something different; None if the catalogs cannot tell."""


@dataclass(frozen=True, slots=True)
class ScannedTable:
    """A table that was looked up for a scan, and the responses that were sent to the client, by request."""

    opened: OpenedTable
    key: Hashable = None
    responses: dict[Hashable, bytes] = field(default_factory=dict)


class ScannedTables:
    """The tables of recent scans. The oldest are forgotten first, by their number and by the size of their responses.

    `state` is that of `HasState`. Without it, every call looks up its table.
    """

    def __init__(
        self,
        state: Callable[[], Hashable | None] | None = None,
        *,
        max_tables: int = MAX_TABLES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._state = state
        self._max_tables, self._max_bytes = max_tables, max_bytes
        self._lock = threading.Lock()
        self._tables: OrderedDict[Hashable, ScannedTable] = OrderedDict()
        self._size = 0

    def of(self, request: Request, path: ObjectPath, find: Callable[[], OpenedTable]) -> ScannedTable:
        """The table at `path`: the one that an earlier call of the same scan has found, or else what `find` returns."""
        state = self._state() if self._state and request.trace_id else None  # before the table is read
        if state is None:
            return ScannedTable(find())
        key = (request.trace_id, request.transaction_id, request.identity, path, state)
        with self._lock:
            known = self._tables.get(key)
        if known is not None:
            call_of(request).target = known.opened.table
            return known
        found = ScannedTable(find(), key)
        with self._lock:
            kept = self._tables.setdefault(key, found)
            while len(self._tables) > self._max_tables:
                self._forget_oldest()
        return kept

    def response(self, table: ScannedTable, requested: Hashable, make: Callable[[OpenedTable], bytes]) -> bytes:
        """The response to an earlier call of the same scan, or else what `make` returns."""
        known = table.responses.get(requested)
        if known is not None:
            return known
        made = make(table.opened)
        with self._lock:
            if self._tables.get(table.key) is table and table.responses.setdefault(requested, made) is made:
                self._size += len(made)
            while self._size > self._max_bytes:
                self._forget_oldest()
        return made

    def _forget_oldest(self) -> None:
        _, forgotten = self._tables.popitem(last=False)
        self._size -= sum(map(len, forgotten.responses.values()))


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
        client_commits = request.header(protocol.AUTO_COMMIT) == "0"
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


class FlightProtocol(ABC):
    """A protocol: which calls belong to it, and how it answers them."""

    actions: Mapping[str, str] = {}
    """Its actions, and a description of each."""

    @abstractmethod
    def owns(self, message: bytes) -> bool:
        """Whether the command of a descriptor, or a ticket, belongs to this protocol."""

    @abstractmethod
    def info(self, host: Host, request: Request, descriptor: FlightDescriptor) -> FlightInfo:
        """The answer to GetFlightInfo. GetSchema returns its schema."""

    @abstractmethod
    def stream(self, host: Host, request: Request, ticket: bytes) -> Iterator[bytes]:
        """The frames of DoGet."""

    @abstractmethod
    def act(self, host: Host, request: Request, action: str, body: bytes) -> Iterator[bytes]:
        """The bodies of the results of an action."""

    @abstractmethod
    def put(
        self, host: Host, request: Request, descriptor: FlightDescriptor, rows: BatchReader
    ) -> Generator[bytes, None, bytes | None]:
        """The PutResults of a DoPut. The one that it returns is sent after the call has been observed."""
