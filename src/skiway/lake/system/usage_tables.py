"""The system tables `usage` and `lineage`: who reads and writes tables, and from which others they are written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import date
from typing import Any, Final

import pyarrow as pa

from skiway.lake.system.scanning import NAMED, SystemScan, arrow_table, place_of
from skiway.metastore.pipelines.column_lineage import columns_by_source
from skiway.metastore.usage import usage_of

__all__ = ["LINEAGE", "USAGE", "lineage", "usage"]

USAGE: Final = pa.schema(
    [
        *NAMED,
        pa.field("day", pa.date32()),
        pa.field("reads", pa.int64()),
        pa.field("writes", pa.int64()),
        pa.field("bytes_read", pa.int64()),
        pa.field("columns", pa.map_(pa.string(), pa.int64())),
        pa.field("callers", pa.map_(pa.string(), pa.int64())),
    ]
)


def usage(scan: SystemScan) -> pa.Table:
    """How often each table was used on each day. Only administrators see by whom.

    The bytes tell about the files, so they are not shown to callers whom policies restrict on the table.
    """
    scan.context.usage.flush()
    shows_callers = scan.context.callers.may("grant.manage")

    def rows() -> Iterator[tuple[Any, ...]]:
        for shown in scan.visible:
            is_restricted = scan.context.callers.restriction(shown.table) is not None
            for day, used in usage_of(scan.realm, shown.table.resource_id.id):
                callers = used.callers.most_common() if shows_callers else None
                size = None if is_restricted else used.bytes_read
                yield (*shown.names, day, used.reads, used.writes, size, used.columns.most_common(), callers)

    return arrow_table(USAGE, rows())


LINEAGE: Final = pa.schema(
    [
        *NAMED,
        pa.field("source_catalog", pa.string()),
        pa.field("source_schema", pa.string()),
        pa.field("source_table", pa.string()),
        pa.field("writes", pa.int64()),
        pa.field("first_day", pa.date32()),
        pa.field("last_day", pa.date32()),
        pa.field("columns", pa.map_(pa.string(), pa.list_(pa.string()))),
    ]
)


def lineage(scan: SystemScan) -> pa.Table:
    """From which tables each table was written: those that were read in the same transaction, and still exist.

    Of tables that a pipeline derives, `columns` has the columns of the source by the columns that are computed from them.
    """
    scan.context.usage.flush()

    def rows() -> Iterator[tuple[Any, ...]]:
        for shown in scan.visible:
            counts: Counter[str] = Counter()
            days: dict[str, list[date]] = {}
            for day, used in usage_of(scan.realm, shown.table.resource_id.id):
                counts.update(used.sources)
                for source in used.sources:
                    days.setdefault(source, []).append(day)
            columns = columns_by_source(scan.realm, shown.table)
            for source in dict.fromkeys([*(source for source, _ in counts.most_common()), *columns]):
                place = place_of(scan, source)
                if place is not None:
                    first, last = (min(days[source]), max(days[source])) if source in days else (None, None)
                    yield (*shown.names, *place, counts[source], first, last, columns.get(source))

    return arrow_table(LINEAGE, rows())
