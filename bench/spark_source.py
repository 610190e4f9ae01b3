"""`python -m bench.spark_source [rows]`: Spark's data source `airport` compared with Spark's own Parquet.

Both run on a standalone cluster with two workers of one core each, on this machine. The data source reads in one partition per core.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from bench.disk import scratch
from bench.report import Figure, report
from bench.sales import rows
from bench.serving import skiway_serve
from bench.turns import taken_in_turns
from skiway.client import AirportClient
from skiway.spark import AirportDataSource
from skiway.spark_jobs.session import session

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the cluster of the tests
from spark_jobs.standalone_cluster import standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 10_000_000
FILES = 10
TURNS = 3
WORKERS = 2
AIM = 2.0  # at most this many times as long as Spark's own Parquet


def figures(total: int = ROWS) -> Iterator[Figure]:
    """Yield the seconds of an aggregate and of a write, of both, with their ratios."""
    with (
        scratch() as place,
        standalone_cluster(place / "cluster", workers=WORKERS) as master,
        connected(master) as spark,  # before there is a gRPC client, because Java is started with a fork
        skiway_serve(place / "home") as doors,
        AirportClient(doors["airport"], "lake") as lake,
    ):
        folder = place / "sales"
        folder.mkdir()
        lake.create_schema("shop")
        for name in ("sales", "copies"):
            lake.create_table(f"shop.{name}", rows(0, 1).schema)
        for number in range(FILES):
            some = rows(number, total // FILES)
            pq.write_table(some, folder / f"{number}.parquet", row_group_size=131_072)
            lake.insert("shop.sales", some)
        yield from compared(spark, f"{doors['airport']}/lake", folder, place, total)


@contextmanager
def connected(master: str) -> Iterator[SparkSession]:
    """A session on the cluster, with the data source."""
    settings = {"spark.sql.shuffle.partitions": "4", "spark.driver.host": "127.0.0.1"}
    with session("bench", master, **settings) as spark:
        spark.dataSource.register(AirportDataSource)
        yield spark


def compared(spark: SparkSession, location: str, folder: Path, place: Path, total: int) -> Iterator[Figure]:
    """Both take turns."""
    fresh = count()
    files = spark.read.parquet(str(folder))

    def table(columns: str) -> DataFrame:
        reader = spark.read.format("airport").options(location=location, columns=columns, partitions=WORKERS)
        return reader.load("shop.sales")

    def write_table() -> None:
        files.write.format("airport").options(location=location, table="shop.copies").mode("overwrite").save()

    yield in_turns(
        f"aggregate of {total:,} rows, 2 of 10 columns",
        lambda: aggregate(table("state,amount")),
        lambda: aggregate(files),
        "spark.read.parquet",
    )
    yield in_turns(
        f"write of {total:,} rows, 10 columns",
        write_table,
        lambda: files.write.parquet(str(place / f"copy{next(fresh)}")),
        "DataFrame.write.parquet",
    )


def aggregate(found: DataFrame) -> object:
    """Count and sum by a column of four values."""
    return found.groupBy("state").agg({"amount": "sum", "*": "count"}).collect()


def in_turns(name: str, ours: Callable[[], object], peer: Callable[[], object], peer_is: str) -> Figure:
    """The seconds of both."""
    found = taken_in_turns(ours, peer, TURNS)
    return Figure(name, "s", found.ours, found.peer, found.ratio, aim_at_most=AIM, peer_is=peer_is)


if __name__ == "__main__":
    report("spark_source", figures(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS))
