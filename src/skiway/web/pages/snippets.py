"""Snippets to copy: how to read a table with DuckDB, PyIceberg, Spark and Python."""

from __future__ import annotations

import json
from typing import Any

from skiway.airport.wire.duckdb_sql import attach_statement, identifier, secret_statement
from skiway.web.visits import Visit

__all__ = ["snippets"]


def snippets(visit: Visit) -> list[dict[str, Any]]:
    """The snippets for the table in the path of a visit."""
    path = visit.table_path()
    catalog, schema, table = path.catalog, path.schema, path.name
    location = visit.clients.location()
    needs_token = bool(visit.visitor.token)
    name = ".".join(map(identifier, (catalog, schema, table)))
    secret = [secret_statement(location, None)] if needs_token else []
    duckdb = ["INSTALL airport FROM community;", "LOAD airport;", *secret, attach_statement(catalog, location)]
    token = ', token="<your token>"' if needs_token else ""
    rest = f"{visit.origin}/iceberg"
    properties = {"type": "rest", "uri": rest, "warehouse": catalog} | (
        {"token": "<your token>"} if needs_token else {}
    )
    spark = [
        f"spark.sql.catalog.{catalog}=org.apache.iceberg.spark.SparkCatalog",
        *(f"spark.sql.catalog.{catalog}.{key}={value}" for key, value in properties.items()),
    ]
    return [
        {"tool": "DuckDB", "language": "sql", "text": "\n".join([*duckdb, f"FROM {name} LIMIT 10;"])},
        {
            "tool": "PyIceberg",
            "language": "python",
            "text": "from pyiceberg.catalog import load_catalog\n\n"
            f"catalog = load_catalog({json.dumps(catalog)}, **{json.dumps(properties)})\n"
            f"catalog.load_table({json.dumps(visit.names[1:])}).scan(limit=10).to_arrow()",
        },
        {"tool": "Spark", "language": "properties", "text": "\n".join(spark)},
        {
            "tool": "Python",
            "language": "python",
            "text": "from skiway.client import AirportClient\n\n"
            f"with AirportClient({json.dumps(location)}, {json.dumps(catalog)}{token}) as lake:\n"
            f"    rows = lake.scan(({json.dumps(schema)}, {json.dumps(table)}), limit=10).read_all()",
        },
    ]
