"""PyIceberg's SqlCatalog on SQLite, with the same calls as the metastore."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from bench.disk import scratch

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True))


@contextmanager
def iceberg_catalog(size: int) -> Iterator[dict[str, Callable[[int], object]]]:
    """Its calls, under the names of the metastore's calls. All tables but the first share one metadata file."""
    with scratch() as place:
        catalog = SqlCatalog("lake", uri=f"sqlite:///{place}/catalog.db", warehouse=(place / "warehouse").as_uri())
        catalog.create_namespace("shop")
        first = catalog.create_table("shop.table_000000", SCHEMA)
        rows = [("lake", "shop", f"table_{number:06d}", first.metadata_location) for number in range(1, size)]
        with sqlite3.connect(place / "catalog.db") as database:
            database.executemany(
                "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
                "VALUES (?, ?, ?, ?, 'TABLE')",
                rows,
            )
        made = count()
        yield {
            "resolve by name": lambda number: catalog.load_table(f"shop.table_{number * 7919 % size:06d}"),
            "create table": lambda number: catalog.create_table(f"shop.new_{next(made)}", SCHEMA),
            "list 1,000": lambda number: catalog.list_tables("shop"),
        }
        catalog.close()
