"""Profile a snapshot: find files without a profile, scan them, and publish the merged statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import Cancelled
from skiway.formats import Content, Snapshot, TableHandle, TableSchema
from skiway.formats.iceberg.puffin import Puffin
from skiway.formats.schemas import element_leaves, leaves
from skiway.metastore import statistics
from skiway.metastore.connectors.specs import EVERY_COLUMN, ColumnChoice
from skiway.metastore.jobs.attempts import Amounts
from skiway.metastore.reconcile.outcomes import LEFT_OUT
from skiway.metastore.records.realm import Realm
from skiway.model import v1
from skiway.pipeline.profile.in_process import SMALL, SmallScan
from skiway.pipeline.profile.job import USUAL, Budget, profiled
from skiway.pipeline.profile.layouts import file_schemas
from skiway.pipeline.profile.merging import Merged, merge
from skiway.pipeline.profile.profiled_files import ESTIMATE, EXACT
from skiway.pipeline.profile.sampling import Sampling, with_confidence
from skiway.pipeline.profile.sketches import write_puffin
from skiway.pipeline.profile.store import ProfileStore
from skiway.pipeline.profile.values import value_kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ProfileReport", "profile_snapshot"]

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
