"""`connect` opens a DuckDB connection that reads and writes the tables of a lake."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from skiway.client import AirportClient
from skiway.client.connection import split_url
from skiway.duckdb.engine import Engine, Result, split_statements
from skiway.duckdb.parameters import Parameters, with_parameters
from skiway.duckdb.rewriting import seen_from
from skiway.duckdb.session import Session
from skiway.duckdb.statements import execute
from skiway.errors import InvalidArgument

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from skiway.client import TlsOptions
    from skiway.client.connection import Token


def connect(
    location: str, catalog: str | None = None, *, token: Token = None, tls: TlsOptions | None = None
) -> LakeConnection:
    """Open a DuckDB connection to a server: `connect("grpc://host:port", token="…")`.

    `location`, `token` and `tls` are those of `AirportClient`. Names without a catalog are those of `catalog`, which is `lake` by
    default. Use other catalogs of the server by their names.
    """
    address, url_catalog, url_token = split_url(location)
    return LakeConnection(
        address, catalog or url_catalog or "lake", token=url_token if token is None else token, tls=tls
    )


class LakeConnection:
    """A DuckDB connection to a lake. It needs no extension.

    DuckDB runs queries in this process; the server applies filters and sends only the columns and rows that they need. Statements that
    change the lake are run by the server, each in a transaction of its own. A connection is for one thread at a time.
    """

    def __init__(self, address: str, catalog: str, *, token: Token, tls: TlsOptions | None) -> None:
        def open_client(name: str) -> AirportClient:
            return AirportClient(address, name, token=token, tls=tls, brief=True)

        self._session = Session(open_client, self.catalogs, catalog=catalog, engine=Engine(catalog))
        self._relation: DuckDBPyRelation | None = None
        self._rows: Iterator[tuple[Any, ...]] | None = None

    @property
    def duckdb(self) -> DuckDBPyConnection:
        """The DuckDB connection, for everything else: settings, user-defined functions, registered objects."""
        return self._session.duckdb

    def catalogs(self) -> list[str]:
        """Return the names of the server's catalogs."""
        listed = self._session.client(self._session.catalog).databases()
        return sorted(listed.column(0).to_pylist())

    def sql(
        self, query: str, parameters: Parameters | None = None, *, variables: Mapping[str, Any] | None = None
    ) -> DuckDBPyRelation | None:
        """Run statements; return the rows of the last one as a relation, or None if it has none.

        A query runs when its rows are read. Other statements run at once; their rows are those of RETURNING, or the number of
        changed rows. Tables without a schema are temporary tables, tables of the schema that USE named, or variables in the
        caller's code, such as DataFrames, or those in `variables`.
        """
        return self._run(query, parameters, seen_from(sys._getframe(1)) if variables is None else variables)

    def execute(self, query: str, parameters: Parameters | None = None) -> Self:
        """Run statements, and keep the rows of the last one for `fetchone` and `fetchall`."""
        self._relation = self._run(query, parameters, seen_from(sys._getframe(1)))
        self._rows = None
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row of the last statement that was executed; None after the last row."""
        return next(self._fetched(), None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the remaining rows of the last statement that was executed."""
        return list(self._fetched())

    def _fetched(self) -> Iterator[tuple[Any, ...]]:
        if self._relation is None:
            raise InvalidArgument("there are no rows: execute a query first")
        if self._rows is None:
            with self._session.errors():
                self._rows = iter(self._relation.fetchall())
        return self._rows

    def _run(self, query: str, parameters: Parameters | None, known: Mapping[str, Any]) -> DuckDBPyRelation | None:
        result: Result | None = None
        self._session.variables = known
        try:
            for statement in split_statements(with_parameters(query, parameters)):
                result = execute(self._session, statement)
        finally:
            self._session.variables = {}
        if result is None:
            raise InvalidArgument("there is no statement to run")
        if result.answer is not None:
            return result.answer.relation
        return None if result.count is None else self.duckdb.sql(f"SELECT {result.count}::BIGINT AS Count")

    def cancel(self) -> None:
        """Cancel the running statement, here and on the server; can be called from any thread."""
        self._session.cancel()

    def close(self) -> None:
        """Close DuckDB and the connections to the server."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
