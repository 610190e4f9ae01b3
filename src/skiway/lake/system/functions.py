"""The functions of the schema `skiway` that return rows: queries, their plans, and histograms.

With `engine => 'spark'`, Spark reads the tables over Airport, with a token of the caller, so it sees exactly what the caller
sees. A caller whom a policy
restricts is refused nevertheless: values that it must not see should not depend on what Spark's SQL cannot do.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from skiway.airport import ScanOptions, Table, TableFunction, current_request
from skiway.airport.wire.duckdb_sql import identifier
from skiway.errors import InvalidArgument, NotFound, PermissionDenied, PreconditionFailed
from skiway.formats import TableName
from skiway.lake.context import Context, SparkSql
from skiway.lake.system.effects import parameters_of, table_name
from skiway.lake.system.tables import schema_of
from skiway.metastore.pipelines.spark_sql import parse_query
from skiway.spark_queries.engine import SparkQuery
from skiway.sql import Find, Query, unknown_column
from skiway.sql.measures import current_measures


def spark_columns(context: Context, query: Query) -> pa.Schema:
    """The columns of a query on Spark."""
    spark = _allowed(context)
    return spark.engine.columns(_key(context, query), lambda: _prepared(context, spark, query))


def spark_rows(context: Context, query: Query) -> Iterator[pa.RecordBatch]:
    """Run a query on Spark. It is cancelled when the iterator is closed, and when the client of the call is gone."""
    spark, ended = _allowed(context), current_request().when_ended
    key, prepared = _key(context, query), lambda: _prepared(context, spark, query)
    with spark.engine.result(key, prepared, when_ended=ended) as (_, batches):
        yield from batches


def _key(context: Context, query: Query) -> Hashable:
    """Equal for queries that are the same for the same rights and tables: DuckDB may plan one twice before it reads the rows."""
    state = context.versions.of(context.callers.realm())
    return (context.callers.rights, state, query.catalog, query.schema, query.sql)


def _allowed(context: Context) -> SparkSql:
    """What runs queries on Spark, if this server does, and for this caller."""
    callers = context.callers
    callers.require("catalog.read")
    if context.spark is None:
        raise PreconditionFailed(
            "this server runs no queries on Spark: its operator can allow them with the setting sql.spark.enabled=true, or "
            "leave out engine => 'spark'",
            key="spark.disabled",
        )
    callers.refuse_query_tokens("start another one")
    if callers.is_under_policies:
        raise PermissionDenied(
            "a policy restricts what you see, and such callers cannot run queries on Spark: leave out engine => 'spark'",
            key="spark.policies",
        )
    return context.spark


def _prepared(context: Context, spark: SparkSql, query: Query) -> SparkQuery:
    parsed = parse_query(query.sql)
    views = {name: f"lake_{uuid.uuid4().hex}" for name in parsed.reads}
    return SparkQuery(
        context.callers.authenticated.account_id,
        parsed.reading(views),
        {view: _options(spark, _found(query, name)) for name, view in views.items()},
        spark.token_of(context.callers.authenticated),
    )


def _found(query: Query, name: TableName) -> tuple[str, str, str]:
    """The catalog, schema and name of a table that the caller sees."""
    path = name.namespace or tuple(filter(None, [query.schema]))
    here = (query.catalog, ".".join(path), name.name)
    elsewhere = (path[0], ".".join(path[1:]), name.name) if len(path) > 1 else here
    is_first = path and path[0].casefold() == query.catalog.casefold()
    for each in (elsewhere, here) if is_first else (here, elsewhere):
        if each[1] and query.find(*each) is not None:
            return each
    written = ".".join((*name.namespace, name.name))
    hint = "" if path else ": write schema.table, or name the schema with schema => '…'"
    raise InvalidArgument(f"table or view {written} does not exist{hint}", key="spark.table")


def _options(spark: SparkSql, name: tuple[str, str, str]) -> dict[str, str]:
    catalog, schema, table = name
    options = {
        "location": f"{spark.location().rstrip('/')}/{quote(catalog, safe='')}",
        "table": f"{identifier(schema)}.{identifier(table)}",
    }
    return options | ({"rootCertificates": spark.root_certificates} if spark.root_certificates else {})


class QueryFunction(TableFunction):
    """`query(sql)`: runs a query on the server and returns its rows."""

    name = "query"
    comment = (
        "Runs a SELECT on the server, next to the files, and returns only its rows; on Spark with engine => 'spark'."
    )
    parameters = parameters_of("sql text, schema? text, engine? text")

    def __init__(self, context: Context, catalog: str, find: Find) -> None:
        self._context, self._catalog, self._find = context, catalog, find

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:
        """The columns of the query. They are looked up once for each statement of a client."""
        query, for_spark = self.query_in(arguments), _is_for_spark(arguments)
        return self._columns(query, self._key(query, for_spark=for_spark), for_spark=for_spark)

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Run the query."""
        query, for_spark = self.query_in(arguments), _is_for_spark(arguments)
        key = self._key(query, for_spark=for_spark)
        measures = current_measures()
        rows = measures.timed(spark_rows(self._context, query)) if for_spark else self._context.queries.rows(query)
        schema = self._columns(query, key, for_spark=for_spark)
        wanted = schema.names if options.columns is None else options.columns
        for batch in rows:
            if not batch.schema.equals(schema):
                self._context.query_shapes.discard(key or ())
                raise PreconditionFailed("the tables of the query have changed since it was planned: run it again")
            yield batch.select(wanted)

    def query_in(self, arguments: Mapping[str, pa.Scalar]) -> Query:
        """The query in the arguments of a call."""
        sql, schema = arguments["sql"].as_py(), arguments["schema"].as_py()
        if not sql or not sql.strip():
            raise InvalidArgument("query needs SQL: write query('SELECT …')", key="sql.invalid")
        current_measures().text = sql
        account = self._context.callers.principal.account_id
        return Query(sql, self._find, catalog=self._catalog, schema=schema or "", owner=account)

    def _columns(self, query: Query, key: tuple[str, ...] | None, *, for_spark: bool) -> pa.Schema:
        columns = partial(spark_columns, self._context) if for_spark else self._context.queries.columns
        return self._context.query_shapes.get(key, lambda: columns(query)) if key else columns(query)

    def _key(self, query: Query, *, for_spark: bool) -> tuple[str, ...] | None:
        """What identifies the columns in the calls of one statement; None if the client does not say which these are.

        Another caller may see other tables, and another transaction other snapshots.
        """
        principal, request = self._context.callers.principal, current_request()
        statement = request.transaction_id or request.trace_id
        if not statement:
            return None
        engine = "spark" if for_spark else "duckdb"
        return (principal.account_id, principal.subject, statement, query.catalog, query.schema, query.sql, engine)


def _is_for_spark(arguments: Mapping[str, pa.Scalar]) -> bool:
    engine = (arguments["engine"].as_py() or "duckdb").strip().lower()
    if engine not in ("duckdb", "spark"):
        raise InvalidArgument(f"engine is {engine[:100]!r}: use 'duckdb' or 'spark'", key="sql.engine")
    return bool(engine == "spark")


class ExplainFunction(TableFunction):
    """`explain(sql)`: returns the plan of a query."""

    name = "explain"
    comment = "Returns DuckDB's plan of a SELECT on the server, which does not run it."
    parameters = parameters_of("sql text, schema? text")

    def __init__(self, context: Context, query: QueryFunction) -> None:
        self._context, self._of_query = context, query

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:  # noqa: ARG002
        """The only column, the plan as text."""
        return pa.schema({"plan": pa.string()})

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> pa.Table:  # noqa: ARG002
        """Plan the query, with the rights of the caller."""
        query, current_measures().text = self._of_query.query_in(arguments), ""  # which does not run
        return pa.table({"plan": [self._context.queries.explain(query)]})


class QueryTable(Table):
    """The rows of a query, as a table: `airport_take_flight(location, 'SELECT …')`."""

    name = "query"

    def __init__(self, function: QueryFunction, sql: str) -> None:
        self._function = function
        self._arguments = {
            "sql": pa.scalar(sql),
            "schema": pa.scalar(None, pa.string()),
            "engine": pa.scalar(None, pa.string()),
        }

    @property
    def schema(self) -> pa.Schema:
        """The columns of the query."""
        return self._function.schema_for(self._arguments)

    def scan(self, options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Run the query."""
        return self._function.execute(self._arguments, options)


_MAX_BINS: Final = 1000
_DEFAULT_BINS: Final = 20
_BAR: Final = 40


class HistogramFunction(TableFunction):
    """`histogram(table, column)`: counts the values of a column by range, or the most frequent ones of a text column."""

    name = "histogram"
    comment = "Counts the values of a column by range, and those of a text column by value: histogram('s.t', 'price', bins => 20)."
    parameters = parameters_of("name text, column text, bins? integer")
    result: Final = schema_of("kind text, lower text, upper text, count bigint, share double, bar text")

    def __init__(self, context: Context, catalog: str, find: Find) -> None:
        self._context, self._catalog, self._find = context, catalog, find

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:  # noqa: ARG002
        """The columns of the result. Nothing is counted yet."""
        return self.result

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Count the values."""
        given: dict[str, Any] = {name: value.as_py() for name, value in arguments.items()}
        bins = _DEFAULT_BINS if given["bins"] is None else given["bins"]
        if not 1 <= bins <= _MAX_BINS:
            raise InvalidArgument(f"bins is {bins}: use 1 to {_MAX_BINS}", key="histogram.bins")
        named = table_name(given["name"] or "", self._catalog, self.name)
        table = self._find(self._catalog, named.db, named.name)
        full_name = f"{self._catalog}.{named.db}.{named.name}"
        if table is None:
            raise NotFound(f"table {full_name} does not exist", key="table", table=full_name)
        field = _field(table, given["column"] or "", full_name)
        place = ".".join(map(identifier, (self._catalog, named.db, named.name)))
        column, number = identifier(field.name), _as_number(field)
        sql = _values(place, column, bins) if number is None else _ranges(place, column, number, bins)
        owner = self._context.callers.principal.account_id
        query = Query(sql, self._find, catalog=self._catalog, owner=owner)
        wanted = self.result.names if options.columns is None else options.columns
        for batch in self._context.queries.rows(query):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self.result).select(wanted)


def _field(table: Table, name: str, full_name: str) -> pa.Field:
    for field in table.schema:
        if field.name.casefold() == name.casefold():
            return field
    raise unknown_column(f"table {full_name}", name, table.schema.names)


def _as_number(field: pa.Field) -> str | None:
    """The type in which values are divided into ranges; None if they are counted by value."""
    kind = field.type
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return "BIGINT"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_integer(kind):
        return "DOUBLE"
    return "TIMESTAMP" if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else None


def _ranges(table: str, column: str, number: str, bins: int) -> str:
    """Count values in ranges of about equal width with round bounds, and those that are NULL, NaN or infinite."""
    return f"""
        WITH read AS (SELECT CAST({column} AS {number}) AS value FROM {table}),
        finite AS (SELECT value FROM read WHERE isfinite(value)),
        bounds AS (SELECT equi_width_bins(min(value), max(value), {bins}, true) AS ends FROM finite),
        filled AS (SELECT histogram(value, (SELECT coalesce(ends, []) FROM bounds)) AS bins FROM finite),
        bins AS (
            SELECT unnest([NULL] || map_keys(bins)[:-2]) AS lower, unnest(map_keys(bins)) AS upper,
                unnest(map_values(bins)) AS count FROM filled
        ),
        counted AS (
            SELECT 'range' AS kind, lower, upper, count FROM bins
            UNION ALL SELECT 'not finite', NULL, NULL, count(*) FROM read WHERE NOT isfinite(value)
            UNION ALL SELECT 'null', NULL, NULL, count(*) FROM read WHERE value IS NULL
        ) {_SHOWN} ORDER BY kind = 'null', kind = 'not finite', counted.upper
    """  # noqa: S608 - all names are quoted


def _values(table: str, column: str, bins: int) -> str:
    """Count the most frequent values, all others together, and NULLs."""
    return f"""
        WITH read AS (SELECT CAST({column} AS VARCHAR) AS value FROM {table}),
        groups AS (SELECT value, count(*) AS count FROM read WHERE value IS NOT NULL GROUP BY value),
        frequent AS (SELECT value, count FROM groups ORDER BY count DESC, value LIMIT {bins}),
        counted AS (
            SELECT 'value' AS kind, value AS lower, value AS upper, count FROM frequent
            UNION ALL SELECT 'other', NULL, NULL, (SELECT sum(count) FROM groups) - (SELECT sum(count) FROM frequent)
            UNION ALL SELECT 'null', NULL, NULL, count(*) FROM read WHERE value IS NULL
        ) {_SHOWN} ORDER BY kind = 'null', kind = 'other', counted.count DESC, counted.lower
    """  # noqa: S608 - all names are quoted


# Without window functions: in DuckDB 1.5, a window over few rows sometimes fails when several threads run it.
_SHOWN: Final = f"""
    SELECT kind, CAST(lower AS VARCHAR) AS lower, CAST(upper AS VARCHAR) AS upper, CAST(count AS BIGINT) AS count,
        count / (SELECT sum(count) FROM counted) AS share, rtrim(bar(count, 0, (SELECT max(count) FROM counted), {_BAR})) AS bar
    FROM counted WHERE count > 0
"""  # noqa: S608 - no names of callers
