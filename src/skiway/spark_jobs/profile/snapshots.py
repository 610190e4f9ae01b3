"""Profile a snapshot: find files without a profile, scan them, and publish the merged statistics.

Of a table that is too large to be read, some files are profiled, and the statistics say how far they can be trusted. The files
are chosen by
a digest of their paths, so a later profile chooses the same ones again, and every file has the same chance. Rows of one file resemble
each other, so the confidence intervals are those of a sample of files, not of rows: they follow from how much the files differ.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import datasketches
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import Cancelled
from skiway.formats import Content, Snapshot, TableHandle, TableSchema
from skiway.formats.iceberg.deletes import Puffin, field_paths
from skiway.formats.schemas import element_leaves, field_id, leaves
from skiway.metastore import statistics
from skiway.metastore.connectors.specs import EVERY_COLUMN, ColumnChoice
from skiway.metastore.jobs.attempts import Amounts
from skiway.metastore.reconcile.outcomes import LEFT_OUT
from skiway.metastore.records.realm import Realm
from skiway.metastore.statistics import SAMPLED_FILES
from skiway.model import v1
from skiway.spark_jobs.profile.column_statistics import (
    ESTIMATE,
    EXACT,
    RANKS,
    ColumnStatistics,
    ElementStatistics,
    ProfiledFiles,
)
from skiway.spark_jobs.profile.job import USUAL, Budget, profiled
from skiway.spark_jobs.profile.layouts import file_schemas
from skiway.spark_jobs.profile.scans import SMALL, SmallScan
from skiway.spark_jobs.profile.sketches import CONFIDENCE, distinct_count, distribution, write_puffin
from skiway.spark_jobs.profile.store import ProfileStore
from skiway.spark_jobs.profile.values import value_kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SKETCH_BYTES: Final = 2 << 20  # of all columns of a table; beyond that, statistics are stored without sketches


@dataclass(frozen=True, slots=True)
class Merged:
    """The statistics of a snapshot, without the ids of table and snapshot. `sketches` are theta, by column id."""

    table: v1.TableStats
    columns: list[v1.ColumnStats]
    sketches: dict[int, bytes]


def merge(
    profiles: pa.Table,
    files: pa.Table,
    schema: TableSchema,
    *,
    defaults: Mapping[int, pa.Scalar] = MappingProxyType({}),
    buckets: int = 32,
    top: int = 16,
) -> Merged:
    """The statistics of a snapshot with these `files`, from the `profiles` of those that have one.

    `defaults` are the values, by id, of columns in files that do not have them; others are NULL there.
    """
    snapshot = ProfiledFiles(files.filter(pc.field("content") == Content.DATA), profiles)
    missing = _missing_values(schema, defaults)
    found = [ColumnStatistics(snapshot, leaf, missing[leaf.id]) for leaf in leaves(schema.arrow)]
    elements = element_leaves(schema.arrow)
    found += [
        ElementStatistics(snapshot, leaf, [each.id for each in elements if each.path[0] == leaf.path[0]])
        for leaf in elements
    ]
    columns = [each.statistics(buckets=buckets, top=top) for each in found if value_kind(each.leaf.type) is not None]
    sketches = {column.column_id: each.data for column in columns for each in column.ndv.sketches}
    if sum(map(len, sketches.values())) > _SKETCH_BYTES:
        for column in columns:
            column.ndv.ClearField("sketches")
    return Merged(snapshot.statistics(), columns, sketches)


def _missing_values(schema: TableSchema, defaults: Mapping[int, pa.Scalar]) -> dict[int, pa.Scalar | None]:
    """The values of columns in files that do not have them; None if they differ between rows.

    A field of a struct has its default only where the struct is not NULL.
    """
    found: dict[int, pa.Scalar | None] = {}
    for number, path in field_paths(schema.arrow).items():
        of_parts = [defaults[part] for field in path if (part := field_id(field)) is not None and part in defaults]
        has_default = any(value.is_valid for value in of_parts)
        found[number] = pa.scalar(None) if not has_default else of_parts[0] if len(path) == 1 else None
    return found


SAMPLE: Final = "sample"
"""The value of properties `quality.*` of figures that are estimated from a sample of the files."""

_DEVIATIONS: Final = 2


@dataclass(frozen=True, slots=True)
class Sampling:
    """When a sample suffices: if more than `above_bytes` would have to be read. The sample has about `sample_bytes`."""

    above_bytes: int = 1 << 40
    sample_bytes: int = 100 << 30

    def chosen(self, files: pa.Table, unknown: pa.Table) -> pa.Table | None:
        """The files of the sample, ordered by digest; None if all files that are `unknown` are to be read.

        There are at least two, because one file says nothing about how much they differ.
        """
        if int(pc.sum(unknown["size_bytes"], min_count=0).as_py()) <= self.above_bytes:
            return None
        digests = pa.array([blake2b(path.encode(), digest_size=8).digest() for path in files["path"].to_pylist()])
        ordered = files.take(pc.sort_indices(digests))
        before = pc.subtract(pc.cumulative_sum(ordered["size_bytes"]), ordered["size_bytes"])
        count = max(2, int(pc.sum(pc.less(before, self.sample_bytes)).as_py()))
        return ordered.slice(0, count) if count < files.num_rows else None


def with_confidence(
    merged: Merged, profiles: pa.Table, sample: pa.Table, files: pa.Table, *, defaults: Collection[int] = ()
) -> Merged:
    """Statistics that were merged from the profiles of a sample, as estimates for all files, with their confidence.

    `defaults` are the ids of columns that are not NULL in files without them.
    """
    merged.table.properties[SAMPLED_FILES] = str(sample.num_rows)
    merged.table.properties["sample.confidence"] = f"{CONFIDENCE:.3f}"
    rows = profiles.group_by("path").aggregate([("row_count", "max")])
    for stats in merged.columns:
        mine = profiles.filter(pc.equal(profiles["column_id"], stats.column_id))
        older = rows.filter(pc.invert(pc.is_in(rows["path"], value_set=mine["path"].combine_chunks())))
        order = pc.index_in(mine["path"], value_set=sample["path"].combine_chunks())
        mine = mine.append_column("order", order).filter(mine["error"].is_null()).sort_by("order")
        if mine.num_rows > 1:
            older_rows = older["row_count_max"].to_numpy()
            is_null = stats.column_id not in defaults
            _Column(stats, mine, older_rows, older_rows * is_null, files.num_rows).estimate()
    return merged


@dataclass(frozen=True, slots=True)
class _Column:
    """The statistics of a column, its profiles in the files of the sample, and of older files all rows, and those that are NULL."""

    stats: v1.ColumnStats
    profiles: pa.Table
    older_rows: Any
    older_nulls: Any
    files: int

    def estimate(self) -> None:
        """Replace figures of the sample by estimates for all files."""
        stats, properties = self.stats, self.stats.properties
        if properties.get("counted"):
            properties["quality.value_count"] = SAMPLE
        self._nulls()
        if "quality.ndv" in properties:
            self._distinct()
            properties["quality.ndv"] = SAMPLE
        values = max(0, stats.value_count - stats.null_count)
        seen = int(self._counts.sum() - self._figures("null_count").sum())
        scale = values / seen if seen else 0.0
        if stats.HasField("histogram"):
            counts = [int(count * scale) for count in stats.histogram.counts]
            stats.histogram.counts[:] = counts
            properties["quantiles.rank_error"] = f"{self._rank_error():.4f}"
            properties["quality.histogram"] = properties["quality.quantiles"] = SAMPLE
        if "top_values" in properties:
            top = [[value, int(count * scale)] for value, count in json.loads(properties["top_values"])]
            properties["top_values"] = json.dumps(top, ensure_ascii=False)
            properties["quality.top_values"] = SAMPLE

    def _figures(self, name: str) -> Any:
        return pc.fill_null(self.profiles[name], 0).to_numpy()

    @property
    def _counts(self) -> Any:
        """The number of values in each file of the sample, including NULLs."""
        return pc.coalesce(self.profiles["element_count"], self.profiles["row_count"]).to_numpy()

    def _nulls(self) -> None:
        """The number of NULLs, unless it is known from the statistics of all files."""
        if self.stats.HasField("null_count"):
            return
        nulls, counts = self._figures("null_count"), self._counts
        if not self.stats.properties.get("counted"):
            nulls = np.concatenate([nulls, self.older_nulls])
            counts = np.concatenate([counts, self.older_rows])
        share = float(nulls.sum() / counts.sum()) if counts.sum() else 0.0
        error = self._error(nulls, counts)
        self.stats.null_count = min(self.stats.value_count, round(share * self.stats.value_count))
        self.stats.properties["quality.null_count"] = SAMPLE
        self.stats.properties["null_share.lower"] = f"{max(0.0, share - error):.6f}"
        self.stats.properties["null_share.upper"] = f"{min(1.0, share + error):.6f}"

    def _error(self, hits: Any, counts: Any) -> float:
        """Two standard deviations of the share of hits in all files, by the ratio estimator for samples of clusters."""
        files, mean = len(counts), float(counts.mean())
        if not mean:
            return 1.0
        residuals = hits - counts * (hits.sum() / counts.sum())
        variance = float((residuals**2).sum()) / (files - 1)
        return _DEVIATIONS * math.sqrt((1 - files / self.files) * variance / files) / mean

    def _distinct(self) -> None:
        """Extrapolate the number of distinct values by how it grew from half of the sample to all of it.

        The bounds hold in any case: all other values may be known ones, or new ones.
        """
        approx = self.stats.ndv.approx
        half = self.profiles.slice(0, self.profiles.num_rows // 2)
        if len(self.profiles["domain"].unique()) > 1 or not approx.estimate:
            return
        has_empty = pc.any(pc.equal(half["min"], "")).as_py()
        before = distinct_count(half["theta"].drop_null().to_pylist(), has_empty=bool(has_empty)).estimate
        ratio = self._counts.sum() / max(1, self._counts[: half.num_rows].sum())
        growth = math.log(approx.estimate / before) / math.log(ratio) if before and ratio > 1 else 0.0
        grown = approx.estimate * (approx.rows_total / max(1, approx.rows_seen)) ** min(1.0, max(0.0, growth))
        upper = approx.confidence_upper if approx.HasField("confidence_upper") else float(self.stats.value_count)
        approx.estimate = max(approx.confidence_lower, min(grown, upper))

    def _rank_error(self) -> float:
        """The largest error of the ranks of the quantiles: of the sample, and of the sketches."""
        stored = self.profiles["kll"].drop_null().to_pylist()
        found = distribution(stored, buckets=2, ranks=RANKS)
        sketches = [datasketches.kll_doubles_sketch.deserialize(each) for each in stored]
        counts = np.array([sketch.n for sketch in sketches], float)
        if found is None or len(sketches) < 2:
            return 1.0
        errors = []
        for number in found.quantiles.values():
            below = [sketch.get_rank(number, True) * sketch.n if sketch.n else 0.0 for sketch in sketches]
            errors.append(self._error(np.array(below), counts))
        return min(1.0, max(errors) + found.rank_error)


_COLUMNS_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """The result: how many files were profiled now, how many before, and why others could not be read.

    If the table was sampled, files outside of the sample are in none of these. `other_formats` counts the files that are not
    profiled because they are not Parquet, by format.
    """

    files_total: int
    files_profiled: int
    files_known: int
    failed: dict[str, str]
    merged: Merged
    schema: TableSchema
    snapshot: Snapshot
    other_formats: Mapping[str, int]

    def puffin(self) -> Puffin:
        """The theta sketches as a Puffin file, for those columns whose sketch covers all rows."""
        sure = {
            each.column_id for each in self.merged.columns if each.properties.get("quality.ndv") in (EXACT, ESTIMATE)
        }
        sketches = {number: sketch for number, sketch in self.merged.sketches.items() if number in sure}
        of = self.snapshot
        return write_puffin(sketches, self.schema, snapshot_id=of.id, sequence_number=of.sequence_number)


def profile_snapshot(
    realm: Realm,
    table_id: v1.ResourceId,
    snapshot: Snapshot,
    *,
    handle: TableHandle,
    spark: Callable[[], SparkSession],
    columns: ColumnChoice = EVERY_COLUMN,
    again: str = "",
    on_progress: Callable[[Amounts, Amounts], None] = lambda _, __: None,
    cancelled: Callable[[], bool] = lambda: False,
    budget: Budget = USUAL,
    sampling: Sampling | None = None,
    small: SmallScan | None = SMALL,
) -> ProfileReport:
    """Profile the files of a snapshot that have no profile, and store the statistics of its table and columns.

    `spark` is called for a session only if it is needed: this process scans a few files itself if they are `small`; with None, it
    scans none. `on_progress` is called with what is done and in total, and `cancelled` between batches; profiles made so far are
    stored, so that the next run continues from there. Repeating a run changes nothing. With `sampling`, a sample of the files
    suffices if there is too much to read.

    With `again`, all files are read, even those that have a profile. It is the id of a run, which reads a file only once: for
    several snapshots, and if it continues after an interruption.
    """
    files, whole = handle.files(snapshot), handle.schema_at(snapshot)
    schema, left_out = columns.of(whole), columns.left_out(whole)
    elements = element_leaves(schema.arrow)
    kinds = filter(None, (value_kind(leaf.type) for leaf in (*leaves(schema.arrow), *elements)))
    since = max((kind.since for kind in kinds), default=0)
    store = ProfileStore(realm, table_id, left_out=left_out, elements=bool(elements), since=since, run=again)
    data = files.filter(pc.field("content") == Content.DATA)
    formats = dict(Counter(data["format"].to_pylist()))
    formats.pop("parquet", None)
    readable = data.filter(pc.field("format") == "parquet") if formats else data
    todo = store.unknown(readable)
    sample = None if sampling is None else sampling.chosen(readable, todo)
    if sample is not None:
        todo = store.unknown(sample)
    total = _amounts(todo)
    on_progress(Amounts(), total)
    done, failed = 0, dict[str, str]()
    schemas, specs = file_schemas(handle, snapshot), handle.partition_specs_at(snapshot)
    parts: Iterable[pa.Table] = ()
    if todo.num_rows:
        parts = profiled(
            spark,
            todo,
            schema,
            schemas=schemas,
            specs=specs,
            budget=budget,
            access=handle.file_access,
            small=small,
            cancelled=cancelled,
        )
    for part in parts:
        store.add(part)
        failed |= _failures(part)
        done += len(part["path"].unique())
        on_progress(_amounts(todo.slice(0, done)), total)
        if done < todo.num_rows and cancelled():
            raise Cancelled(f"profiling was cancelled after {done} of {todo.num_rows} files; their profiles are stored")
    profiles = store.load(readable if sample is None else sample)
    merged = merge(profiles, files, schema, defaults=handle.defaults)
    if sample is not None and not formats:  # a sample of the Parquet files says nothing about the others
        merged = with_confidence(merged, profiles, sample, data, defaults=handle.defaults)
    elif sample is not None:
        merged.table.properties[statistics.SAMPLED_FILES] = str(sample.num_rows)
    if formats:
        merged.table.properties[statistics.OTHER_FORMATS] = str(sum(formats.values()))
    if left_out:
        merged.table.properties[LEFT_OUT] = ",".join(map(str, sorted(left_out)))
    _publish(realm, table_id, snapshot.id, merged)
    return ProfileReport(
        data.num_rows,
        files_profiled=done - len(failed),
        files_known=(readable if sample is None else sample).num_rows - todo.num_rows,
        failed=failed,
        merged=merged,
        schema=schema,
        snapshot=snapshot,
        other_formats=formats,
    )


def _amounts(files: pa.Table) -> Amounts:
    """The files are profiled in the order of the list, some at a time."""
    rows, sizes = (pc.sum(files[name]).as_py() or 0 for name in ("row_count", "size_bytes"))
    return Amounts(files.num_rows, rows, sizes)


def _failures(part: pa.Table) -> dict[str, str]:
    failed = part.filter(part["column_id"].is_null())
    return dict(zip(failed["path"].to_pylist(), failed["error"].to_pylist(), strict=True))


def _publish(realm: Realm, table_id: v1.ResourceId, snapshot_id: int, merged: Merged) -> None:
    """Store the statistics. Those of the table come last, so that they exist only if all others do."""
    if merged.columns:
        statistics.put_columns(
            realm,
            (
                v1.PutColumnStatsRequest(
                    table_id=table_id, snapshot_id=snapshot_id, columns=merged.columns[first : first + _COLUMNS_AT_ONCE]
                )
                for first in range(0, len(merged.columns), _COLUMNS_AT_ONCE)
            ),
        )
    request = v1.PutTableStatsRequest(table_id=table_id, snapshot_id=snapshot_id, stats=merged.table)
    statistics.add_to_history(realm, statistics.put_table(realm, request).stats, merged.columns)
