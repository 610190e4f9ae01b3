"""End to end: written over Airport, read by PyIceberg and Spark through REST, appended to by Spark, and
profiled on Spark, whose statistics are returned to DuckDB's optimizer.

The oracle is DuckDB: it runs the same statements on a table of its own and computes the statistics itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from runtime.servers import Server, calling, eventually
from skiway.client import AirportClient, Metastore, col
from skiway.model import v1
from spark_jobs.lakes import SPARK
from spark_jobs.shared_spark import rest_results

TABLE = "sales.orders"
JOB_S = 300.0

pytestmark = SPARK

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("region", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("moment", pa.timestamp("us")),
    ]
)
Rows = list[tuple[Any, ...]]


def orders() -> pa.Table:
    """200 orders, some without a region or an amount."""
    regions, start = ["north", "south", "öst", None], datetime(2026, 1, 1)
    made = [
        {
            "id": number,
            "region": regions[number % 4],
            "amount": None if number % 7 == 0 else number / 8,
            "moment": start + timedelta(hours=number),
        }
        for number in range(200)
    ]
    return pa.Table.from_pylist(made, schema=SCHEMA)


class Oracle:
    """A table in a plain DuckDB."""

    def __init__(self, duck: duckdb.DuckDBPyConnection) -> None:
        self._duck = duck
        duck.register("made", orders())
        duck.execute("CREATE TABLE orders AS SELECT * FROM made")

    def run(self, statement: str) -> None:
        self._duck.execute(statement)

    def rows(self) -> Rows:
        return self._duck.execute("SELECT id, region, amount, moment FROM orders ORDER BY id").fetchall()

    def statistics(self, column: str) -> dict[str, Any]:
        expressions = (
            f"min({column}), max({column}), count(*) > count({column}), count({column}) > 0, count(DISTINCT {column})"
        )
        found = self._duck.execute(f"SELECT {expressions} FROM orders").fetchone()
        assert found is not None
        return dict(zip(("min", "max", "has_null", "has_not_null", "distinct_count"), found, strict=True))


@pytest.fixture
def oracle() -> Iterator[Oracle]:
    with duckdb.connect() as duck:
        yield Oracle(duck)


def in_order(table: pa.Table) -> Rows:
    rows = table.select(SCHEMA.names).sort_by("id").to_pylist()
    return [tuple(row.values()) for row in rows]


def write_over_airport(db: AirportClient, oracle: Oracle) -> None:
    """Run CREATE, INSERT, UPDATE and DELETE on both."""
    db.create_schema("sales")
    db.create_table(TABLE, SCHEMA)
    assert db.insert(TABLE, orders().slice(0, 120)).count == 120
    assert db.insert(TABLE, orders().slice(120)).count == 80
    assert db.update(TABLE, {"region": "west"}, where=(col("id") >= 30) & (col("id") < 50)).count == 20
    oracle.run("UPDATE orders SET region = 'west' WHERE id >= 30 AND id < 50")
    assert db.delete(TABLE, where=col("id") >= 190).count == 10
    oracle.run("DELETE FROM orders WHERE id >= 190")


def spark_results(server: Server, *statements: str) -> list[Any]:
    return rest_results(f"{server.addresses['http']}/iceberg", statements)


def profile(server: Server, table_id: v1.ResourceId) -> v1.Job:
    """Run the job that computes the statistics of the table and return it when it has ended."""
    with calling(server.address) as caller:
        request = v1.TriggerReconcileRequest(table_id=table_id)
        begun = caller.call("ConnectorService/TriggerReconcile", request, v1.TriggerReconcileResponse)
        job_request = v1.GetReconcileJobRequest(job_id=begun.job_id)

        def job() -> v1.Job:
            found = caller.call("ConnectorService/GetReconcileJob", job_request, v1.GetReconcileJobResponse).job
            assert isinstance(found, v1.Job)
            return found

        eventually(lambda: job().state not in (v1.JS_QUEUED, v1.JS_RUNNING), within_s=JOB_S)
        return job()


@pytest.mark.full
def test_table_written_over_airport_is_read_appended_to_and_profiled_by_other_engines(
    server_with_spark: Server, oracle: Oracle
) -> None:
    server = server_with_spark
    with (
        AirportClient(server.addresses["airport"], catalog="lake") as db,
        closing(RestCatalog("lake", uri=f"{server.addresses['http']}/iceberg", warehouse="lake")) as catalog,
    ):
        write_over_airport(db, oracle)
        assert in_order(db.scan(TABLE).read_all()) == oracle.rows()
        assert in_order(catalog.load_table(TABLE).scan().to_arrow()) == oracle.rows()

        added = "(1000, 'spark', 0.5, TIMESTAMP '2030-01-01 00:00:00'), (1001, NULL, NULL, NULL)"
        read, appended = spark_results(
            server,
            "SELECT id, region, amount, CAST(moment AS STRING) FROM lake.sales.orders ORDER BY id",
            f"INSERT INTO lake.sales.orders VALUES {added}",
        )
        assert read == [[number, region, amount, str(moment)] for number, region, amount, moment in oracle.rows()]
        assert appended == []
        oracle.run(f"INSERT INTO orders VALUES {added}")
        assert in_order(db.scan(TABLE).read_all()) == oracle.rows()

        with Metastore(server.address) as metastore:
            table_id = metastore.tables.get(f"lake.{TABLE}").message.resource_id
        before = {name: db.statistics(TABLE, name) for name in SCHEMA.names}
        assert {each.distinct_count for each in before.values()} == {None}, "only a profile counts distinct values"
        done = profile(server, table_id)
        assert (done.state, done.tables_changed, done.errors) == (v1.JS_SUCCEEDED, 1, 0), done
        for name in SCHEMA.names:
            actual, expected = db.statistics(TABLE, name), oracle.statistics(name)
            assert {key: getattr(actual, key) for key in expected} == expected, name
