"""Clients for Python: `AirportClient` for Airport servers, `Metastore` for the metastore's gRPC API.

Both need the plain install only. `AirportClient` makes the same calls as DuckDB's Airport extension. `Metastore` is imported when
it is first used, which saves other programs a fifth of the time to import this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
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


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name != "Metastore":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = import_module("skiway.client.metastore").Metastore
        return found
