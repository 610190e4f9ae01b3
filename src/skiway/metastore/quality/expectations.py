"""Expectations of derived tables, as quality rules: their results are what the pipeline found before it published rows.

The summary of a snapshot has the verdicts on its rows. Rules of the kind `expectation` show them wherever rules are shown. Only runs of
pipelines create and delete them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skiway.metastore.quality import rules
from skiway.metastore.quality.checks import store_result
from skiway.metastore.quality.verdicts import Verdicts, expectation_verdict
from skiway.metastore.records.kinds import RULE
from skiway.metastore.records.realm import Realm, resource_id
from skiway.metastore.records.updates import inside
from skiway.metastore.resources import hierarchy
from skiway.model import v1


@dataclass(frozen=True, slots=True)
class ExpectationRule:
    """A rule as it is stored."""

    name: str
    check: v1.ExpectationCheck


def record(
    realm: Realm,
    table_id: v1.ResourceId,
    declared: Sequence[ExpectationRule],
    found: Verdicts,
    *,
    snapshot_id: int | None,
) -> None:
    """Store the rules that a pipeline declares for a table, and their results. Without a snapshot, the rows were not published."""
    known = {
        each.value.check.expectation.name: each for each in rules.of_table(realm, table_id.id) if _is_one(each.value)
    }
    repository = realm.all(RULE)
    for name in known.keys() - {each.check.name for each in declared}:
        gone = known[name]
        results = tuple(rules.without_results(realm, gone.value.resource_id.id))
        repository.delete(gone.pointer, gone.value, also=results)
    table = hierarchy.table(realm, table_id)
    for each in declared:
        stored = known.get(each.check.name)
        if stored is None:
            now = realm.now()
            severity = v1.RSV_ERROR if each.check.on_failure == "fail" else v1.RSV_WARNING
            made = v1.QualityRule(
                resource_id=resource_id(realm, realm.ids(), v1.RK_RULE),
                display_name=each.name,
                table_id=table_id,
                severity=severity,
                check=v1.RuleCheck(expectation=each.check),
                created_at=now,
                updated_at=now,
            )
            stored = repository.create(made, also=lambda _: inside(table.pointer))
        elif stored.value.check.expectation != each.check:
            changed = v1.QualityRule()
            changed.CopyFrom(stored.value)
            changed.check.expectation.CopyFrom(each.check)
            changed.severity = v1.RSV_ERROR if each.check.on_failure == "fail" else v1.RSV_WARNING
            stored = repository.update(stored, changed)
        if each.check.name in found:
            verdict = expectation_verdict(each.check, found[each.check.name], is_published=snapshot_id is not None)
            store_result(realm, stored, verdict, snapshot_id=snapshot_id)


def _is_one(rule: v1.QualityRule) -> bool:
    return rule.check.WhichOneof("check") == "expectation"
