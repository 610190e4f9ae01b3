"""An in-memory database with DDL, DML with RETURNING, transactions, time travel and statistics.

    from skiway.airport import serve
    from skiway.airport.memory import MemoryCatalog

    serve(MemoryCatalog("scratch", schemas=["public"]), "grpc://127.0.0.1:50051")

It implements every capability of a catalog, serves as an example, and is compared with DuckDB in tests.
"""

from skiway.airport.memory.catalog import MemoryCatalog, MemorySchema, MemoryTable, PastTable
from skiway.airport.memory.transactions import MemoryTransactions

__all__ = [
    "MemoryCatalog",
    "MemorySchema",
    "MemoryTable",
    "MemoryTransactions",
    "PastTable",
]
