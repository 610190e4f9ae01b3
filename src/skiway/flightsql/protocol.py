"""Flight SQL: how each call is answered.

Its messages travel in a `google.protobuf.Any` with the type URLs of Arrow's package.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message

from skiway.airport.request import Request, authorize, call_of
from skiway.airport.server.host import Host
from skiway.airport.server.scans import scan_frames
from skiway.airport.server.service import FlightProtocol
from skiway.airport.server.tickets import Seal, fingerprint
from skiway.airport.wire.frames import BatchReader
from skiway.errors import InvalidArgument, PermissionDenied, PreconditionFailed, Unsupported
from skiway.flightsql.metadata import Place, SqlEngine, columns_of, rows_of
from skiway.flightsql.parameters import Parameter, casts, parameter_schema
from skiway.flightsql.sessions import CHOSEN, SESSION_ACTIONS, answer, chosen_place, keep, place_of
from skiway.model import flight_pb2 as flight
from skiway.model import flight_sql_pb2 as sql

TYPE_URL: Final = "type.googleapis.com/arrow.flight.protocol.sql."
_HEAD: Final = TYPE_URL.encode()

_KNOWN: Final[dict[str, type[Any]]] = {
    name: kind
    for name, kind in vars(sql).items()
    if isinstance(kind, type) and issubclass(kind, Message) and name.startswith(("Command", "Ticket", "Action"))
}

_CHANGES: Final = {
    "CommandStatementUpdate",
    "CommandPreparedStatementUpdate",
    "CommandStatementIngest",
    "ActionBeginTransactionRequest",
    "ActionBeginSavepointRequest",
    "ActionEndTransactionRequest",
    "ActionEndSavepointRequest",
}


def is_flight_sql(data: bytes) -> bool:
    """Whether bytes are, or begin like, a message of Flight SQL. The type URL comes first, after its tag and its length."""
    return data[:1] == b"\x0a" and data[2:].startswith(_HEAD)


def decode(data: bytes) -> Message:
    """The message in an `Any`; `Unsupported` if this server does not implement it."""
    try:
        packed = AnyMessage.FromString(data)
        name = packed.type_url.removeprefix(TYPE_URL)
        if name in _KNOWN:
            message: Message = _KNOWN[name].FromString(packed.value)
            return message
    except DecodeError as error:
        raise InvalidArgument(
            "malformed Flight SQL message: not the protobuf message that its type URL names", key="flightsql.malformed"
        ) from error
    if name in _CHANGES:
        raise Unsupported(
            f"{_shown(name)} is not supported: Flight SQL is read-only here; change tables from DuckDB or over Iceberg REST",
            key="flightsql.read_only",
        )
    raise Unsupported(f"Flight SQL's {_shown(name)} is not supported", key="flightsql.unsupported")


def _shown(name: str) -> str:
    """The name of a message, which the client chose."""
    return name[:60] if name.isidentifier() else "message"


def encode(message: Message) -> bytes:
    """The message in an `Any`."""
    packed: bytes = AnyMessage(
        type_url=TYPE_URL + message.DESCRIPTOR.name, value=message.SerializeToString()
    ).SerializeToString()
    return packed


def name_of(message: Message) -> str:
    """What a message asks for, such as `GetTables`."""
    name: str = message.DESCRIPTOR.name
    return name.removeprefix("Command").removeprefix("Action").removesuffix("Request")


COMPONENT: Final = "FlightSql"
"""What observers know the operations of this protocol by, such as `FlightSql/GetTables`."""

READING: Final = f"{COMPONENT}/ReadStatement"
"""The operation that runs a query."""

_USED: Final = "SELECT current_database() AS catalog, nullif(current_schema(), 'main') AS schema"
"""The query instead of USE."""

_TICKET_S: Final = 3600.0
_PREPARED_S: Final = 24 * 3600.0
"""How long a prepared statement can be used; tools keep them for as long as they are open."""

_REFUSED: Final = ("BeginSavepoint", "BeginTransaction", "EndSavepoint", "EndTransaction")

ACTIONS: Final[Mapping[str, str]] = {
    "CreatePreparedStatement": "Prepare a query of Flight SQL, which may have parameters.",
    "ClosePreparedStatement": "Close a prepared statement of Flight SQL.",
    **dict.fromkeys(_REFUSED, "Not supported: Flight SQL is read-only here."),
    **SESSION_ACTIONS,
}
"""The actions of Flight SQL, and a description of each."""

M = TypeVar("M", bound=Message)


class _Planned(msgspec.Struct, frozen=True, array_like=True):
    """A query in a ticket. `columns` is the fingerprint of its columns."""

    caller: str
    catalog: str
    sql: str
    columns: str
    schema: str = ""


class _Prepared(msgspec.Struct, frozen=True, array_like=True):
    """A prepared query in a handle. `bound` is the query with values; without parameters, it is the query itself."""

    caller: str
    catalog: str
    sql: str
    bound: str | None
    schema: str = ""
    parameters: tuple[Parameter, ...] = ()


class FlightSql(FlightProtocol):
    """Flight SQL over the catalogs of a server. `key` signs tickets and handles; servers of one address need the same."""

    actions = ACTIONS

    def __init__(self, engine: SqlEngine, *, key: bytes | None = None, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._tickets = Seal(
            _Planned,
            _derived(key, b"flight sql ticket"),
            name="ticket",
            remedy="execute the statement again",
            ttl_s=_TICKET_S,
            clock=clock,
        )
        self._handles = Seal(
            _Prepared,
            _derived(key, b"flight sql prepared statement"),
            name="prepared statement handle",
            remedy="prepare the statement again",
            ttl_s=_PREPARED_S,
            clock=clock,
        )

    def owns(self, message: bytes) -> bool:
        """Whether a command or ticket is a message of Flight SQL."""
        return is_flight_sql(message)

    # -- GetFlightInfo and DoGet ----------------------------------------------------------------------------------------

    def info(self, host: Host, request: Request, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        """Plan a query or a listing: its columns, and the ticket for its rows."""
        command = self._opened(host, request, descriptor.cmd)
        match command:
            case sql.CommandStatementQuery():
                _refuse_transaction(command)
                schema, ticket = self._plan(host, request, command.query, place_of(request))
            case sql.CommandPreparedStatementQuery():
                prepared = self._own(self._handles.redeem(command.prepared_statement_handle))
                if prepared.bound is None:
                    raise InvalidArgument(
                        "the prepared statement has parameters without values: bind them first", key="flightsql.unbound"
                    )
                schema, ticket = self._plan(host, request, prepared.bound, Place(prepared.catalog, prepared.schema))
            case _:
                columns = columns_of(command)
                if columns is None:
                    raise _misplaced(command)
                schema, ticket = columns, descriptor.cmd
        return flight.FlightInfo(
            schema=_serialized(schema),
            flight_descriptor=descriptor,
            endpoint=[flight.FlightEndpoint(ticket=flight.Ticket(ticket=ticket))],
            total_records=-1,
            total_bytes=-1,
        )

    def _plan(self, host: Host, request: Request, query: str, place: Place) -> tuple[pa.Schema, bytes]:
        chosen = chosen_place(host, request, query)
        if chosen is not None:
            keep(request, chosen)
            place, query = chosen, _USED
        schema = self._engine.columns(_given(query), place)
        planned = _Planned(self._engine.caller(), place.catalog, query, fingerprint(schema), place.schema)
        return schema, encode(sql.TicketStatementQuery(statement_handle=self._tickets.issue(planned)))

    def stream(self, host: Host, request: Request, ticket: bytes) -> Iterator[bytes]:
        """The rows of a query or a listing."""
        message = self._opened(host, request, ticket)
        call = call_of(request)
        if isinstance(message, sql.TicketStatementQuery):
            call.operation = READING
            planned = self._own(self._tickets.redeem(message.statement_handle))
            with self._engine.run(planned.sql, Place(planned.catalog, planned.schema)) as result:
                if fingerprint(result.schema) != planned.columns:
                    raise PreconditionFailed("the tables of the query have changed since it was planned: run it again")
                yield from scan_frames(
                    result.schema, result.batches, pool=host.memory_pool, call=call, what="the query"
                )
            return
        schema = columns_of(message)
        if schema is None:
            raise _misplaced(message)
        rows = rows_of(host, request, self._engine, message)
        yield from scan_frames(schema, rows, pool=host.memory_pool, call=call, what="the listing")

    # -- prepared statements --------------------------------------------------------------------------------------------

    def act(self, host: Host, request: Request, action: str, body: bytes) -> Iterator[bytes]:
        """Prepare or close a statement, or answer an action about the session."""
        if action in SESSION_ACTIONS:
            call_of(request).operation = f"{COMPONENT}/{action}"
            yield from answer(host, request, action, body)
            return
        if action in _REFUSED:
            call_of(request).operation = f"{COMPONENT}/{action}"
            raise Unsupported(
                f"{action} is not supported: Flight SQL is read-only here, and each statement sees the tables as they are",
                key="flightsql.read_only",
            )
        message = self._opened(host, request, body)
        match message:
            case sql.ActionCreatePreparedStatementRequest() if action == "CreatePreparedStatement":
                _refuse_transaction(message)
                yield encode(self._prepare(host, request, _given(message.query)))
            case sql.ActionClosePreparedStatementRequest() if action == "ClosePreparedStatement":
                with contextlib.suppress(PreconditionFailed):  # it has expired
                    self._own(self._handles.redeem(message.prepared_statement_handle))
            case _:
                raise _misplaced(message)

    def _prepare(self, host: Host, request: Request, query: str) -> sql.ActionCreatePreparedStatementResult:
        here = place_of(request)
        if chosen_place(host, request, query) is not None:
            return self._prepared(_Prepared(self._engine.caller(), here.catalog, query, query, here.schema), CHOSEN)
        unbound = self._engine.bind(query, None)
        names = unbound.parameters
        types: Sequence[str] = ()
        columns: pa.Schema | None = None
        try:
            types = self._engine.parameters(query, here) if names else ()
            typed = self._engine.bind(query, None, types) if any(types) else unbound
            columns = self._engine.columns(typed.sql, here)
        except InvalidArgument:
            if not names:
                raise  # otherwise, NULL may not be valid where a value is
        parameters = tuple(map(Parameter, names, types or [""] * len(names)))
        bound = None if names else query
        handle = _Prepared(self._engine.caller(), here.catalog, query, bound, here.schema, parameters)
        return self._prepared(handle, columns)

    def _prepared(self, handle: _Prepared, columns: pa.Schema | None) -> sql.ActionCreatePreparedStatementResult:
        return sql.ActionCreatePreparedStatementResult(
            prepared_statement_handle=self._handles.issue(handle),
            dataset_schema=b"" if columns is None else _serialized(columns),
            parameter_schema=_serialized(parameter_schema(handle.parameters)) if handle.parameters else b"",
        )

    def put(
        self, host: Host, request: Request, descriptor: flight.FlightDescriptor, rows: BatchReader
    ) -> Generator[bytes, None, bytes | None]:
        """Bind the values of parameters. The client gets a handle that has them."""
        command = self._opened(host, request, descriptor.cmd)
        if not isinstance(command, sql.CommandPreparedStatementQuery):
            raise _misplaced(command)
        call = call_of(request)
        call.operation = f"{COMPONENT}/BindParameters"
        prepared = self._own(self._handles.redeem(command.prepared_statement_handle))
        values = _one_row(rows)
        call.rows_in = rows.rows
        bound = self._engine.bind(prepared.sql, values, casts(prepared.parameters, values.schema))
        handle = msgspec.structs.replace(prepared, bound=bound.sql)
        yield from ()
        result = sql.DoPutPreparedStatementResult(prepared_statement_handle=self._handles.issue(handle))
        response: bytes = flight.PutResult(app_metadata=result.SerializeToString()).SerializeToString()
        return response

    # -- all calls ------------------------------------------------------------------------------------------------------

    def _opened(self, host: Host, request: Request, data: bytes) -> Message:
        """The message of a call, which is named for observers. The caller is authorized for the catalog in the headers."""
        message = decode(data)
        call_of(request).operation = f"{COMPONENT}/{name_of(message)}"
        authorize(request.within(place_of(request).catalog), host.auth)
        return message

    def _own(self, statement: Any) -> Any:
        if not hmac.compare_digest(statement.caller.encode(), self._engine.caller().encode()):
            raise PermissionDenied(
                "the statement belongs to another caller: prepare it yourself", key="flightsql.foreign"
            )
        return statement


def _one_row(rows: BatchReader) -> pa.Table:
    """The only row of a stream."""
    batches: list[pa.RecordBatch] = []
    for batch in rows:
        batches.append(batch)
        if rows.rows > 1:
            break
    if rows.rows != 1:
        count = "none" if not rows.rows else "several"
        raise InvalidArgument(
            f"a query takes one row of parameters, but {count} were sent: execute it once for each row",
            key="flightsql.parameters",
        )
    return pa.Table.from_batches(batches, rows.schema)


def _given(query: str) -> str:
    if not query.strip():
        raise InvalidArgument("the statement is empty: send a SELECT", key="sql.invalid")
    return query


def _refuse_transaction(message: Any) -> None:
    if message.HasField("transaction_id"):
        raise Unsupported(
            "this server has no transactions of Flight SQL: leave out transaction_id", key="flightsql.read_only"
        )


def _misplaced(message: Message) -> InvalidArgument:
    return InvalidArgument(f"{name_of(message)} does not belong in this call of Flight SQL", key="flightsql.malformed")


def _derived(key: bytes | None, purpose: bytes) -> bytes | None:
    """Derive a key for one purpose: a signature made for one purpose is not valid for another."""
    return None if key is None else hmac.digest(key, purpose, hashlib.sha256)


def _serialized(schema: pa.Schema) -> bytes:
    data: bytes = schema.serialize().to_pybytes()
    return data
