"""The Airport client: the calls of DuckDB's Airport extension, from Python.

`AirportClient` has the whole API; `col` starts a predicate for its scans.
"""

from skiway.client.airport.calls import Function, Schema, Table
from skiway.client.airport.client import AirportClient
from skiway.client.airport.exchange import JsonWriter, Written
from skiway.client.airport.predicates import Column, Predicate, col
from skiway.client.airport.results import ColumnStatistics, Endpoint, FunctionCall, Rows
from skiway.client.airport.scans import BoundScan, ScanPart
from skiway.client.airport.session import CatalogVersion, Flight
from skiway.client.airport.writing import Transaction

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
