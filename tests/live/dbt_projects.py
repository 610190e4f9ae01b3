"""dbt in a process of the real client, and the project of `examples/dbt` on a lake."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from any_duckdb.versions import INSTALL
from examples.pages import PROJECT
from live.clients import Client, client_environment, client_python, plain_session
from live.servers import LiveServer

__all__ = ["EXAMPLE", "Dbt", "dbt_packages", "project_of"]

EXAMPLE = PROJECT / "examples" / "dbt"
PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from dbt.cli.main import cli; cli()"
TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Dbt:
    """A project, whose commands run in processes of their own."""

    packages: Path
    folder: Path

    def __call__(self, *words: str, fails: bool = False) -> str:
        """Run a command of dbt, and return what it prints; with `fails`, it has to end with exit code 1."""
        environment = client_environment() | {"DBT_PROFILES_DIR": str(self.folder), "DBT_USE_COLORS": "0"}
        command = [client_python(), "-c", PROGRAM, str(self.packages), *words]
        done = subprocess.run(
            command, check=False, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.returncode == (1 if fails else 0), f"dbt {' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def write(self, file: str, text: str) -> None:
        """Write a file of the project."""
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def dbt_packages(client: Client) -> Path:
    """The folder of the packages of the example, with the client's version of DuckDB. It is made once."""
    with plain_session() as session:
        [[version]] = session.rows("SELECT substr(version(), 2)")
    required = [*_required(), f"duckdb=={version}"]
    folder = PROJECT / ".cache" / "dbt" / "-".join(each.replace("==", "-") for each in required)
    if folder.is_dir():
        return folder
    made = folder.with_name(f"{folder.name}.{os.getpid()}")
    command = [each for each in INSTALL if each != "--no-deps"]
    command[command.index("--python") + 1] = client_python()
    command += ["--target", str(made), *required]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"dbt cannot be installed: {' '.join(command)}: {done.stderr[-500:]}")
    made.rename(folder)
    return folder


def _required() -> Sequence[str]:
    lines = (EXAMPLE / "requirements.txt").read_text().split()
    return [line for line in lines if not line.startswith("duckdb==")]


def project_of(client: Client, server: LiveServer, folder: Path) -> Path:
    """A copy of the example for a server. Its profile differs only in the address, and in how the extension is found."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("target", "logs"))
    profiles: dict[str, Any] = yaml.safe_load((folder / "profiles.yml").read_text())
    target = profiles["shop"]["outputs"]["lake"]
    target["attach"][0]["path"] = target["attach"][0]["path"].replace("grpc://127.0.0.1:50051", server.location)
    if built := [each.split("'")[1] for each in client.loads if "'" in each]:
        target["extensions"] = built
        target["config_options"] = {"allow_unsigned_extensions": True, "extension_directory": f"{folder}-extensions"}
    (folder / "profiles.yml").write_text(yaml.safe_dump(profiles))
    return folder
