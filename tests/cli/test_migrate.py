"""`skiway migrate` on the home of an old server, and the servers that use it before and afterwards."""

from __future__ import annotations

import sqlite3
import subprocess
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

from metastore.migrations.old_stores import format_1
from runtime.servers import Server, eventually, launch, skiway, started
from skiway.client import Metastore
from skiway.errors import PreconditionFailed
from skiway.storage import FORMAT_VERSION, StoreFormat, open_pointers

STEP = "format 2: move the key that signs tickets from the pointer store to the secrets store\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    def no_server(name: str) -> str:
        raise AssertionError(name)

    return format_1("sqlite", tmp_path / "home", no_server).home


def recorded(home: Path) -> StoreFormat:
    with open_pointers(f"sqlite:///{home}/pointers.db") as pointers:
        return pointers.format()


def test_old_home_is_served_then_migrated_once(home: Path) -> None:
    with started(home) as server, Metastore(server.address) as lake:
        assert [each.name for each in lake.catalogs()] == ["examples", "lake", "records"]
        lake.catalogs.create("made before the migration")
        assert (server.stop(), "run `skiway migrate` after all servers are upgraded" in server.output()) == (0, True)
    assert recorded(home) == StoreFormat(1)

    planned = skiway("migrate", "--dry-run", "--home", home)
    assert (planned.returncode, planned.stdout) == (0, STEP)
    assert planned.stderr == "the store has format 1: would run 1 step\n"
    assert recorded(home) == StoreFormat(1)

    done = skiway("migrate", "--home", home)
    assert (done.returncode, done.stdout, done.stderr) == (0, STEP, "the store has format 2\n")
    assert recorded(home) == StoreFormat(2)
    again = skiway("migrate", "--home", home)
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr == "the store has format 2: there is nothing to migrate\n"

    with started(home) as server, Metastore(server.address) as lake:
        assert "made before the migration" in [each.name for each in lake.catalogs()]
        assert (server.stop(), "skiway migrate" in server.output()) == (0, False)
    assert skiway("check", "--home", home).returncode == 0


def test_newer_format_is_refused_by_servers_and_commands(home: Path) -> None:
    set_version(home, "99")
    for command in (["serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"], ["worker"], ["migrate"], ["check"]):
        done = skiway(*command, "--home", home)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"has format 99, but this version of Skiway reads up to {FORMAT_VERSION}; upgrade Skiway" in done.stderr


def test_running_server_and_worker_stop_when_the_store_becomes_too_new(home: Path) -> None:
    with ExitStack() as parts:
        server = parts.enter_context(started(home))
        worker = parts.enter_context(launch("worker", "--home", home, stderr=subprocess.PIPE))
        parts.callback(worker.kill)
        lake = parts.enter_context(Metastore(server.address))
        assert worker.stderr is not None
        assert "is waiting for jobs" in read_until(worker.stderr, "is waiting for jobs")
        set_version(home, "99")
        eventually(lambda: not is_ready(server))
        with pytest.raises(PreconditionFailed, match=r"was migrated to format 99, .*: upgrade and restart this server"):
            lake.catalogs.create("too late")
        assert "was migrated to format 99" in read_until(worker.stderr, "was migrated")


def read_until(lines: IO[str], text: str) -> str:
    """The lines up to the first one with this text."""
    read = ""
    for line in lines:
        read += line
        if text in line:
            break
    return read


def is_ready(server: Server) -> bool:
    try:
        with urllib.request.urlopen(f"{server.addresses['http']}/readyz", timeout=10) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError:
        return False


def set_version(home: Path, version: str) -> None:
    with sqlite3.connect(home / "pointers.db") as database:
        database.execute("UPDATE skiway_format SET version = ?", [version])
    database.close()


def test_incomplete_migration_is_shown_and_completed(home: Path) -> None:
    with open_pointers(f"sqlite:///{home}/pointers.db") as pointers:
        pointers.change_format(StoreFormat(1), StoreFormat(2, complete=False))
    planned = skiway("migrate", "--dry-run", "--home", home)
    assert (planned.stdout, planned.stderr) == (STEP, "the store has format 2, incomplete: would run 1 step\n")
    assert skiway("migrate", "--home", home).stdout == STEP
    assert recorded(home) == StoreFormat(2)


def test_home_that_does_not_exist_is_not_created(tmp_path: Path) -> None:
    done = skiway("migrate", "--home", tmp_path / "nowhere")
    assert (done.returncode, "there is no home" in done.stderr) == (1, True)
    assert not (tmp_path / "nowhere").exists()
