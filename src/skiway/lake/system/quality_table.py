"""The system table `quality`: quality rules of tables, with their newest results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from google.protobuf.json_format import MessageToDict

from skiway.lake.system.scanning import DAMAGE, MOMENT, NAMED, SystemScan, arrow_table, enum_name, moment_of, unknown
from skiway.metastore import quality as metastore_quality
from skiway.model import v1

__all__ = ["QUALITY", "quality"]

QUALITY: Final = pa.schema(
    [
        *NAMED,
        pa.field("rule_name", pa.string()),
        pa.field("rule_id", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("expected", pa.string()),
        pa.field("severity", pa.string()),
        pa.field("status", pa.string()),
        pa.field("method", pa.string()),
        pa.field("observed", pa.string()),
        pa.field("message", pa.string()),
        pa.field("snapshot_id", pa.int64()),
        pa.field("checked_at", MOMENT),
        pa.field("job_id", pa.string()),
        pa.field("comment", pa.string()),
        DAMAGE,
    ]
)


def quality(scan: SystemScan) -> pa.Table:
    """The rules of the tables that the caller may see, as far as policies show them."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for shown in scan.visible:
            for found in metastore_quality.scan(scan.realm, shown.table.resource_id.id):
                yield (*shown.names, *_described(found))

    return arrow_table(QUALITY, rows())


def _described(found: v1.CheckedRule) -> tuple[Any, ...]:
    rule = found.rule
    names = (rule.display_name, rule.resource_id.id)
    if rule.damage:
        return (*names, *unknown(QUALITY, 5), rule.damage)
    kind = rule.check.WhichOneof("check") or ""
    expected = MessageToDict(getattr(rule.check, kind), preserving_proto_field_name=True)
    severity = enum_name(v1.RuleSeverity, rule.severity, "RSV_")
    return (*names, kind, json.dumps(expected), severity, *_result(found), rule.description or None, None)


def _result(found: v1.CheckedRule) -> tuple[Any, ...]:
    """What the newest check found; NULL if there was none."""
    if not found.HasField("result"):
        return (None,) * 7
    result = found.result
    return (
        enum_name(v1.RuleStatus, result.status, "RST_"),
        enum_name(v1.RuleMethod, result.method, "RMT_") if result.method else None,
        result.observed or None,
        result.message or None,
        result.snapshot_id if result.HasField("snapshot_id") else None,
        moment_of(result.checked_at),
        result.job_id or None,
    )
