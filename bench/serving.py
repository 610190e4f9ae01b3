"""`skiway serve` in its own process, as a user would start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def skiway_serve(home: Path, *settings: str) -> Iterator[dict[str, str]]:
    """Run `skiway serve`, and yield its addresses as the ready file names them."""
    command = ["-m", "skiway.cli", "serve", "--home", str(home), "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    for setting in ("log.level=WARNING", *settings):
        command += ["--set", setting]
    with started([sys.executable, *command], ready_option="--ready-file") as doors:
        yield doors


@contextmanager
def started(command: Sequence[str], *, ready_option: str = "") -> Iterator[dict[str, str]]:
    """Run a server whose last argument is its ready file, and yield the content of that file. Stop it after the block.

    Its modules are compiled once, as those of an installation are.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with TemporaryDirectory() as folder:
        ready = Path(folder, "ready.json")
        process = subprocess.Popen([*command, *filter(None, [ready_option]), str(ready)], env=environment)
        try:
            yield _written(process, ready)
        finally:
            process.terminate()
            process.wait()


def _written(process: subprocess.Popen[bytes], ready: Path) -> dict[str, str]:
    while not ready.exists():
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode} before it was ready")
        time.sleep(0.05)
    doors: dict[str, str] = json.loads(ready.read_text())
    return doors
