"""A server is killed in every step of its gc: nothing that can be reached is gone, and gc removes the rest next time."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from faults import contents
from faults.changes import full_table
from faults.crashing_server import FILES, PATIENCE_S, QUIET, WRITES, Launcher, Step, launched, steps
from faults.deployments import Deployment, collected, opened
from faults.tables import stored_files
from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from runtime.servers import eventually
from skiway.metastore import managed as managed_tables
from skiway.metastore.managed.commits import ManagedTable
from skiway.metastore.records import keys
from skiway.metastore.seeding.catalog import seed_home
from skiway.storage import ABSENT, Delete, Stores, utc_now

pytestmark = pytest.mark.timeout(PATIENCE_S)

EPOCH = "1970-01-01T00:00:00+00:00"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep of gc, what makes work for it, and how much of that is still there."""

    name: str
    litter: Callable[[ResourceFactory], None]
    left: Callable[[Stores], int]


def unnamed_blobs(factory: ResourceFactory) -> None:
    for number in range(3):
        factory.stores.blobs.put(b"unused %d" % number, folder=f"accounts/a1/tables/by-id/t{number}", suffix=".pb")


def dead_pointers(factory: ResourceFactory) -> None:
    """Snapshots and statistics of a table that is gone, and a name of something that never was."""
    table = full_table(factory)
    names = (
        keys.table("a1", table.resource_id.id),
        f"/accounts/a1/namespaces/{table.namespace_id.id}/tables/by-name/people",
        f"/accounts/a1/namespaces/{table.namespace_id.id}/relations/by-name/people",
    )
    factory.stores.pointers.apply([Delete(name, expect=1) for name in names])
    nowhere = factory.stores.blobs.put(b"", folder="accounts/a1/catalogs/by-id/ghost", suffix=".pb")
    factory.stores.pointers.compare_and_set("/accounts/a1/catalogs/by-name/ghost", nowhere, expect=ABSENT)


def expired_keys(factory: ResourceFactory) -> None:
    for number in range(3):
        key = f"/accounts/a1/idempotency/CreateTable/k{number}"
        kept = factory.stores.blobs.put(b"answer %d" % number, folder=key.strip("/"), suffix=".pb")
        factory.stores.pointers.compare_and_set(key, kept, expect=ABSENT, expires_at=utc_now() - timedelta(seconds=1))


def stored_expired(stores: Stores) -> int:
    """Those that nobody sees, and that take room nevertheless."""
    return sum(
        stores.pointers._get(f"/accounts/a1/idempotency/CreateTable/k{number}") is not None for number in range(3)
    )


def unneeded(stores: Stores) -> int:
    return len(contents.blobs(stores) - contents.named_blobs(stores))


SWEEPS = (
    Sweep("cas", unnamed_blobs, left=unneeded),
    Sweep("pointer", dead_pointers, left=lambda stores: len([*contents.broken(stores), *contents.left_behind(stores)])),
    Sweep("idempotency", expired_keys, left=stored_expired),
)


def littered(deployment: Deployment, sweep: Sweep) -> list[str]:
    """What can be reached in a store that gc has work in, all of it old enough for gc."""
    with opened(deployment) as stores:
        seed_home(stores)
        factory = ResourceFactory(stores, utc_now)
        factory.table("kept", namespace=factory.namespace("other"))
        sweep.litter(factory)
        for path in (deployment.folder / "blobs").rglob("*.pb"):
            age(path)
        assert sweep.left(stores) > 0
        return contents.resources(stores)


def age(path: Path, *, days: float = 1 / 24) -> None:
    then = utc_now().timestamp() - days * 86400
    os.utime(path, (then, then))


def only(sweep: Sweep) -> list[str]:
    """Settings of a server that does this sweep alone, in small pages."""
    return [*(each for each in QUIET if sweep.name not in each), f"gc.{sweep.name}.page_size=5"]


def swept(stores: Stores, sweep: Sweep) -> bool:
    """Whether the server has given its turn back."""
    turn = stores.pointers.get(f"/platform/gc/{sweep.name}")
    return turn is not None and json.loads(turn.blob_uri)["held_until"] == EPOCH


def undisturbed(launcher: Launcher, deployment: Deployment, sweep: Sweep) -> list[str]:
    """What the stores are asked for by a sweep that goes well."""
    reachable = littered(deployment, sweep)
    with (
        opened(deployment) as stores,
        launched(launcher, deployment, *only(sweep), threads="gc", step=Step(0)) as server,
    ):
        eventually(lambda: swept(stores, sweep))
        assert (sweep.left(stores), contents.resources(stores)) == (0, reachable)
    return server.operations


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.name)
def test_a_server_killed_in_any_step_of_gc_has_removed_nothing_that_is_needed(launcher, new_deployment, sweep):
    operations = undisturbed(launcher, new_deployment("sqlite"), sweep)
    left = set()
    for step in steps(operations):
        deployment = new_deployment("sqlite")
        reachable = littered(deployment, sweep)
        with launched(launcher, deployment, *only(sweep), threads="gc", step=step) as server:
            assert server.wait_until_ended() == -signal.SIGKILL, f"nobody died {step}"
        with opened(deployment) as stores:
            left.add(sweep.left(stores))
            assert contents.resources(stores) == reachable, f"killed {step}"
            collected(deployment)
            assert (sweep.left(stores), contents.resources(stores)) == (0, reachable), f"killed {step}, then collected"
            assert (contents.broken(stores), contents.left_behind(stores)) == ([], set())
            assert contents.blobs(stores) == contents.named_blobs(stores)
    assert 0 in left
    assert len(left) > 1, "some died with work left"


# --- the warehouse ----------------------------------------------------------------------------------------------------

FILES_ONLY = ("gc.warehouse.page_size=1", *(each for each in QUIET if "warehouse" not in each))


@dataclass(frozen=True, slots=True)
class Littered:
    """A table, the files that it needs, and how many others there are in the warehouse."""

    managed: ManagedTableFactory
    table: ManagedTable
    needed: set[str]
    litter: int

    def left(self, deployment: Deployment) -> int:
        """How many of the others are still there; none that is needed is missing, and all rows are."""
        stored = stored_files(deployment)
        assert self.needed <= stored
        assert self.managed.rows(self.table) == [1, 2]
        return len(stored - self.needed)


def littered_warehouse(deployment: Deployment, stores: Stores) -> Littered:
    """What statements that died and a table that was dropped have left, all of it old enough for gc."""
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
    return Littered(managed, table, needed, len(stored_files(deployment) - needed))


def test_a_server_killed_while_it_sweeps_the_warehouse_has_removed_nothing_that_is_needed(launcher, new_deployment):
    watched = {"threads": "gc", "only": WRITES | FILES}
    deployment = new_deployment("sqlite")
    with opened(deployment) as stores:
        littered = littered_warehouse(deployment, stores)
        with launched(launcher, deployment, *FILES_ONLY, **watched, step=Step(0)) as server:
            eventually(lambda: littered.left(deployment) == 0 and swept(stores, Sweep("warehouse", len, len)))
    left = set()
    for number in range(1, len(server.operations) + 1):
        deployment = new_deployment("sqlite")
        with opened(deployment) as stores:
            littered = littered_warehouse(deployment, stores)
            with launched(launcher, deployment, *FILES_ONLY, **watched, step=Step(number, "after")) as server:
                assert server.wait_until_ended() == -signal.SIGKILL, f"nobody died after operation {number}"
            left.add(littered.left(deployment))
            collected(deployment)
            assert littered.left(deployment) == 0, f"killed after operation {number}, then collected"
            assert contents.broken(stores) == []
    assert {0, littered.litter} <= left, "some died with all the work before them, and some when it was done"
