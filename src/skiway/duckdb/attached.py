"""`attach`: a catalog of a lake in a DuckDB connection that exists already, for reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import duckdb

from skiway.client import AirportClient
from skiway.duckdb.engine import first_paragraph, quoted
from skiway.duckdb.scans import Source
from skiway.duckdb.views import LakeName, LakeViews
from skiway.errors import InvalidArgument

if TYPE_CHECKING:
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
    client = AirportClient(location, catalog, token=token, tls=tls)
    try:
        return AttachedLake(connection, client, alias or catalog)
    except BaseException:
        client.close()
        raise


class AttachedLake:
    """A catalog in a DuckDB connection. Its tables are those of the last `refresh`; their rows are always the current ones."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, client: AirportClient, alias: str) -> None:
        self._connection, self._client, self._alias = connection, client, alias
        self._views = LakeViews(connection, [])
        schemas = client.schemas()  # before anything is attached: it fails if there is no such catalog
        try:
            connection.execute(f"ATTACH ':memory:' AS {quoted(alias)}").fetchall()
        except duckdb.Error as error:
            raise InvalidArgument(f"{alias} cannot be attached: {first_paragraph(error)}") from error
        self._show(schemas)

    @property
    def tables(self) -> list[str]:
        """The full names of the tables and views in SQL."""
        return sorted(map(str, self._views.names))

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
        self._connection.execute(f"DETACH {quoted(self._alias)}").fetchall()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()
