"""`attach`: a catalog of a lake in a DuckDB connection that exists already, for reading."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from sqlglot import exp

from skiway.client import AirportClient
from skiway.duckdb.engine import Engine, Statement, quoted, split_statements
from skiway.duckdb.parameters import Parameters, with_parameters
from skiway.duckdb.references import References
from skiway.duckdb.rewriting import called, explained, named_in, parse, seen_from, with_replacements
from skiway.duckdb.scans import LakeName, LakeViews, Source
from skiway.errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    import duckdb

    from skiway.client import TlsOptions
    from skiway.client.airport.calls import Schema
    from skiway.client.connection import Token


def attach(
    connection: duckdb.DuckDBPyConnection,
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

    def __init__(self, connection: duckdb.DuckDBPyConnection, client: AirportClient, alias: str) -> None:
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

    def sql(self, query: str, parameters: Parameters | None = None) -> duckdb.DuckDBPyRelation | None:
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

    def _run(self, given: Statement, known: Mapping[str, Any]) -> duckdb.DuckDBPyRelation | None:
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
