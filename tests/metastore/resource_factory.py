"""Create metastore resources in tests: short methods, a clock and ids that the test controls."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from skiway.errors import SkiwayError
from skiway.metastore import PLATFORM, Realm
from skiway.metastore.resources import accounts, catalogs, namespaces, snapshots, tables, views
from skiway.model import v1
from skiway.storage import Stores
from storage.homes import Clock

behavior = pytest.mark.behavior


class Ids:
    """Sequential ids, so that a failing test is readable."""

    def __init__(self, prefix: str = "id") -> None:
        self._numbers = itertools.count(1)
        self._prefix = prefix

    def __call__(self) -> str:
        return f"{self._prefix}-{next(self._numbers):04d}"


@dataclass
class ResourceFactory:
    """Creates resources in the realms of one store; account `a1` exists."""

    stores: Stores
    clock: Clock = field(default_factory=Clock)
    ids: Ids = field(default_factory=Ids)

    def __post_init__(self) -> None:
        if not self.stores.pointers.get("/accounts/by-id/a1"):
            self.account("a1")

    @property
    def platform(self) -> Realm:
        return self.realm(PLATFORM)

    @property
    def home(self) -> Realm:
        return self.realm("a1")

    def realm(self, account_id: str) -> Realm:
        return Realm(self.stores, account_id, clock=self.clock, ids=self.ids)

    def account(self, account_id: str) -> v1.Account:
        request = v1.CreateAccountRequest(
            spec=v1.AccountSpec(display_name=f"account {account_id}"), account_id=v1.ResourceId(id=account_id)
        )
        return accounts.create(self.platform, request).account

    def catalog(self, name: str = "lake", **spec: Any) -> v1.Catalog:
        request = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name=name, **spec))
        return catalogs.create(self.home, request).catalog

    def namespace(self, *path: str, catalog: v1.Catalog | None = None, **spec: Any) -> v1.Namespace:
        """Create the namespace at `path`, by default in the first catalog."""
        catalog_id = (catalog or self.first_catalog()).resource_id
        full_spec = v1.NamespaceSpec(display_name=path[-1], path=path[:-1], catalog_id=catalog_id, **spec)
        return namespaces.create(self.home, v1.CreateNamespaceRequest(spec=full_spec)).namespace

    def table(self, name: str = "people", *, namespace: v1.Namespace | None = None, **spec: Any) -> v1.Table:
        """Create a table, by default in the first namespace."""
        parent = namespace or self.first_namespace()
        full_spec = v1.TableSpec(
            display_name=name,
            catalog_id=parent.catalog_id,
            namespace_id=parent.resource_id,
            **{"schema_json": "{}", **spec},
        )
        return tables.create(self.home, v1.CreateTableRequest(spec=full_spec)).table

    def view(self, name: str = "adults", *, namespace: v1.Namespace | None = None, **spec: Any) -> v1.View:
        """Create a view, by default in the first namespace."""
        parent = namespace or self.first_namespace()
        sql = [v1.ViewSql(sql="SELECT 1", dialect="duckdb")]
        full_spec = v1.ViewSpec(
            display_name=name,
            catalog_id=parent.catalog_id,
            namespace_id=parent.resource_id,
            **{"sql_definitions": sql, **spec},
        )
        return views.create(self.home, v1.CreateViewRequest(spec=full_spec)).view

    def snapshot(self, table: v1.Table, snapshot_id: int, *, at: int | None = None, **spec: Any) -> v1.Snapshot:
        """Create a snapshot of the table, created upstream `at` seconds after 1970."""
        full_spec = v1.SnapshotSpec(table_id=table.resource_id, snapshot_id=snapshot_id, **spec)
        if at is not None:
            full_spec.upstream_created_at.seconds = at
        return snapshots.create(self.home, v1.CreateSnapshotRequest(spec=full_spec)).snapshot

    def first_namespace(self) -> v1.Namespace:
        request = v1.ListNamespacesRequest(catalog_id=self.first_catalog().resource_id)
        found = namespaces.list_(self.home, request).namespaces
        return found[0] if found else self.namespace("sales")

    def first_catalog(self) -> v1.Catalog:
        found = catalogs.list_(self.home, v1.ListCatalogsRequest()).catalogs
        return found[0] if found else self.catalog()


def mask(*paths: str) -> FieldMask:
    return FieldMask(paths=paths)


def key(text: str) -> v1.IdempotencyKey:
    return v1.IdempotencyKey(key=text)


def names(resources: Iterable[Any]) -> list[str]:
    return [resource.display_name for resource in resources]


def expect_error(error: type[SkiwayError], error_key: str, **params: str) -> Any:
    """Expect an error of exactly this class and key, with at least these parameters."""

    def matches(raised: SkiwayError) -> bool:
        return type(raised) is error and raised.key == error_key and params.items() <= raised.params.items()

    return pytest.raises(error, check=matches)
