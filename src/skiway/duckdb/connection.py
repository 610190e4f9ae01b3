"""Lakes in DuckDB: `connect` opens a connection that reads and writes the tables of a lake, and `attach` adds a catalog to a connection
that exists already, for reading.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from sqlglot import exp

from skiway.client import AirportClient
from skiway.client.connection import split_url
from skiway.duckdb.engine import Engine, Result, Statement, quoted, split_statements
from skiway.duckdb.rewriting import (
    Parameters,
    References,
    called,
    explained,
    named_in,
    parse,
    seen_from,
    with_parameters,
    with_replacements,
)
from skiway.duckdb.scans import LakeName, LakeViews, Source
from skiway.duckdb.session import Session
from skiway.duckdb.statements import execute
from skiway.errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from skiway.client import TlsOptions
    from skiway.client.airport.calls import Schema
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
        self._session.client(catalog)  # which checks the location
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


def attach(
    connection: DuckDBPyConnection,
    catalog: str,
    location: str,
    *,
    alias: str | None = None,
    token: Token = None,
    tls: TlsOptions | None = None,
) -> AttachedLake:
    """Add the tables and views of a catalog to a DuckDB connection, to read them: `attach(connection, "lake", "grpc://host:port")`.

    They are views in a database called `alias`, or like the catalog. `location`, `token` and `tls` are those of `AirportClient`. Like all
    registered objects, the tables cannot be read from cursors of the connection.
    """
    client = AirportClient(location, catalog, token=token, tls=tls, brief=True)
    try:
        return AttachedLake(connection, client, alias or catalog)
    except BaseException:
        client.close()
        raise


class AttachedLake:
    """A catalog in a DuckDB connection. Its tables are those of the last `refresh`; their rows are always the current ones."""

    def __init__(self, connection: DuckDBPyConnection, client: AirportClient, alias: str) -> None:
        self._client, self._alias = client, alias
        schemas = client.schemas()  # before anything is attached: it fails if there is no such catalog
        self._engine = Engine(alias, connection)
        self._before = self._place()
        self._references = References(self._engine)
        self._views = LakeViews(connection, self._engine.failures)
        self._show(schemas)

    @property
    def tables(self) -> list[str]:
        """The full names of the tables and views in SQL."""
        return sorted(map(str, self._views.names))

    def sql(self, query: str, parameters: Parameters | None = None) -> DuckDBPyRelation | None:
        """Run statements on the connection, in which the lake's tables may have AT (…) and its functions can be called.

        More conditions and limits are sent to the server than with `connection.sql`. The result is the same: the rows of the
        last statement as a relation, or None if it has none.
        """
        relation, known = None, seen_from(sys._getframe(1))
        statements = split_statements(with_parameters(query, parameters))
        if not statements:
            raise InvalidArgument("there is no statement to run")
        for given in statements:
            relation = self._run(given, known)
        return relation

    def _run(self, given: Statement, known: Mapping[str, Any]) -> DuckDBPyRelation | None:
        text = self._bound(given, known)
        if given.kind == "SELECT" and given.word != "PRAGMA":
            return self._engine.query(text).relation
        if given.kind in ("CALL", "EXPLAIN"):
            return self._engine.fetch(text).relation
        with self._engine.errors():
            self._engine.execute(text).fetchall()
        return None

    def _place(self) -> tuple[str, str]:
        """Return the database and the schema of names that lack them."""
        [(database, schema)] = self._engine.duckdb.execute("SELECT current_database(), current_schema()").fetchall()
        return database, schema

    def _bound(self, given: Statement, known: Mapping[str, Any]) -> str:
        """Return the text of a statement, in which scans replace what views of the lake cannot do."""
        prefix, text = explained(given) if given.kind == "EXPLAIN" else ("", called(given))
        try:
            statement = parse(text)
        except InvalidArgument:
            return given.text  # DuckDB reports the mistake
        self._engine.scope = named_in(statement, known)
        database, schema = self._place()
        is_kept = isinstance(statement, exp.Create) and str(statement.args["kind"]).upper() != "TABLE"
        replaced = []
        for node in statement.find_all(exp.Table):
            if (node.catalog or database).lower() != self._alias.lower():
                continue
            if isinstance(node.this, exp.Anonymous):
                if node.db:
                    replaced.append(self._references.call(node, self._client, text))
            elif node.args.get("when") or (
                node.name and node.catalog and node.find_ancestor(exp.Query) and not is_kept
            ):
                table = self._client.table((node.db or schema, node.name))
                if found := self._references.table(statement, node, Source(self._client, table), text):
                    replaced.append(found)
        if is_kept and replaced:
            raise Unsupported(
                "a view or macro cannot use AT (…) or functions of the lake: use CREATE TABLE … AS SELECT …"
            )
        if given.kind == "CALL" and not replaced:
            return given.text
        return prefix + with_replacements(text, replaced)

    def refresh(self) -> None:
        """Look for tables and columns that others have created, changed or dropped."""
        self._client.reload()
        self._show(self._client.schemas())

    def _show(self, schemas: list[Schema]) -> None:
        names = [LakeName(self._alias, schema.name, table.name) for schema in schemas for table in schema.tables]
        for name in set(self._views.names) - set(names):
            self._views.drop(name)
        for name in names:
            self._views.show(name, Source(self._client, self._client.table((name.schema, name.table))))

    def detach(self) -> None:
        """Remove the database from the connection, and close the connection to the server."""
        for name in self._views.names:
            self._views.drop(name)
        if self._place()[0].lower() == self._alias.lower():
            self._engine.duckdb.execute(f"USE {'.'.join(map(quoted, self._before))}").fetchall()
        self._engine.duckdb.execute(f"DETACH {quoted(self._alias)}").fetchall()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()
