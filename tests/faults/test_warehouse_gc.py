"""The warehouse is swept by a running server, and by `skiway gc` beside it; whoever reads or writes does not notice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pytest

from faults.deployments import Deployment
from faults.tables import SCHEMA, Doors, entered, rows, stored_files
from runtime.servers import Server, eventually, skiway, started

pytestmark = pytest.mark.timeout(180)

OFF = ("--set", "gc.warehouse.enabled=false")


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment("", "", tmp_path)


@pytest.fixture
def home(deployment: Deployment) -> Path:
    return deployment.folder / "home"


@contextmanager
def served(home: Path, *arguments: str) -> Iterator[tuple[Server, Doors]]:
    with started(home, *arguments) as server, entered(server.addresses) as doors:
        yield server, doors


def filled(doors: Doors) -> None:
    doors.db.create_schema("s")
    doors.db.create_table("s.t", SCHEMA)
    doors.db.insert("s.t", rows(1, 2))
    doors.db.update("s.t", {"word": "changed"})


def orphans(deployment: Deployment) -> set[str]:
    """What a statement that died has left, beside files of the table."""
    (data,) = {Path(path).parent for path in stored_files(deployment) if path.endswith(".parquet")}
    made = [data / f"0000{number}-5e1c2a7e-9d0f-4f54-8e5c-0a3f6d1b2c3d.parquet" for number in range(2)]
    for path in made:
        path.write_bytes(b"PAR1")
    return set(map(str, made))


def age(deployment: Deployment, days: float = 4) -> None:
    moment = time.time() - days * 86400
    for path in stored_files(deployment):
        os.utime(path, (moment, moment))


def metric(server: Server, name: str) -> float:
    with urlopen(f"{server.addresses['http']}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(name)))


def test_the_command_lists_and_removes_what_is_left_over_while_a_server_runs(
    deployment: Deployment, home: Path
) -> None:
    with served(home, *OFF) as (_, doors):
        filled(doors)
        left = orphans(deployment)
        assert skiway("gc", "--dry-run", "--home", home).stdout == "", "all of it is too young"
        age(deployment)
        asked = skiway("gc", "--dry-run", "--home", home)
        assert asked.returncode == 0, asked.stderr
        assert sorted(asked.stdout.splitlines()) == sorted(f"file  file://{path}" for path in left)
        assert "would delete 0 blobs, 0 pointers, 0 jobs, 0 secrets and 2 files" in asked.stderr
        assert left <= stored_files(deployment)
        done = skiway("gc", "--home", home)
        assert (done.returncode, done.stdout) == (0, asked.stdout)
        assert stored_files(deployment) == doors.named_files()
        assert [row["word"] for row in doors.state()["s.t"]] == ["changed"] * 2


def test_a_damaged_table_is_reported_and_left_alone(deployment: Deployment, home: Path) -> None:
    with served(home, *OFF) as (_, doors):
        filled(doors)
        listed = [each.manifest_list for each in doors.catalog.load_table("s.t").snapshots()]
    Path(listed[0].removeprefix("file://")).unlink()
    left = orphans(deployment)
    age(deployment)
    done = skiway("gc", "--home", home)
    assert (done.returncode, done.stdout) == (1, "")
    assert "content is missing: file://" in done.stderr
    assert left <= stored_files(deployment)


def test_a_running_server_sweeps_by_itself_and_counts_what_it_removed(deployment: Deployment, home: Path) -> None:
    with served(home, *OFF) as (server, doors):
        filled(doors)
        left = orphans(deployment)
        assert metric(server, 'skiway_core_task_enabled{task="gc.warehouse"}') == 0
    age(deployment)
    with served(home) as (server, doors):
        eventually(lambda: not left & stored_files(deployment))
        assert stored_files(deployment) == doors.named_files()
        eventually(lambda: metric(server, 'skiway_core_gc_removed_total{collector="warehouse"}') == len(left))
        assert metric(server, 'skiway_core_task_enabled{task="gc.warehouse"}') == 1


def test_files_of_a_statement_that_runs_are_left_alone(deployment: Deployment, home: Path) -> None:
    """Also when it has written for longer than the age that files must have."""
    with served(home, *OFF) as (_, doors):
        doors.db.create_schema("s")
        doors.db.create_table("s.t", SCHEMA)
        doors.catalog.load_table("s.t").transaction().set_properties(
            {"write.target-file-size-bytes": "1", "write.parquet.row-group-size-bytes": "1"}
        ).commit_transaction()
        removed = []

        def slowly() -> Iterator[pa.RecordBatch]:
            for number in range(3):
                yield from rows(number).to_batches()
                if number:
                    eventually(lambda: len(data_files(deployment)) >= number)  # noqa: B023
                    oldest = min(data_files(deployment))
                    os.utime(oldest, (0, 0))
                    removed.append(skiway("gc", "--home", home, "--set", "gc.warehouse.min_age_ms=60000").stdout)

        assert doors.db.insert("s.t", slowly()).count == 3
        assert removed == ["", ""]
        assert [row["id"] for row in doors.state()["s.t"]] == [0, 1, 2]


def data_files(deployment: Deployment) -> list[str]:
    return sorted(path for path in stored_files(deployment) if path.endswith(".parquet"))
