"""A server is killed in every step of a statement: the old state or the new one, and gc removes just what is left over.

Each statement is made once undisturbed, which tells its steps. Then it is made once per step by a server that is killed
there with SIGKILL: after a data file, a manifest, the manifest list, the metadata, before and after the pointers are
swapped. The next server must show the old state or the new one by both doors, make the same statement again, and gc must
then leave exactly the files that PyIceberg finds named by the metadata.

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
    FILES,
    PATIENCE_S,
    QUIET,
    WRITES,
    CrashingServer,
    Launcher,
    Step,
    launched,
)
from faults.deployments import Deployment, collected, opened
from faults.tables import SCHEMA, Doors, Saved, State, entered, rows, stored_files
from skiway.client import col
from skiway.errors import SkiwayError

pytestmark = pytest.mark.timeout(PATIENCE_S)

FOUR_DAYS_S = 4 * 86400.0
"""After which all that nothing refers to may go."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, and which threads of a server run it."""

    make: Callable[[Doors], object]
    threads: str = "airport"

    @property
    def name(self) -> str:
        return self.make.__name__


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


def append_by_rest(doors: Doors) -> None:
    doors.catalog.load_table("s.t").append(rows(7, 8, word="new"))


def create_by_rest(doors: Doors) -> None:
    """A table that is staged, and comes into being with its rows."""
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
)


def prepared(launcher: Launcher, deployment: Deployment) -> Saved:
    """A table of two files and three snapshots."""
    with launched(launcher, deployment, *QUIET) as server:
        server.wait_until_ready()
        with entered(server.addresses) as doors:
            doors.db.create_schema("s")
            doors.db.create_table("s.t", SCHEMA)
            doors.db.insert("s.t", rows(1, 2, 3))
            doors.db.insert("s.t", rows(4, 5, 6))
            doors.db.update("s.t", {"word": "older"}, where=col("id") == 1)
    return Saved.of(deployment)


@dataclass(frozen=True, slots=True)
class Course:
    """A statement that went well: what there was before and after, and what was asked of stores and warehouse."""

    before: State
    after: State
    operations: Sequence[str]


def undisturbed(launcher: Launcher, deployment: Deployment, statement: Statement) -> Course:
    with watched(launcher, deployment, statement, Step(0)) as (server, doors):
        before = doors.state()
        statement.make(doors)
        return Course(before, doors.state(), server.operations)


@contextmanager
def watched(
    launcher: Launcher, deployment: Deployment, statement: Statement, step: Step
) -> Iterator[tuple[CrashingServer, Doors]]:
    """A server that dies in a step of the statement. Only what it writes is counted: how often it reads, time decides."""
    with launched(launcher, deployment, *QUIET, threads=statement.threads, step=step, only=WRITES | FILES) as server:
        server.wait_until_ready()
        with entered(server.addresses) as doors:
            yield server, doors


def chosen(statement: Statement, operations: Sequence[str]) -> list[Step]:
    """Where to die: around the swaps of pointers, and after files; of most statements, after the last one."""
    if EVERY_STEP:
        return [Step(number, when) for number in range(1, len(operations) + 1) for when in ("before", "after")]
    swaps = [number for number, name in enumerate(operations, 1) if name == "_apply"]
    files = [number for number, name in enumerate(operations, 1) if name == "seal"]
    after = {*(files if statement.make is insert else files[-1:]), swaps[-1]}
    return [Step(swaps[0], "before"), *(Step(number, "after") for number in sorted(after))]


def killed(launcher: Launcher, deployment: Deployment, statement: Statement, step: Step) -> None:
    with watched(launcher, deployment, statement, step) as (server, doors):
        with pytest.raises((SkiwayError, RESTError, RequestException)):
            statement.make(doors)
        assert server.wait_until_ended() == -signal.SIGKILL, f"nobody died {step}"


def survives(launcher: Launcher, deployment: Deployment, statement: Statement, *, course: Course, step: Step) -> bool:
    """Whether the statement had happened when the server was killed."""
    killed(launcher, deployment, statement, step)
    with launched(launcher, deployment, *QUIET) as server:
        server.wait_until_ready()
        with entered(server.addresses) as doors, opened(deployment) as stores:
            found = doors.state()
            assert found in (course.before, course.after), f"killed {step}"
            assert contents.broken(stores) == [], f"killed {step}"
            check_gc(deployment, doors, found)
            if found != course.after:
                statement.make(doors)
            assert doors.state() == course.after, f"killed {step}, then made again"
            check_gc(deployment, doors, course.after)
            assert (contents.broken(stores), contents.left_behind(stores)) == ([], set())
    return found == course.after


def check_gc(deployment: Deployment, doors: Doors, state: State) -> None:
    """Gc removes the files that no metadata names, those alone, and no row goes with them."""
    named, stored = doors.named_files(), stored_files(deployment)
    assert named <= stored, "what is named is there"
    removed = {name.removeprefix("file://") for name in collected(deployment, ahead_s=FOUR_DAYS_S) if "/home/" in name}
    assert removed == stored - named
    assert stored_files(deployment) == named
    assert doors.state() == state


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.name)
def test_a_server_killed_in_any_step_leaves_the_old_state_or_the_new_and_files_that_gc_removes(
    launcher: Launcher, new_deployment: Callable[[str], Deployment], statement: Statement
) -> None:
    saved = prepared(launcher, new_deployment("sqlite"))
    course = undisturbed(launcher, saved.restored(), statement)
    assert course.before != course.after
    outcomes = {
        survives(launcher, saved.restored(), statement, course=course, step=step)
        for step in chosen(statement, course.operations)
    }
    assert outcomes == {True, False}, "some died before the change and some after it"
