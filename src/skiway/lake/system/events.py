"""The system table `events`: every committed change of the account that the caller may see, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from skiway.lake.system.scanning import MOMENT, SystemScan, arrow_table, moment_of
from skiway.metastore import events as metastore_events
from skiway.model import v1

__all__ = ["EVENTS", "events"]

EVENTS: Final = pa.schema(
    [
        pa.field("sequence", pa.int64()),
        pa.field("occurred_at", MOMENT),
        pa.field("kind", pa.string()),
        pa.field("action", pa.string()),
        pa.field("object_id", pa.string()),
        pa.field("name", pa.string()),
        pa.field("previous_name", pa.string()),
        pa.field("snapshot_id", pa.int64()),
        pa.field("detail", pa.string()),
        pa.field("caller", pa.string()),
        pa.field("change_id", pa.string()),
        pa.field("table_id", pa.string()),
        pa.field("job_id", pa.string()),
    ]
)


def events(scan: SystemScan) -> pa.Table:
    """One row per event, oldest first."""

    def rows() -> Iterator[tuple[Any, ...]]:
        cursor = -1
        response = v1.ListEventsResponse()
        while response.cursor != cursor:
            cursor = response.cursor
            response = metastore_events.list_(scan.realm, v1.ListEventsRequest(after=cursor, limit=1000))
            yield from map(_row, response.events)

    return arrow_table(EVENTS, rows())


def _row(event: v1.Event) -> tuple[Any, ...]:
    return (
        event.sequence,
        moment_of(event.occurred_at),
        event.kind,
        event.action,
        event.object_id,
        event.name or None,
        event.previous_name or None,
        event.snapshot_id if event.HasField("snapshot_id") else None,
        event.detail or None,
        event.caller or None,
        event.change_id,
        event.table_id or None,
        event.job_id or None,
    )
