"""Run a Trino server for tests, and send it statements."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from ports import free_port
from trino_script.installation import Installation

__all__ = ["Result", "Trino", "TrinoError", "running_trino"]

START_S: Final = 300.0
STATEMENT_S: Final = 300.0
LOOPBACK: Final = "127.0.0.1"

_EXACT: Final = {"x-trino-client-capabilities": "PARAMETRIC_DATETIME"}
"""Without it, Trino rounds times to milliseconds."""

_ACTIVE: Final = "SELECT count(*) FROM system.runtime.nodes WHERE state = 'active'"

JVM: Final = (
    "-Xmx1500M",
    "-XX:+UseG1GC",  # Trino insists on it
    "-XX:TieredStopAtLevel=1",  # statements of tests run once
    "-XX:+ExitOnOutOfMemoryError",
    "-Djdk.attach.allowAttachSelf=true",
    "-Dfile.encoding=UTF-8",
)


class TrinoError(Exception):
    """A statement failed. `name` is Trino's name for the kind of error, such as TABLE_NOT_FOUND; `causes` are further messages."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.name: str = error["errorName"]
        self.message: str = error["message"]
        self.causes: list[str] = []
        cause = error.get("failureInfo")
        while cause := (cause or {}).get("cause"):
            self.causes.append(f"{cause['type'].rpartition('.')[2]}: {cause.get('message', '')}")
        super().__init__(f"{self.name}: {self.message} {self.causes}")


@dataclass(frozen=True, slots=True)
class Result:
    """The rows of a statement as Trino's protocol has them: JSON, and the types of the columns."""

    names: list[str]
    types: list[dict[str, Any]]
    rows: list[list[Any]]
    updated: int | None = None


@dataclass
class Trino:
    """A running server. `statements` has all statements that it was sent."""

    uri: str
    http: httpx.Client
    statements: list[str] = field(default_factory=list)

    def run(self, statement: str, **headers: str) -> Result:
        """Run a statement, and return all of its rows; raises `TrinoError`."""
        self.statements.append(statement)
        given = {"x-trino-user": "tester", "x-trino-time-zone": "UTC"} | _EXACT | headers
        answer = self._answer(self.http.post(f"{self.uri}/v1/statement", content=statement.encode(), headers=given))
        columns, rows = answer.get("columns"), list(answer.get("data", ()))
        while "nextUri" in answer:
            answer = self._answer(self.http.get(answer["nextUri"]))
            columns = columns or answer.get("columns")
            rows += answer.get("data", ())
        found = columns or []
        names, types = [each["name"] for each in found], [each["typeSignature"] for each in found]
        return Result(names, types, rows, answer.get("updateCount"))

    @staticmethod
    def _answer(response: httpx.Response) -> dict[str, Any]:
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        if error := answer.get("error"):
            raise TrinoError(error)
        return answer


@contextmanager
def running_trino(
    installation: Installation, folder: Path, catalogs: Mapping[str, Mapping[str, str]]
) -> Iterator[Trino]:
    """Run a server with these catalogs and their properties; it ends with the block."""
    port = free_port()
    config = _written_config(installation, folder, port, catalogs)
    options = (
        f"-Dconfig={config}",
        f"-Dnode.data-dir={folder / 'data'}",
        f"-Dlog.levels-file={_written_levels(folder)}",
    )
    command: list[str | Path] = [
        installation.java,
        *JVM,
        *options,
        "-cp",
        f"{installation.jars}/*",
        "io.trino.server.TrinoServer",
    ]
    log = folder / "trino.log"
    with log.open("wb") as output, httpx.Client(timeout=STATEMENT_S) as http:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        try:
            trino = Trino(f"http://{LOOPBACK}:{port}", http)
            _wait_until_started(process, trino, log)
            yield trino
        finally:
            process.kill()
            process.wait()


def _written_config(
    installation: Installation, folder: Path, port: int, catalogs: Mapping[str, Mapping[str, str]]
) -> Path:
    (folder / "catalog").mkdir(parents=True)
    for name, properties in catalogs.items():
        _write(folder / "catalog" / f"{name}.properties", properties)
    return _write(
        folder / "config.properties",
        {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "node.environment": "test",
            "node.bind-ip": LOOPBACK,
            "node.internal-address": LOOPBACK,
            "http-server.http.port": str(port),
            "discovery.uri": f"http://{LOOPBACK}:{port}",
            "catalog.config-dir": str(folder / "catalog"),
            "plugin.dir": str(installation.plugins),
            "query.max-memory-per-node": "400MB",
            "memory.heap-headroom-per-node": "300MB",
            "web-ui.enabled": "false",
        },
    )


def _written_levels(folder: Path) -> Path:
    return _write(folder / "log.properties", {"io.trino": "WARN", "": "WARN"})


def _write(file: Path, properties: Mapping[str, str]) -> Path:
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return file


def _wait_until_started(process: subprocess.Popen[bytes], trino: Trino, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not _is_started(trino):
        assert process.poll() is None, f"Trino ended instead of starting: {log.read_text()[-3000:]}"
        assert time.monotonic() < deadline, f"Trino did not start within {START_S:g} s: {log.read_text()[-3000:]}"
        time.sleep(0.2)


def _is_started(trino: Trino) -> bool:
    """Whether it has found itself as a node, without which there are no statements."""
    try:
        return Trino(trino.uri, trino.http).run(_ACTIVE).rows == [[1]]
    except (httpx.HTTPError, TrinoError):
        return False
