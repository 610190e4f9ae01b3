"""`python -m bench.profile [rows]`: the Spark profile beside Spark's own ANALYZE TABLE over the same files."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.report import Figure, report
from skiway.formats import open_source
from skiway.pipeline.layouts import file_schemas
from skiway.pipeline.merging import merge
from skiway.pipeline.profiling import profile
from skiway.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 10_000_000
FILES = 10
AIM = 3.0  # at most so many times what ANALYZE takes
PEER = "ANALYZE TABLE ... FOR ALL COLUMNS"


def rows(seed: int, count: int) -> pa.Table:
    """Ten columns: keys, measures, words and moments."""
    draw = np.random.default_rng(seed)
    words = pa.array([f"customer-{number}" for number in range(50_000)])
    kinds = pa.array(["open", "paid", "sent", "lost"])
    return pa.table(
        {
            "id": np.arange(seed * count, (seed + 1) * count),
            "customer": draw.integers(0, 1_000_000, count),
            "store": draw.integers(0, 500, count).astype(np.int32),
            "amount": draw.lognormal(3, 1, count),
            "rate": draw.random(count).astype(np.float32),
            "name": words.take(pa.array(draw.integers(0, 50_000, count))),
            "state": kinds.take(pa.array(draw.integers(0, 4, count))),
            "day": pa.array(draw.integers(18_000, 20_000, count).astype(np.int32)).cast(pa.date32()),
            "at": pa.array(draw.integers(0, 10**15, count)).cast(pa.timestamp("us")),
            "good": pa.array(draw.random(count) < 0.9),
        }
    )


def figures(total: int = ROWS) -> Iterator[Figure]:
    """Seconds of both, their ratio, and what merging takes."""
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
        spark.sql(analyze)  # the first one warms up Java
        profile(spark, files.slice(0, 1), handle.schema, schemas=schemas)
        peer, _ = seconds(lambda: spark.sql(analyze))
        ours, found = seconds(lambda: profile(spark, files, handle.schema, schemas=schemas))
        merging, _ = seconds(lambda: merge(found, files, handle.schema))
    name = f"profile of {total:,} rows, 10 columns"
    yield Figure(name, "s", ours, peer, ours / peer, peer_is=PEER)
    yield Figure(f"{name}, beside ANALYZE", "x", ours / peer, 1.0, aim_below=AIM, peer_is=PEER)
    yield Figure(f"merging {FILES} files, 10 columns", "s", merging, merging)


def seconds(work: Callable[[], pa.Table]) -> tuple[float, pa.Table]:
    started = time.perf_counter()
    answer = work()
    return time.perf_counter() - started, answer


if __name__ == "__main__":
    report("profile", figures(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS))
