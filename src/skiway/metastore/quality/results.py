"""The results of rules: the newest of each, with a history of limited length.

The last status that is known, passed or failed, is part of a key. So the journal sees when it changes, and adds the events
`failed` and `recovered`.
"""

from __future__ import annotations

from typing import Final

from skiway.errors import AlreadyExists, Contention, NotFound, PreconditionFailed
from skiway.metastore.quality.rules import require
from skiway.metastore.quality.verdicts import Verdict
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import RULE_RESULTS
from skiway.metastore.records.realm import Realm, local_id
from skiway.metastore.records.repository import Stored
from skiway.metastore.records.updates import copied, retrying
from skiway.model import v1
from skiway.storage import Check

__all__ = ["HISTORY", "list_", "store"]

HISTORY: Final = 50
"""How many results of a rule are stored."""


def list_(realm: Realm, request: v1.ListRuleResultsRequest) -> v1.ListRuleResultsResponse:
    """Return the stored results of a rule, newest first."""
    rule_id = local_id(realm, request.rule_id, v1.RK_RULE, field="rule_id")
    rule = require(realm, rule_id).value
    found = realm.all(RULE_RESULTS).find(keys.rule_results(realm.account_id, rule.resource_id.id))
    return v1.ListRuleResultsResponse(results=found.value.results if found else ())


def store(
    realm: Realm, rule: Stored[v1.QualityRule], verdict: Verdict, *, snapshot_id: int | None, job_id: str = ""
) -> v1.RuleResult | None:
    """Store a result. It replaces one of the same rule for the same snapshot. None if the rule was changed or deleted meanwhile."""
    result = v1.RuleResult(
        status=v1.RST_UNKNOWN if verdict.status is None else verdict.status,
        method=verdict.method,
        snapshot_id=snapshot_id,
        checked_at=realm.now(),
        observed=verdict.observed,
        message=verdict.message,
        check=rule.value.check,
        job_id=job_id,
    )

    def attempt() -> v1.RuleResult | None:
        now = realm.stores.pointers.get(rule.pointer.key)
        if now != rule.pointer:
            return None
        repository = realm.all(RULE_RESULTS)
        current = repository.find(keys.rule_results(realm.account_id, rule.value.resource_id.id))
        after = _with(rule.value, None if current is None else current.value, result)
        after.updated_at.CopyFrom(result.checked_at)
        # The rule is unchanged: its version orders the events, and a deleted rule gets no results.
        unchanged = Check(rule.pointer.key, expect=rule.pointer.version)
        try:
            if current is None:
                repository.create(after, also=lambda _: [unchanged])
            else:
                repository.update(current, after, also=lambda _: [unchanged])
        except (AlreadyExists, NotFound, PreconditionFailed):
            raise failure(
                Contention, "store.contended", what=f"the results of rule {rule.value.display_name}"
            ) from None
        return result

    return retrying(attempt)


def _with(rule: v1.QualityRule, before: v1.RuleResults | None, result: v1.RuleResult) -> v1.RuleResults:
    made = v1.RuleResults(rule_id=rule.resource_id, table_id=rule.table_id)
    earlier = list(before.results) if before is not None else []
    if earlier and _is_same_state(earlier[0], result):
        del earlier[0]
    made.rule_name = rule.display_name
    made.results.extend([result, *map(copied, earlier[: HISTORY - 1])])
    made.last_decided = before.last_decided if before is not None else v1.RST_UNSPECIFIED
    if result.status != v1.RST_UNKNOWN:
        made.last_decided = result.status
    return made


def _is_same_state(one: v1.RuleResult, other: v1.RuleResult) -> bool:
    has_same = one.HasField("snapshot_id") == other.HasField("snapshot_id") and one.snapshot_id == other.snapshot_id
    return has_same and one.check == other.check
