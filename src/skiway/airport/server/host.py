"""The shared state of a server, and how handlers find the objects that a call names: catalogs, schemas, tables and functions.

A server serves a set of catalogs, which may change while it runs, or a function that returns the catalog of a request.
An object that does not exist raises an error that names it. Handlers are functions of a host, a request and its body.

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
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar, runtime_checkable

import pyarrow as pa
from msgspec import structs

from skiway.airport.builder import CatalogBuilder, SchemaBuilder
from skiway.airport.catalog import (
    Bindable,
    Catalog,
    Commands,
    DynamicSchema,
    Schema,
    Table,
    TimeTravel,
    Transactional,
    TransactionManager,
    TransactionStatus,
)
from skiway.airport.checks import Mistake, check_catalog, takes_one_argument
from skiway.airport.functions import AnyFunction, ScalarFunction, TableFunction, TableInOutFunction
from skiway.airport.request import Authenticator, Request, authorize, call_of, current_request, enter
from skiway.airport.server.discovery import ListingCache, function_path
from skiway.airport.server.tickets import (
    Announcements,
    ObjectPath,
    TicketOffice,
    as_listed,
    as_plain,
    fingerprint,
    not_a_path,
    object_path,
    table_changed,
)
from skiway.airport.table_refs import DynamicSchemaTableRef, SchemaRequest, TableRef
from skiway.airport.tables import TimePoint, instead_of
from skiway.airport.wire import protocol
from skiway.airport.wire.frames import BatchReader
from skiway.airport.wire.sizes import MAX_DECODED_BYTES
from skiway.errors import (
    AlreadyExists,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    Unsupported,
)
from skiway.model import flight_pb2 as flight
from skiway.model.flight_pb2 import FlightDescriptor, FlightInfo

CatalogResolver = Callable[[str], Catalog | None]
F = TypeVar("F", bound=AnyFunction)


@runtime_checkable
class Catalogs(Protocol):
    """Finds catalogs by name. Implementations may call `current_request()`."""

    def find(self, name: str) -> Catalog | None:
        """The catalog called `name`, or None."""

    def names(self) -> Sequence[str]:
        """The names of all catalogs; `Unsupported` if they cannot be listed."""


class CatalogSet:
    """A set of catalogs that may change at any time. Calls that already use a removed catalog finish normally."""

    def __init__(self, catalogs: Iterable[Catalog] = ()) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[str, Catalog] = {}
        for catalog in catalogs:
            self.add(catalog)

    def find(self, name: str) -> Catalog | None:
        """The catalog called `name`. The name "" stands for the default catalog, or for the only one."""
        served = self._by_name
        if not name and name not in served and len(served) == 1:
            return next(iter(served.values()))
        return served.get(name)

    def names(self) -> Sequence[str]:
        """The sorted names of all catalogs."""
        return sorted(self._by_name)

    def add(self, catalog: Catalog) -> None:
        """Start to serve `catalog`."""
        if not isinstance(catalog, Catalog):
            raise _not_a_catalog(catalog)
        check_catalog(catalog)
        with self._lock:
            if catalog.name in self._by_name:
                raise AlreadyExists(f"a catalog named {catalog.name!r} is already served; catalog names must be unique")
            self._by_name = {**self._by_name, catalog.name: catalog}

    def remove(self, name: str) -> None:
        """Stop serving a catalog. Running calls finish; new calls do not find it."""
        with self._lock:
            if name not in self._by_name:
                raise NotFound(f"no catalog named {name!r} is served here")
            self._by_name = {key: value for key, value in self._by_name.items() if key != name}


class ResolvedCatalogs:
    """Catalogs that a function returns, which may call `current_request()`."""

    def __init__(self, resolve: CatalogResolver) -> None:
        self._resolve = resolve

    def find(self, name: str) -> Catalog | None:
        """The catalog that the function returns for `name`."""
        catalog = self._resolve(name)
        if catalog is not None and not isinstance(catalog, Catalog):
            raise Internal(
                f"the resolver returned {instead_of(catalog)} for catalog {name!r}: return a Catalog, as CatalogBuilder.build() "
                "does, or None"
            )
        return catalog

    def names(self) -> Sequence[str]:
        """Raise `Unsupported`: a function cannot list its catalogs."""
        raise Unsupported("this server resolves catalogs per request and cannot list them")


def catalogs_of(catalogs: Catalog | Iterable[Catalog] | CatalogResolver | Catalogs) -> Catalogs:
    """The `catalogs` argument of a server, in any of its forms, as `Catalogs`."""
    if isinstance(catalogs, Catalog):
        return CatalogSet([catalogs])
    if isinstance(catalogs, Catalogs) and not isinstance(catalogs, type):
        return catalogs
    if callable(catalogs) and not isinstance(catalogs, type):
        if not takes_one_argument(catalogs):
            name = getattr(catalogs, "__name__", "resolve")
            raise Mistake(
                f"the server got the function {name}, which cannot be called with the name of a catalog: pass the catalog "
                f"that it returns, {name}(), or write def {name}(name)"
            )
        return ResolvedCatalogs(catalogs)
    if isinstance(catalogs, Iterable) and not isinstance(catalogs, str | bytes | Mapping | type):
        return CatalogSet(catalogs)
    raise _not_a_catalog(catalogs)


def _not_a_catalog(argument: object) -> Mistake:
    if isinstance(argument, CatalogBuilder):
        return Mistake(
            f"the server got the CatalogBuilder of {argument.name!r}: pass the catalog it builds, {argument.name or 'builder'}.build()"
        )
    if isinstance(argument, type) and issubclass(argument, Catalog):
        return Mistake(f"the server got the class {argument.__name__}: pass an instance, {argument.__name__}(…)")
    named = f"{instead_of(argument)} called {argument.name!r}" if isinstance(argument, _PARTS) else instead_of(argument)
    return Mistake(
        f"the server got {named}, not a catalog: pass a Catalog, which CatalogBuilder.build() returns, or a list of catalogs"
    )


_PARTS: Final = (SchemaBuilder, Schema, Table, TableRef)


def open_schema(catalog: Catalog, name: str) -> Schema:
    """The schema called `name`."""
    schema = catalog.schema(name)
    if schema is None:
        raise NotFound(f"schema {name!r} not found", key="schema", schema=name)
    return schema


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """A table, and its schema as the client knows it.

    `schema` is read once for each call: the schema of a table may change at any time, and every step of the call must
    use the one that was checked.
    """

    table: Table | TableRef
    schema: pa.Schema
    path: ObjectPath
    has_row_ids: bool = True  # whether the row ids in `schema`, if any, are the table's

    def own_columns(self, columns: Sequence[str] | None) -> list[str]:
        """The columns that the table has to return if the client requests `columns`: at least one, to count the rows."""
        if self.has_row_ids:
            return list(self.schema.names if columns is None else columns)
        own = self.schema.names[:-1]
        return own if columns is None else [name for name in columns if name in own] or own[:1]


def find_table(catalog: Catalog, path: ObjectPath) -> Table | TableRef:
    """The current table or table reference at `path`, whatever the client knows about it."""
    if path.kind == "command":
        if not isinstance(catalog, Commands):
            raise not_a_path()
        return catalog.command(path.name)
    if path.kind != "table":
        raise InvalidArgument(f"{path} is a {path.kind.replace('_', ' ')}, not a table")
    schema = open_schema(catalog, path.schema)
    if path.signature and isinstance(schema, DynamicSchema):
        pending = schema.pending_table(path.name, path.signature)
        if pending is not None:
            return pending
    table = schema.table(path.name) or schema.table_ref(path.name)
    if table is None:
        raise NotFound(
            f"table '{path}' not found; DETACH and ATTACH again to see the current tables", key="table", table=str(path)
        )
    call_of(current_request()).target = table
    return table


def open_table(
    catalog: Catalog, path: ObjectPath, point: TimePoint | None = None, *, any_binding: bool = False
) -> OpenedTable:
    """The table at `path`, at a point in time, with the schema that the client knows; `PreconditionFailed` if it is gone.

    A path without a binding means the current schema. With `any_binding`, the fingerprint of another schema is accepted
    and replaced: a client that asks for the schema in the past only knows the current one.
    """
    current = find_table(catalog, path)
    bindable = isinstance(current, Bindable)
    if isinstance(current, Bindable) and path.signature:
        current = current.bound(path.signature)
    table = table_at(current, point)
    own = _schema_of(table, point)
    if not path.signature:
        return OpenedTable(table, as_plain(own), path)
    schema = as_listed(own) if isinstance(table, Table) else own
    if not bindable and fingerprint(schema) != path.signature:
        if not any_binding:
            raise table_changed(path, "its columns are defined differently now")
        path = structs.replace(path, signature=fingerprint(schema))
    return OpenedTable(table, schema, path, has_row_ids=len(schema) == len(own))


def _schema_of(table: Table | TableRef, point: TimePoint | None) -> pa.Schema:
    if point is not None and isinstance(table, DynamicSchemaTableRef):
        return table.schema_for(SchemaRequest((), point))
    return table.schema


def table_at(table: Table | TableRef, point: TimePoint | None) -> Table | TableRef:
    """The table at a point in time. A table reference gets the point with its request instead."""
    if point is None or isinstance(table, TableRef):
        return table
    if not isinstance(table, TimeTravel):
        raise Unsupported(f"table {table.name!r} has no history: read it without AT ({point.unit.upper()} => …)")
    past = table.at(point)
    if past is None:
        raise NotFound(f"table {table.name!r} did not exist at {point.unit} {point.value}")
    return past


def open_scalar_function(catalog: Catalog, path: ObjectPath) -> ScalarFunction:
    """The scalar function overload at `path`."""
    return _overload(open_schema(catalog, path.schema).scalar_functions(), path, "scalar function")


def open_table_function(catalog: Catalog, path: ObjectPath) -> TableFunction | TableInOutFunction:
    """The table function overload at `path`."""
    return _overload(open_schema(catalog, path.schema).table_functions(), path, "table function")


def _overload(functions: Sequence[F], path: ObjectPath, what: str) -> F:
    for function in functions:
        if function_path(function, path.catalog or "", path.schema) == path:
            call_of(current_request()).target = function
            return function
    raise NotFound(f"{what} {path}({path.signature}) not found; DETACH and ATTACH again to see the current functions")


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
        scanned = ScannedTable(find(), key)
        with self._lock:
            kept = self._tables.setdefault(key, scanned)
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
