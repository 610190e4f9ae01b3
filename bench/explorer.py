"""The explorer with many tables: the pages of tables, search, the home page, and the first pages of a server and of a visitor.

    python -m bench.explorer 100000

measures with another number of tables. Each table has ten columns, a snapshot and statistics; every hundredth has profiles.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx

from bench.report import Figure, report
from bench.serving import skiway_serve
from skiway.client import Metastore
from skiway.metastore import Realm, connectors
from skiway.metastore import statistics as stored_statistics
from skiway.metastore.resources import catalogs, namespaces, snapshots, tables
from skiway.metastore.seeding import seed_home
from skiway.model import v1
from skiway.security import MemorySecrets
from skiway.storage import open_stores

MEMORY: Final = Path("/dev/shm")
TABLES: Final = 10_000
PER_NAMESPACE: Final = 500
PROFILED: Final = 100
VISITS: Final = 200
WARMING: Final = 100
"""Visits before the first figure: a new server is still busy with itself."""
SCHEMA: Final = (
    '{"type": "struct", "fields": ['
    + ", ".join(f'{{"id": {n}, "name": "column_{n}", "required": false, "type": "long"}}' for n in range(1, 11))
    + "]}"
)


def figures(count: int = TABLES) -> Iterator[Figure]:
    """Yield the figures of this part."""
    # In memory where there is /dev/shm: creating the tables would otherwise take most of the time, and pages only read.
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None, prefix="bench-") as place:
        home = Path(place)
        names = seeded(home, count)
        with skiway_serve(home) as doors:
            yield from first_visits(doors["http"], count)
            profile(doors["rpc"], names[::PROFILED])
            yield from visited(doors["http"], names)


def seeded(
    home: Path, count: int, *, mirrored: bool = False, per_namespace: int = PER_NAMESPACE
) -> list[tuple[str, str]]:
    """Create the tables in a new home, by a connector if they are `mirrored`; return their namespaces and names."""
    names = []
    with open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as stores:
        seed_home(stores)
        realm = Realm(stores, "default")
        found = catalogs.find(realm, "lake")
        assert found is not None
        catalog_id = found.value.resource_id
        connector = _connector(realm, catalog_id) if mirrored else None
        for first in range(0, count, per_namespace):
            spec = v1.NamespaceSpec(catalog_id=catalog_id, display_name=f"area_{first // per_namespace}")
            place = namespaces.create(realm, v1.CreateNamespaceRequest(spec=spec)).namespace
            for number in range(first, min(count, first + per_namespace)):
                _table(realm, place, f"table_{number}", connector)
                names.append((place.display_name, f"table_{number}"))
    return names


def _connector(realm: Realm, catalog_id: v1.ResourceId) -> v1.ResourceId:
    spec = v1.ConnectorSpec(
        display_name="files",
        kind=v1.CK_PARQUET,
        uri="/data",
        source=v1.ConnectorSource(namespace=v1.NamespacePath(segments=["data"])),
        destination=v1.ConnectorDestination(catalog_id=catalog_id),
    )
    return connectors.create(realm, v1.CreateConnectorRequest(spec=spec), secrets=MemorySecrets()).connector.resource_id


def _table(realm: Realm, place: v1.Namespace, name: str, connector: v1.ResourceId | None) -> None:
    upstream = v1.UpstreamRef(uri=f"/data/{name}", table_display_name=name, format=v1.TF_PARQUET)
    if connector is not None:
        upstream.connector_id.CopyFrom(connector)
    spec = v1.TableSpec(
        display_name=name,
        description=f"the table {name}",
        catalog_id=place.catalog_id,
        namespace_id=place.resource_id,
        schema_json=SCHEMA,
        upstream=upstream,
    )
    table = tables.create(realm, v1.CreateTableRequest(spec=spec)).table
    snapshot = v1.SnapshotSpec(table_id=table.resource_id, snapshot_id=1, schema_json=SCHEMA)
    snapshot.upstream_created_at.GetCurrentTime()
    snapshots.create(realm, v1.CreateSnapshotRequest(spec=snapshot))
    stats = v1.TableStats(row_count=1000, data_file_count=1, total_size_bytes=10_000)
    request = v1.PutTableStatsRequest(table_id=table.resource_id, snapshot_id=1, stats=stats)
    stored_statistics.put_table(realm, request)


def profile(address: str, names: list[tuple[str, str]]) -> None:
    """Store statistics of the columns of some tables."""
    histogram = v1.Histogram(bounds=[str(n) for n in range(21)], counts=[50] * 20)
    columns = [
        v1.ColumnStats(
            column_id=n,
            column_name=f"column_{n}",
            logical_type="BIGINT",
            value_count=1000,
            null_count=10,
            min="0",
            max="20",
            histogram=histogram,
        )
        for n in range(1, 11)
    ]
    with Metastore(address) as lake:
        for namespace, name in names:
            lake.statistics.put_columns(("lake", namespace, name), 1, columns)


def first_visits(address: str, count: int) -> Iterator[Figure]:
    """Visit a server that has just started, wait until its search index is complete, and come as another visitor."""
    title = f"{count:,} tables"

    def took(path: str) -> float:
        with httpx.Client(base_url=address, timeout=1200) as browser:
            started = time.perf_counter()
            answer = browser.get(path)
            assert answer.status_code == 200, answer.text[-800:]
            return time.perf_counter() - started

    def is_complete() -> bool:
        return httpx.get(f"{address}/index.json", timeout=60).json()["incomplete"] is None

    started = time.perf_counter()
    yield Figure(f"first home page after the start of the server, {title}", "s", took("/"), aim_below=1)
    yield Figure(f"first search after the start of the server, {title}", "s", took("/search?q=table_7"), aim_below=1)
    while not is_complete():
        time.sleep(1)
    yield Figure(f"search index complete after the first visit, {title}", "s", time.perf_counter() - started)
    yield Figure(f"first home page of another visitor, {title}", "s", took("/"), aim_below=1)
    yield Figure(f"first search of another visitor, {title}", "s", took("/search?q=table_7"), aim_below=1)


def visited(address: str, names: list[tuple[str, str]]) -> Iterator[Figure]:
    """Visit pages as one visitor, one after the other."""
    chosen = random.Random(1)
    with httpx.Client(base_url=address, timeout=1200) as browser:

        def get(path: str) -> None:
            answer = browser.get(path)
            assert answer.status_code == 200, answer.text[-800:]

        def table(pool: list[tuple[str, str]], tab: str) -> Callable[[], None]:
            return lambda: get("/tables/lake/{}/{}?tab={}".format(*chosen.choice(pool), tab))

        p95(table(names, "columns"), WARMING)
        count = f"{len(names):,} tables"
        limit = 150
        for title, pool, tab in (
            ("table page", names, "columns"),
            ("table page with profiles", names[::PROFILED], "columns"),
            ("table page, snapshots", names, "snapshots"),
            ("table page, files", names, "files"),
        ):
            yield Figure(f"{title}, p95, {count}", "ms", p95(table(pool, tab)), aim_below=limit)
        yield Figure(f"search, p95, {count}", "ms", p95(lambda: get(f"/search?q=table_{chosen.randrange(99)}"), 50))
        yield Figure(f"home page, p95, {count}", "ms", p95(lambda: get("/"), 20))
        for title, path in (
            ("catalog page", "/catalogs/lake"),
            ("namespace page", "/catalogs/lake/{}"),
            ("tree of a catalog", "/tree/lake"),
            ("tree of a namespace", "/tree/lake/{}"),
            ("filter of the tree", "/search.json?q={}"),
        ):
            took = p95(lambda path=path: get(path.format(chosen.choice(names)["search" in path])), 50)  # type: ignore[misc]
            yield Figure(f"{title}, p95, {count}", "ms", took, aim_below=limit)


def p95(visit: Callable[[], None], times: int = VISITS) -> float:
    """The 95th percentile of the time of a visit, in milliseconds."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        visit()
        taken.append((time.perf_counter() - started) * 1000)
    return statistics.quantiles(taken, n=20, method="inclusive")[18]


if __name__ == "__main__":
    wanted = int(sys.argv[1])
    report("explorer" if wanted == TABLES else f"explorer-{wanted}", figures(wanted))
