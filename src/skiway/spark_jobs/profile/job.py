"""The job: one pass over data files, with a profile per file and column as the result.

Spark runs it in this process, on a cluster and on Spark Connect. Files with the same layout are read together, some columns at a
time, which limits the size of a result. If the files are few and small, this process reads them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import SkiwayError
from skiway.formats import Content, PartitionSpec, TableSchema
from skiway.formats.files import Files
from skiway.formats.schemas import Leaf, element_leaves, leaves
from skiway.metastore.statistics.api import defaulted_fields
from skiway.spark_jobs.profile.figures import (
    ADDED_LATER,
    PROFILE,
    all_null_columns,
    empty_elements,
    failed_files,
    unreadable_columns,
)
from skiway.spark_jobs.profile.layouts import FileSchemas, Layout, layout_of
from skiway.spark_jobs.profile.scans import InProcessScans, Scan, ScanFiles, ScanResult, SmallScan, scan_in_tasks
from skiway.spark_jobs.profile.values import kind_of, value_kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Budget:
    """The size of a Spark job in files and columns, and the precision of sketches.

    A theta sketch keeps about `2 ** lg_k` hashes. `top` is the number of frequent values per file and column; 0 for none.
    """

    files: int = 128
    columns: int = 24
    lg_k: int = 12
    top: int = 16


USUAL: Final = Budget()
_AT_ONCE: Final = 8  # footers


def profile(
    spark: SparkSession,
    files: pa.Table,
    schema: TableSchema,
    *,
    schemas: FileSchemas,
    specs: Sequence[PartitionSpec] = (),
    budget: Budget = USUAL,
    access: Files | None = None,
) -> pa.Table:
    """Profile data files on Spark. They are rows of a file table; the result has the schema `PROFILE`, sorted by path and column.

    The leaves of `schema` are matched by id with the file schemas that `schemas` returns. Values that are only in paths
    are taken from the partition, by `specs`. A column that cannot be read has an `error` instead of figures. A file
    that cannot be read has a single row with an `error` and no column. `access` opens the files; without it, they are on disk.
    """
    parts = list(profiled(lambda: spark, files, schema, schemas=schemas, specs=specs, budget=budget, access=access))
    return pa.concat_tables([PROFILE.empty_table(), *parts]).sort_by(
        [("path", "ascending"), ("column_id", "ascending")]
    )


def profiled(
    spark: Callable[[], SparkSession],
    files: pa.Table,
    schema: TableSchema,
    *,
    schemas: FileSchemas,
    specs: Sequence[PartitionSpec] = (),
    budget: Budget = USUAL,
    access: Files | None = None,
    small: SmallScan | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[pa.Table]:
    """Like `profile`, but yields the complete profiles of some files at a time, as they are done.

    `spark` returns the session. The footers of the files are read in the background while it starts, and while it profiles other
    files. `access` opens the files; without it, they are on disk.

    If the files are `small`, this process scans them with `access`, and raises `Cancelled` as soon as `cancelled` returns true. `spark` is
    then called only for files that this process cannot read.
    """
    data = files.filter(pc.field("content") == Content.DATA)
    every = [*leaves(schema.arrow), *element_leaves(schema.arrow)]
    columns = [leaf for leaf in every if value_kind(leaf.type) is not None]
    unreadable = [leaf for leaf in every if value_kind(leaf.type) is None]
    batches = [data.slice(first, budget.files) for first in range(0, data.num_rows, budget.files)]
    background = ThreadPoolExecutor(1)
    started = cache(spark)

    def on_spark(scan: Scan, some: pa.Table) -> ScanResult:
        return scan_in_tasks(started(), scan, some)

    try:
        grouped = background.map(lambda some: _by_layout(some, columns, schemas), batches)
        if small is None or access is None or not small.includes(data, schema):
            started()
            scans: ScanFiles = on_spark
        else:
            scans = InProcessScans(on_spark, access, cancelled)
        for layouts in grouped:
            parts = []
            for layout, alike in layouts:
                if isinstance(layout, str):
                    parts.append(failed_files(alike, layout))
                    continue
                job = _Job(scans, schema, columns, unreadable, layout, specs, budget, access)
                parts.append(job.run(alike))
            yield pa.concat_tables(parts)
    finally:
        background.shutdown(cancel_futures=True)


def _by_layout(files: pa.Table, columns: Sequence[Leaf], schemas: FileSchemas) -> list[tuple[Layout | str, pa.Table]]:
    """Group files by layout; instead of a layout, there may be the reason why files cannot be read."""

    def layout(path: str, form: str) -> Layout | str:
        if form != "parquet":
            return f"data files in {form} are not profiled"
        try:
            return layout_of(schemas(path), columns)
        except SkiwayError as error:
            return error.message

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        found = list(threads.map(layout, files["path"].to_pylist(), files["format"].to_pylist()))
    return [(one, files.filter(pa.array([each == one for each in found]))) for one in dict.fromkeys(found)]


@dataclass(frozen=True, slots=True)
class _Job:
    """Profiles files of one layout."""

    scans: ScanFiles
    schema: TableSchema
    columns: Sequence[Leaf]
    unreadable: Sequence[Leaf]
    layout: Layout
    specs: Sequence[PartitionSpec]
    budget: Budget
    access: Files | None

    def run(self, files: pa.Table) -> pa.Table:
        """Profile all columns of all files."""
        in_path = {field.source_id for spec in self.specs for field in spec.fields if field.transform == "identity"}
        found, refused = dict(self.layout.found), dict(self.layout.refused)
        absent = [leaf for leaf in self.columns if leaf.id not in found and leaf.id not in refused]
        constant = tuple(leaf for leaf in absent if leaf.id in in_path)
        read = [leaf for leaf in self.columns if leaf.id in found or leaf in constant]
        parts, good = self._scan(files, read, constant)
        rows = good["row_count"].combine_chunks()
        defaulted = defaulted_fields(self.schema.json)
        in_lists = {leaf.id for leaf in element_leaves(self.schema.arrow)}
        present = {leaf.path[0] for leaf in self.columns if leaf.id in found or leaf.id in refused}
        reasons = refused | {leaf.id: f"{leaf.type} cannot be profiled" for leaf in self.unreadable}
        for leaf in absent:
            if leaf.id in defaulted:
                reasons[leaf.id] = ADDED_LATER
            elif leaf.id in in_lists and leaf.path[0] in present:
                reasons[leaf.id] = "the file was written before the field was added"
            elif leaf not in constant:
                nothing = empty_elements(good, column_id=leaf.id, kind=kind_of(leaf))
                nulls = all_null_columns(good, rows, column_id=leaf.id, kind=kind_of(leaf))
                parts.append(nothing if leaf.id in in_lists else nulls)
        parts += [unreadable_columns(good, rows, column_id=number, reason=reason) for number, reason in reasons.items()]
        return pa.concat_tables([PROFILE.empty_table(), *parts])

    def _scan(
        self, files: pa.Table, columns: Sequence[Leaf], constant: tuple[Leaf, ...]
    ) -> tuple[list[pa.Table], pa.Table]:
        """Profile the columns that can be read; also returns the readable files, with their row counts."""
        parts: list[pa.Table] = []
        for first in range(0, len(columns), self.budget.columns):
            if not files.num_rows:
                break
            scan = Scan(
                self.layout,
                tuple(columns[first : first + self.budget.columns]),
                constant,
                tuple(self.specs),
                lg_k=self.budget.lg_k,
                top=self.budget.top,
                access=self.access,
            )
            result, files, failures = self.scans(scan, files)
            # A file may fail at a later group of columns; then its profiles so far are dropped.
            parts = [_without(part, failures) for part in parts]
            parts += [result, failures]
        return parts, files


def _without(part: pa.Table, failures: pa.Table) -> pa.Table:
    return part.filter(pc.invert(pc.is_in(part["path"], value_set=failures["path"].combine_chunks())))
