"""The rules that must pass on a branch before it is merged into a protected catalog, and who may merge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from skiway.errors import PermissionDenied, PreconditionFailed
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.managed.states import open_current
from skiway.metastore.quality.facts import NO_PROFILE, known_facts
from skiway.metastore.quality.rows import TOO_MANY, measured
from skiway.metastore.quality.verdicts import Verdict, judged
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import NAMESPACE, RULE, TABLE
from skiway.metastore.records.names import dotted
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1

ALL_RULES = "*"
"""Stands for all rules with the severity error of tables that the branch has."""
SHOWN = 5


Wanted = tuple[str, bool]
"""The name of a rule, and whether the catalog requires it. Else the caller does, who names only rules that it sees."""


def require_merger(realm: Realm, catalog: v1.Catalog, name: str) -> None:
    """Raise unless the caller is one of those who may merge into a protected catalog."""
    if not (catalog.protected and catalog.mergers) or realm.policies is None:
        return
    if realm.policies.subject.names.isdisjoint(catalog.mergers):
        raise failure(PermissionDenied, "branch.not_merger", name=name, mergers=", ".join(catalog.mergers))


def checked(
    names: Iterable[Wanted],
    main: Realm,
    branch: Realm,
    warehouse: Warehouse,
    *,
    after_each: Callable[[], object] = bool,
) -> list[v1.BranchCheck]:
    """The results of rules on the branch. `after_each` is called after each rule, because that may take long."""
    found = list[v1.BranchCheck]()
    for rule in _named(names, main, branch.as_server(), found):
        found.append(_result(rule, branch.as_server(), warehouse))
        after_each()
    return found


def required_by(catalog: v1.Catalog, request: v1.MergeBranchRequest) -> list[Wanted]:
    """The rules that a merge requires."""
    own = [(name, True) for name in catalog.required_rules] if catalog.protected else []
    return [*own, *((name, False) for name in request.required_rules if name)]


def require_passed(realm: Realm, name: str, checks: Sequence[v1.BranchCheck]) -> None:
    """Raise `PreconditionFailed` unless all required rules have passed."""
    failed = [each for each in visible(realm, checks) if each.status != "passed"]
    hidden = sum(each.status != "passed" for each in checks) - len(failed)
    if failed or hidden:
        texts = [f"{each.rule} ({', '.join(filter(None, (each.table, _why(each))))})" for each in failed[:SHOWN]]
        more = len(failed) - len(texts[:SHOWN]) + hidden
        texts += [f"{more} {'more' if texts else 'that you may not see'}"] if more else []
        raise failure(PreconditionFailed, "branch.rules", name=name, failed="; ".join(texts))


def visible(realm: Realm, checks: Sequence[v1.BranchCheck]) -> list[v1.BranchCheck]:
    """The results that the caller may see: those of rules that it may see, and of those without a table, which tell nothing."""
    if realm.access is None and (realm.policies is None or not realm.policies.restrict_anything):
        return list(checks)
    rules = realm.all(RULE)
    return [
        each for each in checks if not each.table or rules.at(keys.rule_name(realm.account_id, each.rule)) is not None
    ]


def _why(check: v1.BranchCheck) -> str:
    return ", ".join(filter(None, (check.observed, check.message)))


def _named(
    names: Iterable[Wanted], main: Realm, branch: Realm, missing: list[v1.BranchCheck]
) -> Iterator[v1.QualityRule]:
    """The rules with these names. Those that do not exist are added to `missing`."""
    seen = set[str]()
    for name, is_of_catalog in names:
        rules = (main.as_server() if is_of_catalog else main).all(RULE)
        if name == ALL_RULES:
            named = [each.value for each in rules.entries(keys.rule_name(main.account_id))]
            named = [each for each in named if each.severity != v1.RSV_WARNING and _table(branch, each) is not None]
        else:
            one = rules.at(keys.rule_name(main.account_id, name))
            named = [] if one is None else [one.value]
            if one is None:
                missing.append(v1.BranchCheck(rule=name, status="unknown", message="there is no such rule"))
        for rule in named:
            if rule.resource_id.id not in seen:
                seen.add(rule.resource_id.id)
                yield rule


def _table(branch: Realm, rule: v1.QualityRule) -> v1.Table | None:
    found = branch.all(TABLE).at(keys.table(branch.account_id, rule.table_id.id))
    return None if found is None else found.value


def _result(rule: v1.QualityRule, branch: Realm, warehouse: Warehouse) -> v1.BranchCheck:
    table = _table(branch, rule)
    if table is None:
        return v1.BranchCheck(rule=rule.display_name, status="unknown", message="its table is not on the branch")
    if rule.damage:
        return v1.BranchCheck(rule=rule.display_name, status="unknown", message=f"the rule is damaged: {rule.damage}")
    space = branch.by_id(NAMESPACE, table.namespace_id.id).value
    verdict = _verdict(rule, table, branch, warehouse)
    status = v1.RST_UNKNOWN if verdict.status is None else verdict.status
    return v1.BranchCheck(
        rule=rule.display_name,
        table=dotted((*full_path(space), table.display_name)),
        status=v1.RuleStatus.Name(status).removeprefix("RST_").lower(),
        observed=verdict.observed,
        message=verdict.message,
    )


def _verdict(rule: v1.QualityRule, table: v1.Table, branch: Realm, warehouse: Warehouse) -> Verdict:
    """Decide a rule from what is known about the table on the branch or, if that does not suffice, from its rows."""
    facts, snapshot_id = known_facts(branch, table)
    verdict = judged(rule.check, facts)
    if snapshot_id is None or not (verdict.status is None or verdict.message == NO_PROFILE):
        return verdict
    handle = open_current(branch, warehouse, table)
    current = handle.current()
    assert current is not None, "it has a snapshot"
    read = measured(handle, current, table, [rule.check])
    exact = replace(
        facts, rows=read.rows, columns=read.columns, keys=read.keys, method=read.method, unmeasured=read.unmeasured
    )
    verdict = judged(rule.check, exact)
    return verdict if verdict.status is not None else replace(verdict, message=TOO_MANY)
