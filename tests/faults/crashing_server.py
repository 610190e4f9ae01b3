"""Start servers that kill themselves at a chosen store operation, and call them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import grpc

import scope
from faults.deployments import Deployment
from rpc.rpc_server import Answer, Client
from runtime.servers import END_S, START_S, environment, eventually

When = Literal["before", "after"]
ACCOUNT = "a1"
EVERY_STEP = scope.FAULTS
TIMEOUT_S = 1800 if EVERY_STEP else 300
WRITES = frozenset({"_apply", "_create", "_overwrite", "_delete", "_purge"})
FILE_OPERATIONS = frozenset({"create", "seal", "remove"})
"""Operations of the warehouse: a file is created, completed, removed."""


@dataclass(frozen=True, slots=True)
class Step:
    """Kill the server before or after the operation with this number, counted from 1; 0 means never."""

    at: int
    when: When = "before"

    def __str__(self) -> str:
        return f"{self.when} operation {self.at}"


def steps(operations: Sequence[str]) -> list[Step]:
    """Where to kill a server that performs these operations: around the first swap of pointers and after the last write.

    With `SKIWAY_FAULTS=all`, it is killed before and after all of them.
    """
    numbers = range(1, len(operations) + 1)
    if EVERY_STEP:
        return [Step(number, when) for number in numbers for when in ("before", "after")]
    writes = [number for number in numbers if operations[number - 1] in WRITES]
    swaps = [number for number in writes if operations[number - 1] == "_apply"]
    after = {swaps[0], writes[-1]} if len(swaps) > 1 else {writes[-1]}
    return [Step(swaps[0], "before"), *(Step(number, "after") for number in sorted(after))]


class Launcher:
    """The process that forks servers."""

    def __init__(self) -> None:
        script = str(Path(__file__).with_name("launcher.py"))
        self._process = subprocess.Popen(
            [sys.executable, script], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, **command: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(END_S)
        self._process.stdout.close()


@dataclass
class CrashingServer:
    """A started server."""

    launcher: Launcher
    process_id: int
    folder: Path
    exit_code: int | None = None

    @property
    def ready_file(self) -> Path:
        return self.folder / "ready.json"

    @property
    def operations(self) -> list[str]:
        """The operations of its stores, in order."""
        trace = self.folder / "trace"
        return trace.read_text().split() if trace.exists() else []

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses it listens on, once it is ready."""
        found: dict[str, str] = json.loads(self.ready_file.read_text())
        return found

    def output(self) -> str:
        log = self.folder / "log"
        return log.read_text() if log.exists() else ""

    def has_ended(self) -> bool:
        if self.exit_code is None:
            self.exit_code = self.launcher.send(ended=self.process_id)
        return self.exit_code is not None

    def wait_until_ended(self) -> int:
        eventually(self.has_ended)
        assert self.exit_code is not None
        return self.exit_code

    def wait_until_ready(self) -> None:
        def ready() -> bool:
            assert not self.has_ended(), f"the server exited with {self.exit_code}: {self.output()}"
            return self.ready_file.exists() or "is waiting for jobs" in self.output()

        eventually(ready, within_s=START_S)

    def kill(self) -> int:
        with suppress(ProcessLookupError):
            if not self.has_ended():
                os.kill(self.process_id, signal.SIGKILL)
        return self.wait_until_ended()

    def call(self, operation: str, request: Any) -> Answer:
        """Make one call in the account of the tests, without retries."""
        with grpc.insecure_channel(
            self.addresses["rpc"], options=[("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            return Client(channel, caller="")(operation, request, timeout=END_S, x_skiway_account=ACCOUNT)


@contextmanager
def launched(
    launcher: Launcher,
    deployment: Deployment,
    *settings: str,
    threads: str = "rpc",
    step: Step | None = None,
    only: Iterable[str] = (),
    more_threads: Iterable[str] = (),
    clock: Path | None = None,
    command: Literal["serve", "worker"] = "serve",
) -> Iterator[CrashingServer]:
    """Start a server or a worker. At `step` of one of its `threads`, the whole process is killed.

    Only operations named in `only` count as steps; if it is empty, all do. The server's clock differs from the machine's by
    the seconds in the file `clock`.
    """
    folder = deployment.folder / f"server-{time.monotonic_ns()}"
    folder.mkdir()
    server = CrashingServer(launcher, 0, folder)
    trace = str(folder / "trace")
    kill_point = (
        {"threads": [threads, *more_threads], "trace": trace, "only": sorted(only), **asdict(step)} if step else None
    )
    arguments = [command, "--home", str(deployment.folder / "home"), *deployment.settings(*settings)]
    if command == "serve":
        arguments += ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", str(server.ready_file)]
    server.process_id = launcher.send(
        start=arguments, kill_point=kill_point, log=str(folder / "log"), clock=None if clock is None else str(clock)
    )
    try:
        yield server
    except Exception as error:
        ended = f"ended with {server.exit_code}" if server.has_ended() else "still runs"
        error.add_note(f"the server {ended}; its log ends with: {server.output()[-2000:]}")
        raise
    finally:
        server.kill()
