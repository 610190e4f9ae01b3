"""The statistics of a column in all files of a snapshot, merged from those of the files and their profiles.

`ProfiledFiles` are the data files with their profiles, and have the statistics of the table as a whole. Counts and bounds are
taken from the
file table if they are exact there, and otherwise from the profiles, like everything else. The properties `quality.*` say how reliable
each figure is (see docs/statistics.md).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats.canonical import logical_type
from skiway.formats.schemas import Leaf
from skiway.formats.statistics import column_stats, constant_stats, merged_stats
from skiway.metastore import statistics
from skiway.metastore.statistics import CURRENT_VERSION, PROFILE_VERSION
from skiway.model import v1
from skiway.spark_jobs.profile.figures import ADDED_LATER
from skiway.spark_jobs.profile.sketches import (
    CONFIDENCE,
    THETA,
    DistinctCount,
    are_rounded,
    combined_count,
    distinct_count,
    distribution,
    is_bound,
    numbers_as_text,
    put_histogram,
)
from skiway.spark_jobs.profile.values import is_exact_as_text, parsed, storage_type_of, texts, value_kind

EXACT: Final = "exact"
ESTIMATE: Final = "estimate"
BOUND: Final = "bound"
"""The values of the properties `quality.*`; docs/statistics.md explains them."""


class ProfiledFiles:
    """The data files of a snapshot, joined with the profiles of those that have one."""

    def __init__(self, files: pa.Table, profiles: pa.Table) -> None:
        self.files = files
        self._profiles = profiles
        self._place = pc.index_in(profiles["path"], value_set=files["path"].combine_chunks())
        same = pc.and_(self._place.is_valid(), profiles["column_id"].is_valid())
        for name in ("size_bytes", "etag"):
            there = pc.coalesce(profiles[name].cast(pa.string()), "")
            here = pc.coalesce(files[name].combine_chunks().take(self._place).cast(pa.string()), "")
            same = pc.and_(same, pc.equal(there, here))
        self._same = same
        self.known = pc.is_in(self._numbers, value_set=self._place.filter(same).unique())

    @property
    def _numbers(self) -> pa.Array:
        return pa.array(np.arange(self.files.num_rows, dtype=np.int32))

    def column(self, number: int) -> tuple[pa.Table, pa.Array]:
        """The profiles of a column, and for each file the index of its profile, or NULL."""
        # `filter` instead of `take`, which would first copy all sketches into one array.
        mine = pc.and_(self._same, pc.fill_null(pc.equal(self._profiles["column_id"], number), False))
        owners = self._place.filter(mine).combine_chunks()
        return self._profiles.filter(mine), pc.index_in(self._numbers, value_set=owners)

    @cached_property
    def row_counts(self) -> pa.Array:
        """The row count of each file; NULL if neither the table nor a profile has it."""
        profiles = pa.table({"file": self._place, "rows": self._profiles["row_count"]}).filter(self._same)
        counts = profiles.group_by("file").aggregate([("rows", "max")])
        places = pc.index_in(self._numbers, value_set=counts["file"].combine_chunks())
        profiled = counts["rows_max"].combine_chunks().take(places)
        return pc.coalesce(self.files["row_count"].combine_chunks(), profiled)

    @cached_property
    def rows(self) -> int:
        """The number of rows in all files, including deleted ones."""
        return int(pc.sum(self.row_counts, min_count=0).as_py())

    @cached_property
    def has_deletes(self) -> bool:
        """Does any file have deleted rows?"""
        listed = pc.greater(pc.fill_null(pc.list_value_length(self.files["deletes"]), 0), 0)
        counted = pc.greater(pc.fill_null(self.files["deleted_rows"], 0), 0)
        return bool(pc.any(pc.or_(listed, counted), min_count=0).as_py())

    @cached_property
    def deleted(self) -> int | None:
        """The number of deleted rows; None if unknown without reading."""
        found: int | None = pc.sum(self.files["deleted_rows"], skip_nulls=False, min_count=0).as_py()
        return found if found is not None or self.has_deletes else 0

    def statistics(self) -> v1.TableStats:
        """The statistics of the table as a whole."""
        unknown = self.row_counts.null_count
        profiled = int(pc.sum(self.row_counts.filter(self.known), min_count=0).as_py())
        return v1.TableStats(
            row_count=max(0, self.rows - int(pc.sum(self.files["deleted_rows"], min_count=0).as_py())),
            data_file_count=self.files.num_rows,
            total_size_bytes=int(pc.sum(self.files["size_bytes"], min_count=0).as_py()),
            properties={
                PROFILE_VERSION: str(CURRENT_VERSION),
                "quality.row_count": ESTIMATE if unknown else EXACT if self.deleted is not None else BOUND,
                "files.profiled": str(pc.sum(self.known, min_count=0).as_py()),
                "rows.profiled": str(profiled),
                "rows.total": str(self.rows),
            },
        )


RANKS: Final = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""The ranks of the quantiles."""


class ColumnStatistics:
    """One column of a snapshot. `missing` is its value in files that do not have it; None if that differs between rows."""

    def __init__(self, snapshot: ProfiledFiles, leaf: Leaf, missing: pa.Scalar | None) -> None:
        self.leaf = leaf
        self._of = snapshot
        self._missing = missing
        self._profiles, self._places = snapshot.column(leaf.id)

    def statistics(self, *, buckets: int, top: int) -> v1.ColumnStats:
        totals = self._totals()
        quality = BOUND if self._of.has_deletes else EXACT
        stats = v1.ColumnStats(
            column_id=self.leaf.id,
            column_name=".".join(self.leaf.path),
            logical_type=logical_type(self.leaf.type),
            value_count=self._total,
        )
        properties = {
            statistics.PROFILE_VERSION: str(statistics.CURRENT_VERSION),
            "quality.value_count": quality if self._is_counted else ESTIMATE,
            "rows.profiled": str(_sum(self._of.row_counts.filter(self._seen))),
            "rows.total": str(self._of.rows),
        }
        for field in ("null_count", "nan_count"):
            number = totals.field(field)[0].as_py()
            if number is not None:
                setattr(stats, field, number)
                properties[f"quality.{field}"] = quality
        properties |= self._put_bounds(stats, totals, quality)
        properties |= self._put_distinct(stats)
        properties |= self._put_spread(stats, buckets)
        properties |= self._frequent(top) | self._width() | self._errors()
        stats.properties.update(properties)
        return stats

    # --- counts and bounds --------------------------------------------------------------------------------------------

    def _profiled(self, name: str) -> pa.Array:
        """A figure of each file; NULL for those without a profile."""
        return self._profiles[name].combine_chunks().take(self._places)

    @cached_property
    def _stats(self) -> pa.StructArray:
        """The statistics of the column in the file table; all unknown if it has none."""
        stats, name = self._of.files["stats"].combine_chunks(), str(self.leaf.id)
        if stats.type.get_field_index(name) < 0:
            return column_stats(storage_type_of(self.leaf.type), self._of.files.num_rows)
        return stats.field(name)

    @cached_property
    def _absent(self) -> pa.Array:
        """The profiled files that do not have the column, if its value in all their rows is known."""
        if self._missing is None:
            return pa.repeat(False, self._of.files.num_rows)
        added_later = pc.fill_null(pc.equal(self._profiled("error"), ADDED_LATER), False)
        return pc.and_(self._of.known, pc.or_(self._places.is_null(), added_later))

    @property
    def _default(self) -> pa.Scalar | None:
        """The value of the column in absent files, unless it is NULL."""
        return self._missing if self._missing is not None and self._missing.is_valid else None

    @property
    def _default_value(self) -> pa.Scalar:
        """The default in the storage type of the column."""
        assert self._default is not None
        plain = self._default.value if isinstance(self._default, pa.ExtensionScalar) else self._default
        return plain.cast(storage_type_of(self.leaf.type))

    @cached_property
    def _defaulted(self) -> int:
        """The number of values that are the default, and that no profile covers."""
        return 0 if self._default is None else _sum(self._counts.filter(self._absent))

    @cached_property
    def _seen(self) -> pa.Array:
        """The files whose profile covers the column."""
        profiled = pc.and_(self._places.is_valid(), self._profiled("error").is_null())
        return profiled if self._default is not None else pc.or_(profiled, self._absent)

    @cached_property
    def _null_counts(self) -> pa.Array:
        nulls = self._counts if self._default is None else pa.scalar(0, pa.int64())
        absent = pc.if_else(self._absent, nulls, pa.scalar(None, pa.int64()))
        return pc.coalesce(self._stats.field("null_count"), self._profiled("null_count"), absent)

    @property
    def _counts(self) -> pa.Array:
        """The number of values of each file, including NULLs."""
        return self._of.row_counts

    @property
    def _total(self) -> int:
        """The number of values of all files, including NULLs."""
        return self._of.rows

    @property
    def _is_counted(self) -> bool:
        """Is the number of values known?"""
        return bool(self._of.row_counts.null_count == 0)

    @cached_property
    def _seen_values(self) -> int:
        return _sum(self._counts.filter(self._seen))

    @property
    def _is_whole(self) -> bool:
        """Do the profiles cover all values?"""
        return self._is_counted and self._seen_values == self._total

    def _totals(self) -> pa.StructArray:
        """Counts and bounds of all files together."""
        files, of = self._of.files.num_rows, storage_type_of(self.leaf.type)
        if files == 0:
            return merged_stats(constant_stats(pa.nulls(0, of), pa.array([], pa.int64())))
        stats = self._stats
        if pc.all(stats.field("exact")).as_py():
            low, high, exact = stats.field("min"), stats.field("max"), stats.field("exact")
        else:
            low, high = (self._best_bounds(name) for name in ("min", "max"))
            exact = pc.or_(stats.field("exact"), pc.fill_null(self._profiled("exact"), False))
            exact = pc.or_(exact, self._absent)
        nans = pc.coalesce(stats.field("nan_count"), self._profiled("nan_count"), self._none_of_absent())
        return merged_stats(
            column_stats(
                self.leaf.type,
                files,
                exact=exact,
                value_count=self._counts,
                null_count=self._null_counts,
                nan_count=nans,
                min=low,
                max=high,
            )
        )

    def _none_of_absent(self) -> pa.Array:
        return pc.if_else(self._absent, pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64()))

    def _best_bounds(self, name: str) -> pa.Array:
        """The bounds of the file table if they are exact, else of the profile, else of the file table, else the default."""
        listed = self._stats.field(name)
        profiled = parsed(self._profiled(name), self.leaf.type).cast(listed.type)
        found = pc.if_else(self._stats.field("exact"), listed, pc.coalesce(profiled, listed))
        if not self._defaulted:
            return found
        return pc.coalesce(
            found, pc.if_else(self._absent, self._default_value.cast(listed.type), pa.scalar(None, listed.type))
        )

    def _put_bounds(self, stats: v1.ColumnStats, totals: pa.StructArray, quality: str) -> dict[str, str]:
        if not stats.logical_type:
            return {}
        properties = {}
        for name in ("min", "max"):
            found = totals.field(name)
            text = texts(found, self.leaf.type, up=name == "max")
            if text[0].is_valid and is_bound(stats.logical_type, text[0].as_py()):
                setattr(stats, name, text[0].as_py())
                whole = totals.field("exact")[0].as_py() and is_exact_as_text(found, text, self.leaf.type)[0].as_py()
                properties[f"quality.{name}"] = quality if whole else BOUND
        return properties

    @property
    def _deleted_values(self) -> int | None:
        """How many values were deleted at most; None if unknown."""
        return self._of.deleted

    # --- sketches -----------------------------------------------------------------------------------------------------

    def _distinct(self) -> DistinctCount | None:
        """The number of distinct values in the profiled files; None if there are none."""
        if not self._seen_values:
            return None
        by_domain, with_empty = defaultdict[str, list[bytes]](list), set[str]()
        columns = (self._profiles[name].to_pylist() for name in ("domain", "theta", "min"))
        for domain, sketch, least in zip(*columns, strict=True):
            if sketch is not None:
                by_domain[domain].append(sketch)
            if least == "":  # no value is smaller than the empty one, and no other has this text
                with_empty.add(domain)
        parts = [distinct_count(each, has_empty=domain in with_empty) for domain, each in by_domain.items()]
        return parts[0] if len(parts) == 1 else combined_count(parts)

    def _put_distinct(self, stats: v1.ColumnStats) -> dict[str, str]:
        count = self._distinct()
        if count is None:
            return {}
        is_whole = self._is_whole and not self._of.has_deletes
        if count.exact and is_whole:
            stats.ndv.exact = round(count.estimate)
            quality = EXACT
        else:
            quality = ESTIMATE if count.sketch and is_whole else BOUND
            self._put_estimate(stats, count)
        if count.sketch:
            domain = set(self._profiles["domain"].drop_null().to_pylist())
            stats.ndv.sketches.add(
                type=THETA, data=count.sketch, version=1, properties={"domain": min(domain, default="")}
            )
        return {"quality.ndv": quality}

    def _put_estimate(self, stats: v1.ColumnStats, count: DistinctCount) -> None:
        """Values without a profile may all be new; deleted rows may have been the only ones with their values."""
        seen, total = self._seen_values, self._total
        unseen = total - seen - self._defaulted + bool(self._defaulted)  # values that may be new
        lower = max(0.0, count.lower - self._deleted_values) if self._deleted_values is not None else 0.0
        estimate = min(count.estimate, float(total))
        stats.ndv.approx.CopyFrom(
            v1.NdvApprox(
                estimate=estimate,
                relative_standard_error=count.error,
                confidence_lower=min(lower, estimate),
                confidence_upper=max(estimate, min(count.upper + unseen, float(total))),
                confidence_level=CONFIDENCE,
                rows_seen=seen,
                rows_total=total,
                method=THETA,
            )
        )
        if not self._is_counted:
            stats.ndv.approx.ClearField("confidence_upper")

    def _put_spread(self, stats: v1.ColumnStats, buckets: int) -> dict[str, str]:
        kind = value_kind(self.leaf.type)
        sketches = self._profiles["kll"].drop_null().to_pylist()
        found = distribution(sketches, buckets=buckets, ranks=RANKS) if kind and kind.is_number else None
        if found is None or self._defaulted or not stats.HasField("min") or not stats.HasField("max"):
            return {}
        values = numbers_as_text([*found.bounds, *found.quantiles.values()], self.leaf.type)
        bounds, quantiles = values[: len(found.bounds)], values[len(found.bounds) :]
        if any(text is None or not is_bound(stats.logical_type, text) for text in bounds):
            return {}
        put_histogram(stats, found.counts, bounds)
        by_rank = {f"{rank:g}": text for rank, text in zip(found.quantiles, quantiles, strict=True)}
        rounded = are_rounded(found, self.leaf.type)
        is_exact = found.exact and self._is_whole and not self._of.has_deletes and not rounded
        unseen = self._total - self._seen_values
        error = 0.0 if found.exact else found.rank_error
        error = min(1.0, error + unseen / (unseen + found.count)) if self._is_counted else 1.0
        return {
            "quality.histogram": EXACT if is_exact else ESTIMATE,
            "quality.quantiles": EXACT if is_exact else ESTIMATE,
            "quantiles": json.dumps(by_rank),
            "quantiles.rank_error": f"{error:.4f}" if error else "0",
            **({"quantiles.rounded": "true"} if rounded else {}),
        }

    # --- the rest -----------------------------------------------------------------------------------------------------

    def _frequent(self, top: int) -> dict[str, str]:
        pairs = self._profiles["top"].combine_chunks().flatten()
        pairs = pairs.filter(pairs.field("value").is_valid())
        if not len(pairs):
            return {}
        table = pa.table({"value": pairs.field("value"), "count": pairs.field("count")})
        if self._defaulted:
            text = texts(pa.repeat(self._default_value, 1), self.leaf.type)
            table = pa.concat_tables([table, pa.table({"value": text, "count": [self._defaulted]})])
        summed = table.group_by("value").aggregate([("count", "sum")])
        ranked = summed.sort_by([("count_sum", "descending"), ("value", "ascending")]).slice(0, top)
        shown = [[row["value"], row["count_sum"]] for row in ranked.to_pylist()]
        return {
            "top_values": json.dumps(shown, ensure_ascii=False),
            "quality.top_values": EXACT if self._is_complete(pc.sum(summed["count_sum"]).as_py()) else ESTIMATE,
        }

    def _is_complete(self, counted: int) -> bool:
        """Is every value among the frequent ones of its file? Then the counts are exact."""
        values = pc.sum(pc.subtract(self._counts, self._null_counts), skip_nulls=False, min_count=0).as_py()
        return bool(values == counted and not self._of.has_deletes and self._is_whole)

    def _width(self) -> dict[str, str]:
        width = pc.sum(self._profiles["total_width"]).as_py()
        counts = pc.coalesce(self._profiles["element_count"], self._profiles["row_count"])
        values = pc.sum(pc.subtract(counts, self._profiles["null_count"])).as_py()
        return {"avg_width_bytes": f"{width / values:.2f}"} if values and width is not None else {}

    def _errors(self) -> dict[str, str]:
        known = None if self._missing is None else ADDED_LATER
        reasons = [each for each in self._profiles["error"].drop_null().unique().to_pylist() if each != known]
        return {"errors": "; ".join(reasons[:3])} if reasons else {}


class ElementStatistics(ColumnStatistics):
    """The values in the lists or maps of a column. The statistics of files do not have them, so they come from profiles only.

    `siblings` are the ids of all values in the same column: a file without any of them has no values, and in a file with some, values that
    it does not have are not counted.
    """

    def __init__(self, snapshot: ProfiledFiles, leaf: Leaf, siblings: Iterable[int]) -> None:
        super().__init__(snapshot, leaf, pa.scalar(None))
        self._siblings = [each for each in siblings if each != leaf.id]

    @cached_property
    def _absent(self) -> pa.Array:
        found = pc.and_(self._of.known, self._places.is_null())
        for number in self._siblings:
            found = pc.and_(found, self._of.column(number)[1].is_null())
        return found

    def statistics(self, *, buckets: int, top: int) -> v1.ColumnStats:
        stats = super().statistics(buckets=buckets, top=top)
        stats.properties["counted"] = "elements"
        return stats

    @cached_property
    def _counts(self) -> pa.Array:
        return pc.coalesce(self._profiled("element_count"), self._none_of_absent())

    @cached_property
    def _total(self) -> int:
        """If files without a profile are left, those with a profile are representative."""
        rows = _sum(self._of.row_counts.filter(self._seen))
        return self._seen_values if self._is_counted or not rows else round(self._seen_values * self._of.rows / rows)

    @property
    def _is_counted(self) -> bool:
        return bool(self._counts.null_count == 0)

    @property
    def _is_whole(self) -> bool:
        return self._is_counted

    @property
    def _deleted_values(self) -> int | None:
        return None if self._of.has_deletes else 0


def _sum(counts: pa.Array) -> int:
    return int(pc.sum(counts, min_count=0).as_py())
