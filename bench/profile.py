"""`python -m bench.profile [rows]`: the Spark profile compared with Spark's own ANALYZE TABLE over the same files, and the profile of
a managed table again after 1 % new files, without the start of the session.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow.parquet as pq

from bench.report import Figure, report
from bench.sales import rows
from skiway.formats import open_source
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore import PLATFORM, Realm, accounts, catalogs, managed, namespaces
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1
from skiway.security import MemorySecrets
from skiway.spark_jobs.profile.job import profile
from skiway.spark_jobs.profile.layouts import file_schemas
from skiway.spark_jobs.profile.snapshots import merge
from skiway.spark_jobs.session import session
from skiway.spark_jobs.worker import SparkProfile
from skiway.storage import open_stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

ROWS = 10_000_000
FILES = 10
AIM = 2.0  # at most this many times as long as ANALYZE
SMALL_FILES = 100  # of the table that is profiled again with one more
AIM_AGAIN = 0.05  # of the time of the first profile
PEER = "ANALYZE TABLE ... FOR ALL COLUMNS"


def figures(total: int = ROWS) -> Iterator[Figure]:
    """Yield the seconds of both with their ratio, and the time to merge the profiles."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "sales")
        place.mkdir()
        for number in range(FILES):
            pq.write_table(rows(number, total // FILES), place / f"{number}.parquet")
        warehouse = {"spark.sql.warehouse.dir": f"{folder}/warehouse", "spark.driver.memory": "4g"}
        with session("bench", "local[2]", **warehouse, **{"spark.sql.shuffle.partitions": 4}) as spark:
            yield from compared(spark, folder, place, total)
            yield from repeated(spark, Path(folder, "managed"), total)


def repeated(spark: SparkSession, folder: Path, total: int) -> Iterator[Figure]:
    """The profile of a managed table with 100 files, and again with one more file, as jobs do both."""
    with open_stores("memory://") as stores:
        warehouse = Warehouse.at(str(folder))
        spec = v1.AccountSpec(display_name="bench")
        account = accounts.create(Realm(stores, PLATFORM), v1.CreateAccountRequest(spec=spec)).account
        realm = Realm(stores, account.resource_id.id)
        lake = catalogs.create(realm, v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="lake"))).catalog
        inside = v1.NamespaceSpec(display_name="sales", catalog_id=lake.resource_id)
        namespace = namespaces.create(realm, v1.CreateNamespaceRequest(spec=inside)).namespace
        count = total // SMALL_FILES
        table = managed.create(
            realm, warehouse, namespace_id=namespace.resource_id, name="orders", schema=rows(0, 1).schema
        )
        table_id = table.table.resource_id

        def append(parts: Iterable[int]) -> None:
            files = []
            for part in parts:
                with DataFileWriter(table.files, table.metadata) as writer:
                    for batch in rows(part, count).to_batches():
                        writer.write(batch)
                    files += writer.close()
            managed.append_with_retry(realm, warehouse, table_id, files)

        reconciler = Reconciler(MemorySecrets(), SparkProfile(lambda: spark), warehouse=warehouse)
        append(range(SMALL_FILES))
        first, _ = seconds(lambda: reconciler.managed(realm, table_id))
        append([SMALL_FILES])
        again, outcome = seconds(lambda: reconciler.managed(realm, table_id))
        assert outcome.changed
    name = f"profile again after 1 % new files, {total:,} rows"
    yield Figure(name, "s", again, first, again / first, aim_at_most=AIM_AGAIN, peer_is="the profile of all files")


def compared(spark: SparkSession, folder: str, place: Path, total: int) -> Iterator[Figure]:
    with open_source("parquet", folder) as source:
        handle = source.load((), "sales")
        snapshot = handle.current()
        assert snapshot is not None
        files, schemas = handle.files(snapshot), file_schemas(handle, snapshot)
        spark.sql(f"CREATE TABLE sales USING parquet LOCATION '{place}'")
        analyze = "ANALYZE TABLE sales COMPUTE STATISTICS FOR ALL COLUMNS"
        spark.sql(analyze)  # warms up the JVM
        profile(spark, files.slice(0, 1), handle.schema, schemas=schemas)
        before, _ = seconds(lambda: spark.sql(analyze))
        ours, found = seconds(lambda: profile(spark, files, handle.schema, schemas=schemas))
        after, _ = seconds(lambda: spark.sql(analyze))
        merging, _ = seconds(lambda: merge(found, files, handle.schema))
    peer = (before + after) / 2
    yield Figure(f"profile of {total:,} rows, 10 columns", "s", ours, peer, ours / peer, aim_at_most=AIM, peer_is=PEER)
    yield Figure(f"merging {FILES} files, 10 columns", "s", merging)


def seconds(work: Callable[[], T]) -> tuple[float, T]:
    started = time.perf_counter()
    answer = work()
    return time.perf_counter() - started, answer


if __name__ == "__main__":
    report("profile", figures(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS))
