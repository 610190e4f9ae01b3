"""The data files of a snapshot with their profiles, and the statistics of the table as a whole."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.metastore.statistics import CURRENT_VERSION, PROFILE_VERSION
from skiway.model import v1

__all__ = ["BOUND", "ESTIMATE", "EXACT", "ProfiledFiles"]

EXACT: Final = "exact"
ESTIMATE: Final = "estimate"
BOUND: Final = "bound"
"""The values of the properties `quality.*`; docs/pipeline.md explains them."""


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
