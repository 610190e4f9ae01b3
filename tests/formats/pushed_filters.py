"""Filters as DuckDB sends them, for tables of any schema."""

from __future__ import annotations

import pyarrow as pa

from airport.filters.predicates import Client
from skiway.airport import filters


def pushed_filter(predicate: str, schema: pa.Schema) -> filters.Filter:
    """The filter that DuckDB pushes down for `predicate` on a table of this schema."""
    client = Client("SELECT 1")
    with client.connection:
        client.connection.register("own", pa.schema([pa.field(each.name, each.type) for each in schema]).empty_table())
        client.connection.execute("CREATE TABLE t AS FROM own")
        sent = client.sent(predicate)
    assert sent is not None, f"DuckDB pushes no filter down for {predicate}"
    return filters.parse(sent)
