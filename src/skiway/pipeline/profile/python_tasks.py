"""Scans of files on disk by Python in Spark's tasks, which compute the same figures as Spark's aggregates in `scanning`.

They take a quarter of the CPU time, because pyarrow decodes the files and whole batches are processed at once. This needs the Python
of this process in the tasks: if Spark runs on this machine. A cluster and a Spark Connect server use the aggregates. So do columns in
lists and maps, files in object stores, and files that pyarrow cannot read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import datasketches
import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats import location
from skiway.pipeline.interruption import check_interrupted
from skiway.pipeline.profile.figures import MAX_BOUND_LENGTH
from skiway.pipeline.profile.scanning import (
    Scan,
    ScanResult,
    joined_results,
    kind_of,
    matched_with_files,
    run_scan,
    spark_errors,
)
from skiway.pipeline.profile.sketches import union
from skiway.pipeline.summaries.columns import ColumnRequest
from skiway.pipeline.summaries.files import FileColumn, FilePart, converted, summarized

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["scan_files", "tasks_have_this_python"]

_PART_BYTES: Final = 128 << 20  # as Spark cuts files
_TASKS_PER_CORE: Final = 4  # more would take longer to start than small files to read
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


def scan_files(spark: SparkSession, scan: Scan, files: pa.Table) -> ScanResult:
    """Run a scan with Python in tasks where this is possible, and else with Spark's aggregates."""
    if scan.elements is not None or not tasks_have_this_python(spark):
        return run_scan(spark, scan, files)
    places = [str(location(path)) for path in files["path"].to_pylist()]
    on_disk = pa.array([_is_seen_on_disk(path) for path in files["path"].to_pylist()], pa.bool_())
    try:
        figures = _figures(spark, scan, files.filter(on_disk))
    except spark_errors():  # such as that of a task that does not find this module
        check_interrupted()
        return run_scan(spark, scan, files)
    seen = figures["path"].combine_chunks()
    is_done = pc.is_in(pa.array(places, pa.string()), value_set=seen)
    done, rest = files.filter(is_done), files.filter(pc.invert(is_done))
    figures = figures.filter(pc.field("rows") > 0)  # Spark's aggregates have no row for a file without rows
    paths = figures["path"].combine_chunks()
    results = [matched_with_files(scan, done, figures, paths=paths, seen=seen)]
    if rest.num_rows:
        results.append(run_scan(spark, scan, rest))
    return joined_results(results)


def tasks_have_this_python(spark: SparkSession) -> bool:
    """Do the tasks of the session run on this machine, with the Python of this process?"""
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    return context is not None and context.master.startswith("local") and context.pythonExec == sys.executable


def _is_seen_on_disk(path: str) -> bool:
    """Is the file on disk, and not hidden from Spark?"""
    place = location(path)
    return place.scheme == "file" and not PurePath(place.path).name.startswith(("_", "."))


def _figures(spark: SparkSession, scan: Scan, files: pa.Table) -> pa.Table:
    """The figures of the files that could be read, with their paths, and otherwise as Spark's aggregates return them."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    schema = _result_schema(scan)
    columns, parts = list(_columns(scan)), list(_parts(scan, files))
    if not parts:
        return schema.empty_table().append_column("path", pa.array([], pa.string()))

    def run(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                found = summarized(parts[number], columns, schema).serialize().to_pybytes()
                yield pa.record_batch({"figures": pa.array([found], pa.binary())})

    tasks = min(len(parts), _TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    # Spark compiles code for each schema of a result. With this one, it does so only once.
    made = StructType([StructField("figures", BinaryType())])
    results = spark.range(0, len(parts), 1, tasks).mapInArrow(run, made).toArrow().column(0)
    found = pa.Table.from_batches([pa.ipc.read_record_batch(each.as_buffer(), schema) for each in results], schema)
    failed = found.filter(found["error"].is_valid())["file"].combine_chunks()
    found = _one_row_per_file(found.filter(pc.invert(pc.is_in(found["file"], value_set=failed))), scan)
    paths = pa.array([str(location(path)) for path in files["path"].to_pylist()], pa.string())
    return found.append_column("path", paths.take(found["file"].combine_chunks()))


def _result_schema(scan: Scan) -> pa.Schema:
    fields = {"file": pa.int64(), "rows": pa.int64(), "error": pa.string()}
    for place in range(len(scan.columns)):
        fields |= {f"{name}{place}": _figure_type(name, _arrow_type(scan, place)) for name in scan.figure_names(place)}
    return pa.schema(fields)


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


def _columns(scan: Scan) -> Iterator[FileColumn]:
    found = dict(scan.layout.found)
    for place, leaf in enumerate(scan.columns):
        names = frozenset(scan.figure_names(place))
        yield FileColumn(
            place,
            found[leaf.id].path if leaf.id in found else None,
            _arrow_type(scan, place),
            _unit(scan, place),
            ColumnRequest(names, scan.lg_k, _SPARE * scan.top, MAX_BOUND_LENGTH),
        )


def _parts(scan: Scan, files: pa.Table) -> Iterator[FilePart]:
    constants = {
        place: converted(scan.constants.values(files, leaf), _arrow_type(scan, place), _unit(scan, place))
        for place, leaf in enumerate(scan.columns)
        if leaf in scan.constants.columns
    }
    sizes = pc.fill_null(files["size_bytes"], 0).to_pylist()
    for number, (path, size) in enumerate(zip(files["path"].to_pylist(), sizes, strict=True)):
        own = {place: values.slice(number, 1) for place, values in constants.items()}
        count = max(1, -(-size // _PART_BYTES))
        yield from (FilePart(number, location(path).path, part, count, own) for part in range(count))


def _unit(scan: Scan, place: int) -> str:
    return "ns" if kind_of(scan.columns[place]).domain == "nanos" else "us"


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
