"""Merge the profiles of files into the statistics of a table and its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats import Content, TableSchema
from skiway.formats.schemas import element_leaves, leaves
from skiway.model import v1
from skiway.pipeline.profile.column_statistics import ColumnStatistics, ElementStatistics
from skiway.pipeline.profile.profiled_files import ProfiledFiles
from skiway.pipeline.profile.values import value_kind

__all__ = ["Merged", "merge"]

_SKETCH_BYTES: Final = 2 << 20  # of all columns of a table; beyond that, statistics are stored without sketches


@dataclass(frozen=True, slots=True)
class Merged:
    """The statistics of a snapshot, without the ids of table and snapshot. `sketches` are theta, by column id."""

    table: v1.TableStats
    columns: list[v1.ColumnStats]
    sketches: dict[int, bytes]


def merge(profiles: pa.Table, files: pa.Table, schema: TableSchema, *, buckets: int = 32, top: int = 16) -> Merged:
    """The statistics of a snapshot with these `files`, from the `profiles` of those that have one."""
    snapshot = ProfiledFiles(files.filter(pc.field("content") == Content.DATA), profiles)
    found = [ColumnStatistics(snapshot, leaf) for leaf in leaves(schema.arrow)]
    found += [ElementStatistics(snapshot, leaf) for leaf in element_leaves(schema.arrow)]
    columns = [each.statistics(buckets=buckets, top=top) for each in found if value_kind(each.leaf.type) is not None]
    sketches = {column.column_id: each.data for column in columns for each in column.ndv.sketches}
    if sum(map(len, sketches.values())) > _SKETCH_BYTES:
        for column in columns:
            column.ndv.ClearField("sketches")
    return Merged(snapshot.statistics(), columns, sketches)
