"""Warehouse gc by a running server and by `skiway gc` beside it, without effect on readers and writers."""

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
from faults.tables import SCHEMA, Doors, connected, rows, stored_files
from runtime.servers import Server, eventually, skiway, started

pytestmark = pytest.mark.timeout(180)

GC_OFF = ("--set", "gc.warehouse.enabled=false")


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment("", "", tmp_path)


@pytest.fixture
def home(deployment: Deployment) -> Path:
    return deployment.folder / "home"


@contextmanager
def serve(home: Path, *arguments: str) -> Iterator[tuple[Server, Doors]]:
    with started(home, *arguments) as server, connected(server.addresses) as doors:
        yield server, doors


def create_table_with_rows(doors: Doors) -> None:
    doors.db.create_schema("s")
    doors.db.create_table("s.t", SCHEMA)
    doors.db.insert("s.t", rows(1, 2))
    doors.db.update("s.t", {"word": "changed"})


def create_orphaned_files(deployment: Deployment) -> set[str]:
    """Create files such as a killed statement leaves beside the files of a table."""
    (data,) = {Path(path).parent for path in stored_files(deployment) if path.endswith(".parquet")}
    created = [data / f"0000{number}-5e1c2a7e-9d0f-4f54-8e5c-0a3f6d1b2c3d.parquet" for number in range(2)]
    for path in created:
        path.write_bytes(b"PAR1")
    return set(map(str, created))


def age(deployment: Deployment, days: float = 4) -> None:
    modified_at = time.time() - days * 86400
    for path in stored_files(deployment):
        os.utime(path, (modified_at, modified_at))


def metric(server: Server, name: str) -> float:
    with urlopen(f"{server.addresses['http']}/metrics") as response:
        lines = response.read().decode().splitlines()
    return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(name)))


def test_gc_command_lists_and_deletes_orphaned_files_while_a_server_runs(deployment: Deployment, home: Path) -> None:
    with serve(home, *GC_OFF) as (_, doors):
        create_table_with_rows(doors)
        orphaned = create_orphaned_files(deployment)
        assert skiway("gc", "--dry-run", "--home", home).stdout == "", "all files are too new"
        age(deployment)
        dry_run = skiway("gc", "--dry-run", "--home", home)
        assert dry_run.returncode == 0, dry_run.stderr
        assert sorted(dry_run.stdout.splitlines()) == sorted(f"file  file://{path}" for path in orphaned)
        assert "0 secrets, 0 branches, 0 blobs and 2 files" in dry_run.stderr
        assert orphaned <= stored_files(deployment)
        done = skiway("gc", "--home", home)
        assert (done.returncode, done.stdout) == (0, dry_run.stdout)
        assert stored_files(deployment) == doors.referenced_files()
        assert [row["word"] for row in doors.state()["s.t"]] == ["changed"] * 2


def test_damaged_table_is_reported_and_not_swept(deployment: Deployment, home: Path) -> None:
    with serve(home, *GC_OFF) as (_, doors):
        create_table_with_rows(doors)
        manifest_lists = [each.manifest_list for each in doors.catalog.load_table("s.t").snapshots()]
    Path(manifest_lists[0].removeprefix("file://")).unlink()
    orphaned = create_orphaned_files(deployment)
    age(deployment)
    done = skiway("gc", "--home", home)
    assert (done.returncode, done.stdout) == (1, "")
    assert "content is missing: file://" in done.stderr
    assert orphaned <= stored_files(deployment)


def test_running_server_sweeps_and_counts_deleted_files(deployment: Deployment, home: Path) -> None:
    with serve(home, *GC_OFF) as (server, doors):
        create_table_with_rows(doors)
        orphaned = create_orphaned_files(deployment)
        assert metric(server, 'skiway_core_task_enabled{task="gc.warehouse"}') == 0
    age(deployment)
    with serve(home) as (server, doors):
        eventually(lambda: not orphaned & stored_files(deployment))
        assert stored_files(deployment) == doors.referenced_files()
        eventually(lambda: metric(server, 'skiway_core_gc_removed_total{collector="warehouse"}') == len(orphaned))
        assert metric(server, 'skiway_core_task_enabled{task="gc.warehouse"}') == 1


def test_files_of_a_running_statement_are_not_deleted(deployment: Deployment, home: Path) -> None:
    """Even if the statement takes longer than the minimum age of files."""
    with serve(home, *GC_OFF) as (_, doors):
        doors.db.create_schema("s")
        doors.db.create_table("s.t", SCHEMA)
        doors.catalog.load_table("s.t").transaction().set_properties(
            {"write.target-file-size-bytes": "1", "write.parquet.row-group-size-bytes": "1"}
        ).commit_transaction()
        removed = []

        def slow_batches() -> Iterator[pa.RecordBatch]:
            for number in range(4):
                yield from rows(number).to_batches()
                if number > 1:  # the server has begun a file for each batch before this one
                    eventually(lambda: len(data_files(deployment)) >= number)  # noqa: B023
                    oldest = min(data_files(deployment))
                    os.utime(oldest, (0, 0))
                    removed.append(skiway("gc", "--home", home, "--set", "gc.warehouse.min_age_ms=60000").stdout)

        assert doors.db.insert("s.t", slow_batches()).count == 4
        assert removed == ["", ""]
        assert [row["id"] for row in doors.state()["s.t"]] == [0, 1, 2, 3]


def data_files(deployment: Deployment) -> list[str]:
    return sorted(path for path in stored_files(deployment) if path.endswith(".parquet"))
