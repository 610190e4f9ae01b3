"""The functions of the schema `skiway`: what DuckDB's client cannot express as a statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import pyarrow as pa

from skiway.airport import Parameter, ScanOptions, Table, TableFunction, current_request
from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.lake.context import Context
from skiway.lake.system.spark_queries import spark_columns, spark_rows
from skiway.sql import Find, Query

__all__ = ["ExplainFunction", "QueryFunction", "QueryTable"]


class QueryFunction(TableFunction):
    """`query(sql)`: runs a query on the server and returns its rows."""

    name = "query"
    comment = (
        "Runs a SELECT on the server, next to the files, and returns only its rows; on Spark with engine => 'spark'."
    )
    parameters = (
        Parameter("sql", pa.string()),
        Parameter("schema", pa.string(), named=True),
        Parameter("engine", pa.string(), named=True),
    )

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
        rows = spark_rows(self._context, query) if for_spark else self._context.queries.rows(query)
        schema = self._columns(query, key, for_spark=for_spark)
        wanted = schema.names if options.columns is None else options.columns
        for batch in rows:
            if not batch.schema.equals(schema):
                self._context.query_shapes.forget(key)
                raise PreconditionFailed("the tables of the query have changed since it was planned: run it again")
            yield batch.select(wanted)

    def query_in(self, arguments: Mapping[str, pa.Scalar]) -> Query:
        """The query in the arguments of a call."""
        sql, schema = arguments["sql"].as_py(), arguments["schema"].as_py()
        if not sql or not sql.strip():
            raise InvalidArgument("query needs SQL: write query('SELECT …')", key="sql.invalid")
        account = self._context.callers.principal.account_id
        return Query(sql, self._find, catalog=self._catalog, schema=schema or "", owner=account)

    def _columns(self, query: Query, key: tuple[str, ...] | None, *, for_spark: bool) -> pa.Schema:
        columns = partial(spark_columns, self._context) if for_spark else self._context.queries.columns
        return self._context.query_shapes.get(key, lambda: columns(query))

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
    parameters = (Parameter("sql", pa.string()), Parameter("schema", pa.string(), named=True))

    def __init__(self, context: Context, query: QueryFunction) -> None:
        self._context, self._of_query = context, query

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:  # noqa: ARG002
        """The only column, the plan as text."""
        return pa.schema({"plan": pa.string()})

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> pa.Table:  # noqa: ARG002
        """Plan the query, with the rights of the caller."""
        return pa.table({"plan": [self._context.queries.explain(self._of_query.query_in(arguments))]})


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
