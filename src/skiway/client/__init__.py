"""Clients in Python: `AirportClient` makes the calls of DuckDB's Airport extension, `Metastore` those of its name."""

from skiway.client.airport import AirportClient, CatalogVersion
from skiway.client.attached import Transaction
from skiway.client.catalog import Function, Schema, Table
from skiway.client.connection import TlsOptions
from skiway.client.endpoints import Endpoint, FunctionCall
from skiway.client.flights import Flight
from skiway.client.json_writer import JsonWriter
from skiway.client.metastore import Metastore
from skiway.client.predicates import Predicate, col
from skiway.client.rows import Rows
from skiway.client.scans import BoundScan
from skiway.client.statistics import ColumnStatistics
from skiway.client.written import Written

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
    "Schema",
    "Table",
    "TlsOptions",
    "Transaction",
    "Written",
    "col",
]
