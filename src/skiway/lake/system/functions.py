"""The functions of the schema `skiway`: what DuckDB's client cannot express as a statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from skiway.airport import Parameter, ScanOptions, Table, TableFunction, current_request
from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.lake.context import Context
from skiway.sql import Find, Query

__all__ = ["ExplainFunction", "QueryFunction", "QueryTable"]


class QueryFunction(TableFunction):
    """`query(sql)`: runs a query on the server and returns its rows."""

    name = "query"
    comment = "Runs a SELECT on the server, next to the files, and returns only its rows."
    parameters = (Parameter("sql", pa.string()), Parameter("schema", pa.string(), named=True))

    def __init__(self, context: Context, catalog: str, find: Find) -> None:
        self._context, self._catalog, self._find = context, catalog, find

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:
        """The columns of the query. They are looked up once for each statement of a client."""
        query = self.query_in(arguments)
        return self._context.query_shapes.get(self._key(query), lambda: self._context.queries.columns(query))

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Run the query."""
        query = self.query_in(arguments)
        schema = self.schema_for(arguments)
        wanted = schema.names if options.columns is None else options.columns
        for batch in self._context.queries.rows(query):
            if not batch.schema.equals(schema):
                self._context.query_shapes.forget(self._key(query))
                raise PreconditionFailed("the tables of the query have changed since it was planned: run it again")
            yield batch.select(wanted)

    def query_in(self, arguments: Mapping[str, pa.Scalar]) -> Query:
        """The query in the arguments of a call."""
        sql, schema = arguments["sql"].as_py(), arguments["schema"].as_py()
        if not sql or not sql.strip():
            raise InvalidArgument("query needs SQL: write query('SELECT …')", key="sql.invalid")
        account = self._context.callers.principal.account_id
        return Query(sql, self._find, catalog=self._catalog, schema=schema or "", owner=account)

    def _key(self, query: Query) -> tuple[str, ...] | None:
        """What identifies the columns in the calls of one statement; None if the client does not say which these are.

        Another caller may see other tables, and another transaction other snapshots.
        """
        principal, request = self._context.callers.principal, current_request()
        statement = request.transaction_id or request.trace_id
        if not statement:
            return None
        return (principal.account_id, principal.subject, statement, query.catalog, query.schema, query.sql)


class ExplainFunction(TableFunction):
    """`explain(sql)`: returns the plan of a query."""

    name = "explain"
    comment = "Returns DuckDB's plan of a SELECT on the server, which does not run it."
    parameters = QueryFunction.parameters

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
        self._arguments = {"sql": pa.scalar(sql), "schema": pa.scalar(None, pa.string())}

    @property
    def schema(self) -> pa.Schema:
        """The columns of the query."""
        return self._function.schema_for(self._arguments)

    def scan(self, options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Run the query."""
        return self._function.execute(self._arguments, options)
