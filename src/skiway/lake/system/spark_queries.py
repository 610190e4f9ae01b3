"""`skiway.query(sql, engine => 'spark')`: which callers may use it, and the tables of their queries.

Spark reads the tables over Airport, with a token of the caller, so it sees exactly what the caller sees. A caller whom a policy
restricts is refused nevertheless: values that it must not see should not depend on what Spark's SQL cannot do.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterator
from urllib.parse import quote

import pyarrow as pa

from skiway.airport import current_request
from skiway.airport.wire.duckdb_sql import identifier
from skiway.errors import InvalidArgument, PermissionDenied, PreconditionFailed
from skiway.formats import TableName
from skiway.lake.context import Context
from skiway.lake.spark_sql import SparkSql
from skiway.metastore.pipelines.queries import parse_query
from skiway.spark_queries.engine import SparkQuery
from skiway.sql import Query

__all__ = ["spark_columns", "spark_rows"]


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
