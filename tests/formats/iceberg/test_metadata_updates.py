"""Updates of table metadata give what PyIceberg's own function gives, without copying all of it, and leave the base as it is."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    SetStatisticsUpdate,
    UpgradeFormatVersionUpdate,
    update_table_metadata,
)
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from skiway.formats.iceberg.metadata import updated, with_assigned_ids

SCHEMA = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "name", StringType(), required=False))
WIDER = Schema(*SCHEMA.fields, NestedField(3, "more", LongType(), required=False), schema_id=1)
PAST_MS = 1_600_000_000_000
UNPARTITIONED, UNSORTED = PartitionSpec(spec_id=0), SortOrder(order_id=0)


def snapshot(number: int, parent: int | None = None) -> AddSnapshotUpdate:
    return AddSnapshotUpdate(
        snapshot=Snapshot(
            snapshot_id=number,
            parent_snapshot_id=parent,
            sequence_number=number,
            timestamp_ms=PAST_MS + number,
            manifest_list=f"file:///t/metadata/{number}.avro",
            summary=Summary(Operation.APPEND),
            schema_id=0,
        )
    )


def head(number: int, name: str = "main", kind: SnapshotRefType = SnapshotRefType.BRANCH) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate(ref_name=name, type=kind, snapshot_id=number)


def statistics(number: int) -> SetStatisticsUpdate:
    file = StatisticsFile(
        snapshot_id=number,
        statistics_path=f"file:///t/metadata/{number}.puffin",
        file_size_in_bytes=10,
        file_footer_size_in_bytes=5,
        blob_metadata=[],
    )
    return SetStatisticsUpdate(statistics=file)


@pytest.fixture
def base() -> TableMetadata:
    """A table with a history."""
    made = new_table_metadata(SCHEMA, UNPARTITIONED, UNSORTED, "file:///t", {"format-version": "2", "a": "1"})
    history = (snapshot(1), head(1), snapshot(2, 1), head(2), head(1, "old", SnapshotRefType.TAG), statistics(1))
    made = update_table_metadata(made, history)
    for number in range(5):
        made = update_table_metadata(
            made,
            (SetPropertiesUpdate(updates={"n": str(number)}),),
            metadata_location=f"file:///t/metadata/{number}.json",
        )
    log = [each.model_copy(update={"timestamp_ms": PAST_MS + 2}) for each in made.metadata_log]
    return made.model_copy(update={"last_updated_ms": PAST_MS + 2, "metadata_log": log})


CASES: dict[str, list[Any]] = {
    "append": [snapshot(3, 2), head(3)],
    "rollback": [head(1)],
    "tag": [head(2, "v1", SnapshotRefType.TAG)],
    "removed tag": [RemoveSnapshotRefUpdate(ref_name="old")],
    "expired snapshot": [RemoveSnapshotsUpdate(snapshot_ids=[1])],
    "new column": [AddSchemaUpdate(schema=WIDER), SetCurrentSchemaUpdate(schema_id=-1)],
    "partitioning": [
        AddPartitionSpecUpdate(spec=PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "part"), spec_id=1)),
        SetDefaultSpecUpdate(spec_id=-1),
    ],
    "sorting": [
        AddSortOrderUpdate(sort_order=SortOrder(SortField(1, IdentityTransform()), order_id=1)),
        SetDefaultSortOrderUpdate(sort_order_id=-1),
    ],
    "properties": [SetPropertiesUpdate(updates={"a": "2", "b": "3"}), RemovePropertiesUpdate(removals=["n"])],
    "statistics": [statistics(2), RemoveStatisticsUpdate(snapshot_id=1)],
    "short log": [SetPropertiesUpdate(updates={"write.metadata.previous-versions-max": "2"})],
    "same version": [UpgradeFormatVersionUpdate(format_version=2)],
    "nothing": [],
}


def dumped(metadata: TableMetadata) -> dict[str, Any]:
    """All of the metadata, with the time of the update, if it has one, as "now"."""
    found: dict[str, Any] = metadata.model_dump()
    for place, name in ((found, "last-updated-ms"), (found["snapshot-log"][-1], "timestamp-ms")):
        if abs(place[name] / 1000 - time.time()) < 60:
            place[name] = "now"
    return found


@pytest.mark.parametrize("updates", CASES.values(), ids=CASES)
def test_updates_are_those_of_pyiceberg_and_leave_the_base_unchanged(base: TableMetadata, updates: list[Any]) -> None:
    before = base.model_dump_json()
    location = "file:///t/metadata/5.json"
    expected = update_table_metadata(base, with_assigned_ids(base, updates), metadata_location=location)
    made = updated(base, (), updates, location=location)
    assert dumped(made) == dumped(expected)
    assert base.model_dump_json() == before


def test_specs_and_orders_that_do_not_fit_the_schema_are_rejected(base: TableMetadata) -> None:
    sorted_by_id = updated(base, (), CASES["sorting"])
    without_id = Schema(NestedField(2, "name", StringType(), required=False), schema_id=1)
    with pytest.raises(Exception, match="source column"):
        updated(sorted_by_id, (), [AddSchemaUpdate(schema=without_id), SetCurrentSchemaUpdate(schema_id=-1)])
