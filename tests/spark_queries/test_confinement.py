"""A confined process, and everything that it starts, reaches its programs, its folder and a few ports, and nothing else."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skiway.errors import PreconditionFailed
from skiway.spark_queries.confinement import NEEDED_ABI, confine, ephemeral_ports, landlock_abi
from spark_queries.attacks import ATTACKS

PROGRAM = """
import json, subprocess, sys
from pathlib import Path
from skiway.spark_queries.confinement import confine
folder, ports = Path(sys.argv[1]), json.loads(sys.argv[2])
confine(folder, ports=ports)
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[3], *sys.argv[4:]]).returncode)
"""

needs_landlock = pytest.mark.skipif(
    landlock_abi() < NEEDED_ABI, reason="this kernel has no Landlock; to get it: use Linux 6.7 or newer"
)


def attacked(folder: Path, victim: Path, ports: list[int] | None, *, port: int) -> dict[str, Any]:
    """What a process finds out or does that was started by a confined one."""
    arguments = [str(folder), json.dumps(ports), ATTACKS, str(victim), str(os.getpid()), str(port)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, check=True, cwd=folder, timeout=60
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@needs_landlock
def test_files_processes_and_ports_of_others_are_out_of_reach(tmp_path: Path) -> None:
    folder, victim = tmp_path / "own", tmp_path / "home"
    for each in (folder, victim):
        each.mkdir()
    (victim / "secret").write_text("planted")
    with socket.create_server(("127.0.0.1", 0)) as store:
        port = store.getsockname()[1]
        others = [each for each in ephemeral_ports() if each != port][:100]
        found = attacked(folder, victim, others, port=port)
        reached = attacked(folder, victim, [*others, port], port=port)
        unlimited = attacked(folder, victim, None, port=port)
    assert found == {
        "own file": "done",
        "secret file": "PermissionError",
        "list of the home": "PermissionError",
        "new file in the home": "PermissionError",
        "removal of the secret": "PermissionError",
        "settings of the system": "PermissionError",
        "environment of the server": "PermissionError",
        "memory of the server": "PermissionError",
        "files of the server": "PermissionError",
        "signal to the server": "PermissionError",
        "connection to the store": "PermissionError",
    }
    assert (victim / "secret").read_text() == "planted"
    assert (reached["connection to the store"], unlimited["connection to the store"]) == ("done", "done")


def test_kernel_without_landlock_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("skiway.spark_queries.confinement.landlock_abi", lambda: 3)
    with pytest.raises(PreconditionFailed, match=r"version 4 or newer \(Linux 6\.7\), and this system has version 3"):
        confine(tmp_path)
