"""The life of branches: what they have used, and the end of idle ones."""

from __future__ import annotations

from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest

from metastore.branches.world import World
from metastore.resource_factory import ResourceFactory
from skiway.errors import NotFound
from skiway.metastore import branches, events
from skiway.model import v1


@pytest.fixture
def world(factory: ResourceFactory, tmp_path: Path) -> World:
    world = World(factory, tmp_path)
    for name in ("a.t", "a.u", "a.gone"):
        world.create(name)
        world.insert(name, 1)
    return world


def life(world: World, name: str) -> v1.BranchLife:
    request = v1.GetBranchRequest(name=f"lake@{name}")
    return branches.get(world.factory.home, request, warehouse=world.warehouse).branch.life


def names(world: World) -> list[str]:
    request = v1.ListBranchesRequest(catalog="lake", details=True)
    return [
        each.display_name for each in branches.list_(world.factory.home, request, warehouse=world.warehouse).branches
    ]


def end_idle(world: World, days: float, **options: Any) -> list[str]:
    clock = world.factory.clock
    return branches.sweep(world.factory.stores, clock=clock, idle_s=timedelta(days=days).total_seconds(), **options)


def test_a_branch_tells_how_far_it_is_from_main_and_what_only_it_uses(world: World) -> None:
    world.branch("dev")
    created = world.factory.clock.now
    found = life(world, "dev")
    assert (found.changed, found.changed_on_main, found.own_files, found.own_bytes) == (0, 0, 0, 0)
    world.rows("a.t", "dev")  # reading is no change
    assert life(world, "dev").changed == 0
    before = world.files()
    world.factory.clock.now += timedelta(days=2)
    world.insert("a.t", 2, branch="dev")
    world.drop("a.gone", "dev")
    world.create("a.new", "dev")
    own = [each for each in world.warehouse.everything().walk(world.warehouse.root) if each.location not in before]
    world.replace("a.u", 5)
    found = life(world, "dev")
    assert (found.changed, found.changed_on_main) == (3, 1)
    assert found.changed_at.ToDatetime(UTC) == world.factory.clock.now > created
    own = [each for each in own if each.size]  # a mark tells when a table was dropped
    assert (found.own_files, found.own_bytes) == (len(own), sum(each.size for each in own))
    world.merge("dev")
    assert life(world, "dev").own_bytes == 0
    assert names(world) == ["dev"]


def test_idle_branches_are_deleted_and_what_is_used_stays(world: World) -> None:
    for name in ("idle", "used", "merged"):
        world.branch(name)
    world.branch("tag", is_tag=True)
    world.insert("a.t", 2, branch="merged")
    world.merge("merged")
    world.factory.clock.now += timedelta(days=8)
    world.insert("a.u", 2, branch="used")
    world.branch("young")
    assert end_idle(world, 0) == []
    assert len(end_idle(world, 7, dry_run=True)) == 2
    assert names(world) == ["idle", "merged", "tag", "used", "young"]
    assert len(end_idle(world, 7)) == 2
    assert names(world) == ["tag", "used", "young"]
    assert world.rows("a.u", "used") == [1, 2]
    assert world.rows("a.t") == [1, 2]
    found = events.list_(world.factory.home, v1.ListEventsRequest()).events
    assert sorted((each.name, each.detail) for each in found if (each.kind, each.action) == ("branch", "deleted")) == [
        ("lake@idle", "it was idle"),
        ("lake@merged", "it was idle"),
    ]
    with pytest.raises(NotFound):
        life(world, "idle")
    world.factory.clock.now += timedelta(days=8)
    assert len(end_idle(world, 7)) == 4  # two are idle now, and what is left of two is deleted
    assert names(world) == ["tag"]
