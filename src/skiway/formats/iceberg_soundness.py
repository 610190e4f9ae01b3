"""Metadata of Iceberg that can be parsed may still contradict itself; whoever reads it must not find out by and by."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["checked"]


def checked(metadata: TableMetadata) -> TableMetadata:
    """`metadata`, if all that it names is in it; ValueError if not."""
    known: dict[str, tuple[set[int], Iterable[int | None]]] = {
        "schema": ({each.schema_id for each in metadata.schemas}, _named_schemas(metadata)),
        "partition spec": ({each.spec_id for each in metadata.partition_specs}, [metadata.default_spec_id]),
        "sort order": ({each.order_id for each in metadata.sort_orders}, [metadata.default_sort_order_id]),
        "snapshot": ({each.snapshot_id for each in metadata.snapshots}, [metadata.current_snapshot_id]),
    }
    for what, (there, named) in known.items():
        missing = next((each for each in named if each is not None and each not in there), None)
        if missing is not None:
            raise ValueError(f"it names {what} {missing}, which it has not")
    for each in metadata.snapshots:
        _check_numbers(each)
    return metadata


def _check_numbers(snapshot: Snapshot) -> None:
    numbers = (snapshot.snapshot_id, snapshot.parent_snapshot_id or 0, snapshot.sequence_number or 0)
    if any(number.bit_length() > 63 for number in numbers):
        raise ValueError(f"its snapshot {snapshot.snapshot_id} has numbers beyond 64 bits")
    datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)


def _named_schemas(metadata: TableMetadata) -> list[int | None]:
    return [metadata.current_schema_id, *(each.schema_id for each in metadata.snapshots)]
