"""A worker is killed with SIGKILL while it copies a table: in the end, the copy has each row of the source exactly once.

A copy is first run undisturbed, which shows its steps. Then the source changes, and a server is killed at one of the steps
of the next load, or while Spark writes. The source changes again before the next server takes the job over. With
`SKIWAY_FAULTS=all` it is killed before every write to the stores and the warehouse.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from faults import contents
from faults.crashing_server import (
    ACCOUNT,
    EVERY_STEP,
    FILE_OPERATIONS,
    NO_GC,
    TIMEOUT_S,
    WRITES,
    CrashingServer,
    Launcher,
    Step,
    launched,
)
from faults.deployments import Deployment, collect, open_deployment
from faults.test_killed_syncs import JOB_TIMEOUT_S, WORKER, is_finished, job_of
from metastore.resource_factory import ResourceFactory
from metastore.upstreams import iceberg, mirrored
from pipeline.ingest_sources import PASSWORD, Postgres, password, running_postgres_on_tcp
from runtime.servers import eventually
from skiway.metastore import Realm, connectors, jobs
from skiway.metastore.seeding.catalog import seed_home
from skiway.model import v1
from skiway.storage import Stores, utc_now

pytestmark = [pytest.mark.timeout(3 * TIMEOUT_S), pytest.mark.full, pytest.mark.needs("java", "spark")]

SETTINGS = (*NO_GC, *WORKER, "reconciler.spark.master=local[2]", "sources.addresses=public; loopback")
CRASHING = (*SETTINGS, "reconciler.job_store.lease_ms=4000")


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

    def spec(self) -> v1.ConnectorSpec:
        keys = ["id"] if self.mode == v1.COM_UPSERT else []
        copy = v1.CopySettings(mode=self.mode, key_columns=keys)
        return v1.ConnectorSpec(kind=v1.CK_PARQUET, uri=str(self.folder), copy=copy)

    def change(self) -> None:
        (self.folder / "t").mkdir(parents=True, exist_ok=True)
        for _ in range(self.rng.randrange(1, 4)):
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
        for _ in range(self.rng.randrange(1, 20)):
            self.server.run(
                f"INSERT INTO {self.schema}.t VALUES ({self.rng.randrange(30)}, '{self.rng.random()}', clock_timestamp()) "
                "ON CONFLICT (id) DO UPDATE SET v = excluded.v, at = excluded.at"
            )

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self.server.rows(f"SELECT id, v FROM {self.schema}.t"), key=repr)


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with running_postgres_on_tcp() as running:
        yield running


def connected(deployment: Deployment, source: Changing) -> v1.ResourceId:
    """Create the connector of a copy."""
    with open_deployment(deployment) as stores:
        seed_home(stores)
        factory = ResourceFactory(stores, utc_now)
        spec = source.spec()
        spec.display_name = "copy"
        spec.destination.catalog_id.CopyFrom(factory.catalog().resource_id)
        spec.destination.namespace.segments[:] = ["copied"]
        request = v1.CreateConnectorRequest(spec=spec)
        return connectors.create(factory.home, request, secrets=deployment.secrets).connector.resource_id


def enqueued(deployment: Deployment, connector_id: v1.ResourceId) -> str:
    with open_deployment(deployment) as stores:
        return jobs.enqueue(Realm(stores, ACCOUNT), connector_id).job_id


def copied_rows(deployment: Deployment) -> list[tuple[Any, ...]]:
    """The rows of the copy, as PyIceberg reads them."""
    from pyiceberg.table import StaticTable

    with open_deployment(deployment) as stores:
        table = mirrored(ResourceFactory(stores, utc_now))["copied.t"]
    found = StaticTable.from_metadata(table.metadata_location).scan(selected_fields=("id", "v")).to_arrow()
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def finish(
    launcher: Launcher, deployment: Deployment, connector_id: v1.ResourceId, source: Changing, when: str
) -> None:
    """Finish unfinished jobs and run one more, after which the copy must equal the source."""
    with open_deployment(deployment) as stores, launched(launcher, deployment, *SETTINGS) as server:
        server.wait_until_ready()
        listed = jobs.list_(Realm(stores, ACCOUNT), v1.ListReconcileJobsRequest()).jobs
        for job_id in [each.job_id for each in listed]:
            eventually(partial(is_finished, stores, job_id), within_s=JOB_TIMEOUT_S)
            done = job_of(stores, job_id)
            assert (done.state, done.errors) == (v1.JS_SUCCEEDED, 0), f"{when}: {done}"
        last = enqueued(deployment, connector_id)
        eventually(lambda: is_finished(stores, last), within_s=JOB_TIMEOUT_S)
        assert job_of(stores, last).errors == 0, f"{when}: {job_of(stores, last)}"
        assert copied_rows(deployment) == source.rows(), when
        assert contents.integrity_errors(stores) == [], when


def killed_at_steps(
    launcher: Launcher, deployment: Deployment, source: Changing, *, chosen: Callable[[list[str]], list[int]]
) -> None:
    """Load the source once, and then again and again with a server that is killed at one of the steps."""
    connector_id = connected(deployment, source)
    source.change()

    def crashing(step: Step) -> Any:
        only = WRITES | FILE_OPERATIONS if EVERY_STEP else WRITES
        return launched(
            launcher, deployment, *CRASHING, threads=gethostname(), more_threads=["tables"], step=step, only=only
        )

    steps: list[str] = []
    first = enqueued(deployment, connector_id)
    with open_deployment(deployment) as stores, crashing(Step(0)) as server:
        eventually(lambda: is_finished(stores, first), within_s=JOB_TIMEOUT_S)
        assert job_of(stores, first).errors == 0, job_of(stores, first)
        source.change()  # the second load does not create the table
        second = enqueued(deployment, connector_id)
        before = len(server.operations)
        eventually(lambda: is_finished(stores, second), within_s=JOB_TIMEOUT_S)
        steps = server.operations[before:]
    assert copied_rows(deployment) == source.rows()
    for number in chosen(steps):
        source.change()
        job_id = enqueued(deployment, connector_id)
        with open_deployment(deployment) as stores, crashing(Step(number)) as server:

            def is_over(server: CrashingServer = server, stores: Stores = stores, job_id: str = job_id) -> bool:
                return server.has_ended() or is_finished(stores, job_id)

            eventually(is_over, within_s=JOB_TIMEOUT_S)
            # Loads have different numbers of files, so that one may not have the last steps of another.
            killed = server.kill() == -signal.SIGKILL and not is_finished(stores, job_id)
            assert killed or number > len(steps) - 4, f"not killed at step {number}: {server.output()}"
        source.change()
        finish(launcher, deployment, connector_id, source, f"killed before step {number} ({steps[number - 1]})")
    rows = copied_rows(deployment)
    collect(deployment, ahead_s=10 * 86400.0)
    assert copied_rows(deployment) == rows, "after gc"


def around_the_commit(steps: list[str]) -> list[int]:
    """The steps before and after the swap of pointers that commits: the last one finishes the job."""
    swaps = [number for number, name in enumerate(steps, 1) if name == "_apply"]
    return list(range(1, len(steps) + 1)) if EVERY_STEP else [swaps[-2], swaps[-1]]


@pytest.mark.parametrize("mode", [v1.COM_APPEND, v1.COM_UPSERT, v1.COM_REPLACE], ids=v1.CopyMode.Name)
def test_killed_copy_of_a_folder_equals_the_folder(launcher, new_deployment, tmp_path, mode):
    killed_at_steps(launcher, new_deployment("sqlite"), Folder(tmp_path / "source", mode), chosen=around_the_commit)


def test_killed_copy_of_a_database_equals_the_table(launcher, new_deployment, database):
    killed_at_steps(launcher, new_deployment("sqlite"), DatabaseTable(database, "killed"), chosen=around_the_commit)


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_killed_copy_of_a_table_equals_the_table(launcher, new_deployment, tmp_path, kind):
    source = TableFormat(tmp_path / "source", kind)
    killed_at_steps(launcher, new_deployment("sqlite"), source, chosen=around_the_commit)


def test_worker_killed_while_spark_writes_leaves_nothing_that_counts(launcher, new_deployment, tmp_path):
    deployment, source = new_deployment("sqlite"), Folder(tmp_path / "source")
    connector_id = connected(deployment, source)
    source.change()
    enqueued(deployment, connector_id)

    def has_data_files() -> bool:
        return any((deployment.folder / "home" / "warehouse").rglob("data/*.parquet"))

    with launched(launcher, deployment, *CRASHING) as server:
        server.wait_until_ready()
        eventually(has_data_files, within_s=JOB_TIMEOUT_S)
        kill(server)
    source.change()
    finish(launcher, deployment, connector_id, source, "killed while Spark writes")


def kill(server: CrashingServer) -> None:
    assert server.kill() == -signal.SIGKILL
