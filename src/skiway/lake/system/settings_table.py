"""The system table `settings`: the effective settings of the server, without secrets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from skiway.config import shown
from skiway.config.settings import known
from skiway.lake.system.scanning import SystemScan, arrow_table
from skiway.security.principals import OBSERVES_PLATFORM

__all__ = ["SETTINGS", "settings"]

SETTINGS: Final = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("value", pa.string()),
        pa.field("default", pa.string()),
        pa.field("description", pa.string()),
    ]
)

_OF_CALLERS: Final = ("quotas", "query", "sql", "idempotency", "events")
"""The sections that limit what callers do. The others describe the machines, addresses and folders of the operator."""


def settings(scan: SystemScan) -> pa.Table:
    """All settings for operators, the limits of callers for administrators of accounts, and nothing for all others."""
    callers = scan.context.callers
    sees_all = OBSERVES_PLATFORM in callers.principal.permissions
    if not (sees_all or scan.realm.administers):
        return SETTINGS.empty_table()

    def rows() -> Iterator[tuple[Any, ...]]:
        for key, value in shown(scan.context.settings).items():
            setting = known()[key]
            if not setting.kind.secret and (sees_all or key.partition(".")[0] in _OF_CALLERS):
                yield key, value or None, setting.default or None, setting.description

    return arrow_table(SETTINGS, rows())
