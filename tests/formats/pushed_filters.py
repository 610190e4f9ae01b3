"""Filters as DuckDB sends them, for tables of any schema."""

from __future__ import annotations

import pyarrow as pa

from airport.filters.predicates import Client
from skiway.airport import filters
from skiway.client.airport.filters import filter_json
from skiway.client.airport.predicates import Predicate


def pushed_filter(predicate: str, schema: pa.Schema) -> filters.Filter:
    """The filter that DuckDB pushes down for `predicate` on a table of this schema."""
    client = Client("SELECT 1")
    with client.connection:
        client.connection.register("own", pa.schema([pa.field(each.name, each.type) for each in schema]).empty_table())
        client.connection.execute("CREATE TABLE t AS FROM own")
        sent = client.sent(predicate)
    assert sent is not None, f"DuckDB pushes no filter down for {predicate}"
    return filters.parse(sent)


def sent_filter(predicate: Predicate, schema: pa.Schema) -> filters.Filter:
    """The filter that our own client sends for `predicate`; lists and time zones are in it as they are."""
    return filters.parse(filter_json(predicate, schema.names, {field.name: field for field in schema}))
