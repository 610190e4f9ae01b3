"""The client: what DuckDB's Airport extension does for a statement, from Python."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from skiway.client.arguments import choose_overload, packed_arguments
from skiway.client.calls import NOW, Calls, TimeTravel, Trace
from skiway.client.catalog import Schema, Table, read_schema
from skiway.client.connection import Connection, Location, TlsOptions, split_url
from skiway.client.endpoints import Endpoint
from skiway.client.failures import nonsense
from skiway.client.flights import Flight, flight_descriptor, read_flight, shown
from skiway.client.listing import Listing
from skiway.client.rows import Rows
from skiway.client.scans import BoundScan, Selection, Where
from skiway.client.statistics import ColumnStatistics
from skiway.errors import Internal, InvalidArgument
from skiway.model.flight_pb2 import FlightDescriptor, FlightInfo

__all__ = ["AirportClient", "CatalogVersion"]

MIB: Final = 1024 * 1024

TableName = str | tuple[str, str]


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """A number that grows with each change of a catalog; a `fixed` one never does."""

    version: int
    fixed: bool


class AirportClient:
    """A catalog of an Airport server, attached as DuckDB attaches it: the same calls with the same headers.

    `location` is `grpc://host:port`, `grpc+tls://…`, `grpc+unix:///path`, or all in one as in DuckDB:
    `grpc://host:port/catalog?auth_token=…`. Nothing is sent before the first use. There is no deadline unless
    `timeout_s` sets one for each call, the whole stream of a scan included. With `token_on_scans=False` the token goes
    where DuckDB sends one that was given to ATTACH alone: to calls about the catalog, not to scans.

    A client may be used from many threads at once; `transaction()` holds for the thread that opened it.
    """

    def __init__(
        self,
        location: str,
        catalog: str | None = None,
        *,
        token: str | None = None,
        token_on_scans: bool = True,
        tls: TlsOptions | None = None,
        timeout_s: float | None = None,
        max_message_bytes: int = 512 * MIB,
        ids: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        address, named_catalog, named_token = split_url(location)
        self._connection = Connection(
            Location.parse(address), tls=tls, timeout_s=timeout_s, max_message_bytes=max_message_bytes
        )
        self._calls = Calls(
            self._connection,
            catalog=(named_catalog or "") if catalog is None else catalog,
            token=named_token if token is None else token,
            token_on_scans=token_on_scans,
            session_id=_session_id(os.getpid()),
        )
        self._ids = ids
        self._lock = threading.Lock()
        self._loaded: Listing | None = None
        self._thread = threading.local()

    @property
    def location(self) -> str:
        """Where the server is, as it was written."""
        return self._connection.location.text

    @property
    def catalog(self) -> str:
        """The attached catalog."""
        return self._calls.catalog

    # -- the catalog ----------------------------------------------------------------------------------------------

    def schemas(self) -> list[Schema]:
        """All schemas with their tables and functions, as they were at the first use."""
        return self._listing().schemas()

    def table(self, name: TableName) -> Table:
        """One table, by `schema.table` or a tuple of both; `NotFound` if there is none."""
        return self._listing().table(name)

    def reload(self) -> None:
        """Forget the listing; DuckDB must DETACH and ATTACH for that."""
        with self._lock:
            self._loaded = None

    def version(self) -> CatalogVersion:
        """The catalog's version now."""
        found = self._calls.catalog_version()
        return CatalogVersion(found.catalog_version, found.is_fixed)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction id for all statements of this thread inside; the first of them asks for it."""
        if getattr(self._thread, "transaction", None) is not None:
            raise InvalidArgument("a transaction is open in this thread already: there is none inside another")
        self._thread.transaction = _Transaction(self._calls)
        try:
            yield
        finally:
            self._thread.transaction = None

    # -- reading --------------------------------------------------------------------------------------------------

    def scan(
        self,
        table: TableName,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        at_version: int | str | None = None,
        at_timestamp: object | None = None,
        plan: bool = True,
    ) -> Rows:
        """The rows of a table: just `columns`, just where the predicate holds, as of a version or time.

        `where` is built with `col()`; a text is taken as DuckDB's filter JSON, sent as it is and not applied again
        here, so that the server may send more rows. `plan=False` skips the questions about statistics, whose answers
        only an optimizer needs.
        """
        bound = self.bind(table, columns=columns, where=where, at_version=at_version, at_timestamp=at_timestamp)
        return (bound.plan() if plan else bound).read()

    def count(self, table: TableName, *, where: Where = None) -> int:
        """How many rows a table has, or how many a predicate keeps."""
        with self.scan(table, columns=(), where=where) as rows:
            return sum(batch.num_rows for batch in rows)

    def endpoints(
        self,
        table: TableName,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        at_version: int | str | None = None,
        at_timestamp: object | None = None,
    ) -> list[Endpoint]:
        """Where the rows of such a scan are, for those who want to fetch them otherwise."""
        return self.bind(
            table, columns=columns, where=where, at_version=at_version, at_timestamp=at_timestamp
        ).endpoints()

    def statistics(self, table: TableName, column: str) -> ColumnStatistics:
        """What the server tells optimizers about a column."""
        return self.bind(table, columns=[column]).statistics(column)

    def bind(
        self,
        table: TableName,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        at_version: int | str | None = None,
        at_timestamp: object | None = None,
    ) -> BoundScan:
        """The first step of a scan: its table looked up, its columns checked, nothing read yet."""
        at = _time_travel(at_version, at_timestamp)
        transaction_id = self._transaction_id()
        listing = self._listing()
        found = listing.table(table)
        if at.unit:
            found = self._as_of(found, self._calls.find_at(found.descriptor, at))
        if not listing.is_fixed:
            self._calls.catalog_version()
        trace = Trace(self._ids(), found.descriptor, transaction_id)
        if at.unit:
            found = self._as_of(found, self._echoed(self._calls.bind_at(trace, at), found.descriptor))
        return self._bound(trace, found, columns, where, at=at)

    def call(
        self,
        function: TableName,
        *arguments: Any,
        named: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        where: Where = None,
        plan: bool = True,
    ) -> Rows:
        """The rows of a table function; arguments are Python values or pyarrow scalars."""
        self._transaction_id()
        overloads = self._listing().functions(function, "table_function")
        chosen = choose_overload(overloads, arguments, named or {})
        packed = packed_arguments(chosen, arguments, named or {})
        trace = Trace(self._ids(), chosen.descriptor)  # functions are not told of the transaction
        info = self._echoed(self._calls.bind_function(trace, packed), chosen.descriptor)
        made = self._as_of(Table(chosen.schema_name, chosen.name, pa.schema([])), info)
        bound = self._bound(trace, made, columns, where, arguments=packed)
        return (bound.plan() if plan else bound).read()

    # -- ad hoc ---------------------------------------------------------------------------------------------------

    def take_flight(
        self,
        descriptor: Sequence[str] | str | bytes,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        headers: Mapping[str, str] | None = None,
    ) -> Rows:
        """The rows of any flight, in no catalog: a list of names is a path, a text or bytes a command."""
        trace = Trace(
            self._ids(), flight_descriptor(descriptor), in_catalog=False, extra=tuple((headers or {}).items())
        )
        info = self._echoed(self._calls.bind_flight(trace), trace.descriptor)
        flight = self._as_of(Table("", "/".join(trace.descriptor.path) or "the command", pa.schema([])), info)
        return self._bound(trace, flight, columns, where).read()

    def databases(self) -> pa.Table:
        """The catalogs that the server offers; the columns are its own choice."""
        return self.take_flight(["__databases"]).read_all()

    def flights(self, criteria: bytes = b"") -> Iterator[Flight]:
        """Every flight that the server lists."""
        for info in self._calls.list_flights(criteria):
            with nonsense(self.location, "ListFlights"):
                flight = read_flight(info)
            yield flight

    def action(self, name: str, body: bytes | str = b"") -> list[bytes]:
        """The results of an action of the server's own."""
        return list(self._calls.raw_action(name, body.encode() if isinstance(body, str) else body))

    # -- life -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all calls and hang up."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _listing(self) -> Listing:
        with self._lock:
            if self._loaded is None:
                self._loaded = Listing(self._calls, self._calls.list_schemas())
            return self._loaded

    def _transaction_id(self) -> str:
        opened: _Transaction | None = getattr(self._thread, "transaction", None)
        return self._calls.create_transaction() if opened is None else opened.identifier()

    def _as_of(self, table: Table, info: FlightInfo) -> Table:
        """The table as `info` describes it."""
        with nonsense(self.location, f"the question for {table}"):
            schema = read_schema(info.schema, str(table))
        return Table(table.schema_name, table.name, schema, table.comment, info.flight_descriptor)

    def _echoed(self, info: FlightInfo, asked: FlightDescriptor) -> FlightInfo:
        if info.flight_descriptor != asked:
            raise Internal(
                f"{self.location} was asked for {shown(asked)} and answered about {shown(info.flight_descriptor)}"
            )
        return info

    def _bound(
        self,
        trace: Trace,
        table: Table,
        columns: Sequence[str] | None,
        where: Where,
        *,
        at: TimeTravel = NOW,
        arguments: bytes = b"",
    ) -> BoundScan:
        if isinstance(columns, str):
            raise InvalidArgument(f"columns={columns!r} is one text; give a list of names: [{columns!r}]")
        selection = Selection(table, columns, where)
        selection.json_filters()  # mistakes in names and values show before anything is asked for
        return BoundScan(self._calls, trace, selection, at, arguments)


class _Transaction:
    """A transaction of one thread; it begins when something is done in it."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._identifier: str | None = None

    def identifier(self) -> str:
        if self._identifier is None:
            self._identifier = self._calls.create_transaction()
        return self._identifier


@cache
def _session_id(_process: int) -> str:
    """One id for all clients of a process; a fork is another process."""
    return str(uuid.uuid4())


def _time_travel(version: int | str | None, timestamp: object | None) -> TimeTravel:
    if version is not None and timestamp is not None:
        raise InvalidArgument("at_version and at_timestamp are two ways to say one thing: give one of them")
    if version is not None:
        return TimeTravel("VERSION", str(version))
    return NOW if timestamp is None else TimeTravel("TIMESTAMP", str(timestamp))
