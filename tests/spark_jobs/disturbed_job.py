"""A Spark program that writes tables while its tasks fail, are killed, and run twice.

    python disturbed_job.py '{"master": "local[2,3]", "location": "grpc://…/lake", "kinds": ["failing"], …}'

For each kind of disturbance it writes the table `disturbed.<kind>`. In the folder it leaves a file with the id of the transaction, and
one file per disturbance that has happened, with the place of the executor's Python. Its last line is a JSON object with what it
has read back.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from skiway.spark import AirportDataSource
from skiway.spark.writing import AirportWriter
from skiway.spark_jobs.session import session

ROWS = 4000
TASKS = 4


class DisturbedWriter(AirportWriter):
    """Disturbs the first run of the first task, after it has staged its rows."""

    folder = ""
    kind = ""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows, and then fail, kill the executor, or never end."""
        message = super().write(iterator)
        context: Any = TaskContext.get()
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            Path(self.folder, f"{self.kind}.disturbed").write_text(sys.prefix)
            match self.kind:
                case "failing":
                    raise OSError("the task fails after it has sent its rows")
                case "killed":
                    os.kill(parent_of(os.getppid()), signal.SIGKILL)  # the Java of the executor
                    signal.pause()
                case "slow":
                    time.sleep(300)  # until Spark ends it, because its copy is faster
        return message


class DisturbedSource(AirportDataSource):
    """The data source `airport` with disturbances; the folder is an option."""

    folder = ""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "disturbed"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer that disturbs its tasks as the name of the table says."""
        made: Any = super().writer(schema, overwrite)
        made.__class__ = DisturbedWriter
        made.folder, made.kind = self.folder, self.options["table"].split(".")[1]
        Path(self.folder, f"{made.kind}.transaction").write_text(made._transaction_id)
        return made  # type: ignore[no-any-return]


def parent_of(process: int) -> int:
    """The parent of a process."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def main(given: dict[str, Any]) -> None:
    """Run the job on the given master, and print what is read back."""
    spark = session("disturbed", given["master"], **given.get("settings", {}))
    DisturbedSource.folder = given["folder"]
    spark.dataSource.register(DisturbedSource)
    spark.dataSource.register(AirportDataSource)
    found: dict[str, Any] = {}
    for kind in given["kinds"]:
        rows = spark.range(0, ROWS, numPartitions=TASKS).selectExpr("id", "uuid() AS note")
        writer = rows.write.format("disturbed").mode("append").option("location", given["location"])
        writer.option("table", f"disturbed.{kind}").save()
        read = spark.read.format("airport").option("location", given["location"]).load(f"disturbed.{kind}")
        found[kind] = read.selectExpr("count(*)", "count(DISTINCT id)", "sum(id)").first()
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
