"""Statements, one after the other: what reads runs in DuckDB over scans of the lake, what changes goes to the server."""

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
from skiway.cli.command import nearest
from skiway.cli.sql.pushdown import filter_of
from skiway.cli.sql.scans import LakeName, LakeScan, Source, lake_name, lake_tables, quoted
from skiway.client import Rows
from skiway.errors import InvalidArgument, NotFound, SkiwayError

if TYPE_CHECKING:
    from skiway.cli.command import Call
    from skiway.client import AirportClient
    from skiway.client.airport.catalog import Table

__all__ = ["Answer", "Session", "first_paragraph"]

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # what it cannot parse is told by us

UUID_BYTES: Final = "unhex(replace(CAST(CAST({} AS UUID) AS VARCHAR), '-', ''))"
PICTURE: Final = re.compile(r"\n+LINE \d+:.*", re.DOTALL)
BATCH_ROWS: Final = 65_536
INTERRUPTED: Final = "INTERRUPT Error"
NAMED: Final = "write tables as catalog.schema.table; skiway tables list shows which there are"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a statement: rows, or a count and a sentence."""

    statement: str
    rows: Rows | None = None
    count: int | None = None
    said: str = ""


class Session:
    """A DuckDB of its own, and a client for each catalog that a statement names."""

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
        """The rows of a statement, whose tables are looked up in the lake; `text` is how it was written."""
        travelling = self._bind(statement, row_ids_of)
        return self.answers(statement.sql("duckdb") if travelling or text is None else text)

    def answers(self, query: str) -> Rows:
        """What DuckDB answers, as a stream whose errors are ours."""
        with self.told():
            reader = self._asked(query)

        def batches() -> Generator[pa.RecordBatch]:
            with self.told():
                try:
                    yield from reader
                except OSError as error:
                    if INTERRUPTED not in str(error):
                        raise
                    # One thread met an error and stopped the others, and one of these was faster to say so.
                    for _ in self._asked(query):
                        pass
                    raise

        return Rows(reader.schema, batches())

    def sendable(
        self, query: exp.Expr, fields: Sequence[pa.Field], *, row_ids_of: LakeName | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a query as values of these columns, by position: cast by DuckDB, as SQL has it.

        They are batches, the first of them empty, and no reader of pyarrow's: errors come through as they are.
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

    def described(self, query: exp.Expr) -> list[dict[str, Any]]:
        """The columns that a query gives, as DuckDB describes them."""
        asked = exp.Describe(this=query.copy())
        rows: list[dict[str, Any]] = self.read(asked).read_all().to_pylist()
        return rows

    # -- for statements -------------------------------------------------------------------------------------------

    def target(self, table: exp.Table) -> tuple[AirportClient, LakeName]:
        """Who changes a table, and what it is called."""
        name = lake_name(table, self.catalog)
        return self.client(name.catalog), name

    def client(self, catalog: str) -> AirportClient:
        """The client of a catalog."""
        if catalog not in self._clients:
            self._clients[catalog] = self._call.airport(catalog)
        return self._clients[catalog]

    def refresh(self, client: AirportClient) -> None:
        """Look anew what there is in a catalog."""
        client.reload()
        try:
            client.schemas()
        except NotFound as error:
            known = nearest(client.catalog, (str(each) for each in self._call.lake.catalogs()))
            raise NotFound(f"there is no catalog {client.catalog}; there is {', '.join(known)}") from error

    def table(self, client: AirportClient, name: LakeName) -> Table:
        """A table of a catalog."""
        try:
            return client.table((name.schema, name.table))
        except NotFound as error:
            known = [f"{client.catalog}.{table}" for schema in client.schemas() for table in schema.tables]
            asked = ".".join(name)
            raise NotFound(f"there is no table {asked}; there is {', '.join(nearest(asked, known))}") from error

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors of DuckDB as our own; one that a scan met is told as it was."""
        self._failures.clear()
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:  # the last: from within a stream of DuckDB's
            if self._failures:
                raise self._failures[0] from error
            hint = f"; {NAMED}" if isinstance(error, duckdb.CatalogException) else ""
            raise InvalidArgument(f"{first_paragraph(error)}{hint}") from error

    # -- inside ---------------------------------------------------------------------------------------------------

    def _bind(self, statement: exp.Expr, row_ids_of: LakeName | None) -> bool:
        """Make views of all tables that are read; whether the statement had to be changed for it."""
        nodes = lake_tables(statement)
        names = [lake_name(node, self.catalog) for node in nodes]
        travelling = False
        for catalog in {name.catalog for name in names}:
            self.refresh(self.client(catalog))
        for number, (node, name) in enumerate(zip(nodes, names, strict=True)):
            client = self.client(name.catalog)
            source = Source(client, self.table(client, name), row_ids=name == row_ids_of)
            if node.args.get("when"):
                self._travel(node, source, f"then_{number}")
                travelling = True
            else:
                alone = names.count(name) == 1
                where = filter_of(statement, node, source.table) if alone else None
                self._show(replace(source, where=where), name, f"scan_{number}")
        return travelling

    def _show(self, source: Source, name: LakeName, scan: str) -> None:
        self._attach(name.catalog)
        self._register(source, scan)
        self.duckdb.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(name.catalog)}.{quoted(name.schema)}")
        self.duckdb.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {scan}")  # noqa: S608 - all quoted

    def _register(self, source: Source, scan: str) -> None:
        """Let DuckDB know a scan by this name.

        It would have Arrow compare numbers, to whom NaN is not the greatest one; a value that comes out of a list it
        compares itself.
        """
        self.duckdb.register(f"{scan}_rows", LakeScan(source, self._failures))
        columns = ", ".join(
            f"[{quoted(field.name)}][1] AS {quoted(field.name)}" if _may_hold_nan(field.type) else quoted(field.name)
            for field in source.schema
        )
        self.duckdb.execute(f"CREATE OR REPLACE TEMP VIEW {scan} AS SELECT {columns} FROM {scan}_rows")  # noqa: S608

    def _travel(self, node: exp.Table, source: Source, scan: str) -> None:
        """Put a scan of an older state in the place of `table AT (…)`, which DuckDB has for tables of its own only."""
        when = node.args["when"]
        with self.told():
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
            raise InvalidArgument(f"catalog {catalog} cannot be used in SQL here: {first_paragraph(error)}") from error

    def _asked(self, query: str) -> pa.RecordBatchReader:
        return self.duckdb.execute(query).to_arrow_reader(BATCH_ROWS)

    def close(self) -> None:
        """Hang up."""
        self.duckdb.close()
        for client in self._clients.values():
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _may_hold_nan(of: pa.DataType) -> bool:
    inner = (of.field(number).type for number in range(of.num_fields))
    return pa.types.is_floating(of) or any(map(_may_hold_nan, inner))


def _cast(name: str, field: pa.Field) -> str:
    """A column as a value of a field's type. UUIDs come out of DuckDB as texts, and travel as bytes."""
    kind = duckdb_type(field)
    return UUID_BYTES.format(name) if kind == "UUID" else f"CAST({name} AS {kind})"


def first_paragraph(error: Exception) -> str:
    """The message in one paragraph, without the picture of where it is: that may show text of ours."""
    told = str(error).replace("\x1b[4m", "").replace("\x1b[0m", "")
    return " ".join(PICTURE.sub("", told).split())
