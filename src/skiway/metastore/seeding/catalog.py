"""The initial content of a store: an account with a catalog and, on request, demo tables.

Each seed is applied once in the life of a store, and a pointer records that: what people delete does not come back.
Until it is complete it may be applied again, by the same or another server, even at the same time. Ids are derived from
names, so whoever is second finds what the first has created.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from skiway.errors import AlreadyExists, PreconditionFailed
from skiway.metastore import statistics
from skiway.metastore.records import keys
from skiway.metastore.records.realm import PLATFORM, Realm, resource_id, timestamp
from skiway.metastore.resources import accounts, catalogs, namespaces, snapshots, tables, views
from skiway.model import v1
from skiway.storage import ABSENT, Clock, Stores, utc_now

__all__ = [
    "DEFAULT_ACCOUNT",
    "DEMO_CATALOG",
    "DEMO_VIEWS",
    "MANAGED_CATALOG",
    "create_demo_catalog",
    "create_demo_namespace",
    "create_demo_view",
    "seed_demo",
    "seed_home",
    "seed_once",
    "seeded_id",
]

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


def seed_home(stores: Stores, *, clock: Clock = utc_now) -> bool:
    """Create the account `default` with the managed catalog `lake` in a new store. Return whether that was done now."""
    return seed_once(stores, "home", lambda: _create_home(stores, clock), clock=clock)


def seed_demo(stores: Stores, *, clock: Clock = utc_now) -> bool:
    """Create the catalog `examples`, whose tables have statistics and no data. Return whether that was done now."""
    return seed_once(stores, "demo", lambda: _create_demo(Realm(stores, DEFAULT_ACCOUNT, clock=clock)), clock=clock)


def seed_once(stores: Stores, seed: str, apply: Callable[[], None], *, clock: Clock) -> bool:
    """Apply a seed unless that was done in the life of the store. Return whether it was done now."""
    key = keys.seed(seed)
    if stores.pointers.get(key) is not None:
        return False
    apply()
    with contextlib.suppress(AlreadyExists):  # another server completed it first
        stores.pointers.compare_and_set(key, clock().isoformat(), expect=ABSENT)
    return True


def _create_home(stores: Stores, clock: Clock) -> None:
    spec = v1.AccountSpec(display_name=DEFAULT_ACCOUNT, description="the account of a new server")
    request = v1.CreateAccountRequest(spec=spec, account_id=v1.ResourceId(id=DEFAULT_ACCOUNT))
    with contextlib.suppress(AlreadyExists):
        accounts.create(Realm(stores, PLATFORM, clock=clock), request)
    if stores.pointers.get(keys.account(DEFAULT_ACCOUNT)) is None:
        return  # an account with another id has the name: the store was set up by somebody
    _create_catalog(Realm(stores, DEFAULT_ACCOUNT, clock=clock), MANAGED_CATALOG, "managed tables")


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
    _create_catalog(realm, DEMO_CATALOG, description)
    if realm.stores.pointers.get(keys.catalog(realm.account_id, seeded_id(realm, DEMO_CATALOG))) is None:
        raise PreconditionFailed(
            f"seed.enabled creates a demo catalog {DEMO_CATALOG!r}, but account {realm.account_id!r} has another catalog with "
            "that name: rename it, or set seed.enabled=false",
            key="seed.catalog.taken",
        )


def _create_catalog(realm: Realm, name: str, description: str) -> None:
    spec = v1.CatalogSpec(display_name=name, description=description)
    with contextlib.suppress(AlreadyExists):
        catalogs.create(_naming(realm, name), v1.CreateCatalogRequest(spec=spec))


def create_demo_namespace(realm: Realm, path: Sequence[str]) -> None:
    """Create a namespace of the demo catalog."""
    spec = v1.NamespaceSpec(display_name=path[-1], path=path[:-1], catalog_id=_catalog_id(realm))
    with contextlib.suppress(AlreadyExists):
        namespaces.create(_naming(realm, DEMO_CATALOG, *path), v1.CreateNamespaceRequest(spec=spec))


def _create_table(realm: Realm, table: _Table) -> None:
    place = (DEMO_CATALOG, *table.path)
    spec = v1.TableSpec(
        display_name=table.name,
        catalog_id=_catalog_id(realm),
        namespace_id=resource_id(realm, seeded_id(realm, *place), v1.RK_NAMESPACE),
        schema_json=_schema_json(table.columns),
        upstream=v1.UpstreamRef(
            uri=table.location, format=v1.TF_ICEBERG, table_display_name=table.name, namespace_path=table.path
        ),
    )
    with contextlib.suppress(AlreadyExists):
        tables.create(_naming(realm, *place, table.name), v1.CreateTableRequest(spec=spec))
    table_id = resource_id(realm, seeded_id(realm, *place, table.name), v1.RK_TABLE)
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
    with contextlib.suppress(AlreadyExists):
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
        catalog_id=_catalog_id(realm),
        namespace_id=resource_id(realm, seeded_id(realm, DEMO_CATALOG, "iceberg"), v1.RK_NAMESPACE),
        sql_definitions=[v1.ViewSql(sql=sql, dialect="duckdb")],
        base_relations=[v1.NameRef(catalog=DEMO_CATALOG, path=["iceberg"], name="orders")],
        creation_search_path=["iceberg"],
    )
    with contextlib.suppress(AlreadyExists):
        views.create(_naming(realm, DEMO_CATALOG, "iceberg", name), v1.CreateViewRequest(spec=spec))


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


def _catalog_id(realm: Realm) -> v1.ResourceId:
    return resource_id(realm, seeded_id(realm, DEMO_CATALOG), v1.RK_CATALOG)


def _naming(realm: Realm, *names: str) -> Realm:
    """The realm, with an id generator that returns the id for these names."""
    return replace(realm, ids=lambda: seeded_id(realm, *names))


def seeded_id(realm: Realm, *names: str) -> str:
    """The id that is derived from these names."""
    return str(uuid.uuid5(NAMES, "/".join((realm.account_id, *names))))
