"""Reading: scans of tables in the steps that DuckDB takes, and flights that are in no catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from skiway.client.airport.calls import NOW, TimeTravel, Trace
from skiway.client.airport.catalog import Table, TableName, read_schema
from skiway.client.airport.endpoints import Endpoint
from skiway.client.airport.errors import nonsense
from skiway.client.airport.listing import Flight, flight_descriptor, read_flight, shown
from skiway.client.airport.scans import BoundScan, ColumnStatistics, Rows, Selection, Where
from skiway.client.airport.session import Attached
from skiway.errors import Internal, InvalidArgument
from skiway.model.flight_pb2 import FlightDescriptor, FlightInfo

__all__ = ["Reading"]


class Reading(Attached):
    """The statements that read."""

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
        unit = self._begin()
        found = self._listing().table(table)
        if at.unit:
            found = self._as_of(found, self._calls.find_at(found.descriptor, at))
        self._ask_version()
        trace = Trace(self._ids(), found.descriptor, unit)
        if at.unit:
            found = self._as_of(found, self._echoed(self._calls.bind_at(trace, at), found.descriptor))
        return self._bound(trace, found, columns, where, at=at)

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

    # -- inside ---------------------------------------------------------------------------------------------------

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
        return BoundScan(self._calls, trace, self._selection(table, columns, where), at, arguments)

    def _selection(self, table: Table, columns: Sequence[str] | None, where: Where) -> Selection:
        if isinstance(columns, str):
            raise InvalidArgument(f"columns={columns!r} is one text; give a list of names: [{columns!r}]")
        selection = Selection(table, columns, where)
        selection.json_filters()  # mistakes in names and values show before anything is asked for
        return selection


def _time_travel(version: int | str | None, timestamp: object | None) -> TimeTravel:
    if version is not None and timestamp is not None:
        raise InvalidArgument("at_version and at_timestamp are two ways to say one thing: give one of them")
    if version is not None:
        return TimeTravel("VERSION", str(version))
    return NOW if timestamp is None else TimeTravel("TIMESTAMP", str(timestamp))
