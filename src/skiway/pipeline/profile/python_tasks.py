"""Scans of files on disk by Python in Spark's tasks.

This needs the Python of this process in the tasks: if Spark runs on this machine. A cluster and a Spark Connect server use Spark's
aggregates. So do columns in lists and maps, files in object stores, and files that pyarrow cannot read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats import location
from skiway.pipeline.interruption import check_interrupted
from skiway.pipeline.profile.python_scans import PythonScan, is_hidden
from skiway.pipeline.profile.scanning import Scan, ScanResult, joined_results, run_scan, spark_errors
from skiway.pipeline.summaries.files import summarized

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["scan_files", "tasks_have_this_python"]

_TASKS_PER_CORE: Final = 4  # more would take longer to start than small files to read


def scan_files(spark: SparkSession, scan: Scan, files: pa.Table) -> ScanResult:
    """Run a scan with Python in tasks where this is possible, and else with Spark's aggregates."""
    if scan.elements is not None or not tasks_have_this_python(spark):
        return run_scan(spark, scan, files)
    readable = pa.array([_is_seen_on_disk(path) for path in files["path"].to_pylist()], pa.bool_())
    python = PythonScan(scan, files.filter(readable))
    try:
        done, unread = python.result(_summaries(spark, python))
    except spark_errors() as error:  # such as that of a task that does not find this module
        check_interrupted(error)
        return run_scan(spark, scan, files)
    rest = pa.concat_tables([files.filter(pc.invert(readable)), unread])
    return joined_results([done, run_scan(spark, scan, rest)]) if rest.num_rows else done


def tasks_have_this_python(spark: SparkSession) -> bool:
    """Do the tasks of the session run on this machine, with the Python of this process?"""
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    return context is not None and context.master.startswith("local") and context.pythonExec == sys.executable


def _is_seen_on_disk(path: str) -> bool:
    """Is the file on disk, and not hidden from Spark?"""
    return location(path).scheme == "file" and not is_hidden(path)


def _summaries(spark: SparkSession, python: PythonScan) -> list[pa.RecordBatch]:
    from pyspark.sql.types import BinaryType, StructField, StructType

    columns, parts, schema = python.columns, list(python.parts()), python.schema
    if not parts:
        return []

    def run(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                found = summarized(parts[number], columns, schema).serialize().to_pybytes()
                yield pa.record_batch({"figures": pa.array([found], pa.binary())})

    tasks = min(len(parts), _TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    # Spark compiles code for each schema of a result. With this one, it does so only once.
    made = StructType([StructField("figures", BinaryType())])
    results = spark.range(0, len(parts), 1, tasks).mapInArrow(run, made).toArrow().column(0)
    return [pa.ipc.read_record_batch(each.as_buffer(), schema) for each in results]
