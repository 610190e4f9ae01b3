"""Databases and connectors for the tests of copies on Spark."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from metastore.managed_table_factory import ManagedTableFactory
from metastore.upstreams import SECRETS, connector, mirrored
from skiway.metastore.ingest.copying import STEP_BYTES
from skiway.metastore.reconcile.outcomes import Outcome
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1
from skiway.spark_jobs.worker import SparkCopies
from storage.homes import PostgresServer, running_postgres_server

USER, PASSWORD = "copier", "a-secret-that-nobody-sees"


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL server that also listens on TCP, where the user of copies needs a password."""

    socket_url: str
    port: int
    server: PostgresServer

    @property
    def uri(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.socket_url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.socket_url) as connection:
            return connection.execute(sql).fetchall()

    def restart(self) -> None:
        self.server.stop()
        self.server.start()

    def new_schema(self, name: str) -> str:
        self.run(
            f"DROP SCHEMA IF EXISTS {name} CASCADE",
            f"CREATE SCHEMA {name} AUTHORIZATION {USER}",
            f"ALTER DEFAULT PRIVILEGES IN SCHEMA {name} GRANT SELECT ON TABLES TO {USER}",
        )
        return name


@contextmanager
def running_postgres_on_tcp() -> Iterator[Postgres]:
    """A real server from a wheel. It only has a socket in a folder, so a port is forwarded to it."""
    with running_postgres_server() as server, psycopg.connect(server.url, autocommit=True) as connection:
        ((hba,),) = connection.execute("SHOW hba_file").fetchall()
        rules = Path(hba)
        rules.write_text(f"local all {USER} scram-sha-256\n{rules.read_text()}")
        connection.execute(f"CREATE USER {USER} PASSWORD '{PASSWORD}'")  # type: ignore[arg-type]
        connection.execute("SELECT pg_reload_conf()")
        with _forwarded(f"{rules.parent}/.s.PGSQL.5432") as port:
            yield Postgres(server.url, port, server)


@contextmanager
def _forwarded(path: str) -> Iterator[int]:
    """Forward a port of the loopback interface to a socket in a folder."""

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as server:
                server.connect(path)
                back = threading.Thread(target=_copy, args=(server, self.request), daemon=True)
                back.start()
                _copy(self.request, server)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forward) as proxy:
        proxy.daemon_threads = True
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield proxy.server_address[1]
        finally:
            proxy.shutdown()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@dataclass
class CopyingConnector:
    """A connector that copies, and the worker that runs it."""

    lake: ManagedTableFactory
    spark: Any
    connector: v1.Connector
    step_bytes: int = STEP_BYTES

    @classmethod
    def create(
        cls, lake: ManagedTableFactory, spark: Any, kind: Any, uri: str, copy: v1.CopySettings, **more: Any
    ) -> CopyingConnector:
        if kind == v1.CK_JDBC and "auth" not in more and uri.startswith(("postgresql", "mysql")):
            more["auth"] = password(PASSWORD)
        return cls(lake, spark, connector(lake.factory, uri, kind, copy=copy, **more))

    def run(self, **how: Any) -> Outcome:
        copies = SparkCopies(lambda: self.spark, step_bytes=self.step_bytes)
        reconciler = Reconciler(SECRETS, warehouse=self.lake.warehouse, copies=copies)
        return reconciler.run(self.lake.home, self.connector.resource_id, mode=v1.CAP_METADATA_ONLY_CORE, **how)

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """The rows of a copy, as PyIceberg reads them, sorted."""
        return sorted((tuple(each.values()) for each in self.arrow(name).to_pylist()), key=repr)

    def snapshots(self, name: str) -> int:
        """The number of snapshots of a copy."""
        from pyiceberg.table import StaticTable

        return len(StaticTable.from_metadata(mirrored(self.lake.factory)[name].metadata_location).metadata.snapshots)

    def arrow(self, name: str) -> Any:
        from pyiceberg.table import StaticTable

        found = mirrored(self.lake.factory)[name]
        return StaticTable.from_metadata(found.metadata_location).scan().to_arrow()


def password(text: str) -> v1.ConnectorAuthSpec:
    return v1.ConnectorAuthSpec(credentials=v1.ConnectorCredentials(properties={"password": text}))
