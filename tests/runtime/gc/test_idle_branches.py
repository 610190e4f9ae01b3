"""The sweep of branches follows the setting for idle ones."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from metastore.branches.world import World
from metastore.resource_factory import ResourceFactory
from skiway.config import load
from skiway.metastore import branches
from skiway.model import v1
from skiway.runtime.gc.sweeps import once_round
from skiway.security import MemorySecrets
from skiway.storage import open_stores
from storage.homes import Clock


@pytest.mark.parametrize(("value", "left"), [("", ["dev"]), ("30d", ["dev"]), ("7d", [])])
def test_idle_branches_are_deleted_if_the_setting_says_so(tmp_path: Path, value: str, left: list[str]) -> None:
    settings = load(flags={"gc.warehouse.idle_branches": value}) if value else load()
    with open_stores("memory://") as stores:
        world = World(ResourceFactory(stores, Clock()), tmp_path)
        world.branch("dev")
        world.factory.clock.now += timedelta(days=8)
        pages = once_round(
            settings, stores, MemorySecrets(), dry_run=False, warehouse=world.warehouse, clock=world.factory.clock
        )
        assert [each.error for each in pages if each.error] == []
        request = v1.ListBranchesRequest(catalog="lake")
        assert [each.display_name for each in branches.list_(world.factory.home, request).branches] == left
