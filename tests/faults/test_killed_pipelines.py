"""A worker is killed with SIGKILL while it runs a pipeline: in the end, each derived table has the rows of its query, exactly once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from faults.crashing_server import ACCOUNT, TIMEOUT_S
from faults.deployments import Deployment, collect, open_deployment
from faults.killed_jobs import KilledJobs, swaps
from faults.test_killed_syncs import JOB_TIMEOUT_S, is_finished, job_of
from metastore.managed_table_factory import ManagedTableFactory
from metastore.pipelines.pipeline_lake import ORDERS
from metastore.resource_factory import ResourceFactory
from metastore.upstreams import mirrored
from runtime.servers import eventually
from skiway.formats.iceberg.changes.commits import append, delete_all
from skiway.formats.iceberg.metadata import summary_properties
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore import Realm, managed
from skiway.metastore.managed.commits import change
from skiway.metastore.pipelines import api
from skiway.metastore.pipelines.inputs import owner_realm
from skiway.metastore.pipelines.lineage import POSITION, read_position
from skiway.metastore.seeding import seed_home
from skiway.model import v1
from skiway.storage import utc_now

pytestmark = [pytest.mark.timeout(6 * TIMEOUT_S), pytest.mark.full, pytest.mark.needs("java", "spark")]

SETTINGS = ("pipelines.enabled=true",)

FILES = {
    "pipeline.yml": "name: derived\ncatalog: lake\nnamespace: sales\n",
    "big.sql": "SELECT id, upper(region) AS region, price * 2 AS double FROM orders WHERE price > 2",
    "odd.sql": "SELECT id, double FROM big WHERE id % 2 = 1",
    "totals.sql": "SELECT region, count(*) AS n, sum(double) AS total FROM big GROUP BY region",
}
Row = tuple[Any, ...]


def big(orders: list[Row]) -> list[Row]:
    return [(id_, region and region.upper(), price * 2) for id_, region, price in orders if price > 2]


def odd(big: list[Row]) -> list[Row]:
    return [(id_, double) for id_, _, double in big if id_ % 2]


def totals(big: list[Row]) -> list[Row]:
    counts = Counter(region for _, region, _ in big)
    return [(each, n, sum(double for _, region, double in big if region == each)) for each, n in counts.items()]


DERIVED = {"big": ("orders", big), "odd": ("big", odd), "totals": ("big", totals)}
"""For each derived table, the table that it reads, and what its query does."""


@dataclass
class Orders:
    """The input of the pipeline, which changes at random, and what the pipeline must make of it."""

    deployment: Deployment
    files: Mapping[str, str] = field(default_factory=lambda: FILES)
    derived: Mapping[str, tuple[str, Callable[[list[Row]], list[Row]]]] = field(default_factory=lambda: DERIVED)
    pipeline_id: v1.ResourceId = field(default_factory=v1.ResourceId)
    rng: random.Random = field(default_factory=lambda: random.Random(8))

    def __post_init__(self) -> None:
        with open_deployment(self.deployment) as stores:
            seed_home(stores)
            factory = ResourceFactory(stores, utc_now)
            factory.namespace("sales", catalog=factory.catalog())
            ManagedTableFactory(factory, self.deployment.warehouse).create("orders", ORDERS)
            ann = owner_realm(factory.home, v1.PipelineOwner(subject="ann", roles=["administrator"]))
            request = v1.CreatePipelineRequest(spec=v1.PipelineSpec(files=self.files))
            self.pipeline_id = api.CALLS.create(ann, request).pipeline.resource_id

    def change(self, turn: int) -> None:
        """Add rows; each third turn deletes all others. Before that, check what the last run has left, killed or not."""
        self.check_positions(f"turn {turn}")
        with open_deployment(self.deployment) as stores:
            factory = ResourceFactory(stores, utc_now)
            lake = ManagedTableFactory(factory, self.deployment.warehouse)
            table = lake.load(mirrored(factory)["sales.orders"])
            if turn % 3 == 2:
                change(factory.home, lake.warehouse, table.table.resource_id, delete_all())
            rows = [
                {
                    "id": self.rng.randrange(99),
                    "region": self.rng.choice(["eu", "us", None]),
                    "price": self.rng.randrange(9),
                }
                for _ in range(self.rng.randrange(5, 20))
            ]
            with DataFileWriter(table.files, table.metadata) as writer:
                writer.write(pa.RecordBatch.from_pylist(rows, ORDERS))
                files = writer.close()
            managed.change(factory.home, lake.warehouse, table.table.resource_id, append(files))

    def enqueue(self, *, full: bool = False) -> str:
        with open_deployment(self.deployment) as stores:
            request = v1.StartPipelineRequest(pipeline_id=self.pipeline_id, full=full)
            return api.start(Realm(stores, ACCOUNT), request).job.job_id

    def table(self, name: str) -> StaticTable | None:
        """A table as PyIceberg reads it; None if it does not exist."""
        with open_deployment(self.deployment) as stores:
            found = mirrored(ResourceFactory(stores, utc_now)).get(f"sales.{name}")
        return None if found is None else StaticTable.from_metadata(found.metadata_location)

    def rows(self, name: str, snapshot_id: int | None = None) -> list[Row]:
        """The rows of a table, by default its current ones."""
        table = self.table(name)
        assert table is not None, name
        found = table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
        return in_order(tuple(row.values()) for row in found)

    def check_positions(self, when: str) -> None:
        """Each derived table has the rows that its query makes of its input, in the snapshot that is its position."""
        for name, (source, query) in self.derived.items():
            if (table := self.table(name)) is None:
                continue
            positions = [POSITION in summary_properties(each) for each in table.metadata.snapshots]
            assert all(positions), f"{when}: no commit of {name} has rows without their position"
            stored = read_position(table.metadata)
            assert stored.value is not None, when
            ((key, read),) = stored.value.inputs.items()
            assert key == f"sales.{source}", when
            assert self.rows(name) == in_order(query(self.rows(source, read.snapshot))), f"{when}: {name}"

    def check(self, when: str) -> None:
        """The derived tables have the rows of their queries, each exactly once."""
        self.check_positions(when)
        for name, (source, query) in self.derived.items():
            assert self.rows(name) == in_order(query(self.rows(source))), f"{when}: {name}"


def in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=repr)


def test_killed_runs_leave_the_rows_of_the_queries(launcher, new_deployment):
    deployment = new_deployment("sqlite")
    orders = Orders(deployment)
    killed = KilledJobs(launcher, deployment, orders, SETTINGS)
    assert killed.run(swaps) >= 2 * len(DERIVED)
    found = {name: orders.rows(name) for name in ("big", "odd", "totals")}
    with open_deployment(deployment) as stores, killed.server() as server:
        server.wait_until_ready()
        full = orders.enqueue(full=True)
        eventually(lambda: is_finished(stores, full), within_s=JOB_TIMEOUT_S)
        assert job_of(stores, full).tables_changed == len(found)
    assert {name: orders.rows(name) for name in found} == found, "incremental results equal full ones"
    collect(deployment, ahead_s=10 * 86400.0)
    assert {name: orders.rows(name) for name in found} == found, "after gc"
