"""Both passes with Spark itself: what it counts is what a connector's tables hold."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from metastore.upstreams import (
    CORE,
    SECRETS,
    STATS,
    connector,
    current_of,
    iceberg,
    iceberg_connector,
    mirrored,
    parquet,
)
from metastore.world import World
from pipeline.lakes import SPARK
from skiway.metastore import statistics
from skiway.metastore.reconcile import Reconciler
from skiway.model import v1
from skiway.pipeline.capture import SparkProfile
from skiway.storage import Stores, open_stores, utc_now

pytestmark = SPARK


@pytest.fixture
def stores() -> Iterator[Stores]:
    with open_stores("memory://") as opened:
        yield opened


def test_a_sync_profiles_what_is_new_and_only_that(stores, spark, tmp_path):
    world = World(stores, utc_now)  # type: ignore[arg-type]
    world.catalog()
    parquet(tmp_path / "up" / "people", "a", id=[1, 2, 2, None])
    catalog = iceberg(tmp_path / "ice")
    orders = catalog.create_table("sales.orders", schema=pa.schema({"id": pa.int64()}))
    orders.append(pa.table({"id": [1, 2, 3]}))
    reconciler = Reconciler(SECRETS, SparkProfile(lambda: spark))
    made = [connector(world, str(tmp_path / "up")), iceberg_connector(world, tmp_path / "ice", name="ice")]
    for each in made:
        for mode in (CORE, STATS):
            assert reconciler.run(world.home, each.resource_id, mode=mode).failures == {}
    expected = {"files.people": (4, 1, 2), "sales.orders": (3, 0, 3)}
    for name, (rows, nulls, distinct) in expected.items():
        table = mirrored(world)[name]
        ref = v1.SnapshotRef(snapshot_id=current_of(world, table).snapshot_id)
        found = statistics.get_table(world.home, v1.GetTableStatsRequest(table_id=table.resource_id, snapshot=ref))
        assert found.stats.row_count == rows
        columns = statistics.list_columns(
            world.home, v1.ListColumnStatsRequest(table_id=table.resource_id, snapshot=ref)
        )
        (column,) = columns.columns
        assert (column.null_count, round(column.ndv.approx.estimate) or column.ndv.exact) == (nulls, distinct)
    for each in made:
        assert reconciler.run(world.home, each.resource_id, mode=STATS).changed == 0
