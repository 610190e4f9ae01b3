"""A table with quality rules whose statistics tests choose."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from metastore.resource_factory import ResourceFactory
from skiway.metastore import Realm, quality, statistics
from skiway.metastore.records.policies import CallerPolicies, Subject
from skiway.model import v1

TYPES: Mapping[str, Any] = {
    "id": "long",
    "email": "string",
    "amount": "double",
    "day": "date",
    "price": "decimal(9,2)",
    "tags": {"type": "list", "element-id": 7, "element": "string", "element-required": False},
}
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"id": number, "name": name, "type": kind, "required": False}
            for number, (name, kind) in enumerate(TYPES.items(), 1)
        ],
    }
)
EXACT = {f"quality.{each}": "exact" for each in ("value_count", "null_count", "min", "max", "ndv")}
BOUND = dict.fromkeys(EXACT, "bound")
VERSION = {statistics.PROFILE_VERSION: str(statistics.CURRENT_VERSION)}


class ProfiledTable:
    """`lake.sales.orders`, in the realm of account `a1`."""

    def __init__(self, factory: ResourceFactory) -> None:
        self.factory, self.realm = factory, factory.home
        self.table = factory.table("orders", schema_json=SCHEMA)

    def snapshot(self, number: int, **spec: Any) -> int:
        """Make a snapshot the current one; it was made at the time of the clock."""
        at = int(self.factory.clock.now.timestamp())
        self.factory.snapshot(self.table, number, at=at, **{"schema_json": SCHEMA, **spec})
        return number

    def rows(self, number: int, rows: int, *, snapshot_id: int = 1, **properties: str) -> None:
        """Store the number of rows; a profile of all files belongs to them."""
        given = {"files.profiled": "1", "quality.row_count": "exact", **VERSION, **properties}
        stats = v1.TableStats(row_count=rows, data_file_count=1, properties=given)
        request = v1.PutTableStatsRequest(table_id=self.table.resource_id, snapshot_id=snapshot_id, stats=stats)
        assert number == snapshot_id
        statistics.put_table(self.realm, request)

    def profile(self, *, rows: int, snapshot_id: int = 1, **columns: v1.ColumnStats) -> None:
        """Store the profile of a snapshot."""
        self.rows(snapshot_id, rows, snapshot_id=snapshot_id)
        numbers = {name: number for number, name in enumerate(TYPES, 1)}
        for name, stats in columns.items():
            stats.column_id, stats.column_name = numbers[name], name
            stats.logical_type = stats.logical_type or {"id": "INT", "email": "STRING", "amount": "DOUBLE"}.get(
                name, ""
            )
        request = v1.PutColumnStatsRequest(
            table_id=self.table.resource_id, snapshot_id=snapshot_id, columns=columns.values()
        )
        statistics.put_columns(self.realm, [request])

    def rule(
        self, name: str = "r", *, severity: v1.RuleSeverity.ValueType = v1.RSV_ERROR, **check: Any
    ) -> v1.QualityRule:
        """Create a rule of one kind; `estimates_only` is an option of the rule."""
        more = {key: check.pop(key) for key in ("estimates_only", "description") if key in check}
        spec = v1.QualityRuleSpec(
            display_name=name,
            table_id=self.table.resource_id,
            severity=severity,
            check=v1.RuleCheck(**check),
            **more,
        )
        return quality.CALLS.create(self.realm, v1.CreateRuleRequest(spec=spec)).rule

    def check(self, *, realm: Realm | None = None, **request: Any) -> dict[str, v1.RuleResult]:
        """Check the rules now; the results by rule."""
        wanted = v1.CheckRulesRequest(table_id=self.table.resource_id, **request)
        found = quality.check(realm or self.realm, wanted)
        return {each.rule.display_name: each.result for each in found.rules}

    def restricted(self, name: str = "ada") -> Realm:
        """The realm of a caller who may do everything but for policies."""
        own = CallerPolicies(lambda: self.factory.stores, "a1", Subject(name))
        return replace(self.realm, policies=own)


def column(values: int, *, nulls: int = 0, properties: Mapping[str, str] = EXACT, **stats: Any) -> v1.ColumnStats:
    """Statistics of a column with so many values, NULLs included."""
    whole = {"rows.profiled": str(values), "rows.total": str(values), **VERSION}
    return v1.ColumnStats(value_count=values, null_count=nulls, properties={**whole, **properties}, **stats)


def about(estimate: float, error: float) -> v1.Ndv:
    """An estimate of a distinct count, with its error to each side at two standard deviations."""
    low, high = estimate - error, estimate + error
    return v1.Ndv(approx=v1.NdvApprox(estimate=estimate, confidence_lower=low, confidence_upper=high))
