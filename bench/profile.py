"""`python -m bench.profile [rows]`: the Spark profile compared with Spark's own ANALYZE TABLE over the same files."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from bench.report import Figure, report
from bench.sales import rows
from skiway.formats import open_source
from skiway.pipeline.profile.job import profile
from skiway.pipeline.profile.layouts import file_schemas
from skiway.pipeline.profile.merging import merge
from skiway.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 10_000_000
FILES = 10
AIM = 3.0  # at most this many times as long as ANALYZE
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


def seconds(work: Callable[[], pa.Table]) -> tuple[float, pa.Table]:
    started = time.perf_counter()
    answer = work()
    return time.perf_counter() - started, answer


if __name__ == "__main__":
    report("profile", figures(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS))
