"""The wheel and the sdist of this project, and fresh virtual environments that they are installed into."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from uv import find_uv_bin

__all__ = ["PROJECT", "Environment", "build", "environment", "unpack"]

PROJECT = Path(__file__).resolve().parents[2]
LOCK = PROJECT / "requirements.lock"
PATIENCE_S = 300


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with Skiway in it, used from an empty directory."""

    folder: Path

    def command(self, program: str, *arguments: str | Path) -> list[str | Path]:
        return [self.folder / "bin" / program, *arguments]

    def run(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(program, *arguments),
            check=False, capture_output=True, cwd=self.folder, env=variables(), text=True, timeout=PATIENCE_S,
        )  # fmt: skip

    def python(self, program: str) -> str:
        """The output of a Python program, which must succeed."""
        done = self.run("python", "-W", "error", "-c", program)
        assert done.returncode == 0, done.stderr
        return done.stdout


def variables() -> dict[str, str]:
    """The variables of this process, without those that lead to its own Python environment."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def build(project: Path, target: str, into: Path) -> Path:
    """The wheel or sdist (`target`) of `project`, made by the locked build backend without a network."""
    _run([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", into], cwd=project)
    [made] = into.iterdir()
    return made


def unpack(sdist: Path, into: Path) -> Path:
    """The project folder in an sdist."""
    with tarfile.open(sdist) as archive:
        archive.extractall(into, filter="data")
    [folder] = into.iterdir()
    return folder


@contextmanager
def environment(distribution: Path, *extras: str) -> Iterator[Environment]:
    """A fresh environment with `distribution` and `extras`, in the locked versions. Its packages come from uv's cache."""
    wanted = f"skiway[{','.join(extras)}] @ {distribution.as_uri()}" if extras else f"skiway @ {distribution.as_uri()}"
    with TemporaryDirectory(prefix="skiway-env-") as folder:
        _run([find_uv_bin(), "venv", "--quiet", "--clear", "--python", sys.executable, folder])
        install = [find_uv_bin(), "pip", "install", "--quiet", "--python", f"{folder}/bin/python"]
        install += ["--constraint", str(LOCK), wanted]
        try:
            _run([*install, "--offline"])
        except AssertionError:  # not everything is in the cache
            _run(install)
        yield Environment(Path(folder))


def _run(command: Sequence[str | Path], *, cwd: Path = PROJECT) -> None:
    done = subprocess.run(
        command, check=False, capture_output=True, cwd=cwd, env=variables(), text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
