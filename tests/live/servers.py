"""The servers that live tests attach: programs as users start them, each in a process of its own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from examples.scripts import ATTACH, FOLDER
from live.clients import server_environment
from ports import free_port
from skiway.client import Metastore

__all__ = ["TARGETS", "LiveServer", "Target", "example", "serving"]

START_S = 300.0


class LiveServer:
    """A running server that can be stopped, killed and started again at the same address."""

    def __init__(
        self, command: list[str], catalog: str, folder: Path, port: int, ready_file: Path | None = None
    ) -> None:
        self.catalog, self.folder, self.log = catalog, folder, folder / "server.log"
        self.port, self.location = port, f"grpc://127.0.0.1:{port}"
        self.client_variables: dict[str, str] = {}
        self.placeholders: dict[str, str] = {}
        self._command, self._ready_file = command, ready_file
        self._process = self.start()

    def attach(self, alias: str = "db") -> str:
        return f"ATTACH '{self.catalog}' AS {alias} (TYPE airport, LOCATION '{self.location}')"

    def filled(self, sql: str) -> str:
        """A printed statement with the values of this server instead of placeholders."""
        for placeholder, value in self.placeholders.items():
            sql = sql.replace(placeholder, value)
        return sql

    def start(self) -> subprocess.Popen[bytes]:
        """Start the server and wait until it serves."""
        if self._ready_file:
            self._ready_file.unlink(missing_ok=True)  # a killed server leaves it behind
        with self.log.open("ab") as log:
            begin = log.tell()
            environment = {**server_environment(), "TMPDIR": str(self.folder)}
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self.folder
            )
        deadline = time.monotonic() + START_S
        while not self._is_ready(begin):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{' '.join(self._command)} does not serve:\n{self.log.read_text()}")
            time.sleep(0.05)
        return self._process

    def _is_ready(self, begin: int) -> bool:
        if self._ready_file:
            return self._ready_file.exists()
        return ATTACH.search(self.log.read_bytes()[begin:].decode(errors="replace")) is not None

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the server with a signal."""
        self._process.send_signal(number)
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def memory(folder: Path) -> LiveServer:
    """A `MemoryCatalog`, served by the example `ddl.py`."""
    return example("ddl", "scratch", folder)


def file(folder: Path) -> LiveServer:
    """A DuckDB file, served by the example `duckdb_file.py`."""
    return example("duckdb_file", "shop", folder, str(folder / "shop.duckdb"))


def example(name: str, catalog: str, folder: Path, *arguments: str) -> LiveServer:
    port = free_port()
    command = [sys.executable, str(FOLDER / f"{name}.py"), f"grpc://127.0.0.1:{port}", *arguments]
    return LiveServer(command, catalog, folder, port)


def lake(folder: Path) -> LiveServer:
    """An empty lake with managed tables, served by `skiway serve`."""
    return skiway("serve", folder)


def lake_with_statistics(folder: Path) -> LiveServer:
    """An empty lake that offers the statistics of all tables, on which DuckDB then relies."""
    server = lake(folder)
    with Metastore(f"127.0.0.1:{server.port}") as metastore:
        metastore.catalogs.update(server.catalog, properties={"statistics.offer": "always"})
    return server


def lake_with_tokens(folder: Path) -> LiveServer:
    """An empty lake that requires a token."""
    words = [
        "tokens",
        "create",
        "ada",
        "--account",
        "default",
        "--role",
        "administrator",
        "--home",
        str(folder / "home"),
    ]
    made = subprocess.run([_program(), *words], env=server_environment(), check=True, capture_output=True, text=True)
    server = skiway("serve", folder, "--set", "auth.mode=token")
    server.placeholders = {"…": made.stdout.strip(), "grpc://host:": "grpc://127.0.0.1:"}
    return server


def lake_with_spark(folder: Path) -> LiveServer:
    """An empty lake that runs queries on Spark."""
    return skiway("serve", folder, "--set", "sql.spark.enabled=true")


def demo(folder: Path) -> LiveServer:
    """The lake of `skiway demo`."""
    return skiway("demo", folder)


def skiway(command: str, folder: Path, *options: str) -> LiveServer:
    port, home = free_port(), folder / "home"
    words = [_program(), command, "--home", str(home), "--grpc", f"127.0.0.1:{port}", "--http", "127.0.0.1:0", *options]
    return LiveServer(words, "lake", folder, port, ready_file=home / "ready.json")


def _program() -> str:
    return str(Path(sys.executable).with_name("skiway"))


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of server that the differential suite compares with plain DuckDB."""

    name: str
    start: Callable[[Path], LiveServer]


TARGETS = {
    target.name: target
    for target in (Target("memory", memory), Target("file", file), Target("lake", lake_with_statistics))
}


@contextlib.contextmanager
def serving(start: Callable[[Path], LiveServer], folder: Path) -> Iterator[LiveServer]:
    folder.mkdir(parents=True, exist_ok=True)
    server = start(folder)
    try:
        yield server
    finally:
        server.stop()
