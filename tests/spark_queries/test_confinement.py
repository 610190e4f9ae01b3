"""A confined process, and everything that it starts, reaches its programs, its folder and a few ports, and nothing else."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from skiway.config.server import SparkSql
from skiway.errors import PreconditionFailed
from skiway.runtime.lake import spark_placement
from skiway.spark_queries.supervisor import (
    NEEDED_ABI,
    can_protect_attributes,
    confine,
    ephemeral_ports,
    landlock_abi,
    protect_attributes,
)
from spark_queries.attacks import ATTACKS

PROGRAM = """
import json, subprocess, sys
from pathlib import Path
from skiway.spark_queries.supervisor import confine
folder, ports = Path(sys.argv[1]), json.loads(sys.argv[2])
confine(folder, ports=ports)
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[3], *sys.argv[4:]]).returncode)
"""

needs_landlock = pytest.mark.skipif(
    landlock_abi() < NEEDED_ABI, reason="this kernel has no Landlock; to get it: use Linux 6.7 or newer"
)


needs_namespaces = pytest.mark.skipif(
    not can_protect_attributes(), reason="this user cannot create namespaces; to get it: allow user namespaces"
)


def attacked(
    folder: Path, victim: Path, ports: list[int] | None, *, port: int, protected: bool = True
) -> dict[str, Any]:
    """What a process finds out or does that was started by a confined one."""
    arguments = [str(folder), json.dumps(ports), ATTACKS, str(victim), str(os.getpid()), str(port)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        check=True,
        cwd=folder,
        timeout=60,
        preexec_fn=partial(protect_attributes, folder) if protected else None,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@needs_namespaces
@needs_landlock
def test_files_processes_and_ports_of_others_are_out_of_reach(tmp_path: Path) -> None:
    folder, victim = tmp_path / "own", tmp_path / "home"
    for each in (folder, victim):
        each.mkdir()
    (victim / "secret").write_text("planted")
    (victim / "secret").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as store:
        port = store.getsockname()[1]
        others = [each for each in ephemeral_ports() if each != port][:100]
        found = attacked(folder, victim, others, port=port)
        reached = attacked(folder, victim, [*others, port], port=port)
        unlimited = attacked(folder, victim, None, port=port)
    attributes = {name: found.pop(name) for name in list(found) if name.startswith("attributes: ")}
    assert found == {
        "own file": "done",
        "own attributes": "done",
        "link to the secret": "OtherMount",
        "link in the home": "OtherMount",
        "other name of the secret": "OtherMount",
        "secret as an own file": "OtherMount",
        "secret file": "PermissionError",
        "list of the home": "PermissionError",
        "new file in the home": "OtherMount",
        "removal of the secret": "OtherMount",
        "settings of the system": "PermissionError",
        "environment of the server": "PermissionError",
        "memory of the server": "PermissionError",
        "files of the server": "PermissionError",
        "signal to the server": "PermissionError",
        "connection to the store": "PermissionError",
    }
    assert len(attributes) == 11
    assert set(attributes.values()) == {"OtherMount", "PermissionError"}, attributes
    assert (victim / "secret").read_text() == "planted"
    assert ((victim / "secret").stat().st_mode & 0o777, (victim / "secret").stat().st_mtime > 0) == (0o600, True)
    assert (reached["connection to the store"], unlimited["connection to the store"]) == ("done", "done")


@needs_landlock
def test_landlock_alone_does_not_protect_attributes(tmp_path: Path) -> None:
    """The risk that an operator can accept."""
    folder, victim = tmp_path / "own", tmp_path / "home"
    for each in (folder, victim):
        each.mkdir()
    (victim / "secret").write_text("planted")
    found = attacked(folder, victim, None, port=1, protected=False)
    changed = {name for name, outcome in found.items() if name.startswith("attributes: ") and outcome == "done"}
    assert changed >= {f"attributes: {name}" for name in ("permissions", "owner", "times", "extended attribute")}


def test_server_without_namespaces_needs_a_setting_or_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skiway.runtime.lake.can_protect_attributes", lambda: False)
    monkeypatch.setattr("skiway.runtime.lake.landlock_abi", lambda: NEEDED_ABI)
    with pytest.raises(PreconditionFailed, match=r"accept the risk with sql\.spark\.unprotected_attributes=true"):
        spark_placement(SparkSql(), purpose="queries on Spark")
    accepted = spark_placement(SparkSql(unprotected_attributes=True), purpose="queries on Spark")
    assert (accepted.confined, accepted.protected) == (True, False)
    by_command = spark_placement(SparkSql(command="sudo -u other python"), purpose="queries on Spark")
    assert (by_command.confined, by_command.protected) == (True, True)  # the supervisor decides


def test_kernel_without_landlock_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("skiway.spark_queries.supervisor.landlock_abi", lambda: 3)
    with pytest.raises(PreconditionFailed, match=r"version 4 or newer \(Linux 6\.7\), and this system has version 3"):
        confine(tmp_path)
