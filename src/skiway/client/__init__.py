"""Clients in Python: `AirportClient` makes the calls of DuckDB's Airport extension, `Metastore` those of its name."""

from skiway.client.airport.catalog import Function, Schema, Table
from skiway.client.airport.client import AirportClient
from skiway.client.airport.connection import TlsOptions
from skiway.client.airport.endpoints import Endpoint, FunctionCall
from skiway.client.airport.exchange import Written
from skiway.client.airport.json_writer import JsonWriter
from skiway.client.airport.listing import Flight
from skiway.client.airport.predicates import Predicate, col
from skiway.client.airport.scans import BoundScan, ColumnStatistics, Rows
from skiway.client.airport.session import CatalogVersion, Transaction
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
    "Schema",
    "Table",
    "TlsOptions",
    "Transaction",
    "Written",
    "col",
]
