"""Demo tables with rows: orders and their items, as managed Iceberg tables in the warehouse.

Servers may apply the seed at the same time, and one that dies leaves the rest to the next. So each load of a table
becomes the snapshot with its number, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.clock import Clock
from skiway.errors import AlreadyExists, PreconditionFailed
from skiway.formats.iceberg.commits import Change, Producer, append
from skiway.formats.iceberg.data_files import DataFileWriter
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.metastore import managed
from skiway.metastore.managed.states import ManagedTable
from skiway.metastore.records.realm import Realm, resource_id
from skiway.metastore.resources import tables
from skiway.metastore.seeding.catalog import (
    DEFAULT_ACCOUNT,
    DEMO_CATALOG,
    DEMO_VIEWS,
    create_demo_catalog,
    create_demo_namespace,
    create_demo_view,
    seed_once,
    seeded_id,
)
from skiway.model import v1
from skiway.storage import Clock as StoreClock
from skiway.storage import Stores, utc_now

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["seed_iceberg"]

NAMESPACE: Final = "iceberg"
LOADS: Final = ((1, 1000), (1001, 1500))
"""The first and the last order of each load. A load is a snapshot of both tables."""

ITEMS: Final = 4
"""The number of items of an order."""

_MONEY: Final = pa.decimal128(12, 2)
_FIRST_DAY: Final = np.datetime64("2025-01-01")


def seed_iceberg(stores: Stores, warehouse: Warehouse, *, clock: StoreClock = utc_now) -> bool:
    """Create the catalog `examples`, whose tables are in the warehouse. Return whether that was done now.

    A store that was seeded with the other demo keeps its examples.
    """
    realm = Realm(stores, DEFAULT_ACCOUNT, clock=clock)
    return seed_once(stores, "demo", lambda: _create_tables(realm, warehouse), clock=clock)


def _create_tables(realm: Realm, warehouse: Warehouse) -> None:
    create_demo_catalog(realm, "orders and their items, as Iceberg tables")
    create_demo_namespace(realm, (NAMESPACE,))
    for table in TABLES:
        _create_table(realm, warehouse, table)
    for name, sql in DEMO_VIEWS.items():
        create_demo_view(realm, name, sql)


@dataclass(frozen=True, slots=True)
class _Table:
    """A demo table: its rows for a range of orders."""

    name: str
    rows: Callable[[int, int], pa.Table]
    partition_by: Sequence[str] = ()


def _create_table(realm: Realm, warehouse: Warehouse, table: _Table) -> None:
    namespace_id = resource_id(realm, seeded_id(realm, DEMO_CATALOG, NAMESPACE), v1.RK_NAMESPACE)
    # With a random id: whoever loses the race to create the table deletes its folder, which must not be the winner's.
    with suppress(AlreadyExists):
        managed.create(
            realm,
            warehouse,
            namespace_id=namespace_id,
            name=table.name,
            schema=table.rows(1, 1).schema,
            partition_by=table.partition_by,
        )
    for number, orders in enumerate(LOADS):
        found = _found(realm, warehouse, table, namespace_id)
        if len(found.metadata.snapshots) <= number:
            _load(realm, warehouse, found, table.rows(*orders), number)


def _found(realm: Realm, warehouse: Warehouse, table: _Table, namespace_id: v1.ResourceId) -> ManagedTable:
    named = tables.find(realm, namespace_id.id, table.name)
    if named is None or not named.metadata_location:
        raise PreconditionFailed(
            f"seed.mode=iceberg creates a table {DEMO_CATALOG}.{NAMESPACE}.{table.name}, but the existing one is not a managed "
            f"table: delete the catalog {DEMO_CATALOG}, or set seed.mode=fake",
            key="seed.table.taken",
        )
    return managed.load(realm, warehouse, named.resource_id)


def _load(realm: Realm, warehouse: Warehouse, table: ManagedTable, rows: pa.Table, number: int) -> None:
    with DataFileWriter(table.files, table.metadata) as writer:
        for batch in rows.to_batches():
            writer.write(batch)
        files = writer.close()
    try:
        managed.change(realm, warehouse, table.table.resource_id, _only_as(number, files))
    except AlreadyExists:  # only then: if the store did not respond, the files may be in use
        table.files.remove([file.file_path for file in files])


def _only_as(number: int, added: Sequence[DataFile]) -> Producer:
    """An append that becomes the snapshot with this number. Raise `AlreadyExists` if another server was faster."""

    def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:
        if len(metadata.snapshots) != number:
            raise AlreadyExists(f"load {number} of the demo already exists", key="seed.load")
        return append(added)(metadata, files, clock)

    return produce


def _orders(first: int, last: int) -> pa.Table:
    """Orders, whose totals are the sums of their items."""
    items = _items(first, last)
    totals = items.group_by("l_orderkey", use_threads=False).aggregate([("l_extendedprice", "sum")])
    key = np.arange(first, last + 1)
    return pa.table(
        {
            "o_orderkey": pa.array(key),
            "o_custkey": pa.array(key * 7919 % 499 + 1),
            "o_orderstatus": pa.array(np.array(["F", "F", "O", "O", "P"], object)[key % 5], pa.string()),
            "o_totalprice": totals["l_extendedprice_sum"].cast(_MONEY),
            "o_orderdate": _days(key * 31 % 180),
        }
    )


def _items(first: int, last: int) -> pa.Table:
    key = np.repeat(np.arange(first, last + 1), ITEMS)
    line = np.tile(np.arange(1, ITEMS + 1), last - first + 1)
    quantity = (key * 13 + line * 7) % 50 + 1
    return pa.table(
        {
            "l_orderkey": pa.array(key),
            "l_linenumber": pa.array(line.astype(np.int32)),
            "l_quantity": pa.array(quantity.astype(np.int32)),
            "l_extendedprice": _money(quantity * (900 + (key * line * 37) % 9_000)),
            "l_shipdate": _days(key * 31 % 180 + line * 3),
        }
    )


def _days(numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> pa.Array:
    return pa.array(_FIRST_DAY + numbers.astype("timedelta64[D]"), pa.date32())


def _money(cents: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> pa.Array:
    whole = pa.array(cents).cast(pa.decimal128(19, 0))
    return pc.multiply(whole, pa.scalar(Decimal("0.01"), pa.decimal128(3, 2))).cast(_MONEY)


TABLES: Final = (
    _Table("orders", _orders, ("month(o_orderdate)",)),
    _Table("lineitem", _items),
)
