"""A server is killed with SIGKILL at each write of a merge: main is as before or after it, and somebody else can merge again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest

from faults import contents
from faults.crashing_server import EVERY_STEP, TIMEOUT_S, WRITES, Launcher, Step, launched
from faults.deployments import Deployment, open_deployment
from metastore.branches.world import World
from metastore.resource_factory import ResourceFactory
from runtime.servers import NO_GC
from skiway.metastore import branches
from skiway.metastore.seeding import seed_home
from skiway.model import v1
from storage.homes import Clock

pytestmark = pytest.mark.timeout(TIMEOUT_S)

BEFORE = {"a.kept": [1], "a.changed": [1, 9], "a.dropped": [1], "a.renamed": [1]}
AFTER = {"a.kept": [1], "a.changed": [1, 2, 9], "b.new": [1, 2], "b.created": [7]}


@contextmanager
def world_of(deployment: Deployment) -> Iterator[World]:
    """The lake of a deployment. Its clock is ten days ahead, when everybody takes an unfinished merge for dead."""
    with open_deployment(deployment) as stores:
        seed_home(stores)
        yield World(ResourceFactory(stores, Clock()), deployment.folder / "home")


def prepared(deployment: Deployment) -> Deployment:
    with world_of(deployment) as world:
        for name in BEFORE:
            world.create(name)
            world.insert(name, 1)
        world.branch("dev")
        world.insert("a.changed", 2, branch="dev")
        world.drop("a.dropped", "dev")
        world.rename("a.renamed", "b.new", "dev")
        world.insert("b.new", 2, branch="dev")
        world.create("b.created", "dev")
        world.insert("b.created", 7, branch="dev")
        world.insert("a.changed", 9)
    return deployment


def merged(launcher: Launcher, deployment: Deployment, step: Step) -> tuple[grpc.StatusCode, list[str], int | None]:
    """Merge on a server that is killed at a step; return the answer, what the server did, and how it ended."""
    with launched(launcher, deployment, *NO_GC, step=step) as server:
        server.wait_until_ready()
        answer = server.call("BranchService/MergeBranch", v1.MergeBranchRequest(name="lake@dev"))
        ended = server.wait_until_ended() if answer.code is grpc.StatusCode.UNAVAILABLE else None
        return answer.code, list(server.operations), ended


def test_a_merge_of_a_killed_server_is_atomic_and_can_be_repeated(
    launcher: Launcher, new_deployment: Callable[[str], Deployment]
) -> None:
    deployment = prepared(new_deployment("sqlite"))
    code, operations, _ = merged(launcher, deployment, Step(0))
    assert code is grpc.StatusCode.OK
    with world_of(deployment) as world:
        assert world.contents() == AFTER
    writes = [number for number, name in enumerate(operations, 1) if EVERY_STEP or name in WRITES]
    swaps = [number for number in writes if operations[number - 1] == "_apply"]
    found = set()
    for number in writes if EVERY_STEP else swaps:
        for when in ("before", "after"):
            deployment = prepared(new_deployment("sqlite"))
            code, _, ended = merged(launcher, deployment, Step(number, when))
            assert (code, ended) == (grpc.StatusCode.UNAVAILABLE, -signal.SIGKILL), f"not killed {when} {number}"
            with world_of(deployment) as world:
                now = world.contents()
                assert now in (BEFORE, AFTER), f"killed {when} {number}"
                assert contents.integrity_errors(world.factory.stores) == []
                found.add(now == AFTER)
                if now == BEFORE:
                    world.merge("dev")
                assert world.contents() == AFTER
                assert [each.state for each in branches_of(world)] == [v1.BS_MERGED]
                world.sweep()
                assert world.contents() == AFTER
    assert found == {True, False}, "some servers must be killed before the merge and some after it"


def branches_of(world: World) -> list[v1.Branch]:
    return list(branches.list_(world.factory.home, v1.ListBranchesRequest(catalog="lake")).branches)
