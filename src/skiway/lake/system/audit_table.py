"""The system table `audit`: the newest records of the audit log of this server that concern the account."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from skiway.lake.system.scanning import SystemScan, arrow_table
from skiway.telemetry.audit import CATEGORIES

__all__ = ["AUDIT", "audit"]

AUDIT: Final = pa.schema(
    [
        pa.field("time", pa.timestamp("us", "UTC")),
        pa.field("category", pa.string()),
        pa.field("operation", pa.string()),
        pa.field("caller", pa.string()),
        pa.field("outcome", pa.string()),
        pa.field("duration_ms", pa.float64()),
        pa.field("correlation_id", pa.string()),
        pa.field("details", pa.string()),
    ]
)
TAIL_BYTES: Final = 1 << 20
"""How much of each file is read."""
MAX_RECORDS: Final = 5000
COLUMNS: Final = frozenset(("time", "operation", "subject", "account_id", "outcome", "duration_ms", "correlation_id"))


def audit(scan: SystemScan) -> pa.Table:
    """The records of the account for its administrators, newest first, and nothing for all others."""
    settings = scan.context.settings.audit
    if not scan.realm.administers or not settings.enabled or settings.directory is None:
        return AUDIT.empty_table()
    found = [
        (record["time"], category, record)
        for category in CATEGORIES
        for record in _records(settings.directory / f"{category}.log")
        if record.get("account_id") == scan.realm.account_id
    ]
    found.sort(key=lambda each: each[0], reverse=True)
    return arrow_table(AUDIT, (_row(category, record) for _, category, record in found[:MAX_RECORDS]))


def _records(file: Path) -> Iterator[dict[str, Any]]:
    """The records at the end of a file. Lines that are cut off or damaged are left out."""
    try:
        with file.open("rb") as lines:
            size = lines.seek(0, os.SEEK_END)
            lines.seek(max(0, size - TAIL_BYTES))
            if size > TAIL_BYTES:
                lines.readline()
            text = lines.read()
    except FileNotFoundError:
        return
    for line in text.splitlines():
        with suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and isinstance(record.get("time"), str):
                yield record


def _row(category: str, record: dict[str, Any]) -> tuple[Any, ...]:
    details = {name: value for name, value in record.items() if name not in COLUMNS and value not in ({}, "")}
    return (
        datetime.fromisoformat(record["time"]),
        category,
        record.get("operation"),
        record.get("subject"),
        record.get("outcome"),
        record.get("duration_ms"),
        record.get("correlation_id"),
        json.dumps(details, ensure_ascii=False),
    )
