"""The Airport client: the calls of DuckDB's Airport extension, from Python.

`AirportClient` has the whole API; `col` starts a predicate for its scans.
"""

from skiway.client.airport.catalog import Function, Schema, Table
from skiway.client.airport.client import AirportClient
from skiway.client.airport.endpoints import Endpoint, FunctionCall
from skiway.client.airport.exchange import Written
from skiway.client.airport.json_writer import JsonWriter
from skiway.client.airport.listing import Flight
from skiway.client.airport.predicates import Column, Predicate, col
from skiway.client.airport.results import ColumnStatistics, Rows
from skiway.client.airport.scans import BoundScan, ScanPart
from skiway.client.airport.session import CatalogVersion
from skiway.client.airport.transactions import Transaction

__all__ = [
    "AirportClient",
    "BoundScan",
    "CatalogVersion",
    "Column",
    "ColumnStatistics",
    "Endpoint",
    "Flight",
    "Function",
    "FunctionCall",
    "JsonWriter",
    "Predicate",
    "Rows",
    "ScanPart",
    "Schema",
    "Table",
    "Transaction",
    "Written",
    "col",
]
