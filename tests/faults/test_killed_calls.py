"""A server is killed at each step of a call: the change is made completely or not at all, and repeating the call works.

Each change is first made undisturbed, which shows its steps. It is then made once per step on new stores, by a server
that is killed with SIGKILL at that step. The next server on the same stores must find them consistent and be able to
repeat the call, and gc must then delete exactly the unreachable data.

Reads leave nothing behind, so the server is killed only around the first swap of pointers and after the last write; with
`SKIWAY_FAULTS=all` it is killed before and after every operation.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
import pytest

from faults import contents
from faults.changes import (
    CHANGES,
    Change,
    FactoryWithSecrets,
    Prepare,
    create_table,
    delete_namespace,
    delete_table,
    move_table,
)
from faults.crashing_server import ACCOUNT, TIMEOUT_S, Launcher, Step, launched, steps
from faults.deployments import Deployment, collect, open_deployment
from rpc.rpc_server import Answer
from runtime.servers import NO_GC
from scope import sample
from skiway.metastore import Realm, connectors
from skiway.metastore.connectors.credentials import credentials
from skiway.metastore.seeding import seed_home
from skiway.model import v1
from skiway.storage import Stores, utc_now

pytestmark = pytest.mark.timeout(TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Baseline:
    """An undisturbed change: the resources before and after it, and the operations of the stores in between."""

    before: list[str]
    after: list[str]
    operations: Sequence[str]


def set_up(deployment: Deployment, prepare: Prepare) -> Change:
    with open_deployment(deployment) as stores:
        seed_home(stores)
        return prepare(FactoryWithSecrets(stores, utc_now, secrets=deployment.secrets))


def run_undisturbed(launcher: Launcher, deployment: Deployment, prepare: Prepare) -> Baseline:
    change = set_up(deployment, prepare)
    with open_deployment(deployment) as stores:
        before = contents.resources(stores)
        with launched(launcher, deployment, *NO_GC, step=Step(0)) as server:
            server.wait_until_ready()
            assert server.call(change.operation, change.request).code is grpc.StatusCode.OK
        assert contents.integrity_errors(stores) == []
        return Baseline(before, contents.resources(stores), server.operations)


def kill_during(launcher: Launcher, deployment: Deployment, change: Change, step: Step) -> None:
    with launched(launcher, deployment, *NO_GC, step=step) as server:
        server.wait_until_ready()
        answer = server.call(change.operation, change.request)
        assert answer.code is grpc.StatusCode.UNAVAILABLE, f"the server was not killed {step}: {answer.text}"
        assert server.wait_until_ended() == -signal.SIGKILL


def call_again(launcher: Launcher, deployment: Deployment, change: Change) -> Answer:
    with launched(launcher, deployment, *NO_GC) as server:
        server.wait_until_ready()
        return server.call(change.operation, change.request)


def expire_markers(stores: Stores) -> None:
    """Delete the closing markers: an expired pointer looks like a missing one to everybody."""
    for marker in stores.pointers.scan("/closing/"):
        stores.pointers.compare_and_delete(marker.key, expect=marker.version)


def created_id(answer: Answer) -> str:
    """The id of the resource that the call created, or an empty string."""
    for name in ("catalog", "namespace", "table", "connector"):
        if name in answer.message.DESCRIPTOR.fields_by_name:
            return str(getattr(answer.message, name).resource_id.id)
    return ""


def count_connectors(deployment: Deployment, stores: Stores) -> int:
    """Count the connectors and check that each has its credentials."""
    realm = Realm(stores, ACCOUNT)
    found = connectors.list_(realm, v1.ListConnectorsRequest()).connectors
    assert all(credentials(realm, deployment.secrets, connector) for connector in found)
    return len(found)


def check_recovery(
    launcher: Launcher, deployment: Deployment, prepare: Prepare, *, baseline: Baseline, step: Step
) -> bool:
    """Kill a server at `step` and check that the next one recovers. Return whether the change was made before the kill."""
    change = set_up(deployment, prepare)
    kill_during(launcher, deployment, change, step)
    with open_deployment(deployment) as stores:
        found = contents.resources(stores)
        assert contents.integrity_errors(stores) == [], f"killed {step}"
        assert not change.atomic or found in (baseline.before, baseline.after), f"killed {step}"
        count_connectors(deployment, stores)
        expire_markers(stores)
        answer = call_again(launcher, deployment, change)
        assert answer.code is grpc.StatusCode.OK, f"killed {step}: {answer.text}"
        assert contents.resources(stores) == baseline.after, f"killed {step}"
        assert created_id(answer) in {"", *contents.ids(stores)}, "a stored response must refer to an existing resource"
        collect(deployment)
        assert contents.resources(stores) == baseline.after, f"killed {step}, then gc"
        assert (contents.integrity_errors(stores), contents.orphaned_keys(stores)) == ([], set())
        assert contents.blobs(stores) == contents.referenced_blobs(stores), (
            "gc must leave exactly the blobs that are referenced"
        )
        assert deployment.secret_files() == count_connectors(deployment, stores)
    return found == baseline.after


@pytest.mark.parametrize(
    "prepare", sample(CHANGES, every=8, keep=lambda each: each is delete_table), ids=lambda prepare: prepare.__name__
)
def test_call_of_a_killed_server_is_atomic_and_can_be_repeated(launcher, new_deployment, prepare):
    check_all_steps(launcher, lambda: new_deployment("sqlite"), prepare)


@pytest.mark.needs("postgres")
@pytest.mark.parametrize("prepare", [move_table, create_table, delete_table], ids=lambda prepare: prepare.__name__)
@pytest.mark.full
def test_call_of_a_killed_server_is_atomic_and_can_be_repeated_on_postgresql(launcher, new_deployment, prepare):
    check_all_steps(launcher, lambda: new_deployment("postgresql"), prepare)


def check_all_steps(launcher: Launcher, new_deployment: Callable[[], Deployment], prepare: Prepare) -> None:
    baseline = run_undisturbed(launcher, new_deployment(), prepare)
    assert baseline.before != baseline.after
    outcomes = {
        check_recovery(launcher, new_deployment(), prepare, baseline=baseline, step=step)
        for step in steps(baseline.operations)
    }
    assert outcomes == {True, False}, "some servers must be killed before the change and some after it"


def test_closing_marker_of_a_killed_server_expires(launcher, new_deployment):
    """Until it expires, callers get a retryable error."""
    deployment = new_deployment("sqlite")
    baseline = run_undisturbed(launcher, deployment, delete_namespace)
    marker_written = Step(baseline.operations.index("_apply") + 1, "after")
    deployment = new_deployment("sqlite")
    change = set_up(deployment, delete_namespace)
    kill_during(launcher, deployment, change, marker_written)
    too_early = call_again(launcher, deployment, change)
    assert (too_early.code, too_early.error.code) == (grpc.StatusCode.ABORTED, v1.MC_ABORT_RETRYABLE)
    with open_deployment(deployment) as stores, open_deployment(deployment, ahead_s=31) as stores_later:
        assert list(stores.pointers.scan("/closing/")) != []
        assert list(stores_later.pointers.scan("/closing/")) == []
