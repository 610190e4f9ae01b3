"""Concurrent changes by many threads of two servers on one store: one writer wins, the others get conflicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from threading import Barrier, Thread
from typing import Any

import pytest

from metastore.integrity import damage
from metastore.resource_factory import ResourceFactory, behavior, key, mask
from skiway.errors import Conflict, NotFound, PreconditionFailed, SkiwayError
from skiway.metastore import Realm, statistics
from skiway.metastore.resources import catalogs, namespaces, snapshots, tables
from skiway.model import v1
from skiway.storage import open_stores

WRITERS = 8


@pytest.fixture
def servers(tmp_path) -> Iterator[tuple[ResourceFactory, ResourceFactory]]:
    """Two servers that share only their files."""
    url = f"sqlite:///{tmp_path}/pointers.db"
    with open_stores(url) as one, open_stores(url) as two:
        yield ResourceFactory(one), ResourceFactory(two)


def race(servers: tuple[ResourceFactory, ResourceFactory], act: Callable[[Realm, int], Any]) -> list[Any]:
    """Run `act` in all writers at once, and return the result or the Skiway error of each."""
    barrier = Barrier(WRITERS)
    outcomes: list[Any] = [None] * WRITERS

    def run(number: int) -> None:
        factory = servers[number % 2]
        barrier.wait()
        try:
            outcomes[number] = act(Realm(factory.stores, "a1"), number)
        except SkiwayError as error:
            outcomes[number] = error

    threads = [Thread(target=run, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def errors(outcomes: list[Any]) -> Counter[str]:
    return Counter(each.key for each in outcomes if isinstance(each, SkiwayError))


@behavior(9)
def test_one_of_many_concurrent_creators_gets_the_name(servers):
    request = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="lake"))
    outcomes = race(servers, lambda realm, _: catalogs.create(realm, request))
    assert errors(outcomes) == {"catalog.already.exists": WRITERS - 1}
    assert catalogs.list_(servers[1].home, v1.ListCatalogsRequest()).page.total_size == 1
    assert damage(servers[0].stores) == []


@behavior(36)
def test_concurrent_calls_with_the_same_idempotency_key_get_the_same_response(servers):
    request = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="lake"), idempotency=key("k"))
    outcomes = race(servers, lambda realm, _: catalogs.create(realm, request))
    assert all(each == outcomes[0] for each in outcomes)
    assert isinstance(outcomes[0], v1.CreateCatalogResponse)
    assert catalogs.list_(servers[0].home, v1.ListCatalogsRequest()).page.total_size == 1


@behavior(21)
def test_concurrent_creations_below_the_same_missing_parents_all_succeed(servers):
    catalog_id = servers[0].catalog().resource_id

    def act(realm: Realm, number: int) -> Any:
        spec = v1.NamespaceSpec(display_name=str(number), path=["x", "y"], catalog_id=catalog_id)
        return namespaces.create(realm, v1.CreateNamespaceRequest(spec=spec))

    assert errors(race(servers, act)) == {}
    request = v1.ListNamespacesRequest(catalog_id=catalog_id, recursive=True)
    assert namespaces.list_(servers[0].home, request).page.total_size == WRITERS + 2
    assert damage(servers[0].stores) == []


def test_concurrent_table_creations_in_one_namespace_do_not_conflict(servers):
    namespace = servers[0].namespace("sales")

    def act(realm: Realm, number: int) -> Any:
        spec = v1.TableSpec(
            display_name=str(number),
            schema_json="{}",
            catalog_id=namespace.catalog_id,
            namespace_id=namespace.resource_id,
        )
        return tables.create(realm, v1.CreateTableRequest(spec=spec))

    assert errors(race(servers, act)) == {}


@behavior(24)
def test_namespace_with_children_is_never_deleted(servers):
    for round_ in range(5):
        namespace = servers[0].namespace(f"n{round_}")

        def act(realm: Realm, number: int, namespace: v1.Namespace = namespace) -> Any:
            if number < 2:
                request = v1.DeleteNamespaceRequest(namespace_id=namespace.resource_id)
                return namespaces.delete(realm, request)
            spec = v1.TableSpec(
                display_name=str(number),
                schema_json="{}",
                catalog_id=namespace.catalog_id,
                namespace_id=namespace.resource_id,
            )
            return tables.create(realm, v1.CreateTableRequest(spec=spec))

        outcomes = race(servers, act)
        assert all(isinstance(each, Conflict | NotFound) for each in outcomes if isinstance(each, SkiwayError)), (
            outcomes
        )
        created = [each for each in outcomes if isinstance(each, v1.CreateTableResponse)]
        key_ = f"/accounts/a1/namespaces/by-id/{namespace.resource_id.id}"
        exists = servers[0].stores.pointers.get(key_) is not None
        assert exists or not created
        assert damage(servers[0].stores) == []


@behavior(17)
def test_one_of_many_concurrent_updates_of_one_version_wins(servers):
    catalog = servers[0].catalog()

    def act(realm: Realm, number: int) -> Any:
        request = v1.UpdateCatalogRequest(
            catalog_id=catalog.resource_id,
            spec=v1.CatalogSpec(description=str(number)),
            update_mask=mask("description"),
            precondition=v1.Precondition(expected_version=1),
        )
        return catalogs.update(realm, request)

    outcomes = race(servers, act)
    assert errors(outcomes) == {"version.mismatch": WRITERS - 1}
    assert all(isinstance(each, PreconditionFailed) for each in outcomes if isinstance(each, SkiwayError))


@behavior(33)
def test_newest_of_many_concurrent_snapshots_is_current(servers):
    table = servers[0].table()

    def act(realm: Realm, number: int) -> Any:
        spec = v1.SnapshotSpec(table_id=table.resource_id, snapshot_id=number)
        return snapshots.create(realm, v1.CreateSnapshotRequest(spec=spec))

    assert errors(race(servers, act)) == {}
    request = v1.GetSnapshotRequest(table_id=table.resource_id, snapshot=v1.SnapshotRef(special=v1.SS_CURRENT))
    assert snapshots.get(servers[1].home, request).snapshot.snapshot_id == WRITERS - 1


def test_concurrent_deletes_and_snapshots_of_a_table_leave_nothing_behind(servers):
    table = servers[0].table()

    def act(realm: Realm, number: int) -> Any:
        if number < 2:
            return tables.delete(realm, v1.DeleteTableRequest(table_id=table.resource_id))
        spec = v1.SnapshotSpec(table_id=table.resource_id, snapshot_id=number)
        return snapshots.create(realm, v1.CreateSnapshotRequest(spec=spec))

    outcomes = race(servers, act)
    assert set(errors(outcomes)) <= {"table", "store.contended"}
    tables.delete(servers[0].home, v1.DeleteTableRequest(table_id=table.resource_id))
    remaining = list(servers[0].stores.pointers.scan(f"/accounts/a1/tables/{table.resource_id.id}/"))
    assert remaining == []


def test_concurrent_statistics_writers_lose_no_updates(servers):
    table = servers[0].table()
    servers[0].snapshot(table, 1)

    def act(realm: Realm, number: int) -> Any:
        target = {"table_id": table.resource_id, "snapshot_id": 1}
        column = v1.ColumnStats(column_id=number + 1)
        statistics.put_columns(realm, [v1.PutColumnStatsRequest(**target, columns=[column])])
        file = v1.FileColumnStats(file_path=str(number))
        return statistics.put_files(realm, [v1.PutFileColumnStatsRequest(**target, files=[file])])

    outcomes = race(servers, act)
    failed = [number for number, each in enumerate(outcomes) if isinstance(each, SkiwayError)]
    assert set(errors(outcomes)) <= {"store.contended"}
    found = statistics.file_statistics(servers[1].home, table.resource_id.id, 1)
    assert found["file_path"].to_pylist() == [str(number) for number in range(WRITERS) if number not in failed]
