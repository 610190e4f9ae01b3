"""A server is killed at each step of a statement: the statement is atomic, and gc deletes only unreferenced files.

Each statement is first run undisturbed, which shows its steps. It is then run once per step by a server that is killed
with SIGKILL at that step: after a data file, a manifest, the manifest list or the metadata, before and after the pointers
are swapped. The next server must show the old or the new state through both doors and be able to repeat the statement, and
gc must then leave exactly the files that the metadata refers to according to PyIceberg.

With `SKIWAY_FAULTS=all` it is killed before and after every operation that writes to the stores or the warehouse.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from pyiceberg.exceptions import RESTError
from requests.exceptions import RequestException

from faults import contents
from faults.crashing_server import (
    EVERY_STEP,
    FILE_OPERATIONS,
    TIMEOUT_S,
    WRITES,
    CrashingServer,
    Launcher,
    Step,
    launched,
)
from faults.deployments import Deployment, collect, open_deployment
from faults.tables import SCHEMA, Doors, SavedDeployment, State, connected, rows, stored_files
from runtime.servers import NO_GC
from scope import sample
from skiway.client import col
from skiway.errors import SkiwayError

pytestmark = pytest.mark.timeout(TIMEOUT_S)

MERGE_ON_READ = {"write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read"}

FOUR_DAYS_S = 4 * 86400.0
"""The age after which gc deletes unreferenced files."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, and the threads of a server that run it."""

    run: Callable[[Doors], object]
    threads: str = "airport"

    @property
    def name(self) -> str:
        return self.run.__name__


def insert(doors: Doors) -> None:
    assert doors.db.insert("s.t", rows(7, 8, word="new")).count == 2


def update(doors: Doors) -> None:
    assert doors.db.update("s.t", {"word": "changed"}, where=col("id") == 2).count == 1


def delete(doors: Doors) -> None:
    assert doors.db.delete("s.t", where=col("id") == 5).count == 1


def create_table_as(doors: Doors) -> None:
    assert doors.db.create_table_as("s.made", rows(1, 2)).count == 2


def drop_table(doors: Doors) -> None:
    doors.db.drop_table("s.t")


def staged_inserts(doors: Doors) -> None:
    """Insert into two tables, which must change together."""
    with doors.db.transaction() as transaction:
        assert transaction.insert("s.t", rows(7, 8, word="new")) == 2
        assert transaction.insert("s.u", rows(7, 8, word="new")) == 2


def staged_changes(doors: Doors) -> None:
    """Insert, update and delete in three tables, which must change together; one has merge-on-read."""
    with doors.db.transaction() as transaction:
        assert transaction.insert("s.u", rows(7, 8, word="new")) == 2
        assert transaction.update("s.u", {"word": "changed"}, where=col("id") == 7) == 1
        assert transaction.delete("s.t", where=col("id") == 5) == 1
        assert transaction.update("s.t", {"word": "changed"}, where=col("id") == 4) == 1  # of the same file
        assert transaction.delete("s.merged", where=col("id") == 1) == 1
        assert transaction.update("s.merged", {"word": "changed"}, where=col("id") == 2) == 1


def append_by_rest(doors: Doors) -> None:
    doors.catalog.load_table("s.t").append(rows(7, 8, word="new"))


def create_by_rest(doors: Doors) -> None:
    """Create a staged table together with its rows."""
    with doors.catalog.create_table_transaction("s.made", SCHEMA) as staged:
        staged.append(rows(1, 2))


STATEMENTS = (
    Statement(insert),
    Statement(update),
    Statement(delete),
    Statement(create_table_as),
    Statement(drop_table),
    Statement(append_by_rest, threads="rest"),
    Statement(create_by_rest, threads="rest"),
    Statement(staged_inserts),
    Statement(staged_changes),
)


@pytest.fixture(scope="module")
def saved(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> SavedDeployment:
    """A table with two files and three snapshots, one without rows, and one with merge-on-read."""
    folder = tmp_path_factory.mktemp("statements") / "deployment"
    folder.mkdir()
    deployment = Deployment(f"sqlite:///{folder}/pointers.db", (folder / "blobs").as_uri(), folder)
    with launched(launcher, deployment, *NO_GC) as server:
        server.wait_until_ready()
        with connected(server.addresses) as doors:
            doors.db.create_schema("s")
            doors.db.create_table("s.t", SCHEMA)
            doors.db.create_table("s.u", SCHEMA)
            doors.catalog.create_table("s.merged", SCHEMA, properties=MERGE_ON_READ)
            doors.db.reload()
            doors.db.insert("s.merged", rows(1, 2, 3))
            doors.db.insert("s.t", rows(1, 2, 3))
            doors.db.insert("s.t", rows(4, 5, 6))
            doors.db.update("s.t", {"word": "older"}, where=col("id") == 1)
    return SavedDeployment.of(deployment)


@dataclass(frozen=True, slots=True)
class Baseline:
    """An undisturbed statement: the state before and after it, and the operations of stores and warehouse."""

    before: State
    after: State
    operations: Sequence[str]


def run_undisturbed(launcher: Launcher, deployment: Deployment, statement: Statement) -> Baseline:
    with crashing_server(launcher, deployment, statement, Step(0)) as (server, doors):
        before = doors.state()
        statement.run(doors)
        return Baseline(before, doors.state(), server.operations)


@contextmanager
def crashing_server(
    launcher: Launcher, deployment: Deployment, statement: Statement, step: Step
) -> Iterator[tuple[CrashingServer, Doors]]:
    """A server that is killed at a step of the statement. Only writes count, since the number of reads depends on timing."""
    with launched(
        launcher, deployment, *NO_GC, threads=statement.threads, step=step, only=WRITES | FILE_OPERATIONS
    ) as server:
        server.wait_until_ready()
        with connected(server.addresses) as doors:
            yield server, doors


def steps_to_kill_at(statement: Statement, operations: Sequence[str]) -> list[Step]:
    """Where to kill the server: an insert after each file and around pointer swaps, others shortly before and after."""
    if EVERY_STEP:
        return [Step(number, when) for number in range(1, len(operations) + 1) for when in ("before", "after")]
    swaps = [number for number, name in enumerate(operations, 1) if name == "_apply"]
    files = [number for number, name in enumerate(operations, 1) if name == "seal"]
    if statement.run is insert:
        return [Step(swaps[0], "before"), *(Step(number, "after") for number in (*files, swaps[-1]))]
    written = [number for number in files if number < swaps[0]]
    return [Step(written[-1], "after") if written else Step(swaps[0], "before"), Step(swaps[-1], "after")]


def kill_during(launcher: Launcher, deployment: Deployment, statement: Statement, step: Step) -> None:
    with crashing_server(launcher, deployment, statement, step) as (server, doors):
        try:
            statement.run(doors)
        except (SkiwayError, RESTError, RequestException):
            assert server.wait_until_ended() == -signal.SIGKILL, f"the server was not killed {step}"
        else:  # threads that lose a race repeat an operation, which they may not have done this time
            assert len(server.operations) < step.at, f"the server was not killed {step}"


def check_recovery(
    launcher: Launcher, deployment: Deployment, statement: Statement, *, baseline: Baseline, step: Step
) -> bool:
    """Kill a server at `step` and check that the next one recovers. Return whether the statement was done before the kill."""
    kill_during(launcher, deployment, statement, step)
    with launched(launcher, deployment, *NO_GC) as server:
        server.wait_until_ready()
        with connected(server.addresses) as doors, open_deployment(deployment) as stores:
            state = doors.state()
            assert state in (baseline.before, baseline.after), f"killed {step}"
            assert contents.integrity_errors(stores) == [], f"killed {step}"
            check_gc(deployment, doors, state)
            if state != baseline.after:
                statement.run(doors)
            assert doors.state() == baseline.after, f"killed {step}, then repeated"
            check_gc(deployment, doors, baseline.after)
            assert (contents.integrity_errors(stores), contents.orphaned_keys(stores)) == ([], set())
    return state == baseline.after


def check_gc(deployment: Deployment, doors: Doors, state: State) -> None:
    """Check that gc deletes exactly the unreferenced files, and no rows."""
    referenced, stored = doors.referenced_files(), stored_files(deployment)
    assert referenced <= stored, "every referenced file must exist"
    removed = {name.removeprefix("file://") for name in collect(deployment, ahead_s=FOUR_DAYS_S) if "/home/" in name}
    assert removed == stored - referenced
    assert stored_files(deployment) == referenced
    assert doors.state() == state


@pytest.mark.parametrize(
    "statement",
    sample(STATEMENTS, every=6, keep=lambda each: each.run is staged_changes),
    ids=lambda statement: statement.name,
)
def test_statement_of_a_killed_server_is_atomic_and_gc_deletes_its_files(
    launcher: Launcher, saved: SavedDeployment, statement: Statement
) -> None:
    baseline = run_undisturbed(launcher, saved.restore(), statement)
    assert baseline.before != baseline.after
    outcomes = {
        check_recovery(launcher, saved.restore(), statement, baseline=baseline, step=step)
        for step in steps_to_kill_at(statement, baseline.operations)
    }
    assert outcomes == {True, False}, "some servers must be killed before the change and some after it"
