"""Run `skiway demo` for tests, in its own process."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runtime.servers import launch, skiway

MAKING_S = 500
"""Timeout of the first start, which takes two minutes on an idle machine and longer on a busy one."""

ATTACH = re.compile(r"LOCATION '(grpc://[\d.:]+)'")


def demo(home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a demo to its end."""
    return skiway("demo", "--home", home, *arguments, timeout_s=MAKING_S, **env)


@dataclass
class Serving:
    """A demo that runs in the background; its output so far is in the file `output`."""

    process: subprocess.Popen[str]
    output: Path
    errors: Path

    def printed(self) -> str:
        return self.output.read_text()

    def wait_for(self, text: str, *, within_s: float = MAKING_S) -> str:
        """Wait until the text is printed and return the output."""
        until = time.monotonic() + within_s
        while text not in self.printed():
            assert self.process.poll() is None, f"the demo ended: {self.printed()}{self.errors.read_text()}"
            assert time.monotonic() < until, f"{text!r} was not printed, but: {self.printed()}"
            time.sleep(0.05)
        return self.printed()

    def location(self) -> str:
        """The location in the printed ATTACH statement."""
        found = ATTACH.search(self.wait_for("LOCATION 'grpc://"))
        assert found
        return found[1]

    def ended(self, number: signal.Signals) -> int:
        """Send the signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(200)


@contextmanager
def serving(home: Path, scratch: Path, *arguments: str) -> Iterator[Serving]:
    """Start a demo on free ports; it is killed at the end of the block unless it has ended."""
    output, errors = scratch / "output", scratch / "errors"
    doors = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
    with output.open("w") as out, errors.open("w") as err:
        process = launch("demo", "--home", home, *doors, *arguments, stdout=out, stderr=err)
    try:
        yield Serving(process, output, errors)
    finally:
        process.kill()
        process.wait()


def answers(printed: str) -> list[list[list[str]]]:
    """The cells of the three printed results, without headers."""
    found = []
    for part in re.split(r"^\d  .*$", printed, flags=re.MULTILINE)[1:]:
        _, table = re.split(r"^ *─+ *\n", part, maxsplit=1, flags=re.MULTILINE)
        rows = table.partition("\n\n")[0].splitlines()
        found.append([re.split(r"\s{2,}", row.strip()) for row in rows])
    assert len(found) == 3
    return found
