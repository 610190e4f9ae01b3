"""A run that dies at any write to the stores is continued by the next one: each derived table has its rows once, with their position."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.table import StaticTable

from metastore.faults import Crashed, crashing_stores
from metastore.ingest.test_crashes import WritePoint
from metastore.managed_table_factory import ManagedTableFactory
from metastore.pipelines.pipeline_lake import LocalFunctions, PipelineLake
from metastore.resource_factory import ResourceFactory
from skiway.metastore.pipelines.lineage import POSITION, read_position

BIG = "SELECT id, price * 2 AS double FROM orders WHERE price > 2"
HIGH = """
from pyspark import pipelines as dp

@dp.materialized_view
def high():
    return spark.table("orders").where("price > 4")
"""


def high(tables: dict[str, pa.Table]) -> pa.Table:
    rows = tables["orders"]
    return rows.filter(pc.greater(rows["price"], 4)).select(["id", "price"])


@pytest.fixture
def sales(lake: PipelineLake) -> PipelineLake:
    """`big` is refreshed incrementally, `totals` reads it and is replaced, and a function makes `high`."""
    lake.queries = {
        "big": BIG,
        "totals": "SELECT CAST(sum(double) AS BIGINT) AS total FROM big",
        "high.py": HIGH,
    }
    lake.functions = LocalFunctions({"high": high})
    lake.create()
    return lake


def rows_at(sales: PipelineLake, name: str, snapshot_id: int) -> list[tuple[int, ...]]:
    found = StaticTable.from_metadata(sales.table(name).metadata_location).scan(snapshot_id=snapshot_id).to_arrow()
    return [tuple(each.values()) for each in found.to_pylist()]


def check_positions(sales: PipelineLake, when: str) -> None:
    """Each derived table has exactly the rows that its query makes of the inputs in its position."""
    for name in ("big", "totals", "high"):
        stored = read_position(sales.table(name).metadata)
        assert stored.value is not None, when
        ((key, read),) = stored.value.inputs.items()
        source = rows_at(sales, key.rpartition(".")[2], read.snapshot)
        if name == "totals":
            expected = [(sum(double for _, double in source) or None,)]
        elif name == "big":
            expected = [(id_, price * 2) for id_, _, price in source if price > 2]
        else:
            expected = [(id_, price) for id_, _, price in source if price > 4]
        assert sales.rows(name) == sorted(expected, key=repr), f"{name}, {when}"


def killed(sales: PipelineLake, at: int) -> bool:
    """Whether a run crashes before its write with this number."""
    point = WritePoint(at)
    factory = ResourceFactory(crashing_stores(sales.lake.factory.stores, point), sales.lake.factory.clock)
    crashing = replace(sales, lake=ManagedTableFactory(factory, sales.lake.warehouse))
    try:
        crashing.run()
    except Crashed:
        return True
    return False


def test_crash_at_every_write_neither_loses_nor_duplicates_rows(sales: PipelineLake) -> None:
    sales.append(sales.table("orders"), (0, "eu", 3), (1, "eu", 8))
    assert sales.run().changed == 3
    for at in count(1):
        orders = sales.table("orders")
        sales.append(orders, (10 * at, "eu", 7 * at % 9), (10 * at + 1, "us", 5))
        was_killed = killed(sales, at)
        check_positions(sales, f"after a crash at write {at}")
        sales.append(orders, (10 * at + 2, "eu", 5 * at % 9))
        assert sales.run().failures == {}
        assert set(sales.actions().values()) == {"keep"}
        check_positions(sales, f"after the run that follows a crash at write {at}")
        if not was_killed:
            break
    assert at > 10
    for name in ("big", "totals", "high"):
        for snapshot in sales.table(name).metadata.snapshots:
            assert snapshot.summary is not None
            assert POSITION in snapshot.summary.additional_properties, "no commit has rows without a position"


def test_crash_at_every_write_of_a_first_run_leaves_no_half_table(sales: PipelineLake) -> None:
    sales.append(sales.table("orders"), (0, "eu", 3), (1, "eu", 8))
    for at in count(1):
        sales.queries = {f"big{at}": BIG}
        was_killed = killed(sales, at)
        assert sales.actions()[f"big{at}"] in ("keep", "replace")
        assert sales.run().failures == {}
        assert sales.rows(f"big{at}") == [(0, 6), (1, 16)], f"after a crash at write {at}"
        assert len(sales.table(f"big{at}").metadata.snapshots) == 1
        if not was_killed:
            break
    assert at > 5
