"""A complete database in memory: DDL, DML with RETURNING, transactions, time travel, statistics.

    from skiway.airport import serve
    from skiway.airport.memory import MemoryCatalog

    serve(MemoryCatalog("scratch", schemas=["public"]), "grpc://127.0.0.1:50051")

It is the reference for what a catalog may do, an example to read, and what tests compare with DuckDB.
"""

from skiway.airport.conversion import storable, to_column
from skiway.airport.memory.catalog import MemoryCatalog, MemorySchema
from skiway.airport.memory.table import MemoryTable, PastTable
from skiway.airport.memory.transactions import MemoryTransactions

__all__ = [
    "MemoryCatalog",
    "MemorySchema",
    "MemoryTable",
    "MemoryTransactions",
    "PastTable",
    "storable",
    "to_column",
]
