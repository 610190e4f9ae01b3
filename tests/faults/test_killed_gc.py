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
from faults.doomed import PATIENCE_S, QUIET, Launcher, Step, launched, steps
from faults.grounds import Ground, collected, opened
from metastore.world import World
from runtime.servers import eventually
from skiway.metastore import keys
from skiway.metastore.seeding import seed_home
from skiway.storage import ABSENT, Delete, Stores, utc_now

pytestmark = pytest.mark.timeout(PATIENCE_S)

EPOCH = "1970-01-01T00:00:00+00:00"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep of gc, what makes work for it, and how much of that is still there."""

    name: str
    litter: Callable[[World], None]
    left: Callable[[Stores], int]


def unnamed_blobs(world: World) -> None:
    for number in range(3):
        world.stores.blobs.put(b"unused %d" % number, folder=f"accounts/a1/tables/by-id/t{number}", suffix=".pb")


def dead_pointers(world: World) -> None:
    """Snapshots and statistics of a table that is gone, and a name of something that never was."""
    table = full_table(world)
    names = (
        keys.table("a1", table.resource_id.id),
        f"/accounts/a1/namespaces/{table.namespace_id.id}/tables/by-name/people",
        f"/accounts/a1/namespaces/{table.namespace_id.id}/relations/by-name/people",
    )
    world.stores.pointers.apply([Delete(name, expect=1) for name in names])
    nowhere = world.stores.blobs.put(b"", folder="accounts/a1/catalogs/by-id/ghost", suffix=".pb")
    world.stores.pointers.compare_and_set("/accounts/a1/catalogs/by-name/ghost", nowhere, expect=ABSENT)


def expired_keys(world: World) -> None:
    for number in range(3):
        key = f"/accounts/a1/idempotency/CreateTable/k{number}"
        kept = world.stores.blobs.put(b"answer %d" % number, folder=key.strip("/"), suffix=".pb")
        world.stores.pointers.compare_and_set(key, kept, expect=ABSENT, expires_at=utc_now() - timedelta(seconds=1))


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


def littered(ground: Ground, sweep: Sweep) -> list[str]:
    """What can be reached in a store that gc has work in, all of it old enough for gc."""
    with opened(ground) as stores:
        seed_home(stores)
        world = World(stores, utc_now)
        world.table("kept", namespace=world.namespace("other"))
        sweep.litter(world)
        for path in (ground.folder / "blobs").rglob("*.pb"):
            age(path)
        assert sweep.left(stores) > 0
        return contents.resources(stores)


def age(path: Path) -> None:
    hour_ago = utc_now().timestamp() - 3600
    os.utime(path, (hour_ago, hour_ago))


def only(sweep: Sweep) -> list[str]:
    """Settings of a server that does this sweep alone, in small pages."""
    return [*(each for each in QUIET if sweep.name not in each), f"gc.{sweep.name}.page_size=5"]


def swept(stores: Stores, sweep: Sweep) -> bool:
    """Whether the server has given its turn back."""
    turn = stores.pointers.get(f"/platform/gc/{sweep.name}")
    return turn is not None and json.loads(turn.blob_uri)["held_until"] == EPOCH


def undisturbed(launcher: Launcher, ground: Ground, sweep: Sweep) -> list[str]:
    """What the stores are asked for by a sweep that goes well."""
    reachable = littered(ground, sweep)
    with opened(ground) as stores, launched(launcher, ground, *only(sweep), threads="gc", step=Step(0)) as server:
        eventually(lambda: swept(stores, sweep))
        assert (sweep.left(stores), contents.resources(stores)) == (0, reachable)
    return server.operations


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.name)
def test_a_server_killed_in_any_step_of_gc_has_removed_nothing_that_is_needed(launcher, new_ground, sweep):
    operations = undisturbed(launcher, new_ground("sqlite"), sweep)
    left = set()
    for step in steps(operations):
        ground = new_ground("sqlite")
        reachable = littered(ground, sweep)
        with launched(launcher, ground, *only(sweep), threads="gc", step=step) as server:
            assert server.wait_until_ended() == -signal.SIGKILL, f"nobody died {step}"
        with opened(ground) as stores:
            left.add(sweep.left(stores))
            assert contents.resources(stores) == reachable, f"killed {step}"
            collected(ground)
            assert (sweep.left(stores), contents.resources(stores)) == (0, reachable), f"killed {step}, then collected"
            assert (contents.broken(stores), contents.left_behind(stores)) == ([], set())
            assert contents.blobs(stores) == contents.named_blobs(stores)
    assert 0 in left
    assert len(left) > 1, "some died with work left"
