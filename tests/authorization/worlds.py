"""A small lake with rows, for the doors that serve tables: `lake.sales.people` and `lake.hr.secret`, with all grants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyiceberg.view.metadata import ViewVersion

from authorization.callers import ByName, add_grants, add_policies, add_view_policy
from metastore.resource_factory import ResourceFactory
from skiway.formats.iceberg.metadata import new_metadata, write_metadata
from skiway.formats.iceberg.types import iceberg_schema
from skiway.formats.iceberg.view_metadata import new_view, view_json
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import Realm, branches, managed, queries
from skiway.model import v1
from skiway.request_path import Access
from skiway.security import PermissionAuthorizer, Principal
from skiway.storage import Stores, open_stores
from skiway.storage.pointers.memory import MemoryPointerStore

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "small": pa.int32()})
RUNNING_QUERY = "of-ann"
LEFT_BY_READING = ("/events/", "/expected/", "/folders/", "/query-history/", "/usage/")


@dataclass
class World:
    """The stores of one state of the lake. The files of all states are in one warehouse."""

    stores: Stores

    @classmethod
    def made(cls, stores: Stores, warehouse: Warehouse) -> World:
        factory = ResourceFactory(stores)
        factory.account("a2")
        realm = Realm(stores, "a1")
        catalog, other = factory.catalog("lake"), factory.catalog("other")
        sales = factory.namespace("sales", catalog=catalog)
        secret = factory.namespace("secret", catalog=other)
        people = _table(realm, warehouse, sales, "people")
        objects = {
            "catalog": catalog.resource_id,
            "namespace": sales.resource_id,
            "table": people.resource_id,
            "elsewhere": _table(realm, warehouse, secret, "hidden").resource_id,
        }
        _table(realm, warehouse, sales, "orders")
        adults = factory.view(
            "adults", namespace=sales, output_columns=[v1.SchemaColumn(name="id", logical_type="BIGINT")]
        )
        factory.namespace("empty", catalog=catalog)
        managed.drop(realm, warehouse, _table(realm, warehouse, sales, "dropped").resource_id)
        begin = v1.BeginQueryRequest(default_catalog_id=catalog.resource_id, query_id=RUNNING_QUERY, ttl_seconds=3600)
        queries.begin(replace(realm, caller="ann"), begin)
        add_grants(realm, objects)
        add_policies(realm, people.resource_id)
        add_view_policy(realm, adults.resource_id)
        branches.create(realm, v1.CreateBranchRequest(name="lake@dev"))
        return cls(stores)

    def state(self) -> list[Any]:
        """Everything but what reading leaves behind."""
        found = (each for each in self.stores.pointers.scan("") if not each.key.startswith(LEFT_BY_READING))
        return [each for each in found if not (each.key.startswith("/branches/") and _is_left(each.key))]


def _is_left(key: str) -> bool:
    """Whether a pointer of a branch is one that reading leaves behind, such as a snapshot of the base."""
    return any(part in key for part in ("/adopted/", "/snapshots/", *LEFT_BY_READING))


def _table(realm: Realm, warehouse: Warehouse, namespace: v1.Namespace, name: str) -> v1.Table:
    return managed.create(realm, warehouse, namespace_id=namespace.resource_id, name=name, schema=SCHEMA).table


def _written_table(warehouse: Warehouse, folder: str) -> str:
    """The metadata file of a table that is in no catalog."""
    metadata = new_metadata(iceberg_schema(SCHEMA), location=folder)
    return write_metadata(warehouse.files(folder), metadata, version=0)


def _written_view(location: str, folder: Path) -> str:
    """The metadata file of a view that is in no catalog."""
    version = ViewVersion.model_validate(
        {
            "schema-id": 0,
            "representations": [{"type": "sql", "sql": "SELECT 1 AS id", "dialect": "spark"}],
            "default-namespace": ["sales"],
        }
    )
    made = new_view(
        view_uuid=str(uuid4()), location=location, schema=iceberg_schema(SCHEMA), version=version, properties={}
    )
    folder.mkdir(parents=True)
    (folder / "view.metadata.json").write_text(view_json(made))
    return f"{location}/view.metadata.json"


def copied(stores: Stores) -> Stores:
    """Another store with the same content. Blobs never change, so they are shared."""
    pointers = MemoryPointerStore()
    for pointer in stores.pointers.scan(""):
        pointers._set(pointer)
    return Stores(pointers, stores.blobs)


class Worlds:
    """The current state of the lake, and the access that doors get to it."""

    def __init__(self, folder: Path) -> None:
        approved = folder / "approved"
        self.warehouse = Warehouse.at(str(folder / "warehouse"), approved=[("a1/lake", str(approved))])
        self.table_metadata = _written_table(self.warehouse, f"file://{approved}/table")
        self.view_metadata = _written_view(f"file://{approved}/view", approved / "view")
        self.access = Access(self._realm_of, ByName(), PermissionAuthorizer())
        with open_stores("memory://") as stores:
            self._first = World.made(stores, self.warehouse)
        self.renew()

    def renew(self) -> None:
        """Return to the first state."""
        self.now = World(copied(self._first.stores))

    def _realm_of(self, caller: Principal) -> Realm:
        return Realm(self.now.stores, caller.account_id)


@contextmanager
def unchanged(worlds: Worlds, *, allowed: bool, changes: bool) -> Iterator[None]:
    """Check that a call which is not allowed changes nothing, and begin anew after one that changes something."""
    before = worlds.now.state()
    yield
    if not allowed or not changes:
        assert worlds.now.state() == before
    else:
        worlds.renew()
