"""An SQL session: an embedded DuckDB whose tables are scans of the lake, and a client for each catalog."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.dataset as ds
from sqlglot import exp

from skiway.airport.wire.duckdb_sql import duckdb_type
from skiway.cli.command import suggestion
from skiway.cli.sql.engine import INTERRUPTED, Answer, Engine, quoted
from skiway.client import Rows
from skiway.errors import InvalidArgument, NotFound, SkiwayError
from skiway.sandbox.databases import scan_columns
from skiway.sql.pushdown import pushdown_filter

if TYPE_CHECKING:
    from skiway.cli.command import Call
    from skiway.client import AirportClient, Predicate
    from skiway.client.airport.calls import Schema, Table

ROWID = "rowid"


class LakeName(NamedTuple):
    """The full name of a table in SQL."""

    catalog: str
    schema: str
    table: str

    def __str__(self) -> str:
        return ".".join(quoted(part) for part in self)


def sql_name(path: Sequence[str]) -> LakeName:
    """Return the name in SQL of a table of the metastore."""
    from skiway.foundation.resources import schema_name

    return LakeName(path[0], schema_name(path[1:-1]), path[-1])


@dataclass(frozen=True, slots=True)
class Source:
    """A table to scan: its client, the filter to push down, the time to travel to, and whether to include row ids."""

    client: AirportClient
    table: Table
    where: Predicate | None = None
    at: dict[str, str] = field(default_factory=dict)
    row_ids: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The visible columns, with the row id last if it is included."""
        visible = [self.table.schema.field(self.table.position(name)) for name in self.table.columns]
        return pa.schema([*visible, pa.field(ROWID, pa.int64())] if self.row_ids else visible)

    def rows(self, columns: Sequence[str]) -> Rows:
        """Scan the given columns of the matching rows."""
        name = (self.table.schema_name, self.table.name)
        at: dict[str, Any] = self.at
        return self.client.scan(name, columns=columns, where=self.where, **at)


class LakeScan(ds.Dataset):  # type: ignore[misc]  # which has no types
    """A pyarrow dataset for DuckDB, which uses its schema and calls `scanner` with the columns and the filter it needs.

    DuckDB replaces an exception in its threads by an error of its own; `failures` collects the original exceptions.
    """

    def __init__(
        self, source: Source, failures: list[SkiwayError]
    ) -> None:  # without super(), which needs a C++ dataset
        self._source = source
        self._failures = failures

    @property
    def schema(self) -> pa.Schema:
        """The schema of the table."""
        return self._source.schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002 - the name in pyarrow
        **_: Any,
    ) -> ds.Scanner:
        """Return a scanner that streams the rows and applies DuckDB's filter, which DuckDB does not apply again."""
        try:
            names = self.schema.names if columns is None else list(columns)
            rows = self._source.rows(names)
        except SkiwayError as error:
            self._failures.append(error)
            raise
        reader = pa.RecordBatchReader.from_batches(rows.schema, self._collect_failures(rows))
        return ds.Scanner.from_batches(reader, columns=names, filter=filter)

    def _collect_failures(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        try:
            with rows:
                yield from rows
        except SkiwayError as error:
            self._failures.append(error)
            raise


logging.getLogger("sqlglot").setLevel(logging.ERROR)  # we report what it cannot parse

UUID_BYTES: Final = "unhex(replace(CAST(CAST({} AS UUID) AS VARCHAR), '-', ''))"
BATCH_ROWS: Final = 65_536
LOCAL_SCHEMAS: Final = frozenset({"information_schema", "pg_catalog", "main"})
LOCAL_TABLES: Final = """
    SELECT 1 FROM duckdb_tables() WHERE database_name = 'temp' AND lower(table_name) = lower(?)
    UNION ALL SELECT 1 FROM duckdb_views() WHERE database_name = 'temp' AND lower(view_name) = lower(?) AND NOT internal
"""


class Session:
    """An embedded DuckDB, and a client for each catalog that a statement names.

    `catalog` and `schema` are those of names that lack them; USE changes them.
    """

    def __init__(self, call: Call, *, catalog: str = "lake", engine: Engine | None = None) -> None:
        self.engine = engine or Engine(catalog)
        self.duckdb = self.engine.duckdb
        self.catalog = catalog
        self.schema: str | None = None
        self._call = call
        self._clients: dict[str, AirportClient] = {}
        self._views: list[str] = []

    # -- statements -----------------------------------------------------------------------------------------------

    def read(self, statement: exp.Expr, text: str | None = None) -> Answer:
        """Prepare a query over tables of the lake; `text` is the query as it was written."""
        return self.engine.query(self.bind(statement, text))

    def bind(self, statement: exp.Expr, text: str | None = None, *, row_ids_of: LakeName | None = None) -> str:
        """Create a view for each table that is read; return the SQL to run, rewritten for time travel if it has any."""
        rewritten = self._bind(statement, row_ids_of)
        return statement.sql("duckdb") if rewritten or text is None else text

    def stream(self, query: str) -> Rows:
        """Run SQL in DuckDB and stream the rows as Arrow; errors are those of `skiway.errors`."""
        with self.errors():
            reader = self._execute(query)

        def batches() -> Generator[pa.RecordBatch]:
            with self.errors():
                try:
                    yield from reader
                except OSError as error:
                    if INTERRUPTED not in str(error) or self.engine.is_cancelled:
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
            exp.alias_(_cast(name, field), field.name, quoted=True, dialect="duckdb")
            for name, field in zip(numbered, fields, strict=True)
        ]
        alias = exp.TableAlias(this=exp.to_identifier("q"), columns=[exp.to_identifier(name) for name in numbered])
        whole = exp.select(*values).from_(exp.Subquery(this=query.copy(), alias=alias))
        rows = self.stream(self.bind(whole, row_ids_of=row_ids_of))
        return chain(
            [pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in rows.schema], schema=rows.schema)], rows
        )

    def describe(self, query: exp.Expr) -> list[tuple[str, str]]:
        """Return the names and types of a query's columns."""
        rows = self.read(exp.Describe(this=query.copy())).read_all()
        return [(name, kind) for name, kind, *_ in rows]

    # -- catalogs -------------------------------------------------------------------------------------------------

    def target(self, table: exp.Table) -> tuple[AirportClient, LakeName]:
        """Return the client and the full name of the table that a statement changes."""
        name = self.name(table)
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

    def listed(self, catalog: str) -> list[Schema]:
        """Return the schemas of a catalog as they are now, with their tables."""
        client = self.client(catalog)
        self.refresh(client)
        return client.schemas()

    def catalog_names(self) -> list[str]:
        """Return the names of the server's catalogs."""
        return [str(each) for each in self._call.lake.catalogs()]

    def table(self, client: AirportClient, name: LakeName) -> Table:
        """Return a table of a catalog; raise `NotFound` with a suggestion if it does not exist."""
        try:
            return client.table((name.schema, name.table))
        except NotFound as error:
            known = [f"{client.catalog}.{table}" for schema in client.schemas() for table in schema.tables]
            missing = ".".join(name)
            hint = suggestion(missing, known)
            raise NotFound("; ".join(filter(None, [f"table {missing} does not exist", hint]))) from error

    def errors(self) -> AbstractContextManager[None]:
        """Convert errors of DuckDB; an error of a scan is raised as it was."""
        return self.engine.errors()

    # -- names --------------------------------------------------------------------------------------------------------

    def name(self, table: exp.Table) -> LakeName:
        """Return the full name of a table of the lake, which has a schema unless USE set one."""
        schema = table.db or self.schema
        if not schema or not table.name:
            raise InvalidArgument(f"{table.sql('duckdb')} is not a table of the lake: write catalog.schema.table")
        return LakeName(table.catalog or self.catalog, schema, table.name)

    def is_local(self, table: exp.Table) -> bool:
        """Whether a name is that of a temporary table, or of a database that was attached in this session."""
        if table.catalog:
            return self.is_local_database(table.catalog)
        if table.db:
            return table.db.lower() in LOCAL_SCHEMAS or self.is_local_database(table.db)
        return bool(self.duckdb.execute(LOCAL_TABLES, [table.name, table.name]).fetchone())

    def is_local_database(self, name: str) -> bool:
        """Whether DuckDB has a database of this name that is no catalog of the lake."""
        found = self.duckdb.execute("SELECT lower(database_name) FROM duckdb_databases()").fetchall()
        return name.lower() in {each for (each,) in found} - self.engine.catalogs

    def lake_tables(self, statement: exp.Expr) -> list[exp.Table]:
        """Return the tables of the lake that a statement reads, unlike files, CTEs and local tables."""
        return [
            each
            for each in statement.find_all(exp.Table)
            if each.name and isinstance(each.this, exp.Identifier) and self._is_of_lake(each)
        ]

    def _is_of_lake(self, node: exp.Table) -> bool:
        if self.is_local(node):
            return False
        if node.db:
            return True
        if self.schema is None:
            return False
        schema = self.schema.lower()  # a CTE of the same name hides the table; then the view is created in vain
        listed = next((each for each in self.client(self.catalog).schemas() if each.name.lower() == schema), None)
        return listed is not None and node.name.lower() in {each.name.lower() for each in listed.tables}

    def use(self, catalog: str, schema: str | None) -> None:
        """Make a catalog, or a schema of it, the place of names without them."""
        if self.is_local_database(catalog):
            raise InvalidArgument(f"{catalog} is not a catalog of the lake: write names in it as {catalog}.table")
        client = self.client(catalog)
        self.refresh(client)
        if schema is not None:
            known = [each.name for each in client.schemas()]
            if schema.lower() not in map(str.lower, known):
                hint = suggestion(schema, known)
                raise NotFound("; ".join(filter(None, [f"schema {catalog}.{schema} does not exist", hint])))
        self.engine.attach(catalog)
        path = quoted(catalog)
        if schema is not None:
            path = f"{path}.{quoted(schema)}"
            self.duckdb.execute(f"CREATE SCHEMA IF NOT EXISTS {path}")
        self.duckdb.execute(f"USE {path}")
        self.catalog, self.schema = catalog, schema

    # -- binding --------------------------------------------------------------------------------------------------

    def _bind(self, statement: exp.Expr, row_ids_of: LakeName | None) -> bool:
        """Create a view for each table that is read; return whether the statement was rewritten for time travel."""
        self._forget_views()
        if self.schema is not None:
            self.refresh(self.client(self.catalog))
        nodes = self.lake_tables(statement)
        names = [self.name(node) for node in nodes]
        rewritten = False
        for catalog in {name.catalog for name in names} - ({self.catalog} if self.schema is not None else set()):
            self.refresh(self.client(catalog))
        for number, (node, name) in enumerate(zip(nodes, names, strict=True)):
            client = self.client(name.catalog)
            source = Source(client, self.table(client, name), row_ids=name == row_ids_of)
            if node.args.get("when"):
                self._replace_with_scan(node, source, f"then_{number}")
                rewritten = True
            else:
                alone = names.count(name) == 1
                where = pushdown_filter(statement, node, source.schema) if alone else None
                self._create_view(replace(source, where=where), name, f"scan_{number}")
        return rewritten

    def _forget_views(self) -> None:
        """Drop the views of the last statement, whose scans have its filters: nothing else must read them."""
        while self._views:
            self.duckdb.execute(f"DROP VIEW IF EXISTS {self._views.pop()}")

    def _create_view(self, source: Source, name: LakeName, scan: str) -> None:
        self.engine.attach(name.catalog)
        self._register(source, scan)
        self.duckdb.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(name.catalog)}.{quoted(name.schema)}")
        self.duckdb.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {scan}")  # noqa: S608 - all quoted
        self._views.append(str(name))

    def _register(self, source: Source, scan: str) -> None:
        """Register a scan in DuckDB."""
        self.duckdb.register(f"{scan}_rows", LakeScan(source, self.engine.failures))
        columns = scan_columns(source.schema)
        self.duckdb.execute(f"CREATE OR REPLACE TEMP VIEW {scan} AS SELECT {columns} FROM {scan}_rows")  # noqa: S608

    def _replace_with_scan(self, node: exp.Table, source: Source, scan: str) -> None:
        """Replace `table AT (…)` by a scan of that state, since DuckDB supports AT for its own tables only."""
        when = node.args["when"]
        with self.errors():
            moment = self.duckdb.execute(f"SELECT CAST(({when.expression.sql('duckdb')}) AS VARCHAR)").fetchone()
        assert moment is not None
        at = {"at_version" if when.args["kind"].upper() == "VERSION" else "at_timestamp": str(moment[0])}
        then = source.client.bind((source.table.schema_name, source.table.name), **at).table
        self._register(replace(source, table=then, at=at), scan)
        alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(node.name, quoted=True))
        node.replace(exp.Table(this=exp.to_identifier(scan), alias=alias))

    def _execute(self, query: str) -> pa.RecordBatchReader:
        return self.duckdb.execute(query).to_arrow_reader(BATCH_ROWS)

    def cancel(self) -> None:
        """Cancel the running statement, here and on the server; can be called from any thread."""
        self.engine.cancel()
        for client in list(self._clients.values()):
            client.cancel()

    def close(self) -> None:
        """Close DuckDB and all clients."""
        self.engine.close()
        for client in self._clients.values():
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _cast(name: str, field: pa.Field) -> str:
    """Return the expression that casts a column to the type of a field. UUIDs are sent as bytes."""
    kind = duckdb_type(field)
    return UUID_BYTES.format(name) if kind == "UUID" else f"CAST({name} AS {kind})"
