"""Both phases of a job with a real Spark: its statistics match the tables of the connector."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import scope
from metastore.resource_factory import ResourceFactory
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
from scope import sample
from skiway.metastore import connectors, jobs, statistics
from skiway.metastore.jobs.queue import JobQueue
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1
from skiway.spark_jobs.worker import SparkProfile, Worker, jobs_of
from skiway.storage import Stores, open_stores, utc_now
from spark_jobs.lakes import SPARK

pytestmark = SPARK


@pytest.fixture
def stores() -> Iterator[Stores]:
    with open_stores("memory://") as opened:
        yield opened


def test_sync_profiles_only_new_data(stores, spark, tmp_path):
    factory = ResourceFactory(stores, utc_now)  # type: ignore[arg-type]
    factory.catalog()
    parquet(tmp_path / "up" / "people", "a", id=[1, 2, 2, None])
    catalog = iceberg(tmp_path / "ice")
    orders = catalog.create_table("sales.orders", schema=pa.schema({"id": pa.int64()}))
    orders.append(pa.table({"id": [1, 2, 3]}))
    reconciler = Reconciler(SECRETS, SparkProfile(lambda: spark, in_process_bytes=0))
    made = [connector(factory, str(tmp_path / "up")), iceberg_connector(factory, tmp_path / "ice", name="ice")]
    for each in made:
        for mode in (CORE, STATS):
            assert reconciler.run(factory.home, each.resource_id, mode=mode).failures == {}
    expected = {"files.people": (4, 1, 2), "sales.orders": (3, 0, 3)}
    for name, (rows, nulls, distinct) in expected.items():
        table = mirrored(factory)[name]
        ref = v1.SnapshotRef(snapshot_id=current_of(factory, table).snapshot_id)
        found = statistics.get_table(factory.home, v1.GetTableStatsRequest(table_id=table.resource_id, snapshot=ref))
        assert found.stats.row_count == rows
        columns = statistics.list_columns(
            factory.home, v1.ListColumnStatsRequest(table_id=table.resource_id, snapshot=ref)
        )
        (column,) = columns.columns
        assert (column.null_count, round(column.ndv.approx.estimate) or column.ndv.exact) == (nulls, distinct)
    for each in made:
        assert reconciler.run(factory.home, each.resource_id, mode=STATS).changed == 0


# --- incremental profiles -------------------------------------------------------------------------------------------

FILES = 200 if scope.ALL else 50


def rows(files: range) -> pa.Table:
    """Fifty rows per file, with NULLs, repeated values and a spread; `part` identifies the file."""
    ids = [file * 50 + number for file in files for number in range(50)]
    return pa.table(
        {
            "part": pa.array([number // 50 for number in ids], pa.int32()),
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([None if number % 7 == 0 else f"n{number % 113}" for number in ids]),
            "price": pa.array([number / 3 for number in ids], pa.float64()),
        }
    )


@dataclass
class Grown:
    """A table that grows by files, and a way to remove its old files."""

    connect: Callable[[ResourceFactory], v1.Connector]
    grow: Callable[[range], None]
    folder: Path

    def files(self) -> set[Path]:
        return {path for path in self.folder.rglob("*.parquet") if "_delta_log" not in path.parts}


def iceberg_of_files(folder: Path) -> Grown:
    from pyiceberg.transforms import IdentityTransform

    table = iceberg(folder).create_table("sales.orders", schema=rows(range(1)).schema)
    with table.update_spec() as spec:
        spec.add_field("part", IdentityTransform(), "part")
    current = v1.ConnectorPolicy(scope=v1.SNS_CURRENT)
    return Grown(
        lambda factory: iceberg_connector(factory, folder, policy=current),
        lambda files: table.append(rows(files)),
        folder / "warehouse",
    )


def delta_of_files(folder: Path) -> Grown:
    from deltalake import write_deltalake

    def grow(files: range) -> None:
        write_deltalake(folder / "orders", rows(files), partition_by=["part"], mode="append")

    def connect(factory: ResourceFactory) -> v1.Connector:
        properties = {"delta.source": "filesystem"}
        current = v1.ConnectorPolicy(scope=v1.SNS_CURRENT)
        return connector(factory, str(folder), v1.CK_DELTA, properties=properties, policy=current)

    return Grown(connect, grow, folder)


def parquet_of_files(folder: Path) -> Grown:
    def grow(files: range) -> None:
        (folder / "orders").mkdir(parents=True, exist_ok=True)
        for file in files:
            pq.write_table(rows(range(file, file + 1)), folder / "orders" / f"{file:04}.parquet")

    return Grown(lambda factory: connector(factory, str(folder)), grow, folder)


def make_unreadable(files: set[Path]) -> None:
    """A folder consists of its files, so they stay, but only their footers are left."""
    for path in files:
        before, data = path.stat(), bytearray(path.read_bytes())
        footer = int.from_bytes(data[-8:-4], "little") + 8
        data[4:-footer] = bytes(len(data) - 4 - footer)
        with path.open("r+b") as file:
            file.write(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def delete(files: set[Path]) -> None:
    for path in files:
        path.unlink()


def synced(factory: ResourceFactory, of: v1.Connector, spark: Any) -> v1.Job:
    """Run a job from start to end in a worker."""
    job_id = connectors.trigger(factory.home, v1.TriggerReconcileRequest(connector_id=of.resource_id)).job_id
    run = jobs_of(factory.realm, Reconciler(SECRETS, SparkProfile(lambda: spark, in_process_bytes=0)))
    assert Worker(JobQueue(factory.stores), run, name="w").work_once()
    return jobs.get(factory.home, v1.GetReconcileJobRequest(job_id=job_id)).job


def published(factory: ResourceFactory) -> tuple[v1.TableStats, list[v1.ColumnStats]]:
    """The statistics of the only table, without fields that do not describe its content."""
    (table,) = mirrored(factory).values()
    ref = v1.SnapshotRef(snapshot_id=current_of(factory, table).snapshot_id)
    stats = statistics.get_table(factory.home, v1.GetTableStatsRequest(table_id=table.resource_id, snapshot=ref)).stats
    columns = statistics.list_columns(factory.home, v1.ListColumnStatsRequest(table_id=table.resource_id, snapshot=ref))
    for each in (stats, *columns.columns):
        for name in ("table_id", "snapshot_id", "updated_at"):
            if name in each.DESCRIPTOR.fields_by_name:
                each.ClearField(name)  # type: ignore[arg-type]
    return stats, list(columns.columns)


@pytest.mark.parametrize(
    ("made", "remove"),
    sample([(iceberg_of_files, delete), (delta_of_files, delete), (parquet_of_files, make_unreadable)], every=3),
    ids=["iceberg", "delta", "parquet"],
)
def test_two_new_files_are_profiled_without_the_old_ones(spark, tmp_path, made, remove):
    table = made(tmp_path)
    table.grow(range(FILES))
    old = table.files()
    assert len(old) == FILES
    with open_stores("memory://") as first, open_stores("memory://") as second:
        factory, fresh = ResourceFactory(first, utc_now), ResourceFactory(second, utc_now)  # type: ignore[arg-type]
        for each in (factory, fresh):
            each.catalog()
        connected = table.connect(factory)
        done = synced(factory, connected, spark)
        assert (done.state, done.progress.files_done) == (v1.JS_SUCCEEDED, FILES), done
        table.grow(range(FILES, FILES + 2))
        full_run = synced(fresh, table.connect(fresh), spark)
        assert (full_run.state, full_run.progress.files_done) == (v1.JS_SUCCEEDED, FILES + 2), full_run
        remove(old)
        done = synced(factory, connected, spark)
        assert (done.state, done.progress.files_total, done.errors) == (v1.JS_SUCCEEDED, 2, 0), done
        stats, columns = published(factory)
        assert (stats.row_count, stats.properties["files.profiled"]) == ((FILES + 2) * 50, str(FILES + 2))
        assert {each.column_name for each in columns} == {"part", "id", "name", "price"}
        assert (stats, columns) == published(fresh)


def test_only_selected_columns_are_read_and_others_once_they_are_selected(spark, stores, tmp_path):
    factory = ResourceFactory(stores, utc_now)  # type: ignore[arg-type]
    factory.catalog()
    table = parquet_of_files(tmp_path)
    table.grow(range(3))
    source = v1.ConnectorSource(table="orders", exclude_columns=["name"])
    made = connector(factory, str(tmp_path), source=source)
    assert synced(factory, made, spark).state == v1.JS_SUCCEEDED
    assert {each.column_name for each in published(factory)[1]} == {"part", "id", "price"}
    request = v1.UpdateConnectorRequest(
        connector_id=made.resource_id, spec=v1.ConnectorSpec(source=v1.ConnectorSource(table="orders"))
    )
    request.update_mask.paths.append("source")
    connectors.calls(SECRETS).update(factory.home, request)
    done = synced(factory, made, spark)
    assert (done.state, done.progress.files_done) == (v1.JS_SUCCEEDED, 3)
    stats, columns = published(factory)
    name = next(each for each in columns if each.column_name == "name")
    assert (name.null_count, name.properties["rows.profiled"]) == (22, "150")
    assert stats.properties["files.profiled"] == "3"
    assert synced(factory, made, spark).progress.files_total == 0
