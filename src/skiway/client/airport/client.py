"""`AirportClient`: the whole API of the Airport client. The other modules of this package implement it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, cached_property
from typing import Any, Final, Self

import pyarrow as pa

from skiway.client.airport import scans
from skiway.client.airport.calls import Calls, Schema, Table, TableName, TransactionContext
from skiway.client.airport.ddl import Definitions, OnConflict
from skiway.client.airport.exchange import JsonWriter, Written
from skiway.client.airport.filters import Where
from skiway.client.airport.results import ColumnStatistics, Endpoint, Rows
from skiway.client.airport.scans import BoundScan, ScanPart
from skiway.client.airport.session import CatalogVersion, Flight, Session, read_flight
from skiway.client.airport.writing import Statement, Transaction
from skiway.client.connection import Connection, Location, TlsOptions, Token, split_url
from skiway.client.errors import blame_server

MIB: Final = 1024 * 1024


class AirportClient(Definitions):
    """A catalog of an Airport server, attached as DuckDB attaches it: the same calls with the same headers.

    `location` is `grpc://host:port`, `grpc+tls://…`, `grpc+unix:///path`, or all in one as in DuckDB:
    `grpc://host:port/catalog?auth_token=…`. Without a name, `catalog` is the server's default. `tls` has PEM files. The client
    connects at the first call. Calls have no deadline unless `timeout_s` sets one, which then includes the whole stream of a
    scan. The largest accepted message has `max_message_bytes`. With `token_on_scans=False` the token is sent with calls about
    the catalog only, as DuckDB does with a token that was given to ATTACH. A `token` can be a function, which is called for
    every call.

    The client follows a server to other servers, files and web addresses, and does not validate its data, as DuckDB does. With
    `trusted=False` it validates what it receives and raises `PermissionDenied` instead of connecting to another place.

    With `brief`, a scan outside of a transaction leaves out two calls that DuckDB makes: it asks neither for the version of the
    catalog nor for a transaction of its own. The server shows the name of the program, `engine`, with its queries. `ids` makes
    trace ids, for tests.

    Tables and functions are named `"schema.table"`, with double quotes where needed (`'csv."two words"'`), or by a tuple of
    both. Names are case-insensitive. All methods raise
    errors of `skiway.errors`.

    A client is thread-safe; `transaction()` applies to the thread that opened it.
    """

    def __init__(
        self,
        location: str,
        catalog: str | None = None,
        *,
        token: Token = None,
        token_on_scans: bool = True,
        tls: TlsOptions | None = None,
        timeout_s: float | None = None,
        max_message_bytes: int = 512 * MIB,
        trusted: bool = True,
        brief: bool = False,
        engine: str = "",
        ids: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        address, url_catalog, url_token = split_url(location)
        calls = Calls(
            Connection(
                Location.parse(address),
                tls=tls,
                timeout_s=timeout_s,
                max_message_bytes=max_message_bytes,
                trusted=trusted,
            ),
            catalog=(url_catalog or "") if catalog is None else catalog,
            token=url_token if token is None else token,
            token_on_scans=token_on_scans,
            session_id=_session_id(os.getpid()),
            engine=engine,
        )
        self._session = Session(calls, ids, brief=brief)

    @property
    def location(self) -> str:
        """The server's address, as the user wrote it."""
        return self._session.location

    @property
    def catalog(self) -> str:
        """The name of the attached catalog."""
        return self._session.calls.catalog

    def cancel(self) -> None:
        """Cancel the scans and statements that run in other threads, which raise `Cancelled`. The client can be used again."""
        self._session.calls.connection.cancel()

    def close(self) -> None:
        """Cancel all running calls and close the connection."""
        self._session.calls.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the catalog ---------------------------------------------------------------------------------------------------

    def schemas(self) -> list[Schema]:
        """Return all schemas with their tables and functions, as of the first use or the last `reload()`."""
        return self._session.listing().schemas()

    def schema_names(self) -> list[str]:
        """Return the names of all schemas, without loading their tables."""
        return self._session.listing().names()

    def table(self, name: TableName) -> Table:
        """Return a table; raise `NotFound` if there is none."""
        return self._session.listing().table(name)

    def reload(self) -> None:
        """Drop the cached listing of the catalog. In DuckDB that requires DETACH and ATTACH."""
        self._session.reload()

    def version(self) -> CatalogVersion:
        """Return the catalog's current version."""
        version = self._session.calls.catalog_version()
        return CatalogVersion(version.catalog_version, version.is_fixed)

    # -- reading -------------------------------------------------------------------------------------------------------

    def scan(
        self,
        table: TableName,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        at_version: int | str | None = None,
        at_timestamp: object | None = None,
        limit: int | None = None,
        plan: bool = False,
        streams: int = 1,
    ) -> Rows:
        """Stream the rows of a table: the given columns, the rows that match `where`, as of a version or time.

        After `limit` rows the call is cancelled, so that the server stops reading. Otherwise, up to `streams` threads read the parts of
        a large scan, and its rows are in no order.

        Build `where` with `col()`. A string is sent unchanged as DuckDB's filter JSON and is not applied again by the
        client, so the result may have more rows. `plan=True` first requests statistics of the columns, as DuckDB does for
        its optimizer.
        """
        bound = self.bind(table, columns=columns, where=where, at_version=at_version, at_timestamp=at_timestamp)
        return (bound.plan() if plan else bound).read(limit=limit, streams=streams)

    def count(self, table: TableName, *, where: Where = None) -> int:
        """Return the number of rows of a table, or of those that match `where`."""
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
        """Return where the rows of such a scan can be read, to fetch them by other means."""
        bound = self.bind(table, columns=columns, where=where, at_version=at_version, at_timestamp=at_timestamp)
        return bound.endpoints()

    def read_part(self, part: ScanPart) -> Rows:
        """Stream the rows of a part of a scan, which `bind(…).parts()` returned here or in another process."""
        return scans.BoundScan.read_part(self._session.calls, part)

    def statistics(self, table: TableName, column: str) -> ColumnStatistics:
        """Return the statistics of a column that the server provides for optimizers."""
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
        """Prepare a scan: look up the table and check the columns, without reading rows."""
        at = scans.time_travel(at_version, at_timestamp)
        return scans.bind(self._session, table, columns=columns, where=where, at=at)

    # -- functions -----------------------------------------------------------------------------------------------------

    def call_scalar(self, function: TableName, *arguments: Any, rows: int = 1) -> pa.ChunkedArray:
        """Call a scalar function; return one value for each row of the arguments.

        The arguments are arrays of equal length, or one record batch. A function without arguments is called for the
        given number of `rows`.
        """
        return scans.call_scalar(self._session, function, arguments, rows=rows)

    def call(
        self,
        function: TableName,
        *arguments: Any,
        named: Mapping[str, Any] | None = None,
        rows: Any = None,
        columns: Sequence[str] | None = None,
        where: Where = None,
        plan: bool = False,
    ) -> Rows:
        """Call a table function and stream the rows it returns.

        Arguments are Python values or pyarrow scalars. A function with table input receives `rows`, in any form that
        `insert` accepts. `columns`, `where` and `plan` are those of `scan`.
        """
        return scans.call_table_function(
            self._session, function, arguments, named or {}, rows=rows, columns=columns, where=where, plan=plan
        )

    # -- writing -------------------------------------------------------------------------------------------------------

    def insert(self, table: TableName, rows: Any, *, returning: bool = False) -> Written:
        """Insert rows: an object with `__arrow_c_stream__`, a record batch, or an iterable of batches.

        Columns are matched by name and cast to the table's types. A missing column is NULL even if it has a default:
        defaults are SQL that DuckDB evaluates before it sends rows, and this client does not. With `returning` the
        result has the rows as the server stored them, with all visible columns.
        """
        return Statement(self._session, table, returning=returning).insert(rows)

    def update(
        self, table: TableName, rows: Any, *, row_ids: Any = None, where: Where = None, returning: bool = False
    ) -> Written:
        """Update rows, either by id or by predicate.

        By id: `rows` are Arrow data with new values for some columns; the row ids are in a column `rowid` or in `row_ids`.
        `returning` gives the columns that were sent, in their order.

        By predicate: `rows` maps columns to new values, for the rows that match `where`, or for all rows. A value is a
        constant, or a function whose parameters name the columns it is computed from:
        `{"price": lambda price: pc.multiply(price, 2)}`. `returning` gives all visible columns.
        """
        return Statement(self._session, table, returning=returning).update(rows, row_ids, where)

    def delete(self, table: TableName, row_ids: Any = None, *, where: Where = None, returning: bool = False) -> Written:
        """Delete the rows with these ids, or those that match `where`; `truncate` deletes all rows.

        `returning` gives the deleted rows, with all visible columns.
        """
        return Statement(self._session, table, returning=returning).delete(row_ids, where)

    def truncate(self, table: TableName) -> Written:
        """Delete all rows; for the server this is a DELETE of each row."""
        return Statement(self._session, table).delete_where(None)

    def create_table_as(self, name: TableName, rows: Any, *, on_conflict: OnConflict = "error") -> Written:
        """Create a table with the columns and the rows of `rows`: Arrow data, or at least one batch.

        A Skiway lake creates or replaces the table with all its rows in one step. Other servers create it first and
        then insert the rows, as with DuckDB. With `on_conflict="ignore"` nothing happens if the table is in this
        client's listing.
        """
        return Statement(self._session, name).create(rows, on_conflict)

    @cached_property
    def json(self) -> JsonWriter:
        """The same statements with the JSON contract, over DoPut and the action `delete`."""
        session = self._session

        def context() -> TransactionContext:
            return TransactionContext() if session.open_transaction() is None else session.begin()

        return JsonWriter(session.calls, context)

    # -- transactions --------------------------------------------------------------------------------------------------

    def transaction(self, *, explicit: bool = False, release: bool = False) -> AbstractContextManager[Transaction]:
        """Run all statements of this thread with one transaction id for the duration of the block.

        As with DuckDB, the server still commits each statement on its own. What the methods `insert`, `update` and `delete` of
        the transaction write, however, becomes visible together at the end of the block, and never if an exception leaves it.
        In an `explicit` transaction, this holds for all statements. DuckDB has no such transactions.

        A transaction in which they are not used does not end on the server, as with DuckDB, until it expires. With `release`,
        it ends with the block: the server then holds none of the snapshots that its statements have read.
        """
        return self._session.transaction(Transaction(self._session, explicit=explicit, release=release))

    def transaction_status(self, transaction_id: str) -> str | None:
        """Return `active`, `committed` or `aborted`; None if the server does not know the id."""
        state = self._session.calls.transaction_status(transaction_id)
        return state.status if state.exists else None

    # -- plain Arrow Flight --------------------------------------------------------------------------------------------

    def take_flight(
        self,
        descriptor: Sequence[str] | str | bytes,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        headers: Mapping[str, str] | None = None,
    ) -> Rows:
        """Stream the rows of any flight, outside of the catalog. A list of names is a path, a string or bytes a command."""
        return scans.bind_flight(self._session, descriptor, columns=columns, where=where, headers=headers).read()

    def databases(self) -> pa.Table:
        """Return the catalogs that the server offers; the server chooses the columns."""
        return self.take_flight(["__databases"]).read_all()

    def flights(self, criteria: bytes = b"") -> Iterator[Flight]:
        """List the flights of the server."""
        for info in self._session.calls.list_flights(criteria):
            with blame_server(self.location, "ListFlights"):
                flight = read_flight(info)
            yield flight

    def action(self, name: str, body: bytes | str = b"") -> list[bytes]:
        """Run an action of the server and return its results."""
        return list(self._session.calls.raw_action(name, body.encode() if isinstance(body, str) else body))


@cache
def _session_id(_process: int) -> str:
    """One id for all clients of a process; a forked process gets its own."""
    return str(uuid.uuid4())
