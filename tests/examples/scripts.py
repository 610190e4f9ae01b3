"""The scripts in `examples/`: finding, importing, and running them as a user does."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from runtime import preloaded

FOLDER = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))

ATTACH = re.compile(r"in DuckDB: ATTACH '(?P<catalog>.*?)'.*LOCATION '(?P<location>.*?)'")


def load(name: str) -> ModuleType:
    """The module in `examples/<name>.py`; importing it does not start a server."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Running:
    """A running script that has printed its location."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log: list[str] = []
        self.location = self._read_location()

    def _read_location(self) -> str:
        for line in self._stderr():
            self.log.append(line)
            if found := ATTACH.search(line):
                return found["location"]
        raise AssertionError("the script ended before it started to serve:\n" + "".join(self.log))

    def end(self, number: int) -> tuple[int, str, str]:
        """Send a signal; returns the exit code and all output."""
        self.process.send_signal(number)
        assert self.process.stdout is not None
        self.log.extend(self._stderr())  # not communicate(), which would miss lines that were already read
        return self.process.wait(timeout=200), self.process.stdout.read(), "".join(self.log)

    def _stderr(self) -> IO[str]:
        assert self.process.stderr is not None
        return self.process.stderr


@contextlib.contextmanager
def running(name: str, *arguments: object, temporary: Path, fresh: bool = False) -> Iterator[Running]:
    """Run the script as a process with warnings as errors and temporary files in a folder of the test.

    A `fresh` one runs in a new interpreter, as users run it.
    """
    command = [str(FOLDER / f"{name}.py"), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options: dict[str, Any] = {"text": True, "env": {**os.environ, "TMPDIR": str(temporary)}} | pipes
    with (
        subprocess.Popen([sys.executable, "-W", "error", *command], **options)
        if fresh or not preloaded.available()
        else preloaded.PreloadedScript(command, **options)
    ) as process:
        try:
            yield Running(process)
        finally:
            process.kill()
