"""A process crashes at each step of each change: every change is made completely or not at all.

Each change is first made undisturbed, then once per store operation with a crash before it and once with a crash after it.
Readers then see the state before the change or the state after it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from metastore.faults import Crashed, CrashPoint, crashing_stores
from metastore.integrity import damage
from metastore.resource_factory import ResourceFactory, behavior, key, mask
from skiway.metastore import Realm, statistics
from skiway.metastore.resources import accounts, catalogs, namespaces, snapshots, tables, views
from skiway.model import v1
from skiway.storage import open_stores
from storage.homes import Clock

Change = Callable[[Realm], object]
Prepare = Callable[[ResourceFactory], Change]


def create_account(factory: ResourceFactory) -> Change:
    request = v1.CreateAccountRequest(spec=v1.AccountSpec(display_name="new"), idempotency=key("k"))
    return lambda realm: accounts.create(Realm(realm.stores, "", clock=realm.clock, ids=realm.ids), request)


def delete_account(factory: ResourceFactory) -> Change:
    factory.account("a2")
    request = v1.DeleteAccountRequest(account_id=v1.ResourceId(id="a2"))
    return lambda realm: accounts.delete(Realm(realm.stores, "", clock=realm.clock), request)


def create_catalog(factory: ResourceFactory) -> Change:
    request = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="new"), idempotency=key("k"))
    return lambda realm: catalogs.create(realm, request)


def rename_catalog(factory: ResourceFactory) -> Change:
    request = v1.UpdateCatalogRequest(
        catalog_id=factory.catalog().resource_id,
        spec=v1.CatalogSpec(display_name="new"),
        update_mask=mask("display_name"),
    )
    return lambda realm: catalogs.update(realm, request)


def delete_catalog(factory: ResourceFactory) -> Change:
    request = v1.DeleteCatalogRequest(catalog_id=factory.catalog().resource_id)
    return lambda realm: catalogs.delete(realm, request)


def create_namespaces(factory: ResourceFactory) -> Change:
    spec = v1.NamespaceSpec(display_name="z", path=["x", "y"], catalog_id=factory.catalog().resource_id)
    request = v1.CreateNamespaceRequest(spec=spec, idempotency=key("k"))
    return lambda realm: namespaces.create(realm, request)


def move_namespace(factory: ResourceFactory) -> Change:
    factory.namespace("b")
    request = v1.UpdateNamespaceRequest(
        namespace_id=factory.namespace("a").resource_id,
        spec=v1.NamespaceSpec(path=["b", "c"]),
        update_mask=mask("path"),
    )
    return lambda realm: namespaces.update(realm, request)


def delete_namespace(factory: ResourceFactory) -> Change:
    request = v1.DeleteNamespaceRequest(namespace_id=factory.namespace("a").resource_id)
    return lambda realm: namespaces.delete(realm, request)


def create_table(factory: ResourceFactory) -> Change:
    namespace = factory.namespace("sales")
    spec = v1.TableSpec(
        display_name="t", schema_json="{}", catalog_id=namespace.catalog_id, namespace_id=namespace.resource_id
    )
    return lambda realm: tables.create(realm, v1.CreateTableRequest(spec=spec, idempotency=key("k")))


def move_table(factory: ResourceFactory) -> Change:
    request = v1.UpdateTableRequest(
        table_id=factory.table().resource_id,
        spec=v1.TableSpec(namespace_id=factory.namespace("zzz").resource_id, description="moved"),
        update_mask=mask("namespace_id", "description"),
    )
    return lambda realm: tables.update(realm, request)


def delete_table(factory: ResourceFactory) -> Change:
    table = factory.table()
    for number in (1, 2):
        factory.snapshot(table, number, at=number)
    return lambda realm: tables.delete(realm, v1.DeleteTableRequest(table_id=table.resource_id))


def create_view(factory: ResourceFactory) -> Change:
    namespace = factory.namespace("sales")
    sql = [v1.ViewSql(sql="SELECT 1", dialect="duckdb")]
    spec = v1.ViewSpec(
        display_name="v", sql_definitions=sql, catalog_id=namespace.catalog_id, namespace_id=namespace.resource_id
    )
    return lambda realm: views.create(realm, v1.CreateViewRequest(spec=spec, idempotency=key("k")))


def rename_view(factory: ResourceFactory) -> Change:
    request = v1.UpdateViewRequest(
        view_id=factory.view().resource_id, spec=v1.ViewSpec(display_name="new"), update_mask=mask("display_name")
    )
    return lambda realm: views.update(realm, request)


def delete_view(factory: ResourceFactory) -> Change:
    request = v1.DeleteViewRequest(view_id=factory.view().resource_id)
    return lambda realm: views.delete(realm, request)


def create_snapshot(factory: ResourceFactory) -> Change:
    table = factory.table()
    factory.snapshot(table, 1)
    spec = v1.SnapshotSpec(table_id=table.resource_id, snapshot_id=2)
    return lambda realm: snapshots.create(realm, v1.CreateSnapshotRequest(spec=spec, idempotency=key("k")))


def update_snapshot(factory: ResourceFactory) -> Change:
    table = factory.table()
    factory.snapshot(table, 1, at=1)
    spec = v1.SnapshotSpec(table_id=table.resource_id, snapshot_id=1, manifest_list="new")
    spec.upstream_created_at.seconds = 5
    request = v1.UpdateSnapshotRequest(spec=spec, update_mask=mask("manifest_list", "upstream_created_at"))
    return lambda realm: snapshots.update(realm, request)


def roll_back(factory: ResourceFactory) -> Change:
    table = factory.table()
    for number in (1, 2):
        factory.snapshot(table, number, at=number)
    request = v1.SetCurrentSnapshotRequest(table_id=table.resource_id, snapshot_id=1)
    return lambda realm: snapshots.set_current(realm, request)


def delete_last_snapshot(factory: ResourceFactory) -> Change:
    table = factory.table()
    factory.snapshot(table, 1)
    request = v1.DeleteSnapshotRequest(table_id=table.resource_id, snapshot_id=1)
    return lambda realm: snapshots.delete(realm, request)


def put_column_statistics(factory: ResourceFactory) -> Change:
    table = factory.table()
    factory.snapshot(table, 1)
    request = v1.PutColumnStatsRequest(
        table_id=table.resource_id, snapshot_id=1, columns=[v1.ColumnStats(column_id=n) for n in (1, 2)]
    )
    return lambda realm: statistics.put_columns(realm, [request])


def put_file_statistics(factory: ResourceFactory) -> Change:
    table = factory.table()
    factory.snapshot(table, 1)
    files = [v1.FileColumnStats(file_path=path) for path in "ab"]
    first = v1.PutFileColumnStatsRequest(table_id=table.resource_id, snapshot_id=1, files=files[:1])
    statistics.put_files(factory.home, [first])
    request = v1.PutFileColumnStatsRequest(table_id=table.resource_id, snapshot_id=1, files=files)
    return lambda realm: statistics.put_files(realm, [request])


CHANGES: list[Prepare] = [
    put_column_statistics,
    put_file_statistics,
    create_account,
    delete_account,
    create_catalog,
    rename_catalog,
    delete_catalog,
    create_namespaces,
    move_namespace,
    delete_namespace,
    create_table,
    move_table,
    delete_table,
    create_view,
    rename_view,
    delete_view,
    create_snapshot,
    update_snapshot,
    roll_back,
    delete_last_snapshot,
]


def visible_state(factory: ResourceFactory) -> list[Any]:
    """Everything that can be read, except ids, since a repeated change creates new ones."""
    found: list[Any] = [
        each.display_name for each in accounts.list_(factory.platform, v1.ListAccountsRequest()).accounts
    ]
    for catalog in catalogs.list_(factory.home, v1.ListCatalogsRequest()).catalogs:
        found.append(catalog.display_name)
        request = v1.ListNamespacesRequest(catalog_id=catalog.resource_id, recursive=True)
        for namespace in namespaces.list_(factory.home, request).namespaces:
            found.append((*namespace.parents, namespace.display_name))
            children = v1.ListNamespacesRequest(namespace_id=namespace.resource_id)
            found.append([each.display_name for each in namespaces.list_(factory.home, children).namespaces])
            inside = v1.ListViewsRequest(namespace_id=namespace.resource_id)
            found += [("view", each.display_name) for each in views.list_(factory.home, inside).views]
            here = v1.ListTablesRequest(namespace_id=namespace.resource_id)
            for table in tables.list_(factory.home, here).tables:
                found.append((table.display_name, table.description, _history(factory, table)))
    return found


def _history(factory: ResourceFactory, table: v1.Table) -> list[Any]:
    request = v1.ListSnapshotsRequest(table_id=table.resource_id)
    history = [(each.snapshot_id, each.manifest_list) for each in snapshots.list_(factory.home, request).snapshots]
    if not history:
        return []
    ref = v1.SnapshotRef(special=v1.SS_CURRENT)
    now = snapshots.get(factory.home, v1.GetSnapshotRequest(table_id=table.resource_id, snapshot=ref))
    return [*history, "current", now.snapshot.snapshot_id, *_statistics(factory, table, ref)]


def _statistics(factory: ResourceFactory, table: v1.Table, ref: v1.SnapshotRef) -> list[Any]:
    columns = v1.ListColumnStatsRequest(table_id=table.resource_id, snapshot=ref)
    files = v1.ListFileColumnStatsRequest(table_id=table.resource_id, snapshot=ref)
    return [
        *(each.column_id for each in statistics.list_columns(factory.home, columns).columns),
        *(each.file_path for each in statistics.list_files(factory.home, files).files),
    ]


def set_up(prepare: Prepare) -> tuple[ResourceFactory, Change]:
    clock = Clock()
    factory = ResourceFactory(open_stores("memory://", clock=clock), clock)
    return factory, prepare(factory)


@behavior(10)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("prepare", CHANGES, ids=lambda prepare: prepare.__name__)
def test_change_interrupted_by_a_crash_is_atomic_and_can_be_repeated(prepare, when):
    factory, change = set_up(prepare)
    before = visible_state(factory)
    change(factory.home)
    after = visible_state(factory)
    assert before != after
    at, outcomes = 0, set()
    while True:
        at += 1
        factory, change = set_up(prepare)
        crash_point = CrashPoint(at, when)
        crashing_realm = Realm(crashing_stores(factory.stores, crash_point), "a1", clock=factory.clock, ids=factory.ids)
        with suppress(Crashed):
            change(crashing_realm)
        now = visible_state(factory)
        assert damage(factory.stores) == []
        assert now in (before, after), f"crashed {when} operation {at}"
        outcomes.add(now == after)
        factory.clock.advance(31)  # until the closing marker of the crashed process has expired
        change(factory.home)
        assert visible_state(factory) == after
        assert damage(factory.stores) == []
        if crash_point.done < at:
            break
    assert outcomes == {True, False}
