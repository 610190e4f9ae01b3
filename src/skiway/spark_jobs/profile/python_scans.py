"""Scans by Python: the figures of the columns of each file, with `skiway.spark_jobs.summaries`.

They are the figures of Spark's aggregates in `scanning`, and take a quarter of the CPU time, because pyarrow decodes the files and whole
batches are processed at once. A `PythonScan` runs in one of two places:

- in Spark's tasks, for files on disk. This needs the Python of this process in the tasks: if Spark runs on this machine. A cluster and a
  Spark Connect server use Spark's aggregates. So do columns in lists and maps, files in object stores, and files that pyarrow cannot read.
- in this process, if the files are few and small, on disk or in object stores. A Spark job takes about half a second, however little it
  reads, and the start of Spark takes seconds. Spark is needed only for files that pyarrow cannot read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import datasketches
import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import Cancelled, SkiwayError
from skiway.formats import TableSchema, location
from skiway.formats.files import Files
from skiway.formats.readers.parquet import checked_file
from skiway.formats.schemas import element_leaves, leaves
from skiway.spark_jobs.interruption import check_interrupted
from skiway.spark_jobs.profile.figures import MAX_BOUND_LENGTH
from skiway.spark_jobs.profile.scanning import (
    Scan,
    ScanFiles,
    ScanResult,
    joined_results,
    kind_of,
    matched_with_files,
    run_scan,
    spark_errors,
)
from skiway.spark_jobs.profile.sketches import union
from skiway.spark_jobs.summaries.columns import ColumnRequest
from skiway.spark_jobs.summaries.files import FileColumn, FilePart, OpenFile, converted, summarized, unread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PART_BYTES: Final = 128 << 20  # as Spark cuts files
_SPARE: Final = 8  # times as many frequent values are kept until the parts of a file are merged
_ARROW_TYPES: Final = {
    "BOOLEAN": pa.bool_(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
}


def is_hidden(path: str) -> bool:
    """Does Spark ignore a file with this name?"""
    return PurePath(location(path).path).name.startswith(("_", "."))


class PythonScan:
    """A scan of files by Python. `summarized(part, columns, schema)` is to be called for each of its parts, wherever it runs."""

    def __init__(self, scan: Scan, files: pa.Table) -> None:
        self._scan, self._files = scan, files
        self.columns = list(self._columns())

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the summaries."""
        fields = {"file": pa.int64(), "rows": pa.int64(), "error": pa.string()}
        for column in self.columns:
            names = self._scan.figure_names(column.place)
            fields |= {f"{name}{column.place}": _figure_type(name, column.type) for name in names}
        return pa.schema(fields)

    def parts(self) -> Iterator[FilePart]:
        """The parts of all files."""
        files, constants = self._files, self._constants()
        sizes = pc.fill_null(files["size_bytes"], 0).to_pylist()
        for number, (path, size) in enumerate(zip(files["path"].to_pylist(), sizes, strict=True)):
            own = {place: values.slice(number, 1) for place, values in constants.items()}
            count = max(1, -(-size // _PART_BYTES))
            yield from (FilePart(number, str(location(path)), part, count, own) for part in range(count))

    def result(self, summaries: Iterable[pa.RecordBatch]) -> tuple[ScanResult, pa.Table]:
        """The result for the files that were read, and the files that Python could not read."""
        found = pa.Table.from_batches(summaries, self.schema)
        failed = found.filter(found["error"].is_valid())["file"].combine_chunks()
        found = _one_row_per_file(found.filter(pc.invert(pc.is_in(found["file"], value_set=failed))), self._scan)
        files = self._files
        paths = pa.array([str(location(path)) for path in files["path"].to_pylist()], pa.string())
        seen = paths.take(found["file"].combine_chunks())
        is_done = pc.is_in(paths, value_set=seen)
        found = found.append_column("path", seen).filter(pc.field("rows") > 0)  # as Spark's aggregates have it
        done = matched_with_files(
            self._scan, files.filter(is_done), found, paths=found["path"].combine_chunks(), seen=seen
        )
        return done, files.filter(pc.invert(is_done))

    def _columns(self) -> Iterator[FileColumn]:
        scan, found = self._scan, dict(self._scan.layout.found)
        for place, leaf in enumerate(scan.columns):
            names = frozenset(scan.figure_names(place))
            yield FileColumn(
                place,
                found[leaf.id].path if leaf.id in found else None,
                _arrow_type(scan, place),
                "ns" if kind_of(leaf).domain == "nanos" else "us",
                ColumnRequest(names, scan.lg_k, _SPARE * scan.top, MAX_BOUND_LENGTH),
            )

    def _constants(self) -> dict[int, pa.Array]:
        """The values of the columns that are not in the files, with a value per file, by the place of the column."""
        constants = self._scan.constants
        return {
            column.place: converted(constants.values(self._files, leaf), column.type, column.unit)
            for column, leaf in zip(self.columns, self._scan.columns, strict=True)
            if leaf in constants.columns
        }


def _figure_type(name: str, of: pa.DataType) -> pa.DataType:
    if name in ("min", "max"):
        return of
    if name == "top":
        return pa.list_(pa.struct({"item": of, "count": pa.int64()}))
    return pa.binary() if name in ("theta", "kll") else pa.int64()


def _arrow_type(scan: Scan, place: int) -> pa.DataType:
    """The type in which the values of a column are processed, as Spark would send them to Python."""
    sql = kind_of(scan.columns[place]).sql
    precision_and_scale = map(int, re.findall(r"\d+", sql))
    return pa.decimal128(*precision_and_scale) if sql.startswith("DECIMAL") else _ARROW_TYPES[sql]


def _one_row_per_file(parts: pa.Table, scan: Scan) -> pa.Table:
    """Merge the parts of each file, and limit the frequent values."""
    numbers = parts["file"].unique()
    if len(numbers) < parts.num_rows:
        files = [parts.filter(pc.equal(parts["file"], number)) for number in numbers]
        parts = pa.concat_tables([_merged_parts(file, scan.lg_k) for file in files])
    for place, field in enumerate(parts.schema):
        if pa.types.is_list(field.type):
            parts = parts.set_column(place, field, pc.list_slice(parts[field.name], 0, max(1, scan.top)))
    return parts


def _merged_parts(file: pa.Table, lg_k: int) -> pa.Table:
    found = [_merged(name, file[name].combine_chunks(), lg_k) for name in file.column_names]
    return pa.table([pa.array([each], field.type) for each, field in zip(found, file.schema, strict=True)], file.schema)


def _merged(name: str, values: pa.Array, lg_k: int) -> Any:
    figure = name.rstrip("0123456789")
    if figure in ("rows", "values", "nans", "width"):
        return pc.sum(values)
    if figure in ("min", "max"):
        return pc.min_max(values)[figure]
    if figure == "theta":
        return union(values.to_pylist(), lg_k=lg_k)
    if figure == "kll":
        return _merged_kll(values.to_pylist())
    return _merged_top(values) if figure == "top" else values[0]


def _merged_kll(sketches: Sequence[bytes]) -> bytes:
    first, *others = map(datasketches.kll_doubles_sketch.deserialize, sketches)
    for other in others:
        first.merge(other)
    return bytes(first.serialize())


def _merged_top(lists: pa.ListArray) -> pa.Scalar:
    pairs = pa.Table.from_struct_array(lists.flatten())
    summed = pairs.group_by("item").aggregate([("count", "sum")]).sort_by([("count_sum", "descending")])
    both = [summed["item"].combine_chunks(), summed["count_sum"].combine_chunks()]
    merged = pa.StructArray.from_arrays(both, names=["item", "count"])
    return pa.ListArray.from_arrays(pa.array([0, len(merged)], pa.int32()), merged)[0]


_LEAST_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class SmallScan:
    """The limits of a scan that this process runs itself: the total size of the files, and the number of their values.

    The number of values is that of rows times columns. A file counts as at least 10,000 rows, because it takes that long to open it.
    """

    bytes: int = 64 << 20
    values: int = 16_000_000  # takes one to two seconds on one core

    def includes(self, files: pa.Table, schema: TableSchema) -> bool:
        """Is a scan of these files small, and can this process do it?

        Sizes and row counts must be known. Values in lists and maps are left to Spark, and so are files that it hides.
        """
        sizes, counts = files["size_bytes"], pc.max_element_wise(files["row_count"], _LEAST_ROWS, skip_nulls=False)
        size, rows = (pc.sum(each, skip_nulls=False, min_count=0).as_py() for each in (sizes, counts))
        return (
            size is not None
            and size <= self.bytes
            and rows is not None
            and rows * len(leaves(schema.arrow)) <= self.values
            and not element_leaves(schema.arrow)
            and not any(map(is_hidden, files["path"].to_pylist()))
        )


SMALL: Final = SmallScan()


@dataclass(frozen=True, slots=True)
class InProcessScans:
    """Scans files in this process. `access` opens them; `on_spark` scans those that this process cannot read.

    `cancelled` is called for each batch of rows.
    """

    on_spark: ScanFiles
    access: Files
    cancelled: Callable[[], bool]

    def __call__(self, scan: Scan, files: pa.Table) -> ScanResult:
        python = PythonScan(scan, files)
        done, rest = python.result(self._summary(python, part) for part in python.parts())
        return joined_results([done, self.on_spark(scan, rest)]) if rest.num_rows else done

    def _summary(self, python: PythonScan, part: FilePart) -> pa.RecordBatch:
        try:
            return summarized(part, python.columns, python.schema, open_file=self._opened, on_batch=self._check)
        except Cancelled:
            raise
        except SkiwayError as error:
            return unread(part, python.schema, error.message)

    @contextmanager
    def _opened(self, path: str) -> Iterator[OpenFile]:
        """Open a file with the checks of the lake's reader: a damaged or hostile file must not end this process."""
        with checked_file(self.access, path) as found:
            yield OpenFile(found.source, found.footer.metadata, found.pages.check_all)

    def _check(self) -> None:
        if self.cancelled():
            raise Cancelled("profiling was cancelled while files were read; the next profile reads them again")


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
