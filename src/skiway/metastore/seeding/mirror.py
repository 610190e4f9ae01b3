"""A demo connector: customers in Parquet files, which reconciliation mirrors and profiles like any other source.

The tables of the connector are not written here. The first job of the connector creates them: its first pass mirrors their
metadata, the second computes their statistics.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from skiway.errors import AlreadyExists
from skiway.metastore import connectors
from skiway.metastore.records.realm import Realm, resource_id
from skiway.metastore.resources import catalogs
from skiway.metastore.seeding.catalog import DEFAULT_ACCOUNT, seed_once, seeded_id
from skiway.model import v1
from skiway.security import SecretsStore
from skiway.storage import Clock, Stores, utc_now

__all__ = ["seed_mirror"]

CATALOG: Final = "example_files"
CONNECTOR: Final = "example files"
TABLE: Final = ("shop", "customers")
FILES: Final = ((1, 250), (251, 499))
"""The first and the last customer of each file."""


def seed_mirror(stores: Stores, folder: Path, *, secrets: SecretsStore, sync: bool, clock: Clock = utc_now) -> bool:
    """Create files in `folder` and a connector that mirrors them into the catalog `example_files`.

    With `sync`, enqueue the connector's first job. Return whether that was done now.
    """
    realm = Realm(stores, DEFAULT_ACCOUNT, clock=clock)
    return seed_once(stores, "mirror", lambda: _create(realm, folder, secrets, sync=sync), clock=clock)


def _create(realm: Realm, folder: Path, secrets: SecretsStore, *, sync: bool) -> None:
    for first, last in FILES:
        _write(folder.joinpath(*TABLE, f"{first:05d}.parquet"), _customers(first, last))
    catalog_id = resource_id(realm, seeded_id(realm, CATALOG), v1.RK_CATALOG)
    connector_id = resource_id(realm, seeded_id(realm, CATALOG, CONNECTOR), v1.RK_CONNECTOR)
    with suppress(AlreadyExists):
        spec = v1.CatalogSpec(
            display_name=CATALOG, description="customers in Parquet files, mirrored", connector_ref=CONNECTOR
        )
        catalogs.create(_with_id(realm, catalog_id), v1.CreateCatalogRequest(spec=spec))
    with suppress(AlreadyExists):
        connector = v1.ConnectorSpec(
            display_name=CONNECTOR,
            description="the files of the examples",
            kind=v1.CK_PARQUET,
            uri=str(folder),
            destination=v1.ConnectorDestination(catalog_id=catalog_id),
        )
        connectors.create(_with_id(realm, connector_id), v1.CreateConnectorRequest(spec=connector), secrets=secrets)
    if sync:
        connectors.trigger(realm, v1.TriggerReconcileRequest(connector_id=connector_id))


def _with_id(realm: Realm, given: v1.ResourceId) -> Realm:
    return replace(realm, ids=lambda: given.id)


def _write(file: Path, rows: pa.Table) -> None:
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
