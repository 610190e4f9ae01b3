"""The calls of the Airport protocol, and the objects that servers describe in their responses: schemas, tables and functions.

Three rules determine the headers of a call. Calls about a catalog name it; ad-hoc calls do not. Calls of a bound scan carry its
trace id, and most of them its path. DuckDB sends the token of ATTACH with calls about the catalog only.

DuckDB accepts MessagePack `str` and `bin` alike, so servers in some languages send either. The messages here are therefore
more lenient than the server's own in `airport.wire.protocol`: their binary members are `Binary`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, Protocol, TypeVar

import msgspec
import pyarrow as pa

from skiway.airport.wire import protocol
from skiway.airport.wire.duckdb_sql import split_name
from skiway.airport.wire.protocol import (
    Binary,
    CatalogRequest,
    EndpointsRequest,
    FlightInfoRequest,
    ScanParameters,
    StatisticsRequest,
    TableFunctionRequest,
    TransactionInfo,
    TransactionRequest,
    TransactionState,
    VersionInfo,
    binary,
    decode,
    encode,
    packed,
    unseal,
)
from skiway.client.connection import Connection, Duplex, Stream, Token, current_token, parse_message
from skiway.client.errors import blame_server
from skiway.errors import Internal, InvalidArgument, NotFound
from skiway.model import flight_pb2 as flight
from skiway.model.flight_pb2 import FlightDescriptor

NIL: Final = Binary(b"\xc0")


class ContentsMessage(msgspec.Struct, frozen=True):
    """The contents of a schema: inline, at a URL, or by hash in the bundle of all schemas."""

    sha256: str = ""
    url: str | None = None
    serialized: Binary = NIL


class SchemaMessage(msgspec.Struct, frozen=True):
    """One schema in the response to `list_schemas`."""

    name: str
    contents: ContentsMessage
    description: str = ""
    tags: dict[str, str] = {}


class RootMessage(msgspec.Struct, frozen=True):
    """The response to `list_schemas`, inside its envelope."""

    schemas: list[SchemaMessage]
    version_info: VersionInfo
    contents: ContentsMessage = ContentsMessage()


class ObjectMessage(msgspec.Struct, frozen=True):
    """The `app_metadata` of a FlightInfo, with the members that the client uses."""

    type: str
    catalog: str
    schema: str
    name: str
    comment: str | None = None
    input_schema: Binary = NIL
    description: str | None = None


FunctionKind = Literal["scalar_function", "table_function"]
TableName = str | tuple[str, str]
"""The name of a table or function: `"schema.table"`, with a part in double quotes if needed, or a tuple of both."""
ROWID: Final = "rowid"


def name_splits(name: TableName) -> list[tuple[str, str]]:
    """Return how a name can be split into schema and table: a dot outside of double quotes can belong to either.

    >>> name_splits('csv."two words"')
    [('csv', 'two words')]
    >>> name_splits("a.b.c")
    [('a.b', 'c'), ('a', 'b.c')]
    """
    if not isinstance(name, str):
        return [name]
    parts = split_name(name)
    if parts is None:
        raise InvalidArgument(
            f'{name!r} is not a valid name: put a part with quotes in double quotes, as in csv."two words", and write "" '
            "for a quote inside it; or give a tuple of schema and table",
            key="name.malformed",
        )
    if len(parts) < 2:
        raise InvalidArgument(f"{name!r} names no schema: write 'schema.table', or a tuple of both")
    return [(".".join(parts[:i]), ".".join(parts[i:])) for i in range(len(parts) - 1, 0, -1)]


@dataclass(frozen=True)
class Table:
    """A table. `schema` has all columns including the row id, if there is one; `columns` has the visible ones."""

    schema_name: str
    name: str
    schema: pa.Schema
    comment: str = ""
    descriptor: FlightDescriptor = field(default_factory=FlightDescriptor, repr=False, compare=False)

    @property
    def has_statistics(self) -> bool:
        """Whether DuckDB would request statistics of the columns."""
        return bool((self.schema.metadata or {}).get(b"can_produce_statistics"))

    @cached_property
    def rowid(self) -> int | None:
        """The position of the row id in `schema`."""
        marked = (i for i, column in enumerate(self.schema) if (column.metadata or {}).get(b"is_rowid"))
        return next(marked, None)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the visible columns."""
        return tuple(name for position, name in enumerate(self.schema.names) if position != self.rowid)

    def position(self, column: str) -> int:
        """Return the position of a column in `schema`. Names are case-insensitive; `rowid` is always the row id."""
        if column.lower() == ROWID and self.rowid is not None:
            return self.rowid
        position = find_named(column, enumerate(self.schema.names))
        if position is None:
            known = ", ".join(map(repr, self.columns))
            raise NotFound(f"column {column!r} not found in {self}; it has {known}", key="column", column=column)
        return position

    def __str__(self) -> str:
        return f"{self.schema_name}.{self.name}"


@dataclass(frozen=True)
class Function:
    """A function. Functions with the same name are overloads. Field metadata tells named and table parameters apart."""

    schema_name: str
    name: str
    kind: FunctionKind
    parameters: pa.Schema
    returns: pa.Schema
    description: str = ""
    descriptor: FlightDescriptor = field(default_factory=FlightDescriptor, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.schema_name}.{self.name}"


@dataclass(frozen=True)
class Schema:
    """A schema: a named group of tables and functions."""

    name: str
    comment: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    functions: tuple[Function, ...] = ()


def read_schema(data: bytes, what: str) -> pa.Schema:
    """Parse a serialized Arrow schema; `what` names it in the error message."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise InvalidArgument(f"no valid Arrow schema for {what}") from error


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


def find_by_name(name: str, items: Iterable[N]) -> N | None:
    """Return the item called `name`: an exact match if there is one, else the first that differs only in case, as DuckDB."""
    return find_named(name, ((item, item.name) for item in items))


Item = TypeVar("Item")


def find_named(name: str, items: Iterable[tuple[Item, str]]) -> Item | None:
    """Like `find_by_name`, for pairs of an item and its name."""
    similar = None
    for item, item_name in items:
        if item_name == name:
            return item
        if similar is None and item_name.lower() == name.lower():
            similar = item
    return similar


T = TypeVar("T")

ALTERATIONS: Final = frozenset(
    {
        "add_column",
        "add_constraint",
        "add_field",
        "change_column_type",
        "drop_not_null",
        "remove_column",
        "remove_field",
        "rename_column",
        "rename_field",
        "rename_table",
        "set_default",
        "set_not_null",
    }
)
_NAMED_TWICE: Final = ALTERATIONS | {"column_statistics"}  # DuckDB sends the action's name twice with these


@dataclass(frozen=True, slots=True)
class TimeTravel:
    """`AT (VERSION => …)` or `AT (TIMESTAMP => …)`; both fields are empty for the current state."""

    unit: str = ""
    value: str = ""


NOW: Final = TimeTravel()


@dataclass(frozen=True, slots=True)
class TransactionContext:
    """The transaction of a statement. The server does not commit in an `explicit` one; the client ends it."""

    id: str = ""
    explicit: bool = False

    def headers(self, name: str = protocol.TRANSACTION_ID) -> list[tuple[str, str]]:
        """The transaction's headers, with its id as `name`; none if the server gave no id."""
        headers = [(name, self.id)] if self.id else []
        return [*headers, (protocol.AUTO_COMMIT, "0")] if self.explicit else headers


@dataclass(frozen=True, slots=True)
class Trace:
    """What the calls of one bound scan or exchange share."""

    trace_id: str
    descriptor: flight.FlightDescriptor
    transaction: TransactionContext = TransactionContext()
    in_catalog: bool = True
    extra: tuple[tuple[str, str], ...] = ()

    def headers(self, *, with_path: bool = True) -> list[tuple[str, str]]:
        """The headers of these calls."""
        headers = [(protocol.TRACE_ID, self.trace_id), *self.extra]
        path = "/".join(self.descriptor.path)
        # A path that the header cannot carry is still in the descriptor.
        if with_path and self.descriptor.type == flight.FlightDescriptor.PATH and protocol.can_repeat(path):
            headers.append((protocol.FLIGHT_PATH, path))
        return [*headers, *self.transaction.headers()]


@dataclass(frozen=True, slots=True)
class Calls:
    """The protocol's calls to one server about one catalog."""

    connection: Connection
    catalog: str
    token: Token
    token_on_scans: bool
    session_id: str
    engine: str = ""
    """What calls, for the audit log and the history of queries."""

    # -- about the catalog ----------------------------------------------------------------------------------------

    def catalog_action(
        self, name: str, body: bytes, transaction: TransactionContext | None = None, *more: tuple[str, str]
    ) -> bytes:
        """Run an action about the catalog, with more headers, and return its result."""
        return self._result(name, body, [*self._catalog_metadata(transaction), *more])

    def list_schemas(self, transaction: TransactionContext | None = None) -> RootMessage:
        """Return all schemas with their contents, or with where to find these, as `transaction` sees them."""
        body = self.catalog_action("list_schemas", self._named(), transaction)
        with blame_server(self._location, "list_schemas"):
            return unseal(body, RootMessage, "list_schemas")

    def catalog_version(self) -> VersionInfo:
        """Return the catalog's current version."""
        return self._decoded("catalog_version", VersionInfo, self.catalog_action("catalog_version", self._named()))

    def create_transaction(self) -> str:
        """Create a transaction and return its id; "" if the server has no transactions."""
        body = self.catalog_action("create_transaction", self._named())
        return self._decoded("create_transaction", TransactionInfo, body).identifier or ""

    def transaction_status(self, transaction_id: str) -> TransactionState:
        """Return the state of a transaction."""
        return self._about_transaction("get_transaction_status", transaction_id)

    def end_transaction(self, action: str, transaction_id: str) -> TransactionState:
        """Run the action `commit_transaction` or `rollback_transaction`."""
        return self._about_transaction(action, transaction_id)

    def _about_transaction(self, action: str, transaction_id: str) -> TransactionState:
        body = encode(TransactionRequest(transaction_id, self.catalog))
        return self._decoded(action, TransactionState, self.catalog_action(action, body))

    def drop(self, action: str, body: bytes, transaction: TransactionContext | None) -> None:
        """Run DROP; the response carries nothing of interest."""
        for _ in self._action(action, body, self._catalog_metadata(transaction)):
            pass

    def find_at(self, descriptor: flight.FlightDescriptor, at: TimeTravel) -> flight.FlightInfo:
        """Look up a table at a point in time, in the catalog."""
        return self._info("flight_info", self.catalog_action("flight_info", _at_body(descriptor, at)))

    def list_schema(self, schema: str) -> Iterator[flight.FlightInfo]:
        """List the objects of a schema whose contents were not part of the listing."""
        wanted = [(protocol.LIST_CATALOG, self.catalog), (protocol.LIST_SCHEMA, schema)]
        metadata = [*self._catalog_metadata(None), *wanted]
        return self._infos(self.connection.stream("ListFlights", flight.Criteria(), metadata))

    # -- about a bound scan ---------------------------------------------------------------------------------------

    def bind_at(self, trace: Trace, at: TimeTravel) -> flight.FlightInfo:
        """Look up a table at a point in time, to bind a scan."""
        return self._info("flight_info", self._scan_action("flight_info", _at_body(trace.descriptor, at), trace))

    def bind_function(self, trace: Trace, arguments: bytes, rows: bytes = b"") -> flight.FlightInfo:
        """Bind a call of a table function; `rows` is the serialized schema of its input rows."""
        request = TableFunctionRequest(packed(trace.descriptor.SerializeToString()), packed(arguments), packed(rows))
        action = "table_function_flight_info"
        return self._info(action, self._scan_action(action, encode(request), trace))

    def bind_flight(self, trace: Trace) -> flight.FlightInfo:
        """Bind any flight, outside of the catalog."""
        metadata = [*self._metadata(scan=True, in_catalog=False), *trace.headers()]
        data = self.connection.call("GetFlightInfo", trace.descriptor, metadata)
        return parse_message(flight.FlightInfo, data, self._location)

    def column_statistics(self, trace: Trace, column: str, duckdb_type: str) -> bytes:
        """Return the statistics of a column, an Arrow stream of one row."""
        request = StatisticsRequest(packed(trace.descriptor.SerializeToString()), column, duckdb_type)
        return self._scan_action("column_statistics", encode(request), trace, with_path=False)

    def endpoints(self, trace: Trace, parameters: ScanParameters) -> list[flight.FlightEndpoint]:
        """Return the endpoints of a scan."""
        request = EndpointsRequest(packed(trace.descriptor.SerializeToString()), parameters)
        body = self._scan_action("endpoints", encode(request), trace)
        with blame_server(self._location, "endpoints"):
            parts = [binary(part) for part in decode(body, list[Binary], "endpoints")]
        return [parse_message(flight.FlightEndpoint, part, self._location) for part in parts]

    def get(self, trace: Trace, ticket: bytes, connection: Connection | None = None) -> Stream:
        """Redeem a ticket, on this connection or on `connection`; the stream consists of Flight data frames."""
        metadata = [*self._metadata(scan=True, in_catalog=trace.in_catalog), *trace.headers()]
        return (connection or self.connection).stream("DoGet", flight.Ticket(ticket=ticket), metadata)

    # -- exchanges ------------------------------------------------------------------------------------------------

    def exchange(self, trace: Trace, operation: str, *, returning: bool) -> Duplex:
        """Open an exchange: rows in both directions."""
        metadata = [
            *self._metadata(scan=True, in_catalog=True),
            *trace.headers(),
            (protocol.OPERATION, operation),
            (protocol.RETURN_CHUNKS, "1" if returning else "0"),
        ]
        return self.connection.exchange("DoExchange", metadata)

    # -- the JSON contract ----------------------------------------------------------------------------------------

    def put(self, more: list[tuple[str, str]]) -> Duplex:
        """Open an upload of rows for a command in JSON."""
        return self.connection.exchange("DoPut", [*self._authorized(), *more])

    def plain_action(self, name: str, body: bytes, more: list[tuple[str, str]]) -> bytes:
        """Run an action of the JSON contract, without the Airport headers, and return its result."""
        return self._result(name, body, [*self._authorized(), *more])

    def _authorized(self) -> list[tuple[str, str]]:
        token = current_token(self.token)
        return [(protocol.AUTHORIZATION, f"Bearer {token}")] if token else []

    # -- ad hoc ---------------------------------------------------------------------------------------------------

    def list_flights(self, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """List the flights of the server."""
        metadata = [*self._metadata(scan=True, in_catalog=False), (protocol.JSON_FILTERS, '{"filters":[]}')]
        return self._infos(self.connection.stream("ListFlights", flight.Criteria(expression=criteria), metadata))

    def raw_action(self, name: str, body: bytes) -> Iterator[bytes]:
        """Run any action; yield its results."""
        stream = self._action(name, body, self._metadata(scan=True, in_catalog=False))
        return (parse_message(flight.Result, data, self._location).body for data in stream)

    # -- shared --------------------------------------------------------------------------------------------------

    @property
    def _location(self) -> str:
        return self.connection.location.text

    def _named(self) -> bytes:
        return encode(CatalogRequest(self.catalog))

    def _metadata(self, *, scan: bool, in_catalog: bool) -> list[tuple[str, str]]:
        headers = [
            (protocol.USER_AGENT, protocol.DUCKDB_USER_AGENT),
            (protocol.LOCATION, self._location),
            (protocol.SESSION_ID, self.session_id),
        ]
        if self.engine:
            headers.append((protocol.ENGINE_KIND, self.engine))
        if self.token_on_scans or not scan:
            headers += self._authorized()
        if in_catalog and self.catalog and protocol.can_carry(self.catalog):
            headers.append((protocol.CATALOG, self.catalog))
        return headers

    def _catalog_metadata(self, transaction: TransactionContext | None) -> list[tuple[str, str]]:
        return [*self._metadata(scan=False, in_catalog=True), *(transaction.headers() if transaction else ())]

    def _scan_action(self, name: str, body: bytes, trace: Trace, *, with_path: bool = True) -> bytes:
        metadata = [*self._metadata(scan=True, in_catalog=trace.in_catalog), *trace.headers(with_path=with_path)]
        return self._result(name, body, metadata)

    def _action(self, name: str, body: bytes, metadata: list[tuple[str, str]]) -> Stream:
        named = [(protocol.ACTION_NAME, name)] * (2 if name in _NAMED_TWICE else 1)
        return self.connection.stream("DoAction", flight.Action(type=name, body=body), [*metadata, *named])

    def _result(self, name: str, body: bytes, metadata: list[tuple[str, str]]) -> bytes:
        """Run an action to its end and return the body of its first result."""
        stream = self._action(name, body, metadata)
        try:
            data = next(stream, None)
            if data is None:
                raise Internal(f"{self._location} sent no result for {name}", key="answer.missing")
            next(stream, None)  # an error may still follow; further results are ignored
        finally:
            stream.close()
        return parse_message(flight.Result, data, self._location).body

    def _decoded(self, name: str, kind: type[T], body: bytes) -> T:
        with blame_server(self._location, name):
            return decode(body, kind, name)

    def _info(self, name: str, body: bytes) -> flight.FlightInfo:
        return parse_message(flight.FlightInfo, body, f"{self._location} ({name})")

    def _infos(self, stream: Stream) -> Iterator[flight.FlightInfo]:
        try:
            for data in stream:
                yield parse_message(flight.FlightInfo, data, self._location)
        finally:
            stream.close()


def _at_body(descriptor: flight.FlightDescriptor, at: TimeTravel) -> bytes:
    return encode(FlightInfoRequest(packed(descriptor.SerializeToString()), at.unit, at.value))
