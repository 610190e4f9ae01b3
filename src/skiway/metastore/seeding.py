"""The initial content of a store: an account with a catalog and, on request, demo tables and a demo connector."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import AlreadyExists, PreconditionFailed
from skiway.formats.iceberg.changes.commits import Change, Producer, append
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.foundation.clock import Clock
from skiway.metastore import connectors, managed, statistics
from skiway.metastore.managed.states import ManagedTable
from skiway.metastore.records import keys
from skiway.metastore.records.realm import PLATFORM, Realm, resource_id, timestamp
from skiway.metastore.resources import accounts, catalogs, namespaces, snapshots, tables, views
from skiway.model import v1
from skiway.security import SecretsStore
from skiway.storage import ABSENT, Stores, utc_now
from skiway.storage import Clock as StoreClock

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

DEFAULT_ACCOUNT: Final = "default"
MANAGED_CATALOG: Final = "lake"
DEMO_CATALOG: Final = "examples"

NAMES: Final = uuid.uuid5(uuid.NAMESPACE_OID, "skiway.metastore.seeding.catalog")
STAGING: Final = ("iceberg", "staging", "2025")
NAMESPACES: Final = (("delta",), ("iceberg",), STAGING[:2], STAGING)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a demo table: its Iceberg type, and its statistics."""

    name: str
    kind: str
    low: str
    high: str
    distinct: int

    @property
    def logical_type(self) -> str:
        return {"long": "INT"}.get(self.kind, self.kind.upper())


@dataclass(frozen=True, slots=True)
class _Table:
    """A demo table.

    `loads` are the numbers of rows that each of its snapshots added, one file and one day after the other.
    """

    path: tuple[str, ...]
    name: str
    columns: tuple[_Column, ...]
    loads: tuple[int, ...]

    @property
    def location(self) -> str:
        return f"file:///demo/{'/'.join((*self.path, self.name))}"


_ORDERS = (
    _Column("o_orderkey", "long", "1", "600000", 150_000),
    _Column("o_custkey", "long", "1", "14999", 9_999),
    _Column("o_orderstatus", "string", "F", "P", 3),
    _Column("o_totalprice", "decimal(12, 2)", "857.71", "555285.16", 149_000),
    _Column("o_orderdate", "date", "1992-01-01", "1998-08-02", 2_406),
)
_LINEITEM = (
    _Column("l_orderkey", "long", "1", "600000", 150_000),
    _Column("l_linenumber", "long", "1", "7", 7),
    _Column("l_quantity", "decimal(12, 2)", "1", "50", 50),
    _Column("l_extendedprice", "decimal(12, 2)", "901.00", "104949.50", 400_000),
    _Column("l_shipdate", "date", "1992-01-02", "1998-12-01", 2_526),
)
_EVENTS = (
    _Column("event_id", "long", "1", "5000", 5_000),
    _Column("kind", "string", "checkout", "view", 4),
    _Column("happened_at", "timestamptz", "2025-01-01T00:00:00Z", "2025-01-02T23:59:59Z", 5_000),
)
_ORDERS_2025 = (*_ORDERS[:-1], _Column("o_orderdate", "date", "2025-01-01", "2025-01-31", 31))

DEMO_TABLES: Final = (
    _Table(("iceberg",), "orders", _ORDERS, loads=(100_000, 50_000)),
    _Table(("iceberg",), "lineitem", _LINEITEM, loads=(400_000, 200_000)),
    _Table(STAGING, "orders_2025", _ORDERS_2025, loads=(12_000,)),
    _Table(STAGING, "staging_events", _EVENTS, loads=(3_000, 2_000)),
)
DEMO_VIEWS: Final = {
    "open_orders": "SELECT * FROM orders WHERE o_orderstatus = 'O'",
    "revenue_by_month": "SELECT date_trunc('month', o_orderdate) AS month, sum(o_totalprice) AS revenue FROM orders GROUP BY 1",
}


def seed_home(stores: Stores, *, clock: StoreClock = utc_now) -> bool:
    """Create the account `default` with the managed catalog `lake` in a new store. Return whether that was done now."""
    return seed_once(stores, "home", lambda: _create_home(stores, clock), clock=clock)


def seed_demo(stores: Stores, *, clock: StoreClock = utc_now) -> bool:
    """Create the catalog `examples`, whose tables have statistics and no data. Return whether that was done now."""
    return seed_once(stores, "demo", lambda: _create_demo(Realm(stores, DEFAULT_ACCOUNT, clock=clock)), clock=clock)


def _create(act: Callable[[Realm, Any], object], realm: Realm, request: Any, *names: str) -> None:
    """Create a resource with the id that is derived from these names, unless it exists."""
    with suppress(AlreadyExists):
        act(replace(realm, ids=lambda: seeded_id(realm, *names)), request)


def _seeded(realm: Realm, kind: v1.ResourceKind.ValueType, *names: str) -> v1.ResourceId:
    return resource_id(realm, seeded_id(realm, *names), kind)


def seed_once(stores: Stores, seed: str, apply: Callable[[], None], *, clock: StoreClock) -> bool:
    """Apply a seed unless that was done in the life of the store. Return whether it was done now."""
    key = keys.seed(seed)
    if stores.pointers.get(key) is not None:
        return False
    apply()
    with suppress(AlreadyExists):  # another server completed it first
        stores.pointers.compare_and_set(key, clock().isoformat(), expect=ABSENT)
    return True


def _create_home(stores: Stores, clock: StoreClock) -> None:
    spec = v1.AccountSpec(display_name=DEFAULT_ACCOUNT, description="the account of a new server")
    request = v1.CreateAccountRequest(spec=spec, account_id=v1.ResourceId(id=DEFAULT_ACCOUNT))
    with suppress(AlreadyExists):
        accounts.create(Realm(stores, PLATFORM, clock=clock), request)
    if stores.pointers.get(keys.account(DEFAULT_ACCOUNT)) is None:
        return  # an account with another id has the name: an operator has set up the store
    _create_catalog(Realm(stores, DEFAULT_ACCOUNT, clock=clock), MANAGED_CATALOG, description="managed tables")


def _create_demo(realm: Realm) -> None:
    create_demo_catalog(realm, "made-up tables with statistics and without data")
    for path in NAMESPACES:
        create_demo_namespace(realm, path)
    for table in DEMO_TABLES:
        _create_table(realm, table)
    for name, sql in DEMO_VIEWS.items():
        create_demo_view(realm, name, sql)


def create_demo_catalog(realm: Realm, description: str) -> None:
    """Create the demo catalog. Raise `PreconditionFailed` if the account has another catalog with that name."""
    _create_catalog(realm, DEMO_CATALOG, description=description)
    if realm.stores.pointers.get(keys.catalog(realm.account_id, seeded_id(realm, DEMO_CATALOG))) is None:
        raise PreconditionFailed(
            f"seed.enabled creates a demo catalog {DEMO_CATALOG!r}, but account {realm.account_id!r} has another catalog with "
            "that name: rename it, or set seed.enabled=false",
            key="seed.catalog.taken",
        )


def _create_catalog(realm: Realm, name: str, **fields: str) -> None:
    spec = v1.CatalogSpec(display_name=name, **fields)  # type: ignore[arg-type]
    _create(catalogs.create, realm, v1.CreateCatalogRequest(spec=spec), name)


def create_demo_namespace(realm: Realm, path: Sequence[str]) -> None:
    """Create a namespace of the demo catalog."""
    catalog_id = _seeded(realm, v1.RK_CATALOG, DEMO_CATALOG)
    spec = v1.NamespaceSpec(display_name=path[-1], path=path[:-1], catalog_id=catalog_id)
    _create(namespaces.create, realm, v1.CreateNamespaceRequest(spec=spec), DEMO_CATALOG, *path)


def _create_table(realm: Realm, table: _Table) -> None:
    place = (DEMO_CATALOG, *table.path)
    spec = v1.TableSpec(
        display_name=table.name,
        catalog_id=_seeded(realm, v1.RK_CATALOG, DEMO_CATALOG),
        namespace_id=_seeded(realm, v1.RK_NAMESPACE, *place),
        schema_json=_schema_json(table.columns),
        upstream=v1.UpstreamRef(
            uri=table.location, format=v1.TF_ICEBERG, table_display_name=table.name, namespace_path=table.path
        ),
    )
    _create(tables.create, realm, v1.CreateTableRequest(spec=spec), *place, table.name)
    table_id = _seeded(realm, v1.RK_TABLE, *place, table.name)
    for number in range(1, len(table.loads) + 1):
        _create_snapshot(realm, table, table_id, number)


def _create_snapshot(realm: Realm, table: _Table, table_id: v1.ResourceId, number: int) -> None:
    """Create the snapshot after `number` loads, with its statistics."""
    files = [_file(table, load) for load in range(1, number + 1)]
    rows = sum(table.loads[:number])
    spec = v1.SnapshotSpec(
        table_id=table_id,
        snapshot_id=number,
        parent_snapshot_id=number - 1 or None,
        upstream_created_at=timestamp(datetime(2025, 1, number, tzinfo=UTC)),
        sequence_number=number,
        summary={"operation": "append", "total-records": str(rows)},
    )
    with suppress(AlreadyExists):
        snapshots.create(realm, v1.CreateSnapshotRequest(spec=spec))
    size = sum(file.size_bytes for file in files)
    stats = v1.TableStats(row_count=rows, data_file_count=number, total_size_bytes=size)
    statistics.put_table(realm, v1.PutTableStatsRequest(table_id=table_id, snapshot_id=number, stats=stats))
    columns = _column_stats(table.columns, rows)
    statistics.put_columns(realm, [v1.PutColumnStatsRequest(table_id=table_id, snapshot_id=number, columns=columns)])
    statistics.put_files(realm, [v1.PutFileColumnStatsRequest(table_id=table_id, snapshot_id=number, files=files)])


def create_demo_view(realm: Realm, name: str, sql: str) -> None:
    """Create a view over the orders."""
    spec = v1.ViewSpec(
        display_name=name,
        catalog_id=_seeded(realm, v1.RK_CATALOG, DEMO_CATALOG),
        namespace_id=_seeded(realm, v1.RK_NAMESPACE, DEMO_CATALOG, "iceberg"),
        sql_definitions=[v1.ViewSql(sql=sql, dialect="duckdb")],
        base_relations=[v1.NameRef(catalog=DEMO_CATALOG, path=["iceberg"], name="orders")],
        creation_search_path=["iceberg"],
    )
    _create(views.create, realm, v1.CreateViewRequest(spec=spec), DEMO_CATALOG, "iceberg", name)


def _file(table: _Table, load: int) -> v1.FileColumnStats:
    rows = table.loads[load - 1]
    return v1.FileColumnStats(
        file_path=f"{table.location}/data/{load:05d}.parquet",
        file_format="parquet",
        file_content=v1.FC_DATA,
        row_count=rows,
        size_bytes=rows * 8 * len(table.columns),
        columns=_column_stats(table.columns, rows),
        sequence_number=load,
    )


def _column_stats(columns: Sequence[_Column], rows: int) -> list[v1.ColumnStats]:
    return [
        v1.ColumnStats(
            column_id=number,
            column_name=column.name,
            logical_type=column.logical_type,
            value_count=rows,
            null_count=0,
            ndv=v1.Ndv(exact=min(column.distinct, rows)),
            min=column.low,
            max=column.high,
        )
        for number, column in enumerate(columns, start=1)
    ]


def _schema_json(columns: Sequence[_Column]) -> str:
    fields = [
        {"id": number, "name": column.name, "required": True, "type": column.kind}
        for number, column in enumerate(columns, start=1)
    ]
    return json.dumps({"type": "struct", "schema-id": 0, "fields": fields})


def seeded_id(realm: Realm, *names: str) -> str:
    """The id that is derived from these names."""
    return str(uuid.uuid5(NAMES, "/".join((realm.account_id, *names))))


FILLED_NAMESPACE: Final = "iceberg"
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
    return seed_once(stores, "demo", lambda: _create_filled_tables(realm, warehouse), clock=clock)


def _create_filled_tables(realm: Realm, warehouse: Warehouse) -> None:
    create_demo_catalog(realm, "orders and their items, as Iceberg tables")
    create_demo_namespace(realm, (FILLED_NAMESPACE,))
    for table in FILLED_TABLES:
        _create_filled_table(realm, warehouse, table)
    for name, sql in DEMO_VIEWS.items():
        create_demo_view(realm, name, sql)


@dataclass(frozen=True, slots=True)
class _FilledTable:
    """A demo table: its rows for a range of orders."""

    name: str
    rows: Callable[[int, int], pa.Table]
    partition_by: Sequence[str] = ()


def _create_filled_table(realm: Realm, warehouse: Warehouse, table: _FilledTable) -> None:
    namespace_id = _seeded(realm, v1.RK_NAMESPACE, DEMO_CATALOG, FILLED_NAMESPACE)
    # With a random id: a server that loses the race to create the table deletes its folder, which must not be the winner's.
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


def _found(realm: Realm, warehouse: Warehouse, table: _FilledTable, namespace_id: v1.ResourceId) -> ManagedTable:
    named = tables.find(realm, namespace_id.id, table.name)
    if named is None or not named.metadata_location:
        raise PreconditionFailed(
            f"seed.mode=iceberg creates a table {DEMO_CATALOG}.{FILLED_NAMESPACE}.{table.name}, but the existing one is not a managed "
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


FILLED_TABLES: Final = (
    _FilledTable("orders", _orders, ("month(o_orderdate)",)),
    _FilledTable("lineitem", _items),
)


MIRROR_CATALOG: Final = "example_files"
MIRROR_CONNECTOR: Final = "example files"
MIRRORED_TABLE: Final = ("shop", "customers")
MIRRORED_FILES: Final = ((1, 250), (251, 499))
"""The first and the last customer of each file."""


def seed_mirror(
    stores: Stores, folder: Path, *, secrets: SecretsStore, sync: bool, clock: StoreClock = utc_now
) -> bool:
    """Create files in `folder` and a connector that mirrors them into the catalog `example_files`.

    With `sync`, enqueue the connector's first job. Return whether that was done now.
    """
    realm = Realm(stores, DEFAULT_ACCOUNT, clock=clock)
    return seed_once(stores, "mirror", lambda: _create_mirror(realm, folder, secrets, sync=sync), clock=clock)


def _create_mirror(realm: Realm, folder: Path, secrets: SecretsStore, *, sync: bool) -> None:
    for first, last in MIRRORED_FILES:
        _write_customers(folder.joinpath(*MIRRORED_TABLE, f"{first:05d}.parquet"), _customers(first, last))
    _create_catalog(
        realm, MIRROR_CATALOG, description="customers in Parquet files, mirrored", connector_ref=MIRROR_CONNECTOR
    )
    connector = v1.ConnectorSpec(
        display_name=MIRROR_CONNECTOR,
        description="the files of the examples",
        kind=v1.CK_PARQUET,
        uri=str(folder),
        destination=v1.ConnectorDestination(catalog_id=_seeded(realm, v1.RK_CATALOG, MIRROR_CATALOG)),
    )
    names = MIRROR_CATALOG, MIRROR_CONNECTOR
    _create(connectors.calls(secrets).create, realm, v1.CreateConnectorRequest(spec=connector), *names)
    if sync:
        connectors.trigger(realm, v1.TriggerReconcileRequest(connector_id=_seeded(realm, v1.RK_CONNECTOR, *names)))


def _write_customers(file: Path, rows: pa.Table) -> None:
    """Write a file at once, unless it exists: another server may have written it, and may be reading it."""
    from pyarrow.parquet import write_table

    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    write_table(rows, partial)
    partial.replace(file)


def _customers(first: int, last: int) -> pa.Table:
    keys = range(first, last + 1)
    segments = ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY")
    return pa.table(
        {
            "c_custkey": pa.array(keys, pa.int64()),
            "c_name": pa.array([f"Customer#{key:09d}" for key in keys]),
            "c_mktsegment": pa.array([segments[key % len(segments)] for key in keys]),
        }
    )
