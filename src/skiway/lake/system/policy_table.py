"""The system table `policies`: which rows and values callers do not see."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from skiway.lake.system.scanning import DAMAGE, MOMENT, SystemScan, arrow_table, enum_name, moment_of, unknown
from skiway.metastore import policies as metastore_policies
from skiway.model import v1

__all__ = ["POLICIES", "policies"]

POLICIES: Final = pa.schema(
    [
        pa.field("policy_name", pa.string()),
        pa.field("policy_id", pa.string()),
        pa.field("rule", pa.string()),
        pa.field("expression", pa.string()),
        pa.field("columns", pa.list_(pa.string())),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("subjects", pa.list_(pa.string())),
        pa.field("exceptions", pa.list_(pa.string())),
        pa.field("object_ids", pa.list_(pa.string())),
        pa.field("comment", pa.string()),
        pa.field("created_at", MOMENT),
        pa.field("updated_at", MOMENT),
        DAMAGE,
    ]
)


def policies(scan: SystemScan) -> pa.Table:
    """The account's policies by name, for callers who may manage them."""
    if not scan.context.callers.may("policy.manage"):
        return POLICIES.empty_table()
    return arrow_table(POLICIES, map(_row, metastore_policies.scan(scan.realm)))


def _row(policy: v1.Policy) -> tuple[Any, ...]:
    names = (policy.display_name, policy.resource_id.id)
    if policy.damage:
        return (*names, *unknown(POLICIES, 3), policy.damage)
    if policy.HasField("row_filter"):
        rule: tuple[Any, ...] = ("filter", policy.row_filter.predicate, None)
    else:
        mask = policy.mask
        rule = (f"mask {enum_name(v1.MaskKind, mask.kind, 'MK_')}", mask.expression or None, list(mask.columns))
    return (
        *names,
        *rule,
        list(policy.tags),
        list(policy.subjects),
        list(policy.exceptions),
        [each.id for each in policy.objects],
        policy.description or None,
        moment_of(policy.created_at),
        moment_of(policy.updated_at),
        None,
    )
