"""A writer killed during a batch leaves all of it or nothing, and leaves no locks behind."""

from __future__ import annotations

import random
import signal

import pytest

import scope
from storage import writers
from storage.homes import pointer_home

SIZE = 200
KINDS = ("sqlite", "postgresql")
MOMENTS = 6 if scope.ALL else 2
# SQLite sees BEGIN, SELECT, INSERT, COMMIT; PostgreSQL sees locks, SELECT, INSERT, COMMIT.
STEPS = ("lock", "read", "write", "commit")


@pytest.fixture(params=scope.sample(KINDS, every=2))
def crash_home(request, tmp_path, server):
    home = pointer_home(request.param, tmp_path, server)
    with home.pointers() as store:
        writers.create_all(store, SIZE)
    return home


@pytest.mark.parametrize("step", range(len(STEPS)), ids=STEPS)
def test_writer_killed_before_a_step_changes_nothing(crash_home, step):
    process = writers.start("crash", url=crash_home.url, statement=step + 1, size=SIZE)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    with crash_home.pointers() as store:
        assert {(pointer.version, pointer.blob_uri) for pointer in store.scan()} == {(1, "before")}
        assert store.count() == SIZE
        writers.change_all(store, SIZE, 1)
        assert store.count() == SIZE + 1


def test_writer_that_is_not_killed_changes_everything(crash_home):
    process = writers.start("crash", url=crash_home.url, statement=100, size=SIZE)
    process.communicate()
    assert process.returncode == 0
    with crash_home.pointers() as store:
        assert {pointer.version for pointer in store.scan("/0")} == {2}


def test_writer_killed_at_any_time_leaves_complete_batches(crash_home):
    moments = random.Random(7)
    reached = []
    for _ in range(MOMENTS):
        with writers.start("repeat", url=crash_home.url, size=SIZE) as process:
            assert process.stdout.readline() == "started\n"
            with pytest.raises(writers.subprocess.TimeoutExpired):  # type: ignore[attr-defined]
                process.wait(moments.uniform(0.02, 0.3))
            process.kill()
        with crash_home.pointers() as store:
            versions = {pointer.version for pointer in store.scan("/0")}
            assert len(versions) == 1
            assert store.count("/0") == SIZE
            version = versions.pop()
            assert (store.get("/turn") is not None) == (version % 2 == 0)
            reached.append(version)
    assert reached == sorted(reached)
    assert reached[-1] > 1  # something was written
