"""The system table `reports`: what Iceberg clients reported about their scans and commits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from skiway.lake.system.scanning import MOMENT, NAMED, SystemScan, arrow_table
from skiway.metastore.metrics_reports import reports_of

__all__ = ["REPORTS", "reports"]

REPORTS: Final = pa.schema(
    [
        *NAMED,
        pa.field("reported_at", MOMENT),
        pa.field("kind", pa.string()),
        pa.field("snapshot_id", pa.int64()),
        pa.field("operation", pa.string()),
        pa.field("columns", pa.list_(pa.string())),
        pa.field("metrics", pa.map_(pa.string(), pa.int64())),
        pa.field("filter", pa.string()),
        pa.field("caller", pa.string()),
    ]
)


def reports(scan: SystemScan) -> pa.Table:
    """The reports on tables that the caller may see.

    Filters contain values, so only who manages the table sees those of others. Metrics tell about files, so there are no reports for
    callers whom policies restrict on the table.
    """
    access, own = scan.realm.access, scan.realm.caller

    def rows() -> Iterator[tuple[Any, ...]]:
        for shown in scan.visible:
            if scan.context.callers.restriction(shown.table) is not None:
                continue
            shows_all = access is None or access.may("grant.manage", shown.table)
            for at, each in reports_of(scan.realm, shown.table.resource_id.id):
                is_shown = shows_all or each.caller == own
                private = (each.filter or None, each.caller) if is_shown else (None, None)
                facts = (at, each.kind, each.snapshot_id, each.operation or None, list(each.columns))
                yield (*shown.names, *facts, list(each.metrics.items()), *private)

    return arrow_table(REPORTS, rows())
