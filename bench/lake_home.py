"""A home directory with the same rows three times: a managed table, and mirrors of a Delta table and of Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.disk import scratch
from bench.sales import rows
from bench.serving import skiway_serve
from skiway.client import AirportClient
from skiway.metastore import Realm, connectors
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.resources import catalogs
from skiway.metastore.seeding import seed_home
from skiway.model import v1
from skiway.security import MemorySecrets
from skiway.storage import Stores, open_stores

FILES = 10


@dataclass(frozen=True)
class Twin:
    """A table of the lake, and the paths of its data files."""

    catalog: str
    table: str
    files: list[str]


@contextmanager
def served_lake(total: int) -> Iterator[tuple[str, dict[str, Twin]]]:
    """Serve a lake, and yield its address and its tables of `total` rows by format."""
    with scratch() as place:
        parts = [rows(number, total // FILES) for number in range(FILES)]
        twins = {"Delta": _delta(place, parts), "Parquet": _parquet(place, parts)}
        _mirrored(place)
        with skiway_serve(place / "home") as doors:
            yield doors["airport"], {"Iceberg": _managed(place, doors["airport"], parts), **twins}


def _managed(place: Path, location: str, parts: list[pa.Table]) -> Twin:
    """A table written by one INSERT over Airport."""
    with AirportClient(location, "lake") as lake:
        lake.create_schema("shop")
        lake.create_table("shop.sales", parts[0].schema)
        batches = (batch for part in parts for batch in part.to_batches())
        lake.insert("shop.sales", pa.RecordBatchReader.from_batches(parts[0].schema, batches))
    return Twin("lake", "shop.sales", sorted(map(str, place.glob("home/warehouse/**/*.parquet"))))


def _delta(place: Path, parts: list[pa.Table]) -> Twin:
    from deltalake import write_deltalake

    folder = place / "delta" / "shop" / "sales"
    for part in parts:
        write_deltalake(folder, part, mode="append")
    return Twin("delta", "shop.sales", sorted(map(str, folder.glob("*.parquet"))))


def _parquet(place: Path, parts: list[pa.Table]) -> Twin:
    folder = place / "parquet" / "shop" / "sales"
    folder.mkdir(parents=True)
    for number, part in enumerate(parts):
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=131_072)
    return Twin("parquet", "shop.sales", sorted(map(str, folder.glob("*.parquet"))))


def _mirrored(place: Path) -> None:
    home = place / "home"
    home.mkdir()
    with open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as stores:
        seed_home(stores)
        _mirror(stores, "delta", v1.CK_DELTA, place)
        _mirror(stores, "parquet", v1.CK_PARQUET, place)


def _mirror(stores: Stores, name: str, kind: v1.ConnectorKind.ValueType, place: Path) -> None:
    realm, secrets = Realm(stores, "default"), MemorySecrets()
    catalog = catalogs.create(realm, v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name=name))).catalog
    spec = v1.ConnectorSpec(
        display_name=f"{name} files",
        kind=kind,
        uri=str(place / name),
        source=v1.ConnectorSource(namespace=v1.NamespacePath(segments=["shop"])),
        destination=v1.ConnectorDestination(catalog_id=catalog.resource_id),
    )
    made = connectors.create(realm, v1.CreateConnectorRequest(spec=spec), secrets=secrets).connector
    outcome = Reconciler(secrets).run(realm, made.resource_id, mode=v1.CAP_METADATA_ONLY_CORE)
    assert not outcome.failures, outcome.failures
