"""Pointers: small versioned entries that map a key to a blob and change only by compare-and-set.

`store` defines `PointerStore`; the other modules implement it in memory, SQLite, PostgreSQL and DynamoDB.
"""

from skiway.storage.pointers.store import ABSENT, Check, Delete, Operation, Pointer, PointerStore, Put, require

__all__ = ["ABSENT", "Check", "Delete", "Operation", "Pointer", "PointerStore", "Put", "require"]
