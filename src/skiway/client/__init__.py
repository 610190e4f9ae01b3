"""Clients in Python: `AirportClient` makes the same calls as DuckDB's Airport extension."""

from skiway.client.airport import AirportClient, CatalogVersion
from skiway.client.catalog import Function, Schema, Table
from skiway.client.connection import TlsOptions
from skiway.client.endpoints import Endpoint, FunctionCall
from skiway.client.flights import Flight
from skiway.client.predicates import Predicate, col
from skiway.client.rows import Rows
from skiway.client.scans import BoundScan
from skiway.client.statistics import ColumnStatistics

__all__ = [
    "AirportClient",
    "BoundScan",
    "CatalogVersion",
    "ColumnStatistics",
    "Endpoint",
    "Flight",
    "Function",
    "FunctionCall",
    "Predicate",
    "Rows",
    "Schema",
    "Table",
    "TlsOptions",
    "col",
]
