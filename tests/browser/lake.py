"""The lake that the browser visits: something to see on every page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from runtime.servers import Server
from skiway.client import AirportClient, Metastore, col
from skiway.model import v1
from web.explorers import store_history

SCRIPT = "<script>alert(1)</script>"
PIPELINE = {
    "pipeline.yml": "name: shop\ncatalog: lake\nnamespace: sales\nschedule: 1h\n",
    "adults.sql": "SELECT id, upper(name) AS name FROM people",
    "letters.sql": "-- @partition_by: letter\nSELECT substr(name, 1, 1) AS letter, count(*) AS n FROM adults GROUP BY 1",
    "planted.sql": f"SELECT '{SCRIPT}' AS x, id FROM `{SCRIPT}`",
}


@dataclass(frozen=True)
class Lake:
    """A running server, and tokens of its users: ada is an administrator, eve may see nothing."""

    server: Server
    tokens: dict[str, str]
    failed_job: str
    snapshots: list[int]
    """The snapshots of lake.sales.people, newest first."""

    @property
    def address(self) -> str:
        return self.server.addresses["http"]


def filled(server: Server, tokens: dict[str, str], folder: Path) -> Lake:
    """Fill the lake of a server: tables with statistics, a view, a branch, connectors, a failed job, grants, tags and policies."""
    (folder / "files" / "trips").mkdir(parents=True)
    pq.write_table(pa.table({"km": [1.5, 2.5]}), folder / "files" / "trips" / "a.parquet")
    with AirportClient(server.addresses["airport"], "lake", token=tokens["ada"]) as lake:
        lake.create_schema("sales")
        people = pa.table({"id": pa.array(range(1000), pa.int64()), "name": ["ann"] * 600 + ["bob"] * 400})
        lake.create_table_as("sales.people", people)
        lake.insert("sales.people", pa.table({"id": pa.array([5000], pa.int64()), "name": ["late"]}))
        basket = pa.array(
            [{"sku": SCRIPT, "sizes": [1, 2]}, None], pa.struct({"sku": pa.string(), "sizes": pa.list_(pa.int64())})
        )
        lake.create_table_as("sales.orders", pa.table({"order_no": [1, 2], "basket": basket}))
        lake.create_table_as(("sales", f"t{SCRIPT}"), pa.table({SCRIPT: [SCRIPT]}))
        lake.call(("skiway", "create_view"), "sales.names", "SELECT DISTINCT name FROM sales.people").read_all()
        lake.create_table_as("sales.stock", pa.table({"item": ["pen", "ink"], "left": [5, 7]}))
        lake.call(("skiway", "create_branch"), "dev", named={"comment": "prices of next year"}).read_all()
        with AirportClient(server.addresses["airport"], "lake@dev", token=tokens["ada"]) as dev:
            dev.insert("sales.people", pa.table({"id": [6000], "name": ["new"]}))
            dev.create_table_as("sales.returns", pa.table({"order_no": [2]}))
            dev.delete("sales.stock", where=col("item") == "pen")
        lake.delete("sales.stock", where=col("item") == "ink")
    with Metastore(server.address, token=tokens["ada"]) as metastore:
        metastore.webhooks.create(
            "alerts",
            url=f"http://127.0.0.1:9/{SCRIPT}",
            events=["rule.*", "table.*"],
            secret="0123456789abcdef",
            description="for ops",
        )
        metastore.tables.update("lake.sales.people", description="customers of the shop")
        _profile(metastore)
        store_history(folder / "home", metastore)
        metastore.policies.tag("lake.sales.people", "name", ["personal"])
        metastore.policies.create("hide names", to=["role:member"], mask="hash", tags=["personal"])
        metastore.grants.add("lake.sales.people", "user:bob", "read")
        metastore.pipelines.create(PIPELINE)
        metastore.connectors.create("bikes", kind="parquet", uri=str(folder / "files"), catalog="lake")
        metastore.connectors.create("nowhere", kind="parquet", uri=str(folder / "nothing"), catalog="lake")
        failed = metastore.jobs.wait(metastore.connectors.sync("nowhere").id, timeout_s=150)
        assert failed.state == "failed"
        snapshots = [each.id for each in metastore.snapshots("lake.sales.people")]
    return Lake(server, tokens, failed.id, snapshots)


def _profile(metastore: Metastore) -> None:
    """Store statistics of two columns, as the profiler does."""
    snapshot = metastore.snapshots.get("lake.sales.people")
    number = v1.ColumnStats(column_id=1, column_name="id", logical_type="BIGINT", value_count=1001, null_count=0)
    number.min, number.max = "0", "5000"
    number.histogram.CopyFrom(v1.Histogram(bounds=["0", "500", "5000"], counts=[500, 501]))
    text = v1.ColumnStats(column_id=2, column_name="name", logical_type="VARCHAR", value_count=1001, null_count=0)
    text.min, text.max = "ann", "late"
    metastore.statistics.put_columns("lake.sales.people", snapshot, [number, text])
