"""A server is killed in every step of a call: what it was changing is wholly there or wholly not, and calling again works.

Each change is made once undisturbed, which tells its steps. Then it is made once per step on new stores, by a server
that is killed there with SIGKILL; the next server on the same stores must find order, do the same call, and gc must
then remove what is left over and nothing else.

Operations that only read leave nothing behind, so a run kills the server around the first and the last write; with
`SKIWAY_FAULTS=all` it does so before and after every operation.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
import pytest

from faults import contents
from faults.changes import CHANGES, Change, Place, Prepare, create_table, delete_namespace, delete_table, move_table
from faults.crashing_server import ACCOUNT, PATIENCE_S, QUIET, Launcher, Step, launched, steps
from faults.deployments import Deployment, collected, opened
from rpc.rpc_server import Answer
from skiway.metastore import Realm, connectors
from skiway.metastore.connectors.credentials import credentials
from skiway.metastore.seeding.catalog import seed_home
from skiway.model import v1
from skiway.storage import Stores, utc_now

pytestmark = pytest.mark.timeout(PATIENCE_S)


@dataclass(frozen=True, slots=True)
class Course:
    """A change that went well: what there was before and after, and what the stores were asked for meanwhile."""

    before: list[str]
    after: list[str]
    operations: Sequence[str]


def prepared(deployment: Deployment, prepare: Prepare) -> Change:
    with opened(deployment) as stores:
        seed_home(stores)
        return prepare(Place(stores, utc_now, secrets=deployment.secrets))


def undisturbed(launcher: Launcher, deployment: Deployment, prepare: Prepare) -> Course:
    change = prepared(deployment, prepare)
    with opened(deployment) as stores:
        before = contents.resources(stores)
        with launched(launcher, deployment, *QUIET, step=Step(0)) as server:
            server.wait_until_ready()
            assert server.call(change.operation, change.request).code is grpc.StatusCode.OK
        assert contents.broken(stores) == []
        return Course(before, contents.resources(stores), server.operations)


def killed(launcher: Launcher, deployment: Deployment, change: Change, step: Step) -> None:
    with launched(launcher, deployment, *QUIET, step=step) as server:
        server.wait_until_ready()
        answer = server.call(change.operation, change.request)
        assert answer.code is grpc.StatusCode.UNAVAILABLE, f"nobody died {step}: {answer.text}"
        assert server.wait_until_ended() == -signal.SIGKILL


def made_again(launcher: Launcher, deployment: Deployment, change: Change) -> Answer:
    with launched(launcher, deployment, *QUIET) as server:
        server.wait_until_ready()
        return server.call(change.operation, change.request)


def let_marks_expire(stores: Stores) -> None:
    """As time does it: to everybody, what has expired is the same as what is not there."""
    for mark in stores.pointers.scan("/closing/"):
        stores.pointers.compare_and_delete(mark.key, expect=mark.version)


def created(answer: Answer) -> str:
    """The id of what the call made, if it makes something that has one."""
    for name in ("catalog", "namespace", "table", "connector"):
        if name in answer.message.DESCRIPTOR.fields_by_name:
            return str(getattr(answer.message, name).resource_id.id)
    return ""


def readable_credentials(deployment: Deployment, stores: Stores) -> int:
    """How many connectors there are; each must have its credentials."""
    realm = Realm(stores, ACCOUNT)
    found = connectors.list_(realm, v1.ListConnectorsRequest()).connectors
    assert all(credentials(realm, deployment.secrets, connector.resource_id.id) for connector in found)
    return len(found)


def survives(launcher: Launcher, deployment: Deployment, prepare: Prepare, *, course: Course, step: Step) -> bool:
    """Whether the change had happened when the server was killed."""
    change = prepared(deployment, prepare)
    killed(launcher, deployment, change, step)
    with opened(deployment) as stores:
        found = contents.resources(stores)
        assert contents.broken(stores) == [], f"killed {step}"
        assert not change.at_once or found in (course.before, course.after), f"killed {step}"
        readable_credentials(deployment, stores)
        let_marks_expire(stores)
        answer = made_again(launcher, deployment, change)
        assert answer.code is grpc.StatusCode.OK, f"killed {step}: {answer.text}"
        assert contents.resources(stores) == course.after, f"killed {step}"
        assert created(answer) in {"", *contents.ids(stores)}, "an answer that is kept tells of what is there"
        collected(deployment)
        assert contents.resources(stores) == course.after, f"killed {step}, then collected"
        assert (contents.broken(stores), contents.left_behind(stores)) == ([], set())
        assert contents.blobs(stores) == contents.named_blobs(stores), "what is needed is there, and nothing else"
        assert deployment.secret_files() == readable_credentials(deployment, stores)
    return found == course.after


@pytest.mark.parametrize("prepare", CHANGES, ids=lambda prepare: prepare.__name__)
def test_a_server_killed_in_any_step_leaves_all_or_nothing_and_calling_again_finishes(
    launcher, new_deployment, prepare
):
    check(launcher, lambda: new_deployment("sqlite"), prepare)


@pytest.mark.needs("postgres")
@pytest.mark.parametrize("prepare", [create_table, move_table, delete_table], ids=lambda prepare: prepare.__name__)
def test_the_same_holds_on_postgresql(launcher, new_deployment, prepare):
    check(launcher, lambda: new_deployment("postgresql"), prepare)


def check(launcher: Launcher, new_deployment: Callable[[], Deployment], prepare: Prepare) -> None:
    course = undisturbed(launcher, new_deployment(), prepare)
    assert course.before != course.after
    outcomes = {
        survives(launcher, new_deployment(), prepare, course=course, step=step) for step in steps(course.operations)
    }
    assert outcomes == {True, False}, "some died before the change and some after it"


def test_what_a_killed_server_has_closed_opens_again_by_itself(launcher, new_deployment):
    """Until then, those who come too early are told to try again."""
    deployment = new_deployment("sqlite")
    course = undisturbed(launcher, deployment, delete_namespace)
    first_mark = Step(course.operations.index("_apply") + 1, "after")
    deployment = new_deployment("sqlite")
    change = prepared(deployment, delete_namespace)
    killed(launcher, deployment, change, first_mark)
    early = made_again(launcher, deployment, change)
    assert (early.code, early.error.code) == (grpc.StatusCode.ABORTED, v1.MC_ABORT_RETRYABLE)
    with opened(deployment) as stores, opened(deployment, ahead_s=31) as in_half_a_minute:
        assert list(stores.pointers.scan("/closing/")) != []
        assert list(in_half_a_minute.pointers.scan("/closing/")) == []
