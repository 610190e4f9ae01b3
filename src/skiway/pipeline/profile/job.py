"""The Spark job: one pass over data files, a profile per file and column.

It is made of DataFrame calls and SQL only, so it runs the same in this process, on a cluster and through Spark Connect.
Files that hold the columns in the same way are read together, so many at once that a plan stays small.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import SkiwayError
from skiway.formats import Content, PartitionSpec, TableSchema
from skiway.formats.schemas import Leaf, leaves
from skiway.pipeline.profile.figures import PROFILE, failed_files, refusals, without_values
from skiway.pipeline.profile.layouts import FileSchemas, Layout, layout_of
from skiway.pipeline.profile.scanning import Constants, Scan, scanned
from skiway.pipeline.profile.values import value_kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["USUAL", "Budget", "profile", "profiled"]


@dataclass(frozen=True, slots=True)
class Budget:
    """How much Spark is asked for at once, and how fine the sketches are.

    A theta sketch keeps about `2 ** lg_k` hashes. `top` values are told per file and column; 0 for none.
    """

    files: int = 128
    columns: int = 24
    lg_k: int = 12
    top: int = 16


USUAL: Final = Budget()
_AT_ONCE: Final = 8  # footers
_setting: Final = Lock()
_SETTINGS: Final = {
    "spark.sql.ansi.enabled": "false",  # which forbids to see an int as bytes
    "spark.sql.caseSensitive": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.session.timeZone": "UTC",
}


def profile(
    spark: SparkSession,
    files: pa.Table,
    schema: TableSchema,
    *,
    schemas: FileSchemas,
    specs: Sequence[PartitionSpec] = (),
    budget: Budget = USUAL,
) -> pa.Table:
    """The profile of data files, rows of a file table: as `PROFILE` says, by path and column.

    Columns are the leaves of `schema`, matched by id with what `schemas` says of each file; values that are only in the
    paths of files are taken from their partition, by `specs`. A column that Spark cannot read has an `error` instead of
    figures; a file that cannot be read, a single row with an `error` and no column.
    """
    parts = list(profiled(spark, files, schema, schemas=schemas, specs=specs, budget=budget))
    return pa.concat_tables([PROFILE.empty_table(), *parts]).sort_by(
        [("path", "ascending"), ("column_id", "ascending")]
    )


def profiled(
    spark: SparkSession,
    files: pa.Table,
    schema: TableSchema,
    *,
    schemas: FileSchemas,
    specs: Sequence[PartitionSpec] = (),
    budget: Budget = USUAL,
) -> Iterator[pa.Table]:
    """The same in parts, each of some files and complete, as they are done."""
    data = files.filter(pc.field("content") == Content.DATA)
    columns = [leaf for leaf in leaves(schema.arrow) if value_kind(leaf.type) is not None]
    unreadable = [leaf for leaf in leaves(schema.arrow) if value_kind(leaf.type) is None]
    for first in range(0, data.num_rows, budget.files):
        some = data.slice(first, budget.files)
        parts = []
        for layout, alike in _by_layout(some, columns, schemas):
            if isinstance(layout, str):
                parts.append(failed_files(alike, layout))
                continue
            job = _Job(spark, schema, columns, unreadable, layout, specs, budget)
            parts.append(job.run(alike))
        yield pa.concat_tables(parts)


def _by_layout(
    files: pa.Table, columns: Sequence[Leaf], schemas: FileSchemas
) -> Iterator[tuple[Layout | str, pa.Table]]:
    """The files that are read alike; or, instead of a layout, the reason why one cannot be read."""

    def layout(path: str, form: str) -> Layout | str:
        if form != "parquet":
            return f"data files in {form} are not profiled"
        try:
            return layout_of(schemas(path), columns)
        except SkiwayError as error:
            return error.message

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        found = list(threads.map(layout, files["path"].to_pylist(), files["format"].to_pylist()))
    for one in dict.fromkeys(found):
        yield one, files.filter(pa.array([each == one for each in found]))


@dataclass(frozen=True, slots=True)
class _Job:
    """Files of one layout, profiled."""

    spark: SparkSession
    schema: TableSchema
    columns: Sequence[Leaf]
    unreadable: Sequence[Leaf]
    layout: Layout
    specs: Sequence[PartitionSpec]
    budget: Budget

    def run(self, files: pa.Table) -> pa.Table:
        """All columns of all files."""
        in_path = {field.source_id for spec in self.specs for field in spec.fields if field.transform == "identity"}
        found, refused = dict(self.layout.found), dict(self.layout.refused)
        absent = [leaf for leaf in self.columns if leaf.id not in found and leaf.id not in refused]
        constant = [leaf for leaf in absent if leaf.id in in_path]
        read = [leaf for leaf in self.columns if leaf.id in found] + constant
        parts, good = self._scanned(files, read, constant)
        rows = good["row_count"].combine_chunks()
        defaulted = _defaulted(json.loads(self.schema.json))
        reasons = refused | {leaf.id: f"Spark cannot read {leaf.type}" for leaf in self.unreadable}
        for leaf in absent:
            if leaf.id in defaulted:
                reasons[leaf.id] = "the file is older than the column, which has a default there"
            elif leaf not in constant:
                kind = value_kind(leaf.type)
                assert kind is not None
                parts.append(without_values(good, rows, column_id=leaf.id, kind=kind))
        parts += [refusals(good, rows, column_id=number, reason=reason) for number, reason in reasons.items()]
        return pa.concat_tables([PROFILE.empty_table(), *parts])

    def _scanned(
        self, files: pa.Table, columns: Sequence[Leaf], constant: Sequence[Leaf]
    ) -> tuple[list[pa.Table], pa.Table]:
        """The profiles of columns that Spark reads, and those files that could be read, with their numbers of rows."""
        parts: list[pa.Table] = []
        for first in range(0, len(columns), self.budget.columns):
            if not files.num_rows:
                break
            group = columns[first : first + self.budget.columns]
            scan = Scan(
                self.layout,
                tuple(group),
                Constants(tuple(leaf for leaf in group if leaf in constant), tuple(self.specs)),
                lg_k=self.budget.lg_k,
                top=self.budget.top,
            )
            with _settings(self.spark):
                answer, files, failures = scanned(self.spark, scan, files)
            # A file may fail at a later group of columns: what was read of it before goes.
            parts = [_without(part, failures) for part in parts]
            parts += [answer, failures]
        return parts, files


def _without(part: pa.Table, failures: pa.Table) -> pa.Table:
    return part.filter(pc.invert(pc.is_in(part["path"], value_set=failures["path"].combine_chunks())))


def _defaulted(part: Any) -> set[int]:
    """The ids of fields that have a default, in a schema written as JSON."""
    if isinstance(part, list):
        return set().union(*map(_defaulted, part)) if part else set()
    if not isinstance(part, dict):
        return set()
    own = {part["id"]} if part.get("initial-default") is not None else set()
    return own.union(*(_defaulted(inner) for inner in part.values()))


@contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    """A block in which the session reads as this job needs it; one at a time, as others would set them back."""
    with _setting:
        before = {name: spark.conf.get(name, None) for name in _SETTINGS}
        _set(spark, _SETTINGS)
        try:
            yield
        finally:
            _set(spark, before)


def _set(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)
