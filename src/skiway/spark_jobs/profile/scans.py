"""Scans of data files: the figures of some columns of each file, which `skiway.spark_jobs.summaries` computes.

The same code runs in two places:

- in Spark's tasks: on this machine, on a cluster, or on a Spark Connect server. They need the Python of this process, with Skiway.
- in this process, if the files are few and small. A Spark job takes about half a second, however little it reads, and the start of
  Spark takes seconds. Spark is needed only for files that this process refuses or fails to read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import datasketches
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from skiway.errors import Cancelled, PreconditionFailed, Unavailable
from skiway.formats import PartitionSpec, TableSchema, location
from skiway.formats.files import Files
from skiway.formats.readers.parquet import checked_file
from skiway.formats.schemas import Leaf, element_leaves, leaves
from skiway.foundation.causes import DISK_FULL, cause_of
from skiway.spark_jobs.interruption import check_interrupted
from skiway.spark_jobs.profile.figures import MAX_BOUND_LENGTH, PROFILE, failed_files, figures_of
from skiway.spark_jobs.profile.layouts import Layout
from skiway.spark_jobs.profile.sketches import union
from skiway.spark_jobs.profile.values import kind_of, storage_type_of
from skiway.spark_jobs.summaries.columns import ColumnRequest
from skiway.spark_jobs.summaries.files import FileColumn, FilePart, OpenFile, converted, summarized
from skiway.spark_jobs.tasks import in_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PART_BYTES: Final = 128 << 20  # as Spark cuts files
_SPARE: Final = 8  # times as many frequent values are kept until the parts of a file are merged
_NO_PYTHON: Final = re.compile(r"No module named '?[\w.]+|PYTHON_VERSION_MISMATCH|Cannot run program \"[^\"]*python")


class ScanResult(NamedTuple):
    """The profile of some columns, the files that could be read, with their row counts, and the profile of those that failed."""

    profile: pa.Table
    read: pa.Table
    failed: pa.Table


@dataclass(frozen=True)
class Scan:
    """What is computed of each file: figures of `columns`. Some of them are `constants`, whose values are only in partitions, by `specs`.

    `access` opens the files. Without it, they are on disk.
    """

    layout: Layout
    columns: tuple[Leaf, ...]
    constants: tuple[Leaf, ...] = ()
    specs: tuple[PartitionSpec, ...] = ()
    lg_k: int = 12
    top: int = 16
    access: Files | None = None

    @cached_property
    def file_columns(self) -> list[FileColumn]:
        """How the columns are read."""
        found = dict(self.layout.found)
        columns = []
        for place, leaf in enumerate(self.columns):
            kind, (path, elements) = kind_of(leaf), found.get(leaf.id) or (None, ())
            wanted = ColumnRequest(frozenset(self._figures(leaf)), self.lg_k, _SPARE * self.top, MAX_BOUND_LENGTH)
            columns.append(FileColumn(place, path, kind.type, kind.unit, wanted, elements))
        return columns

    def _figures(self, leaf: Leaf) -> dict[str, pa.DataType]:
        """The figures that are computed of a column, with their types."""
        kind, found = kind_of(leaf), dict(self.layout.found).get(leaf.id)
        return {
            **({"count": pa.int64()} if found is not None and found.elements else {}),
            "values": pa.int64(),
            "min": kind.type,
            "max": kind.type,
            "theta": pa.binary(),
            **({"nans": pa.int64()} if kind.has_nan else {}),
            **({"width": pa.int64()} if kind.width is None else {}),
            **({"kll": pa.binary()} if kind.is_number else {}),
            **(
                {"top": pa.list_(pa.struct({"item": kind.type, "count": pa.int64()}))}
                if kind.ranked and self.top
                else {}
            ),
        }

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the summaries of files: the name of a figure ends with the place of its column."""
        figures = {
            f"{name}{place}": of for place, leaf in enumerate(self.columns) for name, of in self._figures(leaf).items()
        }
        return pa.schema({"file": pa.int64(), "rows": pa.int64(), "error": pa.string(), **figures})

    def parts(self, files: pa.Table) -> Iterator[FilePart]:
        """The parts of all files."""
        constants = {
            column.place: converted(self._constant(files, leaf), column.type, column.unit)
            for column, leaf in zip(self.file_columns, self.columns, strict=True)
            if leaf in self.constants
        }
        sizes = pc.fill_null(files["size_bytes"], 0).to_pylist()
        for number, (path, size) in enumerate(zip(files["path"].to_pylist(), sizes, strict=True)):
            own = {place: values.slice(number, 1) for place, values in constants.items()}
            count = max(1, -(-size // _PART_BYTES))
            yield from (FilePart(number, str(location(path)), part, count, own) for part in range(count))

    def _constant(self, files: pa.Table, leaf: Leaf) -> pa.Array:
        """The value of a column in each file, from its partition."""
        partition, specs = files["partition"].combine_chunks(), files["spec_id"].combine_chunks()
        target = storage_type_of(leaf.type)
        values = pa.nulls(files.num_rows, target)
        for spec in self.specs:
            for field in spec.fields:
                if field.source_id == leaf.id and field.transform == "identity":
                    mine = pc.fill_null(pc.equal(specs, spec.id), False)
                    values = pc.if_else(mine, partition.field(str(field.id)).cast(target), values)
        return values

    def result(self, files: pa.Table, summaries: Iterable[pa.RecordBatch]) -> tuple[ScanResult, Mapping[int, str]]:
        """The result for files, from the summaries of their parts, and the reasons why some could not be read, by number."""
        found = pa.Table.from_batches(summaries, self.schema)
        unread = found.filter(found["error"].is_valid())
        reasons = dict(zip(unread["file"].to_pylist(), unread["error"].to_pylist(), strict=True))
        is_read = pc.invert(pc.is_in(found["file"], value_set=unread["file"].combine_chunks()))
        whole = _one_row_per_file(found.filter(is_read), self).sort_by("file")
        return self._matched(files.take(whole["file"].combine_chunks()), whole), reasons

    def _matched(self, files: pa.Table, figures: pa.Table) -> ScanResult:
        """The result for files that were read. One whose row count differs from the table's has failed."""
        rows = figures["rows"].combine_chunks()
        expected = pc.coalesce(files["row_count"].combine_chunks(), rows)
        good = pc.equal(expected, rows)
        read, figures = files.filter(good), figures.filter(good)
        read = read.set_column(read.column_names.index("row_count"), "row_count", figures["rows"])
        profiles = []
        for place, leaf in enumerate(self.columns):
            own = pa.table(
                {"rows": figures["rows"]} | {name: figures[f"{name}{place}"] for name in self._figures(leaf)}
            )
            profiles.append(figures_of(read, own, column_id=leaf.id, of=leaf.type, kind=kind_of(leaf)))
        failures = [
            failed_files(files.slice(number, 1), f"{seen} rows were found in it, but the table has {wanted}")
            for number, (seen, wanted) in enumerate(zip(rows.to_pylist(), expected.to_pylist(), strict=True))
            if seen != wanted
        ]
        return ScanResult(pa.concat_tables(profiles), read, pa.concat_tables([PROFILE.empty_table(), *failures]))


ScanFiles: TypeAlias = Callable[[Scan, pa.Table], ScanResult]
"""Runs a scan of files, in whichever way."""


def joined_results(results: Sequence[ScanResult]) -> ScanResult:
    """The results for different files as one."""
    return ScanResult(*(pa.concat_tables(parts) for parts in zip(*results, strict=True)))


# --- parts of a file --------------------------------------------------------------------------------------------------


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
    merged = [_merged(name, file[name].combine_chunks().drop_null(), lg_k) for name in file.column_names]
    return pa.table([pa.array([figure], of.type) for figure, of in zip(merged, file.schema, strict=True)], file.schema)


def _merged(name: str, values: pa.Array, lg_k: int) -> Any:
    """A figure of a file from those of its parts."""
    if not len(values):
        return None
    match name.rstrip("0123456789"):
        case "min" | "max" as side:
            return pc.min_max(values)[side]
        case "theta":
            return union(values.to_pylist(), lg_k=lg_k)
        case "kll":
            return _merged_kll(values.to_pylist())
        case "top":
            return _merged_top(values)
        case "file":
            return values[0]
        case _:
            return pc.sum(values)


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


# --- in this process --------------------------------------------------------------------------------------------------

_LEAST_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class SmallScan:
    """The limits of a scan that this process runs itself: the total size of the files, and the number of their values.

    The number of values is that of rows times columns. A file counts as at least 10,000 rows, because it takes that long to open it.
    """

    bytes: int = 64 << 20
    values: int = 16_000_000  # takes one to two seconds on one core

    def includes(self, files: pa.Table, schema: TableSchema) -> bool:
        """Whether a scan of these files is small. Sizes and row counts must be known; numbers of values in lists and maps are not."""
        sizes, counts = files["size_bytes"], pc.max_element_wise(files["row_count"], _LEAST_ROWS, skip_nulls=False)
        size, rows = (pc.sum(numbers, skip_nulls=False, min_count=0).as_py() for numbers in (sizes, counts))
        return (
            size is not None
            and size <= self.bytes
            and rows is not None
            and rows * len(leaves(schema.arrow)) <= self.values
            and not element_leaves(schema.arrow)
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
        run = partial(
            summarized, columns=scan.file_columns, schema=scan.schema, open_file=self._opened, on_batch=self._check
        )
        done, reasons = scan.result(files, map(run, scan.parts(files)))
        return joined_results([done, self.on_spark(scan, files.take(sorted(reasons)))]) if reasons else done

    @contextmanager
    def _opened(self, path: str) -> Iterator[OpenFile]:
        """Open a file with the checks of the lake's reader: a damaged or hostile file must not end this process."""
        with checked_file(self.access, path) as found:
            yield OpenFile(found.source, found.footer.metadata, found.pages.check_all)

    def _check(self) -> None:
        if self.cancelled():
            raise Cancelled("profiling was cancelled while files were read; the next profile reads them again")


# --- in tasks of Spark ------------------------------------------------------------------------------------------------


def scan_in_tasks(spark: SparkSession, scan: Scan, files: pa.Table) -> ScanResult:
    """Run a scan in tasks of Spark. If Spark fails, the files are bisected until the failing ones are isolated."""
    try:
        done, reasons = scan.result(files, _summaries(spark, scan, list(scan.parts(files))))
    except spark_errors() as error:
        check_interrupted(error)
        _check_alive(spark)
        _check_setup(error)
        if files.num_rows == 1:
            return ScanResult(PROFILE.empty_table(), files.slice(0, 0), failed_files(files, _reason(error)))
        middle = files.num_rows // 2
        halves = files.slice(0, middle), files.slice(middle)
        return joined_results([scan_in_tasks(spark, scan, half) for half in halves])
    unread = [failed_files(files.slice(number, 1), reason) for number, reason in reasons.items()]
    return done._replace(failed=pa.concat_tables([done.failed, *unread]))


def _summaries(spark: SparkSession, scan: Scan, parts: Sequence[FilePart]) -> list[pa.RecordBatch]:
    columns, schema, open_file = scan.file_columns, scan.schema, partial(_opened_in_task, scan.access)

    def summary(part: FilePart) -> Iterator[pa.RecordBatch]:
        found = summarized(part, columns, schema, open_file=open_file).serialize().to_pybytes()
        yield pa.record_batch({"figures": pa.array([found], pa.binary())})

    # Spark compiles code for each schema of a result. With this one, it does so only once.
    results = in_tasks(spark, parts, summary, "figures binary", are_small=True).toArrow().column(0)
    return [pa.ipc.read_record_batch(figures.as_buffer(), schema) for figures in results]


@contextmanager
def _opened_in_task(access: Files | None, path: str) -> Iterator[OpenFile]:
    """Open a file without checks of its pages: if it is hostile, only the process of the task ends."""
    if access is None:
        with pa.OSFile(path) as source:
            yield OpenFile(source, pq.read_metadata(source))
        return
    with access.translated(path), access.open(path) as source:
        yield OpenFile(source, pq.read_metadata(source))


def spark_errors() -> tuple[type[Exception], ...]:
    """The exceptions that a session raises if a job fails; a local one also raises errors of Py4J."""
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    except ImportError:  # a client-only install of Spark Connect does not have it
        return (PySparkException,)
    return PySparkException, Py4JError


def _check_alive(spark: SparkSession) -> None:
    try:
        spark.range(1).count()
    except spark_errors() as error:
        check_interrupted(error)
        raise Unavailable(f"Spark no longer responds: {_reason(error)}; restart it") from error


def _check_setup(error: Exception) -> None:
    """Raise if the error concerns all files: a disk is full, a bucket is missing, or tasks lack this Python."""
    cause = cause_of(error)
    if cause is not None:
        kind = Unavailable if cause is DISK_FULL else PreconditionFailed
        raise kind(f"Spark failed: {cause.sentence}", key=cause.key, detail=_reason(error)) from error
    if _NO_PYTHON.search(str(error)):
        raise PreconditionFailed(
            "the tasks of Spark lack what profiles need: install the same version of Python, with Skiway, on each machine of the "
            "cluster or the Spark Connect server",
            key="profile.spark.python",
            detail=_reason(error),
        ) from error


def _reason(error: Exception) -> str:
    """The line with the error class, or else the first line."""
    message = str(error).strip()
    found = re.search(r"\[[A-Z][A-Z_.]+\][^\n]*", message)
    return (found[0] if found else message.partition("\n")[0])[:500]
