"""A worker is killed with SIGKILL while it copies a table: in the end, the copy has each row of the source exactly once."""

from __future__ import annotations

import random
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from faults.crashing_server import ACCOUNT, TIMEOUT_S, Launcher
from faults.deployments import Deployment, collect, open_deployment
from faults.killed_jobs import KilledJobs, swaps
from faults.test_killed_syncs import JOB_TIMEOUT_S
from metastore.resource_factory import ResourceFactory
from metastore.upstreams import iceberg, mirrored
from runtime.servers import eventually
from skiway.metastore import Realm, connectors, jobs
from skiway.metastore.seeding import seed_home
from skiway.model import v1
from skiway.storage import utc_now
from spark_jobs.ingest_sources import PASSWORD, Postgres, password, running_postgres_on_tcp
from spark_jobs.mariadb import MariaDb, running_mariadb

pytestmark = [pytest.mark.timeout(3 * TIMEOUT_S), pytest.mark.full, pytest.mark.needs("java", "spark")]

SETTINGS = ("sources.addresses=public; loopback",)


def changed_ids(rng: random.Random) -> list[int]:
    """The ids of rows to add or change. The last one is new and does not change again, so no later change hides its loss."""
    return [*(rng.randrange(30) for _ in range(rng.randrange(20))), rng.randrange(1_000, 2**31)]


class Changing(Protocol):
    """A source that changes at random, and its rows."""

    def spec(self) -> v1.ConnectorSpec: ...

    def change(self) -> None: ...

    def rows(self) -> list[tuple[Any, ...]]: ...


@dataclass
class Folder:
    """A folder of Parquet files with one table, which is appended to, or whose files change."""

    folder: Path
    mode: Any = v1.COM_APPEND
    rng: random.Random = field(default_factory=lambda: random.Random(5))
    files: int = 0
    exactly: int = 0

    def spec(self) -> v1.ConnectorSpec:
        keys = ["id"] if self.mode == v1.COM_UPSERT else []
        copy = v1.CopySettings(mode=self.mode, key_columns=keys)
        return v1.ConnectorSpec(kind=v1.CK_PARQUET, uri=str(self.folder), copy=copy)

    def change(self) -> None:
        (self.folder / "t").mkdir(parents=True, exist_ok=True)
        for _ in range(self.exactly or self.rng.randrange(1, 4)):
            self.files += 1
            ids = [self.rng.randrange(30) for _ in range(self.rng.randrange(1, 20))]
            rows = pa.table({"id": ids, "v": [f"{self.files}-{place}" for place in range(len(ids))]})
            pq.write_table(rows, self.folder / f"new-{self.files}")
            (self.folder / f"new-{self.files}").rename(self.folder / "t" / f"{self.files:04}.parquet")

    def rows(self) -> list[tuple[Any, ...]]:
        found = [tuple(row.values()) for row in pq.read_table(self.folder / "t").to_pylist()]
        if self.mode == v1.COM_UPSERT:
            found = list({row[0]: row for row in found}.values())
        return sorted(found, key=repr)


@dataclass
class TableFormat:
    """An Iceberg or Delta table, written by PyIceberg or delta-rs, whose rows are added, changed and deleted."""

    folder: Path
    kind: str
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    changes: int = 0

    def __post_init__(self) -> None:
        schema = pa.schema({"id": pa.int64(), "v": pa.string()})
        if self.kind == "iceberg":
            self.table = iceberg(self.folder).create_table("sales.t", schema=schema)
        else:
            write_deltalake(self.folder / "t", schema.empty_table())

    def spec(self) -> v1.ConnectorSpec:
        copy = v1.CopySettings(mode=v1.COM_UPSERT, key_columns=["id"])
        if self.kind == "delta":
            properties = {"delta.source": "filesystem"}
            return v1.ConnectorSpec(kind=v1.CK_DELTA, uri=str(self.folder), properties=properties, copy=copy)
        return v1.ConnectorSpec(
            kind=v1.CK_ICEBERG,
            uri=f"sqlite:///{self.folder}/catalog.db",
            properties={"warehouse": f"file://{self.folder}/warehouse"},
            source=v1.ConnectorSource(namespace=v1.NamespacePath(segments=["sales"])),
            copy=copy,
        )

    def change(self) -> None:
        self.changes += 1
        ids = self.rng.sample(range(30), 8)
        condition = f"id in ({', '.join(map(str, ids))})"
        rows = pa.table({"id": ids[2:], "v": [f"{self.changes}"] * 6})  # two are deleted
        if self.kind == "iceberg":
            self.table.delete(condition)
            self.table.append(rows)
        else:
            DeltaTable(self.folder / "t").delete(condition)
            write_deltalake(self.folder / "t", rows, mode="append")

    def rows(self) -> list[tuple[Any, ...]]:
        found = (
            self.table.scan().to_arrow() if self.kind == "iceberg" else DeltaTable(self.folder / "t").to_pyarrow_table()
        )
        return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


@dataclass
class DatabaseTable:
    """A table in PostgreSQL whose rows are added and changed, with a cursor column."""

    server: Postgres
    schema: str
    rng: random.Random = field(default_factory=lambda: random.Random(6))

    def __post_init__(self) -> None:
        self.server.new_schema(self.schema)
        self.server.run(f"CREATE TABLE {self.schema}.t (id int PRIMARY KEY, v text, at timestamptz)")

    def spec(self) -> v1.ConnectorSpec:
        copy = v1.CopySettings(mode=v1.COM_UPSERT, key_columns=["id"], cursor_column="at")
        source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=[self.schema]))
        return v1.ConnectorSpec(kind=v1.CK_JDBC, uri=self.server.uri, copy=copy, source=source, auth=password(PASSWORD))

    def change(self) -> None:
        for id_ in changed_ids(self.rng):
            self.server.run(
                f"INSERT INTO {self.schema}.t VALUES ({id_}, '{self.rng.random()}', clock_timestamp()) "
                "ON CONFLICT (id) DO UPDATE SET v = excluded.v, at = excluded.at"
            )

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self.server.rows(f"SELECT id, v FROM {self.schema}.t"), key=repr)


@dataclass
class MySqlTable:
    """A table in MariaDB whose rows are added and changed, with a cursor column."""

    server: MariaDb
    database: str
    rng: random.Random = field(default_factory=lambda: random.Random(9))

    def __post_init__(self) -> None:
        self.server.new_database(self.database, "CREATE TABLE t (id int PRIMARY KEY, v text, at datetime(6))")

    def spec(self) -> v1.ConnectorSpec:
        copy = v1.CopySettings(mode=v1.COM_UPSERT, key_columns=["id"], cursor_column="at")
        source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=[self.database]))
        uri = self.server.uri(self.database)
        return v1.ConnectorSpec(kind=v1.CK_JDBC, uri=uri, copy=copy, source=source, auth=password(PASSWORD))

    def change(self) -> None:
        rows = [(id_, self.rng.random()) for id_ in changed_ids(self.rng)]
        self.server.run(
            *(f"REPLACE INTO t VALUES ({id_}, '{v}', sysdate(6))" for id_, v in rows), database=self.database
        )

    def rows(self) -> list[tuple[Any, ...]]:
        found = self.server.rows("SELECT id, v FROM t", self.database)
        return sorted(((int(id_), v) for id_, v in found), key=repr)


@dataclass
class SqliteTable:
    """A table in a SQLite file whose rows are added and changed, with a cursor column."""

    file: Path
    rng: random.Random = field(default_factory=lambda: random.Random(11))
    changes: int = 0

    def __post_init__(self) -> None:
        with closing(sqlite3.connect(self.file)) as connection:
            connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, version INTEGER)")

    def spec(self) -> v1.ConnectorSpec:
        copy = v1.CopySettings(mode=v1.COM_UPSERT, key_columns=["id"], cursor_column="version")
        source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["main"]))
        return v1.ConnectorSpec(kind=v1.CK_JDBC, uri=f"sqlite:///{self.file}", copy=copy, source=source)

    def change(self) -> None:
        with closing(sqlite3.connect(self.file)) as connection, connection:
            for id_ in changed_ids(self.rng):
                self.changes += 1
                row = (id_, f"{self.rng.random()}", self.changes)
                connection.execute("REPLACE INTO t VALUES (?, ?, ?)", row)

    def rows(self) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.file)) as connection:
            return sorted(connection.execute("SELECT id, v FROM t").fetchall(), key=repr)


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with running_postgres_on_tcp() as running:
        yield running


@dataclass
class Copy:
    """The copy of a source, by a connector."""

    deployment: Deployment
    source: Changing
    connector_id: v1.ResourceId = field(default_factory=v1.ResourceId)
    was_behind: bool = False
    """Whether the copy lacked rows when the source changed, because a worker was killed before its commit."""

    def __post_init__(self) -> None:
        with open_deployment(self.deployment) as stores:
            seed_home(stores)
            factory = ResourceFactory(stores, utc_now)
            spec = self.source.spec()
            spec.display_name = "copy"
            spec.destination.catalog_id.CopyFrom(factory.catalog().resource_id)
            spec.destination.namespace.segments[:] = ["copied"]
            request = v1.CreateConnectorRequest(spec=spec)
            made = connectors.create(factory.home, request, secrets=self.deployment.secrets)
            self.connector_id = made.connector.resource_id

    def change(self, turn: int) -> None:
        with suppress(KeyError):  # there is no copy before the first job
            self.was_behind |= self.rows() != self.source.rows()
        self.source.change()

    def enqueue(self) -> str:
        with open_deployment(self.deployment) as stores:
            return jobs.enqueue(Realm(stores, ACCOUNT), v1.Job(connector_id=self.connector_id)).job_id

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of the copy, as PyIceberg reads them."""
        from pyiceberg.table import StaticTable

        with open_deployment(self.deployment) as stores:
            table = mirrored(ResourceFactory(stores, utc_now))["copied.t"]
        found = StaticTable.from_metadata(table.metadata_location).scan(selected_fields=("id", "v")).to_arrow()
        return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)

    def check(self, when: str) -> None:
        assert self.rows() == self.source.rows(), when


def killed_copies(launcher: Launcher, deployment: Deployment, source: Changing, *settings: str) -> None:
    """Copy the source again and again, with a server that is killed before its commit and before each later swap."""
    copy = Copy(deployment, source)
    KilledJobs(launcher, deployment, copy, (*SETTINGS, *settings), more_threads=["tables"]).run(
        lambda steps: swaps(steps)[1:]
    )
    assert copy.was_behind, "no server was killed before its commit"
    rows = copy.rows()
    collect(deployment, ahead_s=10 * 86400.0)
    assert copy.rows() == rows, "after gc"


@pytest.mark.parametrize("mode", [v1.COM_APPEND, v1.COM_UPSERT, v1.COM_REPLACE], ids=v1.CopyMode.Name)
def test_killed_copy_in_steps_equals_the_folder(launcher, new_deployment, tmp_path, mode):
    source = Folder(tmp_path / "source", mode, random.Random(8), exactly=5)
    killed_copies(launcher, new_deployment("sqlite"), source, "reconciler.copy_step_bytes=1")


@pytest.mark.parametrize("mode", [v1.COM_APPEND, v1.COM_UPSERT, v1.COM_REPLACE], ids=v1.CopyMode.Name)
def test_killed_copy_of_a_folder_equals_the_folder(launcher, new_deployment, tmp_path, mode):
    killed_copies(launcher, new_deployment("sqlite"), Folder(tmp_path / "source", mode))


def test_killed_copy_of_a_database_equals_the_table(launcher, new_deployment, database):
    killed_copies(launcher, new_deployment("sqlite"), DatabaseTable(database, "killed"))


def test_killed_copy_of_sqlite_equals_the_table(launcher, new_deployment, tmp_path):
    killed_copies(launcher, new_deployment("sqlite"), SqliteTable(tmp_path / "source.db"))


@pytest.mark.needs("mariadb")
def test_killed_copy_of_mysql_equals_the_table(launcher, new_deployment):
    with running_mariadb() as server:
        killed_copies(launcher, new_deployment("sqlite"), MySqlTable(server, "killed"))


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_killed_copy_of_a_table_equals_the_table(launcher, new_deployment, tmp_path, kind):
    killed_copies(launcher, new_deployment("sqlite"), TableFormat(tmp_path / "source", kind))


def test_worker_killed_while_spark_writes_leaves_nothing_that_counts(launcher, new_deployment, tmp_path):
    deployment = new_deployment("sqlite")
    copy = Copy(deployment, Folder(tmp_path / "source"))
    killed = KilledJobs(launcher, deployment, copy, SETTINGS)
    copy.source.change()
    copy.enqueue()

    def has_data_files() -> bool:
        return any((deployment.folder / "home" / "warehouse").rglob("data/*.parquet"))

    with killed.server("reconciler.job_store.lease_ms=4000") as server:
        server.wait_until_ready()
        eventually(has_data_files, within_s=JOB_TIMEOUT_S)
        assert server.kill() == -signal.SIGKILL
    copy.source.change()
    killed.finish("killed while Spark writes")
