# mypy: disable-error-code="no-any-return,call-arg"
"""A table with other columns and other rows in the place of what it was: CREATE OR REPLACE.

The table keeps its id, its folder and its history: older snapshots can still be asked for. All columns are new ones, so
nothing of the old rows can be taken for theirs.

    change(..., replacing(schema))                      # without rows

    replacement = Replacement.of(metadata, schema)
    files = ...                                         # written for replacement.metadata
    change(..., replacement.commit(files))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from skiway.formats.iceberg_commits import Change, Clock, Producer
from skiway.formats.iceberg_metadata import updated
from skiway.formats.iceberg_snapshot import MAIN, NewSnapshot
from skiway.formats.iceberg_warehouse import TableFiles

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.table.update import TableRequirement, TableUpdate

__all__ = ["Replacement", "replacing"]


def replacing(schema: Schema, *, properties: Mapping[str, str] | None = None) -> Producer:
    """The producer of a replacement without rows. It fits every state."""

    def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:
        return Replacement.of(metadata, schema, properties=properties).commit()(metadata, files, clock)

    return produce


@dataclass(frozen=True, slots=True)
class Replacement:
    """What a table is to become. `metadata` is what its new rows are written for."""

    metadata: TableMetadata
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]

    @classmethod
    def of(
        cls,
        base: TableMetadata,
        schema: Schema,
        *,
        spec: PartitionSpec | None = None,
        order: SortOrder | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Replacement:
        """The replacement of `base` by a table of this form; its old properties go, but for those given again."""
        from pyiceberg.table.update import AssertLastAssignedFieldId, AssertTableUUID

        updates = tuple(_updates(base, schema, spec, order, properties or {}))
        unchanged = (
            AssertTableUUID(uuid=base.table_uuid),
            AssertLastAssignedFieldId(last_assigned_field_id=base.last_column_id),
        )
        return cls(updated(base, unchanged, updates), unchanged, updates)

    def commit(self, added: Sequence[DataFile] = ()) -> Producer:
        """The producer of the change, with the first rows. Rows that others add meanwhile are replaced too."""

        def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:
            after = updated(metadata, self.requirements, self.updates)
            snapshot = NewSnapshot(after, files, clock=clock)
            try:
                snapshot.add(added)
                head = snapshot.finish("append", {})
            except BaseException:
                files.remove(snapshot.written)
                raise
            return Change(self.requirements, (*self.updates, *head), tuple(snapshot.written))

        return produce


def _updates(
    base: TableMetadata,
    schema: Schema,
    spec: PartitionSpec | None,
    order: SortOrder | None,
    properties: Mapping[str, str],
) -> Sequence[Any]:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import assign_fresh_schema_ids
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, assign_fresh_sort_order_ids
    from pyiceberg.table.update import (
        AddPartitionSpecUpdate,
        AddSchemaUpdate,
        AddSortOrderUpdate,
        RemovePropertiesUpdate,
        RemoveSnapshotRefUpdate,
        SetCurrentSchemaUpdate,
        SetDefaultSortOrderUpdate,
        SetDefaultSpecUpdate,
        SetPropertiesUpdate,
    )

    columns, parts = count(base.last_column_id + 1), count((base.last_partition_id or 999) + 1)
    fresh = assign_fresh_schema_ids(schema, columns.__next__)
    number = {each: fresh.find_field(schema.find_column_name(each) or each).field_id for each in schema.field_ids}
    fields = [
        PartitionField(number[each.source_id], next(parts), each.transform, each.name)
        for each in (spec.fields if spec else ())
    ]
    sorted_by = assign_fresh_sort_order_ids(order or UNSORTED_SORT_ORDER, schema, fresh)
    return [
        RemoveSnapshotRefUpdate(ref_name=MAIN),
        AddSchemaUpdate(schema=fresh),
        SetCurrentSchemaUpdate(schema_id=-1),
        AddPartitionSpecUpdate(spec=PartitionSpec(*fields)),
        SetDefaultSpecUpdate(spec_id=-1),
        AddSortOrderUpdate(sort_order=sorted_by),
        SetDefaultSortOrderUpdate(sort_order_id=-1),
        RemovePropertiesUpdate(removals=[key for key in base.properties if key not in properties]),
        SetPropertiesUpdate(updates=dict(properties)),
    ]
