"""Quality rules as pages show them."""

from __future__ import annotations

from typing import Any, Final

from skiway.client.metastore import Rule
from skiway.web.visits import Visit

__all__ = ["failing_rules", "rule_data"]

MAX_FAILING: Final = 20


def rule_data(rule: Rule) -> dict[str, Any]:
    """A rule and its newest result."""
    result = rule.result
    return {
        "name": rule.name,
        "kind": rule.kind,
        "severity": rule.severity,
        "description": rule.description or rule.damage,
        "status": "unknown" if result is None else result.status,
        "method": "" if result is None else result.method,
        "observed": "" if result is None else result.observed,
        "message": "" if result is None else result.message,
        "checked_at": None if result is None else result.checked_at,
    }


def failing_rules(visit: Visit) -> list[dict[str, Any]]:
    """The first rules that failed, with the paths of their tables."""
    failed = [
        each for each in visit.lake.rules(page_size=1000) if each.result is not None and each.result.status == "failed"
    ]
    known = visit.lake.search.with_ids(str(each.table_id) for each in failed[:MAX_FAILING])
    return [
        {**rule_data(each), "path": list(known[str(each.table_id)].path)}
        for each in failed[:MAX_FAILING]
        if str(each.table_id) in known
    ]
