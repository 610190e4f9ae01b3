"""Upstream tables for the tests of reconciliation, written by PyIceberg, delta-rs and pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from metastore.resource_factory import ResourceFactory
from skiway.metastore import connectors
from skiway.metastore.reconcile.outcomes import Outcome
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import TABLE
from skiway.metastore.resources import hierarchy, snapshots
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1
from skiway.security import MemorySecrets

SECRETS = MemorySecrets()
CORE = v1.CAP_METADATA_ONLY_CORE
STATS = v1.CAP_STATS_ONLY_ASYNC


def parquet(folder: Path, name: str, /, **columns: list[Any]) -> Path:
    """Write a table that consists of one file."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


def iceberg(folder: Path) -> Any:
    """A PyIceberg catalog with an empty namespace `sales`."""
    from pyiceberg.catalog.sql import SqlCatalog

    folder.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog("default", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("sales")
    return catalog


def connector(
    factory: ResourceFactory, uri: str, kind: Any = v1.CK_PARQUET, name: str = "files", **more: Any
) -> v1.Connector:
    more.setdefault("destination", v1.ConnectorDestination(catalog_id=factory.first_catalog().resource_id))
    spec = v1.ConnectorSpec(display_name=name, kind=kind, uri=uri, **more)
    return connectors.create(factory.home, v1.CreateConnectorRequest(spec=spec), secrets=SECRETS).connector


def iceberg_connector(factory: ResourceFactory, folder: Path, **more: Any) -> v1.Connector:
    more.setdefault("source", v1.ConnectorSource(namespace=v1.NamespacePath(segments=["sales"])))
    properties = {"warehouse": f"file://{folder}/warehouse"}
    return connector(factory, f"sqlite:///{folder}/catalog.db", v1.CK_ICEBERG, properties=properties, **more)


def run(factory: ResourceFactory, of: v1.Connector, mode: Any = CORE, profile: Any = None, **how: Any) -> Outcome:
    return Reconciler(SECRETS, profile).run(factory.home, of.resource_id, mode=mode, **how)


def mirrored(factory: ResourceFactory) -> dict[str, v1.Table]:
    """All tables by dotted name."""
    prefix = keys.table("a1", "")
    found = filter(None, map(factory.home.all(TABLE).follow, factory.stores.pointers.scan(prefix)))
    return {_name(factory, each.value): each.value for each in found}


def _name(factory: ResourceFactory, table: v1.Table) -> str:
    return ".".join((*full_path(hierarchy.namespace(factory.home, table.namespace_id).value), table.display_name))


def snapshots_of(factory: ResourceFactory, table: v1.Table) -> list[v1.Snapshot]:
    """The snapshots of the table, newest first."""
    return list(
        snapshots.list_(
            factory.home,
            v1.ListSnapshotsRequest(table_id=table.resource_id, page=v1.PageRequest(page_size=100)),
        ).snapshots
    )


def current_of(factory: ResourceFactory, table: v1.Table) -> v1.Snapshot:
    ref = v1.SnapshotRef(special=v1.SS_CURRENT)
    return snapshots.get(factory.home, v1.GetSnapshotRequest(table_id=table.resource_id, snapshot=ref)).snapshot
