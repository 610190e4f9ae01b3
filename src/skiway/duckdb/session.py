"""An SQL session: an embedded DuckDB whose tables are scans of the lake, and a client for each catalog."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
from sqlglot import exp

from skiway.airport.wire.duckdb_sql import duckdb_type
from skiway.client import Rows
from skiway.client.airport.results import BATCH_ROWS, arrow_reader
from skiway.duckdb.engine import INTERRUPTED, Answer, Engine, quoted
from skiway.duckdb.rewriting import References, Replacement, named_in, parse, with_replacements
from skiway.duckdb.scans import LakeName, LakeViews, Source
from skiway.errors import InvalidArgument, NotFound, SkiwayError
from skiway.foundation.causes import suggestion

if TYPE_CHECKING:
    from skiway.client import AirportClient
    from skiway.client.airport.calls import Schema, Table


UUID_BYTES: Final = "unhex(replace(CAST(CAST({} AS UUID) AS VARCHAR), '-', ''))"
NULL_TYPE: Final = re.compile(r'"NULL"(?=[\[\],)]|$)')
"""The type of NULL from DuckDB 2.0 on, which older versions store as INTEGER."""
LOCAL_SCHEMAS: Final = frozenset({"information_schema", "pg_catalog", "main"})
LOCAL_TABLES: Final = """
    SELECT 1 FROM duckdb_tables() WHERE database_name = 'temp' AND lower(table_name) = lower(?)
    UNION ALL SELECT 1 FROM duckdb_views() WHERE database_name = 'temp' AND lower(view_name) = lower(?) AND NOT internal
"""


class Session:
    """An embedded DuckDB, and a client for each catalog that a statement names.

    `catalog` and `schema` are those of names that lack them; USE changes them.
    """

    def __init__(
        self,
        open_client: Callable[[str], AirportClient],
        catalog_names: Callable[[], Iterable[str]],
        *,
        catalog: str = "lake",
        engine: Engine | None = None,
    ) -> None:
        self.engine = engine or Engine(catalog)
        self.duckdb = self.engine.duckdb
        self.catalog = catalog
        self.schema: str | None = None
        self._open_client, self._catalog_names = open_client, catalog_names
        self._clients: dict[str, AirportClient] = {}
        self._views = LakeViews(self.duckdb, self.engine.failures)
        self.variables: Mapping[str, Any] = {}
        """Objects of the caller that a statement may read by their names."""
        self._row_ids_of: LakeName | None = None
        self._reader: pa.RecordBatchReader | None = None
        self._references = References(self.engine)
        self.engine.suggested = self._suggested

    # -- statements -----------------------------------------------------------------------------------------------

    def read(self, statement: exp.Expr, text: str | None = None) -> Answer:
        """Prepare a query over tables of the lake; `text` is the query as it was written."""
        return self.engine.query(self.bind(statement, text))

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

    def cast_rows(self, query: exp.Expr, fields: Sequence[pa.Field]) -> Iterator[pa.RecordBatch]:
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
        rows = self.stream(self.bind(whole))
        return chain(
            [pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in rows.schema], schema=rows.schema)], rows
        )

    def describe(self, query: exp.Expr) -> list[tuple[str, str]]:
        """Return the names and types of a query's columns."""
        rows = self.read(exp.Describe(this=query.copy())).read_all()
        return [(name, NULL_TYPE.sub("INTEGER", kind)) for name, kind, *_ in rows]

    # -- catalogs -------------------------------------------------------------------------------------------------

    def target(self, table: exp.Table) -> tuple[AirportClient, LakeName]:
        """Return the client and the full name of the table that a statement changes."""
        name = self.name(table)
        return self.client(name.catalog), name

    def client(self, catalog: str) -> AirportClient:
        """Return the client of a catalog."""
        if catalog not in self._clients:
            self._clients[catalog] = self._open_client(catalog)
        return self._clients[catalog]

    def refresh(self, client: AirportClient) -> None:
        """Reload the listing of a catalog; raise `NotFound` if the catalog does not exist."""
        client.reload()
        try:
            client.schema_names()
        except NotFound as error:
            hint = suggestion(client.catalog, self._catalog_names())
            raise NotFound("; ".join(filter(None, [f"catalog {client.catalog} does not exist", hint]))) from error

    def listed(self, catalog: str) -> list[Schema]:
        """Return the schemas of a catalog as they are now, with their tables."""
        client = self.client(catalog)
        self.refresh(client)
        return client.schemas()

    def catalog_names(self) -> list[str]:
        """Return the names of the server's catalogs."""
        return list(self._catalog_names())

    def table(self, client: AirportClient, name: LakeName) -> Table:
        """Return a table of a catalog; raise `NotFound` with a suggestion if it does not exist."""
        try:
            return client.table((name.schema, name.table))
        except NotFound as error:
            known = [f"{client.catalog}.{table}" for schema in client.schemas() for table in schema.tables]
            missing = ".".join(name)
            hint = suggestion(missing, known)
            raise NotFound("; ".join(filter(None, [f"table {missing} does not exist", hint]))) from error

    def _suggested(self, missing: str) -> str:
        """The tables of the catalog with a similar name, for a name without a schema."""
        try:
            listed = self.listed(self.catalog)
        except SkiwayError:  # the other error matters
            return ""
        names = {each.name.lower(): f"{self.catalog}.{each}" for schema in listed for each in schema.tables}
        similar = get_close_matches(missing.lower(), names)
        return f"did you mean {' or '.join(names[each] for each in similar)}?" if similar else ""

    def exists(self, name: LakeName) -> bool:
        """Whether a catalog has a table or a view with this name."""
        try:
            self.client(name.catalog).table((name.schema, name.table))
        except NotFound:
            return False
        return True

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
        return bool(self.duckdb.execute(LOCAL_TABLES, [table.name, table.name]).fetchall())

    def is_local_database(self, name: str) -> bool:
        """Whether DuckDB has a database of this name that is no catalog of the lake."""
        if name.lower() in self.engine.catalogs:
            return False
        found = self.duckdb.execute("SELECT lower(database_name) FROM duckdb_databases()").fetchall()
        return (name.lower(),) in found

    def lake_tables(self, statement: exp.Expr) -> list[exp.Table]:
        """Return the tables of the lake that a statement reads, unlike files, CTEs and local tables."""
        return [
            each
            for each in statement.find_all(exp.Table)
            if each.name and isinstance(each.this, exp.Identifier) and self._is_of_lake(each)
        ]

    def lake_functions(self, statement: exp.Expr) -> list[exp.Table]:
        """Return the calls of table functions of the lake."""
        found = [each for each in statement.find_all(exp.Table) if isinstance(each.this, exp.Anonymous) and each.db]
        return [each for each in found if not self.is_local_database(each.catalog or each.db)]

    def _is_of_lake(self, node: exp.Table) -> bool:
        if self.is_local(node):
            return False
        if node.db:
            return True
        if self.schema is None:
            return False
        # a CTE of the same name hides the table; then the view is created in vain
        return self.exists(LakeName(self.catalog, self.schema, node.name))

    def use(self, catalog: str, schema: str | None) -> None:
        """Make a catalog, or a schema of it, the place of names without them."""
        if self.is_local_database(catalog):
            raise InvalidArgument(f"{catalog} is not a catalog of the lake: write names in it as {catalog}.table")
        client = self.client(catalog)
        self.refresh(client)
        if schema is not None:
            known = client.schema_names()
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

    def bind(self, statement: exp.Expr, text: str | None = None) -> str:
        """Create a view for each table that is read, and return the SQL to run.

        `text` is the statement as it was written. A table with conditions that DuckDB would not hand over, with a LIMIT, or with AT (…)
        is replaced in it by a scan of its own.
        """
        if text is None:
            text = statement.sql("duckdb")
            statement = parse(text)  # for the positions of names
        self.engine.scope = named_in(statement, self.variables)
        if self.schema is not None:
            self.refresh(self.client(self.catalog))
        nodes = self.lake_tables(statement)
        names = [self.name(node) for node in nodes]
        for catalog in {name.catalog for name in names} - ({self.catalog} if self.schema is not None else set()):
            self.refresh(self.client(catalog))
        replaced: list[Replacement] = []
        for node, name in zip(nodes, names, strict=True):
            client = self.client(name.catalog)
            source = Source(client, self.table(client, name), row_ids=name == self._row_ids_of)
            if not node.args.get("when"):
                self.engine.attach(name.catalog)
                self._views.show(name, source)
            if (found := self._references.table(statement, node, source, text)) is not None:
                replaced.append(found)
        for node in self.lake_functions(statement):
            client = self.client(node.catalog or self.catalog)
            self.refresh(client)
            replaced.append(self._references.call(node, client, text))
        return with_replacements(text, replaced)

    @contextmanager
    def row_ids(self, name: LakeName) -> Iterator[None]:
        """Give a table the column `rowid` for the statements of a block."""
        self._row_ids_of = name
        try:
            yield
        finally:
            self._row_ids_of = None
            self.release()
            if name in self._views.names:
                self._views.drop(name)

    def _execute(self, query: str) -> pa.RecordBatchReader:
        self.release()
        self._reader = arrow_reader(self.engine.sql(query), BATCH_ROWS)
        return self._reader

    def release(self) -> None:
        """End the stream of a statement that has failed: DuckDB 2.0 runs no other statement until then."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

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
    return _with_bytes(f"CAST({name} AS {duckdb_type(field)})", field, "x")


def _with_bytes(value: str, field: pa.Field, element: str) -> str:
    """A value with bytes instead of the UUIDs in it. `element` is a name for the elements of lists."""
    kind, of = duckdb_type(field), field.type
    if kind == "UUID":
        return UUID_BYTES.format(value)
    if "UUID" not in kind or isinstance(of, pa.BaseExtensionType) or pa.types.is_union(of):
        return value
    if pa.types.is_struct(of):
        parts = {part.name: f"struct_extract({value}, {exp.Literal.string(part.name).sql('duckdb')})" for part in of}
        packed = ", ".join(f"{quoted(part.name)} := {_with_bytes(parts[part.name], part, element)}" for part in of)
        return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({packed}) END"
    if pa.types.is_map(of):
        entry = {"key": of.key_field, "value": of.item_field}
        packed = ", ".join(
            f"{name} := {_with_bytes(f'{element}.{name}', entry[name], f'{element}x')}" for name in entry
        )
        return f"map_from_entries(list_transform(map_entries({value}), lambda {element}: struct_pack({packed})))"
    made = f"list_transform({value}, lambda {element}: {_with_bytes(element, of.value_field, f'{element}x')})"
    return f"CAST({made} AS {kind.replace('UUID', 'BLOB')})" if pa.types.is_fixed_size_list(of) else made
