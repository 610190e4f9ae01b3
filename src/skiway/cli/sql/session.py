"""An SQL session: an embedded DuckDB whose tables are scans of the lake, and a client for each catalog."""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import duckdb
import pyarrow as pa
from sqlglot import exp

from skiway.airport.wire.duckdb_sql import duckdb_type
from skiway.cli.command import suggestion
from skiway.cli.sql.pushdown import pushdown_filter
from skiway.cli.sql.scans import LakeName, LakeScan, Source, lake_name, lake_tables, quoted
from skiway.client import Rows
from skiway.errors import InvalidArgument, NotFound, SkiwayError

if TYPE_CHECKING:
    from skiway.cli.command import Call
    from skiway.client import AirportClient
    from skiway.client.airport.catalog import Table

__all__ = ["Result", "Session", "count_rows", "first_paragraph"]

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # we report what it cannot parse

UUID_BYTES: Final = "unhex(replace(CAST(CAST({} AS UUID) AS VARCHAR), '-', ''))"
SOURCE_EXCERPT: Final = re.compile(r"\n+LINE \d+:.*", re.DOTALL)
BATCH_ROWS: Final = 65_536
INTERRUPTED: Final = "INTERRUPT Error"
NAME_HINT: Final = "write tables as catalog.schema.table; list them with skiway tables list"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a statement: rows, or a count and a message."""

    statement: str
    rows: Rows | None = None
    count: int | None = None
    message: str = ""


class Session:
    """An embedded DuckDB, and a client for each catalog that a statement names."""

    def __init__(self, call: Call, *, catalog: str = "lake") -> None:
        self.catalog = catalog
        self._call = call
        self._clients: dict[str, AirportClient] = {}
        self._failures: list[SkiwayError] = []
        self.duckdb = duckdb.connect()
        self._attach(catalog)
        self.duckdb.execute(f"USE {quoted(catalog)}")

    # -- statements -----------------------------------------------------------------------------------------------

    def read(self, statement: exp.Expr, text: str | None = None, *, row_ids_of: LakeName | None = None) -> Rows:
        """Run a query over tables of the lake; `text` is the query as it was written."""
        rewritten = self._bind(statement, row_ids_of)
        return self.query(statement.sql("duckdb") if rewritten or text is None else text)

    def query(self, query: str) -> Rows:
        """Run SQL in DuckDB and stream the rows; errors are those of `skiway.errors`."""
        with self.duckdb_errors():
            reader = self._execute(query)

        def batches() -> Generator[pa.RecordBatch]:
            with self.duckdb_errors():
                try:
                    yield from reader
                except OSError as error:
                    if INTERRUPTED not in str(error):
                        raise
                    # A thread failed and interrupted the others, and one of these reported first: run again to get the cause.
                    for _ in self._execute(query):
                        pass
                    raise

        return Rows(reader.schema, batches())

    def cast_rows(
        self, query: exp.Expr, fields: Sequence[pa.Field], *, row_ids_of: LakeName | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Run a query and cast its columns, by position, to the types of `fields`, with the semantics of SQL.

        The result is an iterator of batches, the first of them empty, and not a pyarrow reader, which would replace errors.
        """
        numbered = [f"c{number}" for number in range(len(fields))]
        values = [
            exp.alias_(_cast(name, field), field.name, quoted=True)
            for name, field in zip(numbered, fields, strict=True)
        ]
        alias = exp.TableAlias(this=exp.to_identifier("q"), columns=[exp.to_identifier(name) for name in numbered])
        whole = exp.select(*values).from_(exp.Subquery(this=query.copy(), alias=alias))
        rows = self.read(whole, row_ids_of=row_ids_of)
        return chain([pa.RecordBatch.from_pylist([], rows.schema)], rows)

    def describe(self, query: exp.Expr) -> list[dict[str, Any]]:
        """Return the columns of a query, as DuckDB's DESCRIBE lists them."""
        statement = exp.Describe(this=query.copy())
        rows: list[dict[str, Any]] = self.read(statement).read_all().to_pylist()
        return rows

    # -- catalogs -------------------------------------------------------------------------------------------------

    def target(self, table: exp.Table) -> tuple[AirportClient, LakeName]:
        """Return the client and the full name of the table that a statement changes."""
        name = lake_name(table, self.catalog)
        return self.client(name.catalog), name

    def client(self, catalog: str) -> AirportClient:
        """Return the client of a catalog."""
        if catalog not in self._clients:
            self._clients[catalog] = self._call.airport(catalog)
        return self._clients[catalog]

    def refresh(self, client: AirportClient) -> None:
        """Reload the listing of a catalog; raise `NotFound` if the catalog does not exist."""
        client.reload()
        try:
            client.schemas()
        except NotFound as error:
            hint = suggestion(client.catalog, (str(each) for each in self._call.lake.catalogs()))
            raise NotFound("; ".join(filter(None, [f"catalog {client.catalog} does not exist", hint]))) from error

    def table(self, client: AirportClient, name: LakeName) -> Table:
        """Return a table of a catalog; raise `NotFound` with a suggestion if it does not exist."""
        try:
            return client.table((name.schema, name.table))
        except NotFound as error:
            known = [f"{client.catalog}.{table}" for schema in client.schemas() for table in schema.tables]
            missing = ".".join(name)
            hint = suggestion(missing, known)
            raise NotFound("; ".join(filter(None, [f"table {missing} does not exist", hint]))) from error

    @contextmanager
    def duckdb_errors(self) -> Iterator[None]:
        """Convert errors of DuckDB; an error of a scan is raised as it was."""
        self._failures.clear()
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:  # a stream of DuckDB raises OSError
            if self._failures:
                raise self._failures[0] from error
            hint = f"; {NAME_HINT}" if isinstance(error, duckdb.CatalogException) else ""
            raise InvalidArgument(f"{first_paragraph(error)}{hint}") from error

    # -- binding --------------------------------------------------------------------------------------------------

    def _bind(self, statement: exp.Expr, row_ids_of: LakeName | None) -> bool:
        """Create a view for each table that is read; return whether the statement was rewritten for time travel."""
        nodes = lake_tables(statement)
        names = [lake_name(node, self.catalog) for node in nodes]
        rewritten = False
        for catalog in {name.catalog for name in names}:
            self.refresh(self.client(catalog))
        for number, (node, name) in enumerate(zip(nodes, names, strict=True)):
            client = self.client(name.catalog)
            source = Source(client, self.table(client, name), row_ids=name == row_ids_of)
            if node.args.get("when"):
                self._replace_with_scan(node, source, f"then_{number}")
                rewritten = True
            else:
                alone = names.count(name) == 1
                where = pushdown_filter(statement, node, source.table) if alone else None
                self._create_view(replace(source, where=where), name, f"scan_{number}")
        return rewritten

    def _create_view(self, source: Source, name: LakeName, scan: str) -> None:
        self._attach(name.catalog)
        self._register(source, scan)
        self.duckdb.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(name.catalog)}.{quoted(name.schema)}")
        self.duckdb.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {scan}")  # noqa: S608 - all quoted

    def _register(self, source: Source, scan: str) -> None:
        """Register a scan in DuckDB.

        DuckDB would leave comparisons of numbers to Arrow, which does not treat NaN as the greatest one. Wrapping a column in
        a list and taking it out again makes DuckDB compare the values itself.
        """
        self.duckdb.register(f"{scan}_rows", LakeScan(source, self._failures))
        columns = ", ".join(
            f"[{quoted(field.name)}][1] AS {quoted(field.name)}" if _may_have_nan(field.type) else quoted(field.name)
            for field in source.schema
        )
        self.duckdb.execute(f"CREATE OR REPLACE TEMP VIEW {scan} AS SELECT {columns} FROM {scan}_rows")  # noqa: S608

    def _replace_with_scan(self, node: exp.Table, source: Source, scan: str) -> None:
        """Replace `table AT (…)` by a scan of that state, since DuckDB supports AT for its own tables only."""
        when = node.args["when"]
        with self.duckdb_errors():
            moment = self.duckdb.execute(f"SELECT CAST(({when.expression.sql('duckdb')}) AS VARCHAR)").fetchone()
        assert moment is not None
        at = {"at_version" if when.args["kind"].upper() == "VERSION" else "at_timestamp": str(moment[0])}
        then = source.client.bind((source.table.schema_name, source.table.name), **at).table
        self._register(replace(source, table=then, at=at), scan)
        alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(node.name, quoted=True))
        node.replace(exp.Table(this=exp.to_identifier(scan), alias=alias))

    def _attach(self, catalog: str) -> None:
        try:
            self.duckdb.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {quoted(catalog)}")
        except duckdb.Error as error:
            raise InvalidArgument(f"catalog {catalog} cannot be used in SQL: {first_paragraph(error)}") from error

    def _execute(self, query: str) -> pa.RecordBatchReader:
        return self.duckdb.execute(query).to_arrow_reader(BATCH_ROWS)

    def close(self) -> None:
        """Close DuckDB and all clients."""
        self.duckdb.close()
        for client in self._clients.values():
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _may_have_nan(data_type: pa.DataType) -> bool:
    children = (data_type.field(i).type for i in range(data_type.num_fields))
    return pa.types.is_floating(data_type) or any(map(_may_have_nan, children))


def _cast(name: str, field: pa.Field) -> str:
    """Return the expression that casts a column to the type of a field. UUIDs are sent as bytes."""
    kind = duckdb_type(field)
    return UUID_BYTES.format(name) if kind == "UUID" else f"CAST({name} AS {kind})"


def first_paragraph(error: Exception) -> str:
    """Return the message in one line, without the excerpt of the SQL, which may be generated."""
    message = str(error).replace("\x1b[4m", "").replace("\x1b[0m", "")
    return " ".join(SOURCE_EXCERPT.sub("", message).split())


def count_rows(participle: str, count: int) -> str:
    """Return text such as `inserted 1 row`."""
    return f"{participle} {count:,} row{'' if count == 1 else 's'}"
