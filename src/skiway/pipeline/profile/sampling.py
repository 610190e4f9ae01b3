"""Samples: of a table that is too large to be read, some files are profiled, and the statistics say how far they can be trusted.

The files are chosen by a digest of their paths, so a later profile chooses the same ones again, and every file has the same chance.
Rows of one file resemble each other, so the confidence intervals are those of a sample of files, not of rows: they follow from how much the
files differ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import datasketches
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.metastore.statistics import SAMPLED_FILES
from skiway.model import v1
from skiway.pipeline.profile.column_statistics import RANKS
from skiway.pipeline.profile.merging import Merged
from skiway.pipeline.profile.sketches import CONFIDENCE, distinct_count, distribution

__all__ = ["SAMPLE", "Sampling", "with_confidence"]

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
