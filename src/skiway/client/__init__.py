"""Clients for Python: `AirportClient` for Airport servers, `Metastore` for the metastore's gRPC API.

Both need the plain install only. `AirportClient` makes the same calls as DuckDB's Airport extension.
"""

from skiway.client.airport import (
    AirportClient,
    BoundScan,
    CatalogVersion,
    ColumnStatistics,
    Endpoint,
    Flight,
    Function,
    FunctionCall,
    JsonWriter,
    Predicate,
    Rows,
    ScanPart,
    Schema,
    Table,
    Transaction,
    Written,
    col,
)
from skiway.client.connection import TlsOptions
from skiway.client.metastore import Metastore

__all__ = [
    "AirportClient",
    "BoundScan",
    "CatalogVersion",
    "ColumnStatistics",
    "Endpoint",
    "Flight",
    "Function",
    "FunctionCall",
    "JsonWriter",
    "Metastore",
    "Predicate",
    "Rows",
    "ScanPart",
    "Schema",
    "Table",
    "TlsOptions",
    "Transaction",
    "Written",
    "col",
]
