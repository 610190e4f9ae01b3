"""A server is killed at each step of gc: all reachable data stays, and the next gc deletes the rest."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from faults import contents
from faults.changes import full_table
from faults.crashing_server import (
    EVERY_STEP,
    FILE_OPERATIONS,
    TIMEOUT_S,
    WRITES,
    Launcher,
    Step,
    launched,
    steps,
)
from faults.deployments import Deployment, collect, open_deployment
from faults.tables import stored_files
from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from runtime.servers import NO_GC, eventually
from skiway.metastore import managed as managed_tables
from skiway.metastore.managed.states import ManagedTable
from skiway.metastore.records import keys
from skiway.metastore.seeding import seed_home
from skiway.storage import ABSENT, Delete, Stores, utc_now

pytestmark = pytest.mark.timeout(TIMEOUT_S)

EPOCH = "1970-01-01T00:00:00+00:00"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep of gc, with functions that create garbage for it and count the garbage that is left."""

    name: str
    create: Callable[[ResourceFactory], None]
    count_garbage: Callable[[Stores], int]


def create_unreferenced_blobs(factory: ResourceFactory) -> None:
    for number in range(3):
        factory.stores.blobs.put(b"unused %d" % number, folder=f"accounts/a1/tables/by-id/t{number}", suffix=".pb")


def create_dangling_pointers(factory: ResourceFactory) -> None:
    """Create snapshots and statistics of a missing table, and a name of a resource that never existed."""
    table = full_table(factory)
    names = (
        keys.table("a1", table.resource_id.id),
        f"/accounts/a1/namespaces/{table.namespace_id.id}/tables/by-name/people",
        f"/accounts/a1/namespaces/{table.namespace_id.id}/relations/by-name/people",
    )
    factory.stores.pointers.apply([Delete(name, expect=1) for name in names])
    blob_uri = factory.stores.blobs.put(b"", folder="accounts/a1/catalogs/by-id/ghost", suffix=".pb")
    factory.stores.pointers.compare_and_set("/accounts/a1/catalogs/by-name/ghost", blob_uri, expect=ABSENT)


def create_expired_keys(factory: ResourceFactory) -> None:
    for number in range(3):
        key = f"/accounts/a1/idempotency/CreateTable/k{number}"
        blob_uri = factory.stores.blobs.put(b"answer %d" % number, folder=key.strip("/"), suffix=".pb")
        factory.stores.pointers.compare_and_set(
            key, blob_uri, expect=ABSENT, expires_at=utc_now() - timedelta(seconds=1)
        )


def count_expired_keys(stores: Stores) -> int:
    """Count expired keys that are still stored, although readers do not see them."""
    return sum(
        stores.pointers._get(f"/accounts/a1/idempotency/CreateTable/k{number}") is not None for number in range(3)
    )


def count_unreferenced_blobs(stores: Stores) -> int:
    return len(contents.blobs(stores) - contents.referenced_blobs(stores))


SWEEPS = (
    Sweep("cas", create_unreferenced_blobs, count_garbage=count_unreferenced_blobs),
    Sweep(
        "pointer",
        create_dangling_pointers,
        count_garbage=lambda stores: len([*contents.integrity_errors(stores), *contents.orphaned_keys(stores)]),
    ),
    Sweep("idempotency", create_expired_keys, count_garbage=count_expired_keys),
)


def create_garbage(deployment: Deployment, sweep: Sweep) -> list[str]:
    """Create garbage that is old enough for gc, and return the resources that must stay."""
    with open_deployment(deployment) as stores:
        seed_home(stores)
        factory = ResourceFactory(stores, utc_now)
        factory.table("kept", namespace=factory.namespace("other"))
        sweep.create(factory)
        for path in (deployment.folder / "blobs").rglob("*.pb"):
            age(path)
        assert sweep.count_garbage(stores) > 0
        return contents.resources(stores)


def age(path: Path, *, days: float = 1 / 24) -> None:
    modified_at = utc_now().timestamp() - days * 86400
    os.utime(path, (modified_at, modified_at))


def settings_for(sweep: Sweep) -> list[str]:
    """Settings of a server that runs only this sweep, in small pages."""
    return [*(each for each in NO_GC if sweep.name not in each), f"gc.{sweep.name}.page_size=5"]


def is_finished(stores: Stores, sweep: Sweep) -> bool:
    """Whether the server has released the lease of the sweep."""
    lease = stores.pointers.get(f"/platform/gc/{sweep.name}")
    return lease is not None and json.loads(lease.blob_uri)["held_until"] == EPOCH


def run_undisturbed(launcher: Launcher, deployment: Deployment, sweep: Sweep) -> list[str]:
    """The operations of the stores during an undisturbed sweep."""
    reachable = create_garbage(deployment, sweep)
    with (
        open_deployment(deployment) as stores,
        launched(launcher, deployment, *settings_for(sweep), threads="gc", step=Step(0)) as server,
    ):
        eventually(lambda: is_finished(stores, sweep))
        assert (sweep.count_garbage(stores), contents.resources(stores)) == (0, reachable)
    return server.operations


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.name)
def test_server_killed_during_gc_has_deleted_no_reachable_data(launcher, new_deployment, sweep):
    operations = run_undisturbed(launcher, new_deployment("sqlite"), sweep)
    counts = set()
    for step in steps(operations):
        deployment = new_deployment("sqlite")
        reachable = create_garbage(deployment, sweep)
        with launched(launcher, deployment, *settings_for(sweep), threads="gc", step=step) as server:
            assert server.wait_until_ended() == -signal.SIGKILL, f"the server was not killed {step}"
        with open_deployment(deployment) as stores:
            counts.add(sweep.count_garbage(stores))
            assert contents.resources(stores) == reachable, f"killed {step}"
            collect(deployment)
            assert (sweep.count_garbage(stores), contents.resources(stores)) == (0, reachable), (
                f"killed {step}, then gc"
            )
            assert (contents.integrity_errors(stores), contents.orphaned_keys(stores)) == ([], set())
            assert contents.blobs(stores) == contents.referenced_blobs(stores)
    assert 0 in counts
    assert len(counts) > 1, "some servers must be killed before gc is finished"


# --- the warehouse ----------------------------------------------------------------------------------------------------

WAREHOUSE_ONLY = ("gc.warehouse.page_size=1", *(each for each in NO_GC if "warehouse" not in each))


@dataclass(frozen=True, slots=True)
class Garbage:
    """A table, the files that it needs, and the number of other files in the warehouse."""

    managed: ManagedTableFactory
    table: ManagedTable
    needed: set[str]
    garbage: int

    def count_garbage(self, deployment: Deployment) -> int:
        """Count the remaining garbage files, and check that all needed files and rows are there."""
        stored = stored_files(deployment)
        assert self.needed <= stored
        assert self.managed.rows(self.table) == [1, 2]
        return len(stored - self.needed)


def create_warehouse_garbage(deployment: Deployment, stores: Stores) -> Garbage:
    """Create a table, files of killed statements and a dropped table, all of them old enough for gc."""
    seed_home(stores)
    managed = ManagedTableFactory(ResourceFactory(stores, utc_now), deployment.warehouse)
    table = managed.append(managed.append(managed.create("kept"), 1), 2)
    needed = stored_files(deployment)
    for value in (3, 4):
        managed.write(table, value)
    dropped = managed.append(managed.create("dropped"), 5)
    managed_tables.drop(managed.home, managed.warehouse, dropped.table.resource_id)
    for path in map(Path, stored_files(deployment)):
        age(path, days=4)
    return Garbage(managed, table, needed, len(stored_files(deployment) - needed))


def steps_of_warehouse_gc(operations: Sequence[str]) -> list[int]:
    """The numbers of the operations after which to kill a server: all, or the first, the last and some deletions."""
    numbers = range(1, len(operations) + 1)
    if EVERY_STEP:
        return [*numbers]
    deletions = [number for number in numbers if operations[number - 1] == "remove"]
    return sorted({1, deletions[0], deletions[len(deletions) // 2], deletions[-1], numbers[-1]})


def test_server_killed_during_warehouse_gc_has_deleted_no_referenced_file(launcher, new_deployment):
    kill_settings = {"threads": "gc", "only": WRITES | FILE_OPERATIONS}
    deployment = new_deployment("sqlite")
    with open_deployment(deployment) as stores:
        warehouse = create_warehouse_garbage(deployment, stores)
        with launched(launcher, deployment, *WAREHOUSE_ONLY, **kill_settings, step=Step(0)) as server:
            eventually(
                lambda: warehouse.count_garbage(deployment) == 0 and is_finished(stores, Sweep("warehouse", len, len))
            )
    counts = set()
    for number in steps_of_warehouse_gc(server.operations):
        deployment = new_deployment("sqlite")
        with open_deployment(deployment) as stores:
            warehouse = create_warehouse_garbage(deployment, stores)
            with launched(launcher, deployment, *WAREHOUSE_ONLY, **kill_settings, step=Step(number, "after")) as server:
                assert server.wait_until_ended() == -signal.SIGKILL, (
                    f"the server was not killed after operation {number}"
                )
            counts.add(warehouse.count_garbage(deployment))
            collect(deployment)
            assert warehouse.count_garbage(deployment) == 0, f"killed after operation {number}, then gc"
            assert contents.integrity_errors(stores) == []
    assert {0, warehouse.garbage} <= counts, (
        "some servers must be killed before the first deletion and some after the last"
    )
