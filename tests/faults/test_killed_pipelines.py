"""A worker is killed with SIGKILL while it runs a pipeline: in the end, each derived table has the rows of its query, exactly once.

A pipeline is first run undisturbed, which shows its steps. Then the input changes, and a server is killed at one of the steps of
the next run. The input changes again before the next server takes the job over. With `SKIWAY_FAULTS=all` the server is killed
before every write to the stores and the warehouse.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from socket import gethostname
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

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
from metastore.managed_table_factory import ManagedTableFactory
from metastore.pipelines.pipeline_lake import ORDERS
from metastore.resource_factory import ResourceFactory
from metastore.upstreams import mirrored
from runtime.servers import eventually
from skiway.formats.iceberg.commits import delete_all
from skiway.formats.iceberg.data_files import DataFileWriter
from skiway.metastore import Realm, jobs, managed
from skiway.metastore.managed.commits import change
from skiway.metastore.pipelines import api
from skiway.metastore.pipelines.owners import Owner, owner_realm
from skiway.metastore.seeding.catalog import seed_home
from skiway.model import v1
from skiway.storage import Stores, utc_now

pytestmark = [pytest.mark.timeout(3 * TIMEOUT_S), pytest.mark.full, pytest.mark.needs("java", "spark")]

SETTINGS = (*NO_GC, *WORKER, "reconciler.spark.master=local[2]", "pipelines.enabled=true")
CRASHING = (*SETTINGS, "reconciler.job_store.lease_ms=4000")
KILLS = 4
"""How many steps are tried, unless all are."""

FILES = {
    "pipeline.yml": "name: derived\ncatalog: lake\nnamespace: sales\n",
    "big.sql": "SELECT id, upper(region) AS region, price * 2 AS double FROM orders WHERE price > 2",
    "odd.sql": "SELECT id, double FROM big WHERE id % 2 = 1",
    "totals.sql": "SELECT region, count(*) AS n, sum(double) AS total FROM big GROUP BY region",
}


@dataclass
class Orders:
    """The input of the pipeline, which changes at random, and what the pipeline must make of it."""

    deployment: Deployment
    pipeline_id: v1.ResourceId = field(default_factory=v1.ResourceId)
    rng: random.Random = field(default_factory=lambda: random.Random(8))

    def __post_init__(self) -> None:
        with open_deployment(self.deployment) as stores:
            seed_home(stores)
            factory = ResourceFactory(stores, utc_now)
            factory.namespace("sales", catalog=factory.catalog())
            ManagedTableFactory(factory, self.deployment.warehouse).create("orders", ORDERS)
            ann = owner_realm(factory.home, Owner("ann", frozenset({"administrator"})))
            request = v1.CreatePipelineRequest(spec=v1.PipelineSpec(files=FILES))
            self.pipeline_id = api.create(ann, request).pipeline.resource_id

    def change(self, *, rewrite: bool = False) -> None:
        """Add rows; with `rewrite`, delete all others."""
        with open_deployment(self.deployment) as stores:
            factory = ResourceFactory(stores, utc_now)
            lake = ManagedTableFactory(factory, self.deployment.warehouse)
            table = lake.load(mirrored(factory)["sales.orders"])
            if rewrite:
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
            managed.append_with_retry(factory.home, lake.warehouse, table.table.resource_id, files)

    def enqueue(self, *, full: bool = False) -> str:
        with open_deployment(self.deployment) as stores:
            request = v1.StartPipelineRequest(pipeline_id=self.pipeline_id, full=full)
            return api.start(Realm(stores, ACCOUNT), request).job.job_id

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """The rows of a table, as PyIceberg reads them."""
        with open_deployment(self.deployment) as stores:
            table = mirrored(ResourceFactory(stores, utc_now))[f"sales.{name}"]
        found = StaticTable.from_metadata(table.metadata_location).scan().to_arrow().to_pylist()
        return sorted((tuple(row.values()) for row in found), key=repr)

    def check(self, when: str) -> None:
        """The derived tables have the rows of their queries, each exactly once."""
        big = [(id_, region and region.upper(), price * 2) for id_, region, price in self.rows("orders") if price > 2]
        counts = Counter(region for _, region, _ in big)
        totals = [(each, n, sum(double for _, region, double in big if region == each)) for each, n in counts.items()]
        assert self.rows("big") == sorted(big, key=repr), when
        assert self.rows("odd") == sorted(((id_, double) for id_, _, double in big if id_ % 2), key=repr), when
        assert self.rows("totals") == sorted(totals, key=repr), when


def finish(launcher: Launcher, orders: Orders, when: str) -> None:
    """Finish unfinished jobs and run one more, after which the tables must equal their queries."""
    with open_deployment(orders.deployment) as stores, launched(launcher, orders.deployment, *SETTINGS) as server:
        server.wait_until_ready()
        listed = jobs.list_(Realm(stores, ACCOUNT), v1.ListReconcileJobsRequest()).jobs
        last = orders.enqueue()
        for job_id in [*(each.job_id for each in listed), last]:
            eventually(partial(is_finished, stores, job_id), within_s=JOB_TIMEOUT_S)
            done = job_of(stores, job_id)
            assert (done.state, done.errors) == (v1.JS_SUCCEEDED, 0), f"{when}: {done}"
        # The last job may be one that had begun before the last change.
        again = orders.enqueue()
        eventually(partial(is_finished, stores, again), within_s=JOB_TIMEOUT_S)
        orders.check(when)
        assert contents.integrity_errors(stores) == [], when


def chosen(steps: list[str]) -> list[int]:
    """The steps at which a server is killed: all, or some swaps of pointers between the first and the last."""
    if EVERY_STEP:
        return list(range(1, len(steps) + 1))
    swaps = [number for number, name in enumerate(steps, 1) if name == "_apply"]
    return [swaps[place * (len(swaps) - 1) // (KILLS - 1)] for place in range(KILLS)]


def test_killed_runs_leave_the_rows_of_the_queries(launcher, new_deployment):
    deployment = new_deployment("sqlite")
    orders = Orders(deployment)
    orders.change()

    def crashing(step: Step) -> Any:
        only = WRITES | FILE_OPERATIONS if EVERY_STEP else WRITES
        return launched(launcher, deployment, *CRASHING, threads=gethostname(), step=step, only=only)

    first = orders.enqueue()
    with open_deployment(deployment) as stores, crashing(Step(0)) as server:
        eventually(lambda: is_finished(stores, first), within_s=JOB_TIMEOUT_S)
        assert job_of(stores, first).errors == 0, job_of(stores, first)
        orders.change()  # the second run does not create the tables
        second = orders.enqueue()
        before = len(server.operations)
        eventually(lambda: is_finished(stores, second), within_s=JOB_TIMEOUT_S)
        steps = server.operations[before:]
    orders.check("undisturbed")
    killed_before_the_end = 0
    for turn, number in enumerate(chosen(steps)):
        orders.change(rewrite=turn % 3 == 2)
        job_id = orders.enqueue()
        with open_deployment(deployment) as stores, crashing(Step(number)) as server:

            def is_over(server: CrashingServer = server, stores: Stores = stores, job_id: str = job_id) -> bool:
                return server.has_ended() or is_finished(stores, job_id)

            eventually(is_over, within_s=JOB_TIMEOUT_S)
            killed = server.kill() == -signal.SIGKILL and not is_finished(stores, job_id)
            assert killed or number > len(steps) - 4, f"not killed at step {number}: {server.output()}"
            killed_before_the_end += killed
        orders.change()
        finish(launcher, orders, f"killed before step {number} ({steps[number - 1]})")
    assert killed_before_the_end >= KILLS - 1
    found = {name: orders.rows(name) for name in ("big", "odd", "totals")}
    with open_deployment(deployment) as stores, launched(launcher, deployment, *SETTINGS) as server:
        server.wait_until_ready()
        full = orders.enqueue(full=True)
        eventually(lambda: is_finished(stores, full), within_s=JOB_TIMEOUT_S)
        assert job_of(stores, full).tables_changed == len(found)
    assert {name: orders.rows(name) for name in found} == found, "incremental results equal full ones"
    collect(deployment, ahead_s=10 * 86400.0)
    assert {name: orders.rows(name) for name in found} == found, "after gc"
