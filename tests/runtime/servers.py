"""Run `skiway` commands for tests, above all `skiway serve`: each in its own process, with its own home and free ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa

from runtime import preloaded
from skiway.client import AirportClient, Metastore
from skiway.foundation.native import VARIABLE
from skiway.metastore.records import keys
from skiway.model import v1
from skiway.storage import Pointer, Stores

START_S = 300.0
END_S = 200.0
SWEEPS = ("idempotency", "cas", "pointer", "reconcile_jobs", "warehouse")
NO_GC = tuple(f"gc.{sweep}.enabled=false" for sweep in SWEEPS)
"""Settings that turn a server's gc off, so that a call always performs the same operations."""


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "skiway.cli", *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    """The environment of the tests without Skiway's settings, but with the transport that the tests run on."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SKIWAY") or name == VARIABLE}
    return kept | more


def s3_warehouse(endpoint: str) -> list[str]:
    """Arguments of a server that keeps its tables in a bucket at `endpoint`."""
    settings = {
        "warehouse.uri": "s3://skiway-test/tables",
        "storage.aws.s3.endpoint": endpoint,
        "storage.aws.region": "us-east-1",
        "storage.aws.access_key_id": "key",
        "storage.aws.secret_access_key": "planted-secret",
    }
    return [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]


def launch(*arguments: str | Path, fresh: bool = False, **options: Any) -> subprocess.Popen[str]:
    """Start a command; `options` are those of `Popen`. A `fresh` one runs in a new interpreter, as users run it."""
    options = {"env": environment()} | options
    if fresh or not preloaded.available():
        return subprocess.Popen(command(*arguments), text=True, **options)
    return preloaded.PreloadedProcess([*map(str, arguments)], text=True, **options)


def skiway(
    *arguments: str | Path, timeout_s: float = START_S, fresh: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with launch(*arguments, env=environment(**env), fresh=fresh, **pipes) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command(*arguments), process.returncode, out, err)


@dataclass
class Server:
    """A running server."""

    process: subprocess.Popen[str]
    ready_file: Path
    addresses: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return self.addresses["rpc"]

    def send_signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """The exit code, once the server has ended."""
        return self.process.wait(END_S)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.send_signal(number)
        return self.ended()

    def output(self) -> str:
        """The error stream of the ended server."""
        assert self.process.stderr is not None
        return self.process.stderr.read()


@contextmanager
def started(home: Path, *arguments: str, ready_file: Path | None = None, fresh: bool = False) -> Iterator[Server]:
    """Start a server and wait until it is ready; it is killed at the end of the block unless it has ended."""
    with starting(home, *arguments, ready_file=ready_file, fresh=fresh) as server:
        wait_until_ready(server)
        yield server


@contextmanager
def starting(home: Path, *arguments: str, ready_file: Path | None = None, fresh: bool = False) -> Iterator[Server]:
    """Start a server without waiting until it is ready."""
    file = ready_file or home.parent / f"ready-{time.monotonic_ns()}.json"
    places = ("--home", home, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", file)
    with launch("serve", *places, *arguments, fresh=fresh, stderr=subprocess.PIPE) as process:
        try:
            yield Server(process, file)
        finally:
            process.kill()


def wait_until_ready(server: Server) -> None:
    def ready() -> bool:
        assert server.process.poll() is None, f"the server ended with {server.process.returncode}: {server.output()}"
        return server.ready_file.exists()

    eventually(ready, within_s=START_S)
    server.addresses |= json.loads(server.ready_file.read_text())


def eventually(condition: Callable[[], bool], *, within_s: float = END_S) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"condition did not hold within {within_s} s"
        time.sleep(0.01)


def stored_pointers(stores: Stores) -> list[Pointer]:
    """All pointers in the store except those that a server changes without a call: when its sweeps ran last."""
    return [each for each in stores.pointers.scan() if not each.key.startswith(keys.gc_turn(""))]


@contextmanager
def calling(address: str, token: str = "") -> Iterator[Caller]:
    with grpc.insecure_channel(address) as channel:
        yield Caller(channel, (("authorization", f"Bearer {token}"),) if token else ())


@dataclass(frozen=True)
class Caller:
    """Calls through grpcio directly, without Skiway's client."""

    channel: grpc.Channel
    metadata: Sequence[tuple[str, str]] = ()

    def call(self, method: str, request: Any, answer: Any) -> Any:
        stub = self.channel.unary_unary(
            f"/skiway.v1.{method}", type(request).SerializeToString, response_deserializer=answer.FromString
        )
        return stub(request, timeout=END_S, metadata=self.metadata)

    def catalogs(self) -> list[str]:
        answer = self.call("CatalogService/ListCatalogs", v1.ListCatalogsRequest(), v1.ListCatalogsResponse)
        return [catalog.display_name for catalog in answer.catalogs]

    def create_catalog(self, name: str) -> v1.Catalog:
        request = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name=name))
        made = self.call("CatalogService/CreateCatalog", request, v1.CreateCatalogResponse).catalog
        assert isinstance(made, v1.Catalog)
        return made

    def create_table(self) -> v1.ResourceId:
        """Create a table with a snapshot, ready for statistics."""
        catalog_id = self.create_catalog("made").resource_id
        spec = v1.NamespaceSpec(display_name="sales", catalog_id=catalog_id)
        request = v1.CreateNamespaceRequest(spec=spec)
        namespace = self.call("NamespaceService/CreateNamespace", request, v1.CreateNamespaceResponse).namespace
        table = v1.TableSpec(
            display_name="people", catalog_id=catalog_id, namespace_id=namespace.resource_id, schema_json="{}"
        )
        made = self.call("TableService/CreateTable", v1.CreateTableRequest(spec=table), v1.CreateTableResponse).table
        snapshot = v1.CreateSnapshotRequest(spec=v1.SnapshotSpec(table_id=made.resource_id, snapshot_id=1))
        self.call("SnapshotService/CreateSnapshot", snapshot, v1.CreateSnapshotResponse)
        assert isinstance(made, v1.Table)
        return made.resource_id

    def put_columns(self, requests: Iterator[v1.PutColumnStatsRequest]) -> Any:
        """Start a call and wait until the server handles it; it ends when the requests end."""
        stub = self.channel.stream_unary(
            "/skiway.v1.TableStatisticsService/PutColumnStats",
            v1.PutColumnStatsRequest.SerializeToString,
            response_deserializer=v1.PutColumnStatsResponse.FromString,
        )
        running = stub.future(requests, timeout=END_S, metadata=self.metadata)
        assert running.initial_metadata(), "initial metadata shows that the server handles the call"
        return running


def columns(table_id: v1.ResourceId, number: int) -> v1.PutColumnStatsRequest:
    """A stream message with the statistics of one column."""
    stats = v1.ColumnStats(column_id=number, column_name=f"c{number}", value_count=1)
    return v1.PutColumnStatsRequest(table_id=table_id, snapshot_id=1, columns=[stats])


def add_swapped_columns(lake: AirportClient, metastore: Metastore, table: str) -> None:
    """Add a profiled table whose columns `a` and `b` then swap their names, and whose column `gone` is dropped.

    The values of `a` are now 100 and 200, and those of `b` are 1 and 2.
    """
    schema, _, _ = table.partition(".")
    lake.create_schema(schema)
    rows = pa.table({"a": [1, 2], "b": [100, 200], "gone": [7, 7]})
    lake.create_table_as(table, rows)
    columns = [
        v1.ColumnStats(column_id=number, column_name=name, logical_type="BIGINT", value_count=2, null_count=0)
        for number, name in enumerate(rows.column_names, 1)
    ]
    for column in columns:
        values = rows[column.column_name].to_pylist()
        column.min, column.max = str(min(values)), str(max(values))
    metastore.statistics.put_columns(f"lake.{table}", metastore.snapshots.get(f"lake.{table}"), columns)
    for name, new in (("a", "c"), ("b", "a"), ("c", "b")):
        lake.rename_column(table, name, new)
    lake.remove_column(table, "gone")
