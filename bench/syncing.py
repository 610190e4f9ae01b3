"""Syncs of connectors: 1,000 tables that have not changed, and a new snapshot of 100,000 files.

The large snapshot is captured in a process of its own, because its peak memory is a figure, too.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from bench.disk import scratch
from bench.planning import table_of_files
from bench.report import Figure
from skiway.metastore import Realm, connectors
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.resources import catalogs
from skiway.metastore.seeding import seed_home
from skiway.model import v1
from skiway.security import MemorySecrets
from skiway.storage import Stores, open_stores

TABLES: Final = 1_000
FILES: Final = 100_000
SYNC_S: Final = 10
CAPTURE_S: Final = 60
CAPTURE_MB: Final = 2_000
ROWS: Final = pa.table({"id": range(10), "name": [f"name {number}" for number in range(10)]})


def figures() -> Iterator[Figure]:
    """Yield the figures of this part."""
    for name, (kind, make) in KINDS.items():
        with scratch() as place, _stores(place) as stores:
            (place / "shop").mkdir()
            uri, options = make(place)
            sync = _connector(stores, kind, uri, options)
            sync()
            seconds = sync()
            yield Figure(f"sync of {TABLES:,} unchanged tables, {name}", "s", seconds, aim_below=SYNC_S)
    with scratch() as place:
        table_of_files(place, FILES)
        command = [sys.executable, "-m", "bench.syncing", str(place)]
        measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        yield Figure(f"capture of a snapshot of {FILES:,} files", "s", measured["seconds"], aim_below=CAPTURE_S)
        name = f"capture of a snapshot of {FILES:,} files, peak memory"
        yield Figure(name, "MB", measured["megabytes"], aim_below=CAPTURE_MB)


def captured(place: Path) -> dict[str, float]:
    """Sync the table of many files, and return how long that took and the peak memory of this process."""
    with _stores(place) as stores:
        seconds = _connector(stores, v1.CK_ICEBERG, *_sql_catalog(place, "sales"))()
    return {"seconds": seconds, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000}


def _stores(place: Path) -> Stores:
    home = place / "home"
    home.mkdir()
    stores = open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri())
    seed_home(stores)
    return stores


def _connector(
    stores: Stores, kind: v1.ConnectorKind.ValueType, uri: str, options: dict[str, str]
) -> Callable[[], float]:
    """A function that syncs a new connector, and returns how many seconds that took."""
    realm, secrets = Realm(stores, "default"), MemorySecrets()
    catalog = catalogs.create(realm, v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="mirror"))).catalog
    spec = v1.ConnectorSpec(
        display_name="tables",
        kind=kind,
        uri=uri,
        source=v1.ConnectorSource(namespace=v1.NamespacePath(segments=[options.pop("namespace", "shop")])),
        destination=v1.ConnectorDestination(catalog_id=catalog.resource_id),
        properties=options,
        policy=v1.ConnectorPolicy(scope=v1.SNS_CURRENT),
    )
    made = connectors.create(realm, v1.CreateConnectorRequest(spec=spec), secrets=secrets).connector

    def sync() -> float:
        started = time.perf_counter()
        outcome = Reconciler(secrets).run(realm, made.resource_id, mode=v1.CAP_METADATA_ONLY_CORE)
        assert not outcome.failures, outcome.failures
        return time.perf_counter() - started

    return sync


def _parquet(place: Path) -> tuple[str, dict[str, str]]:
    for number in range(TABLES):
        folder = place / "shop" / f"table_{number}"
        folder.mkdir()
        pq.write_table(ROWS, folder / "rows.parquet")
    return str(place), {}


def _delta(place: Path) -> tuple[str, dict[str, str]]:
    from deltalake import write_deltalake

    for number in range(TABLES):
        write_deltalake(place / "shop" / f"table_{number}", ROWS)
    return str(place), {}


def _iceberg(place: Path) -> tuple[str, dict[str, str]]:
    from pyiceberg.catalog.sql import SqlCatalog

    uri, options = _sql_catalog(place, "shop")
    with SqlCatalog("default", uri=uri, warehouse=options["warehouse"]) as catalog:
        catalog.create_namespace("shop")
        for number in range(TABLES):
            catalog.create_table(f"shop.table_{number}", schema=ROWS.schema).append(ROWS)
    return uri, options


def _sql_catalog(place: Path, namespace: str) -> tuple[str, dict[str, str]]:
    warehouse = f"file://{place}/warehouse"
    return f"sqlite:///{place}/catalog.db", {"namespace": namespace, "warehouse": warehouse}


KINDS: Final[dict[str, tuple[v1.ConnectorKind.ValueType, Callable[[Path], Any]]]] = {
    "Parquet": (v1.CK_PARQUET, _parquet),
    "Delta": (v1.CK_DELTA, _delta),
    "Iceberg": (v1.CK_ICEBERG, _iceberg),
}


if __name__ == "__main__":
    print(json.dumps(captured(Path(sys.argv[1]))))
