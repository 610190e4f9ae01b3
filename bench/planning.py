"""Planning a scan of 10,000 files: our planner compared with PyIceberg's `plan_files` on the same table.

Both find the files that may contain rows matching a filter. PyIceberg reads the table's manifests for every scan; our
planner reads the list of files from the metastore, where a sync stored it, once per snapshot. *Cold* is the first plan
of a snapshot, *warm* every later one.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.report import Figure
from skiway.metastore import Realm, connectors, queries
from skiway.metastore.planning.planner import Plan, Planner
from skiway.metastore.queries.pins import PinnedSnapshot
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.records.kinds import TABLE
from skiway.metastore.resources import catalogs
from skiway.metastore.seeding import seed_home
from skiway.model import v1
from skiway.security import MemorySecrets
from skiway.storage import Stores, open_stores

FILES = 10_000
COMMITS = 10
ROWS = 1_000
AIM = 20.0
PEER = "PyIceberg's plan_files"


def figures() -> Iterator[Figure]:
    """Yield the figures of this part."""
    with tempfile.TemporaryDirectory() as folder, open_stores("memory://") as stores:
        peer = table_of_files(Path(folder))
        pinned = synced(stores, Path(folder))
        planner = Planner()
        planner.plan(pinned)
        for name, predicate, filter_ in filters():
            expected = {task.file.file_path for task in peer.scan(row_filter=filter_).plan_files()}
            assert paths(planner.plan(pinned, predicate)) == expected, "the two do not agree"
            theirs = median_ms(lambda filter_=filter_: list(peer.scan(row_filter=filter_).plan_files()), 5)  # type: ignore[misc]
            warm = median_ms(lambda predicate=predicate: planner.plan(pinned, predicate), 50)  # type: ignore[misc]
            cold = median_ms(lambda predicate=predicate: Planner().plan(pinned, predicate), 5)  # type: ignore[misc]
            yield Figure(f"{name}, warm", "ms", warm, theirs, theirs / warm, aim=AIM, peer_is=PEER)
            yield Figure(f"{name}, cold", "ms", cold, theirs, theirs / cold, peer_is=PEER)


def filters() -> Iterator[tuple[str, list[v1.Predicate], Any]]:
    """The name of each filter, with our form and PyIceberg's form of it."""
    from pyiceberg.expressions import AlwaysTrue, And, EqualTo, GreaterThanOrEqual, LessThan

    middle = FILES * ROWS // 2
    yield "no filter", [], AlwaysTrue()
    yield "one value", [predicate(v1.PO_EQ, middle)], EqualTo("id", middle)
    half = [predicate(v1.PO_GTE, middle // 2), predicate(v1.PO_LT, middle // 2 + middle)]
    both = And(GreaterThanOrEqual("id", middle // 2), LessThan("id", middle // 2 + middle))
    yield "half of the files", half, both


def predicate(op: v1.PredicateOp.ValueType, value: int) -> v1.Predicate:
    return v1.Predicate(column="id", op=op, values=[str(value)])


def paths(plan: Plan) -> set[str]:
    found = plan.facts.files["file_path"].take(plan.data).to_pylist()
    return {path if path.startswith("file:") else f"file://{path}" for path in found}


def median_ms(call: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        took.append(time.perf_counter() - started)
    return statistics.median(took) * 1000


def table_of_files(folder: Path, files: int = FILES) -> Any:
    """An Iceberg table whose metadata lists so many files. They are never read, so they do not exist."""
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("default", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("sales")
    schema = pa.schema({"id": pa.int64(), "name": pa.string(), "amount": pa.float64()})
    table = catalog.create_table("sales.orders", schema=schema)
    for commit in range(COMMITS):
        with table.transaction() as change, change.update_snapshot().fast_append() as append:
            for number in range(commit, files, COMMITS):
                append.append_data_file(_data_file(table, number))
    return catalog.load_table("sales.orders")


def _data_file(table: Any, number: int) -> Any:
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record
    from pyiceberg.types import DoubleType, LongType, StringType

    def bounds(low: bool) -> dict[int, bytes]:
        edge = number * ROWS + (0 if low else ROWS - 1)
        values = (LongType(), edge), (StringType(), f"name {edge:010d}"), (DoubleType(), float(edge))
        return {place: to_bytes(of, value) for place, (of, value) in enumerate(values, start=1)}

    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/{number:06d}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=ROWS,
        file_size_in_bytes=100_000,
        column_sizes={},
        value_counts=dict.fromkeys((1, 2, 3), ROWS),
        null_value_counts=dict.fromkeys((1, 2, 3), 0),
        nan_value_counts={3: 0},
        lower_bounds=bounds(True),
        upper_bounds=bounds(False),
        split_offsets=None,
        equality_ids=None,
        key_metadata=None,
        sort_order_id=None,
    )
    file.spec_id = 0
    return file


def synced(stores: Stores, folder: Path) -> PinnedSnapshot:
    """Mirror the table, begin a query on it, and return the pinned snapshot."""
    seed_home(stores)
    realm, secrets = Realm(stores, "default"), MemorySecrets()
    catalog = catalogs.create(realm, v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="mirror"))).catalog
    spec = v1.ConnectorSpec(
        display_name="ice",
        kind=v1.CK_ICEBERG,
        uri=f"sqlite:///{folder}/catalog.db",
        properties={"warehouse": f"file://{folder}/warehouse"},
        source=v1.ConnectorSource(namespace=v1.NamespacePath(segments=["sales"])),
        destination=v1.ConnectorDestination(catalog_id=catalog.resource_id),
        policy=v1.ConnectorPolicy(scope=v1.SNS_CURRENT),
    )
    made = connectors.create(realm, v1.CreateConnectorRequest(spec=spec), secrets=secrets).connector
    started = time.perf_counter()
    outcome = Reconciler(secrets).run(realm, made.resource_id, mode=v1.CAP_METADATA_ONLY_CORE)
    print(f"{FILES:,} files mirrored in {time.perf_counter() - started:.1f} s", flush=True)
    assert not outcome.failures, outcome.failures
    found = filter(None, map(realm.all(TABLE).follow, stores.pointers.scan("/accounts/default/tables/by-id/")))
    (table,) = (each.value for each in found if each.value.catalog_id == catalog.resource_id)
    inputs = [v1.QueryInput(table_id=table.resource_id)]
    request = v1.BeginQueryRequest(default_catalog_id=catalog.resource_id, inputs=inputs)
    query_id = queries.begin(realm, request).query.query_id
    return queries.pinned(realm, query_id, table.resource_id)


if __name__ == "__main__":
    from bench.report import report

    report("planning", figures())
