"""The client: what DuckDB's Airport extension does for a statement, from Python."""

from __future__ import annotations

from typing import Any

from skiway.client.airport.catalog import TableName
from skiway.client.airport.ddl import Defining, OnConflict
from skiway.client.airport.exchange import Outgoing, Written, batches_of
from skiway.client.airport.functions import Calling
from skiway.client.airport.writing import Writing
from skiway.errors import InvalidArgument, NotFound

__all__ = ["AirportClient"]


class AirportClient(Writing, Calling, Defining):
    """A catalog of an Airport server, attached as DuckDB attaches it: the same calls with the same headers.

    `location` is `grpc://host:port`, `grpc+tls://…`, `grpc+unix:///path`, or all in one as in DuckDB:
    `grpc://host:port/catalog?auth_token=…`. Nothing is sent before the first use. There is no deadline unless
    `timeout_s` sets one for each call, the whole stream of a scan included. With `token_on_scans=False` the token goes
    where DuckDB sends one that was given to ATTACH alone: to calls about the catalog, not to scans.

    A client may be used from many threads at once; `transaction()` holds for the thread that opened it.
    """

    def create_table_as(self, name: TableName, rows: Any, *, on_conflict: OnConflict = "error") -> Written:
        """A new table with the columns and the rows of `rows`: Arrow data, or batches of it, at least one.

        On a lake of this project the table comes into being, or takes the place of the one there is, with all its rows
        in one step. Elsewhere it is created first, as DuckDB does it, and then filled. With `ignore` nothing happens
        where this client knows such a table.
        """
        unit = self._begin()
        given, batches = batches_of(rows)
        if given is None:
            raise InvalidArgument("there are no rows that tell which columns the table has: give at least one batch")
        if on_conflict == "ignore" and self._knows(name):
            return Written(0, None)
        table = self._created_for_rows(name, given, on_conflict)
        outgoing = Outgoing.of(table, table.columns)
        fitted = outgoing.fitted(given, batches)
        written = self._write("insert", outgoing, unit, lambda: fitted, returning=False)
        self.reload()
        return written

    def _knows(self, name: TableName) -> bool:
        try:
            self._listing().table(name)
        except NotFound:
            return False
        return True
