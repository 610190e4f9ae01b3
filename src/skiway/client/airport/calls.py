"""The calls of the protocol, each with the headers that DuckDB's extension sends on it.

Three facts decide about headers. Calls about a catalog name it, ad-hoc ones do not. Calls of a bound scan carry its
trace id, and most of them its path. And DuckDB takes the token of ATTACH for catalog work only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, TypeVar

from skiway.airport.wire import headers
from skiway.airport.wire.payloads import (
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
from skiway.client.airport.catalog import RootAnswer
from skiway.client.airport.connection import Connection, Duplex, Stream, parsed
from skiway.client.airport.errors import nonsense
from skiway.errors import Internal
from skiway.model import flight_pb2 as flight

__all__ = ["ALONE", "NOW", "Calls", "InTransaction", "TimeTravel", "Trace"]

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
_TWICE: Final = ALTERATIONS | {"column_statistics"}  # the client names these two times over; servers must bear it


@dataclass(frozen=True, slots=True)
class TimeTravel:
    """`AT (VERSION => …)` or `AT (TIMESTAMP => …)`, as texts; both empty for the present."""

    unit: str = ""
    value: str = ""


NOW: Final = TimeTravel()


@dataclass(frozen=True, slots=True)
class InTransaction:
    """The transaction of a statement; one that is ended `by_client` is not to be committed by the server."""

    id: str = ""
    by_client: bool = False

    def headers(self) -> list[tuple[str, str]]:
        """The headers that say so; none where the server gave no id."""
        named = [(headers.TRANSACTION_ID, self.id)] if self.id else []
        return [*named, (headers.AUTO_COMMIT, "0")] if self.by_client else named


ALONE: Final = InTransaction()


@dataclass(frozen=True, slots=True)
class Trace:
    """What the calls of one bound scan, or one exchange, have in common."""

    trace_id: str
    descriptor: flight.FlightDescriptor
    transaction: InTransaction = ALONE
    in_catalog: bool = True
    extra: tuple[tuple[str, str], ...] = ()

    def headers(self, *, with_path: bool = True) -> list[tuple[str, str]]:
        """The headers that say so."""
        found = [(headers.TRACE_ID, self.trace_id), *self.extra]
        path = "/".join(self.descriptor.path)
        # Where the header cannot say it, the descriptor does, as everywhere.
        if with_path and self.descriptor.type == flight.FlightDescriptor.PATH and headers.can_repeat(path):
            found.append((headers.FLIGHT_PATH, path))
        return [*found, *self.transaction.headers()]


@dataclass(frozen=True, slots=True)
class Calls:
    """The protocol, spoken to one server about one catalog."""

    connection: Connection
    catalog: str
    token: str | None
    token_on_scans: bool
    session_id: str

    # -- about the catalog ----------------------------------------------------------------------------------------

    def list_schemas(self, unit: InTransaction | None = None) -> RootAnswer:
        """All schemas, with their contents or where these are; as a transaction sees them if one is given."""
        body = self._catalog_action("list_schemas", self._named(), unit)
        with self._nonsense("list_schemas"):
            return unseal(body, RootAnswer, "list_schemas")

    def catalog_version(self) -> VersionInfo:
        """The catalog's version now."""
        return self._decoded("catalog_version", VersionInfo, self._catalog_action("catalog_version", self._named()))

    def create_transaction(self) -> str:
        """A transaction's id; "" where the server has none to give."""
        body = self._catalog_action("create_transaction", self._named())
        return self._decoded("create_transaction", TransactionInfo, body).identifier or ""

    def transaction_status(self, transaction_id: str) -> TransactionState:
        """Where a transaction is."""
        return self._about_transaction("get_transaction_status", transaction_id)

    def end_transaction(self, action: str, transaction_id: str) -> TransactionState:
        """`commit_transaction` or `rollback_transaction`."""
        return self._about_transaction(action, transaction_id)

    def _about_transaction(self, action: str, transaction_id: str) -> TransactionState:
        asked = encode(TransactionRequest(transaction_id, self.catalog))
        return self._decoded(action, TransactionState, self._catalog_action(action, asked))

    def define(self, action: str, body: bytes, unit: InTransaction | None) -> bytes:
        """CREATE or ALTER: the answer lets the client rebuild its entry."""
        return self._catalog_action(action, body, unit)

    def create_for_rows(self, body: bytes, unit: InTransaction | None) -> bytes:
        """CREATE TABLE that tells the server that rows follow; it may answer with where they are to go first."""
        found = [*self._metadata(scan=False, in_catalog=True), *(unit.headers() if unit else ())]
        return self._result("create_table", body, [*found, (headers.ROWS_FOLLOW, "1")])

    def drop(self, action: str, body: bytes, unit: InTransaction | None) -> None:
        """DROP: what is answered says nothing."""
        metadata = [*self._metadata(scan=False, in_catalog=True), *(unit.headers() if unit else ())]
        for _ in self._action(action, body, metadata):
            pass

    def find_at(self, descriptor: flight.FlightDescriptor, at: TimeTravel) -> flight.FlightInfo:
        """A table at a point in time, as the catalog looks it up."""
        return self._info("flight_info", self._catalog_action("flight_info", _at_body(descriptor, at)))

    def list_schema(self, schema: str) -> Iterator[flight.FlightInfo]:
        """The objects of a schema whose contents did not come with the listing."""
        found = [(headers.LIST_CATALOG, self.catalog), (headers.LIST_SCHEMA, schema)]
        metadata = [*self._metadata(scan=False, in_catalog=True), *found]
        return self._infos(self.connection.stream("ListFlights", flight.Criteria(), metadata))

    # -- about a bound scan ---------------------------------------------------------------------------------------

    def bind_at(self, trace: Trace, at: TimeTravel) -> flight.FlightInfo:
        """A table at a point in time, as a scan binds it."""
        return self._info("flight_info", self._scan_action("flight_info", _at_body(trace.descriptor, at), trace))

    def bind_function(self, trace: Trace, arguments: bytes, rows: bytes = b"") -> flight.FlightInfo:
        """One call of a table function; `rows` is the schema of those it works on."""
        asked = TableFunctionRequest(packed(trace.descriptor.SerializeToString()), packed(arguments), packed(rows))
        action = "table_function_flight_info"
        return self._info(action, self._scan_action(action, encode(asked), trace))

    def bind_flight(self, trace: Trace) -> flight.FlightInfo:
        """Any flight, ad hoc."""
        metadata = [*self._metadata(scan=True, in_catalog=False), *trace.headers()]
        data = self.connection.call("GetFlightInfo", trace.descriptor, metadata)
        info: flight.FlightInfo = parsed(flight.FlightInfo, data, self._location)
        return info

    def column_statistics(self, trace: Trace, column: str, duckdb_type: str) -> bytes:
        """An Arrow stream of one row about a column."""
        asked = StatisticsRequest(packed(trace.descriptor.SerializeToString()), column, duckdb_type)
        return self._scan_action("column_statistics", encode(asked), trace, with_path=False)

    def endpoints(self, trace: Trace, parameters: ScanParameters) -> list[flight.FlightEndpoint]:
        """Where the rows are."""
        asked = EndpointsRequest(packed(trace.descriptor.SerializeToString()), parameters)
        body = self._scan_action("endpoints", encode(asked), trace)
        with self._nonsense("endpoints"):
            parts = [binary(part) for part in decode(body, list[Binary], "endpoints")]
        return [parsed(flight.FlightEndpoint, part, self._location) for part in parts]

    def get(self, trace: Trace, ticket: bytes, connection: Connection | None = None) -> Stream:
        """The rows behind a ticket, as frames; `connection` where they are on another server."""
        metadata = [*self._metadata(scan=True, in_catalog=trace.in_catalog), *trace.headers()]
        return (connection or self.connection).stream("DoGet", flight.Ticket(ticket=ticket), metadata)

    # -- exchanges ------------------------------------------------------------------------------------------------

    def exchange(self, trace: Trace, operation: str, *, returning: bool) -> Duplex:
        """Rows in both directions."""
        metadata = [
            *self._metadata(scan=True, in_catalog=True),
            *trace.headers(),
            (headers.OPERATION, operation),
            (headers.RETURN_CHUNKS, "1" if returning else "0"),
        ]
        return self.connection.exchange("DoExchange", metadata)

    # -- the JSON contract ----------------------------------------------------------------------------------------

    def put(self, more: list[tuple[str, str]]) -> Duplex:
        """Rows for a command in JSON."""
        return self.connection.exchange("DoPut", [*self._authorized(), *more])

    def plain_action(self, name: str, body: bytes, more: list[tuple[str, str]]) -> bytes:
        """The result of an action, asked for by none but its name."""
        return self._result(name, body, [*self._authorized(), *more])

    def _authorized(self) -> list[tuple[str, str]]:
        return [(headers.AUTHORIZATION, f"Bearer {self.token}")] if self.token else []

    # -- ad hoc ---------------------------------------------------------------------------------------------------

    def list_flights(self, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """Every flight that the server tells of."""
        metadata = [*self._metadata(scan=True, in_catalog=False), (headers.JSON_FILTERS, '{"filters":[]}')]
        return self._infos(self.connection.stream("ListFlights", flight.Criteria(expression=criteria), metadata))

    def raw_action(self, name: str, body: bytes) -> Iterator[bytes]:
        """An action of the server's own; its results as they come."""
        stream = self._action(name, body, self._metadata(scan=True, in_catalog=False))
        return (parsed(flight.Result, data, self._location).body for data in stream)

    # -- one shape for all ----------------------------------------------------------------------------------------

    @property
    def _location(self) -> str:
        return self.connection.location.text

    def _named(self) -> bytes:
        return encode(CatalogRequest(self.catalog))

    def _metadata(self, *, scan: bool, in_catalog: bool) -> list[tuple[str, str]]:
        found = [
            (headers.USER_AGENT, headers.DUCKDB_USER_AGENT),
            (headers.LOCATION, self._location),
            (headers.SESSION_ID, self.session_id),
        ]
        if self.token and (self.token_on_scans or not scan):
            found.append((headers.AUTHORIZATION, f"Bearer {self.token}"))
        if in_catalog and self.catalog and headers.can_carry(self.catalog):
            found.append((headers.CATALOG, self.catalog))
        return found

    def _catalog_action(self, name: str, body: bytes, unit: InTransaction | None = None) -> bytes:
        metadata = [*self._metadata(scan=False, in_catalog=True), *(unit.headers() if unit else ())]
        return self._result(name, body, metadata)

    def _scan_action(self, name: str, body: bytes, trace: Trace, *, with_path: bool = True) -> bytes:
        metadata = [*self._metadata(scan=True, in_catalog=trace.in_catalog), *trace.headers(with_path=with_path)]
        return self._result(name, body, metadata)

    def _action(self, name: str, body: bytes, metadata: list[tuple[str, str]]) -> Stream:
        named = [(headers.ACTION_NAME, name)] * (2 if name in _TWICE else 1)
        return self.connection.stream("DoAction", flight.Action(type=name, body=body), [*metadata, *named])

    def _result(self, name: str, body: bytes, metadata: list[tuple[str, str]]) -> bytes:
        """The body of the action's first result; the call is over when this returns."""
        stream = self._action(name, body, metadata)
        try:
            data = next(stream, None)
            if data is None:
                raise Internal(f"{self._location} answered {name} with no result", key="answer.missing")
            next(stream, None)  # an error may still follow; a second result says nothing
        finally:
            stream.close()
        result: bytes = parsed(flight.Result, data, self._location).body
        return result

    def _decoded(self, name: str, kind: type[T], body: bytes) -> T:
        with self._nonsense(name):
            return decode(body, kind, name)

    def _info(self, name: str, body: bytes) -> flight.FlightInfo:
        info: flight.FlightInfo = parsed(flight.FlightInfo, body, f"{self._location} ({name})")
        return info

    def _infos(self, stream: Stream) -> Iterator[flight.FlightInfo]:
        try:
            for data in stream:
                yield parsed(flight.FlightInfo, data, self._location)
        finally:
            stream.close()

    def _nonsense(self, name: str) -> AbstractContextManager[None]:
        return nonsense(self._location, name)


def _at_body(descriptor: flight.FlightDescriptor, at: TimeTravel) -> bytes:
    return encode(FlightInfoRequest(packed(descriptor.SerializeToString()), at.unit, at.value))
