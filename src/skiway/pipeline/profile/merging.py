"""Merge the profiles of files into the statistics of a table and its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats import Content, TableSchema
from skiway.formats.iceberg.equality import field_paths
from skiway.formats.schemas import element_leaves, field_id, leaves
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
