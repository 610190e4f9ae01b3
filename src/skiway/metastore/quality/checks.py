"""Checks of rules, and their results.

A check decides from what is known at once, and from the rows in a job where that is not enough. The newest results of each rule
are kept. Rules
that need no profile are checked repeatedly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from skiway.errors import NotFound, SkiwayError
from skiway.metastore import jobs
from skiway.metastore.platform import visit_accounts
from skiway.metastore.quality import rules
from skiway.metastore.quality.facts import NO_PROFILE, known_facts
from skiway.metastore.quality.rules import require
from skiway.metastore.quality.verdicts import TableFacts, Verdict, judged
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure, invalid_field
from skiway.metastore.records.kinds import RULE, RULE_RESULTS
from skiway.metastore.records.realm import Realm, local_id
from skiway.metastore.records.repository import Stored
from skiway.metastore.records.updates import copied, retrying
from skiway.metastore.resources import hierarchy, snapshots
from skiway.model import v1
from skiway.storage import Check, Pointer, Stores

HISTORY: Final = 50
"""How many results of a rule are stored."""


def list_results(realm: Realm, request: v1.ListRuleResultsRequest) -> v1.ListRuleResultsResponse:
    """Return the stored results of a rule, newest first."""
    rule_id = local_id(realm, request.rule_id, v1.RK_RULE, field="rule_id")
    rule = require(realm, rule_id).value
    results = realm.all(RULE_RESULTS).find(keys.rule_results(realm.account_id, rule.resource_id.id))
    return v1.ListRuleResultsResponse(results=results.value.results if results else ())


def store_result(
    realm: Realm, rule: Stored[v1.QualityRule], verdict: Verdict, *, snapshot_id: int | None, job_id: str = ""
) -> v1.RuleResult | None:
    """Store a result. It replaces an earlier result for the same snapshot. Return None if the rule was changed or deleted."""
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
        after = _with_result(rule.value, None if current is None else current.value, result)
        after.updated_at.CopyFrom(result.checked_at)
        # The rule is unchanged: its version orders the events, and a deleted rule gets no results.
        unchanged = Check(rule.pointer.key, expect=rule.pointer.version)
        what = f"the results of rule {rule.value.display_name}"
        repository.save(current, after, what=what, also=lambda _: [unchanged])
        return result

    return retrying(attempt)


def _with_result(rule: v1.QualityRule, before: v1.RuleResults | None, result: v1.RuleResult) -> v1.RuleResults:
    made = v1.RuleResults(rule_id=rule.resource_id, table_id=rule.table_id)
    earlier = list(before.results) if before is not None else []
    if earlier and earlier[0].check == result.check and _snapshot_of(earlier[0]) == _snapshot_of(result):
        del earlier[0]
    made.rule_name = rule.display_name
    made.results.extend([result, *map(copied, earlier[: HISTORY - 1])])
    made.last_decided = before.last_decided if before is not None else v1.RST_UNSPECIFIED
    if result.status != v1.RST_UNKNOWN:
        made.last_decided = result.status
    return made


def _snapshot_of(result: v1.RuleResult | None) -> int | None:
    return None if result is None or not result.HasField("snapshot_id") else result.snapshot_id


class Measure(Protocol):
    """Reads the rows of a table's snapshot, and returns exact facts for these rules."""

    def __call__(self, table: v1.Table, checks: Sequence[v1.RuleCheck], *, snapshot_id: int) -> TableFacts: ...


REPEATS: Final = 3
"""How many snapshots a job reads that appear while it runs."""

TOO_CLOSE: Final = "the statistics cannot decide"
NOT_READ: Final = "the rows of this column cannot be read: see the message of the job"
STILL_OPEN: Final = (
    "the number of rows in the previous snapshot is not known exactly, so the rows do not decide it either"
)

log = logging.getLogger("skiway.quality")


def check(realm: Realm, request: v1.CheckRulesRequest) -> v1.CheckRulesResponse:
    """Check the rules of a table now, and start a job for those that statistics do not decide."""
    table = hierarchy.table(realm, request.table_id).value
    realm.require("table.write", table)
    chosen = rules.of_table(realm, table.resource_id.id)
    wanted = {local_id(realm, rule_id, v1.RK_RULE, field="rule_ids") for rule_id in request.rule_ids}
    unknown = wanted - {each.value.resource_id.id for each in chosen}
    if unknown:
        found, wanted_text = min(unknown), f"table {table.display_name} has no such rule"
        raise invalid_field("rule_ids", found, wanted_text)
    if wanted:
        chosen = [each for each in chosen if each.value.resource_id.id in wanted]
    return _checked(realm, table, chosen, estimates_only=request.estimates_only, profiles=True)


def get_check(realm: Realm, request: v1.GetCheckRequest) -> v1.GetCheckResponse:
    """The job, if it checks rules of this table. Callers who are restricted by policies do not get it."""
    table = hierarchy.table(realm, request.table_id).value
    realm.require_unrestricted(table)
    found = jobs.get(realm, v1.GetReconcileJobRequest(job_id=request.job_id)).job
    checks = found.HasField("quality") or not (found.HasField("maintenance") or found.connector_id.id)
    if not checks or found.table_id.id != table.resource_id.id:
        raise failure(NotFound, "job", resource="job", id=request.job_id)
    return v1.GetCheckResponse(job=found)


def after_profile(realm: Realm, table_id: v1.ResourceId) -> None:
    """Check the rules of a table whose profile was stored. A failure does not concern the profile, so it is only logged."""
    try:
        chosen = rules.of_table(realm, table_id.id)
        if chosen:
            _checked(realm, hierarchy.table(realm, table_id).value, chosen)
    except SkiwayError as error:
        log.warning("the quality rules of table %s were not checked: %s", table_id.id, error)


def _checked(
    realm: Realm,
    table: v1.Table,
    chosen: Sequence[Stored[v1.QualityRule]],
    *,
    estimates_only: bool = False,
    profiles: bool = False,
) -> v1.CheckRulesResponse:
    """Check rules. If one needs a profile that a table of this server does not have, and this call `profiles`, a job makes it."""
    facts, snapshot_id = known_facts(realm, table)
    verdicts = [(rule, judged(rule.value.check, facts)) for rule in chosen]
    undecided = [rule.value for rule, verdict in verdicts if verdict.status is None]
    readable = [rule for rule in undecided if not (rule.estimates_only or estimates_only)]
    job = None
    if readable:
        task = v1.QualityTask(rule_ids=sorted(rule.resource_id.id for rule in readable))
        job = jobs.enqueue(realm, v1.Job(table_id=table.resource_id, quality=task))
    waiting = [rule.value for rule, verdict in verdicts if verdict.message == NO_PROFILE]
    profile = None
    if waiting and profiles and table.metadata_location:
        profile = jobs.enqueue(realm, v1.Job(table_id=table.resource_id))
    response = v1.CheckRulesResponse(job=job or profile)
    for rule, verdict in verdicts:
        job_id = job.job_id if job is not None and rule.value in readable else ""
        if profile is not None and rule.value in waiting:
            job_id = profile.job_id
            verdict = replace(verdict, message=f"job {job_id} profiles the table, and then checks the rule")
        result = store_result(realm, rule, _explained(verdict, job_id), snapshot_id=snapshot_id, job_id=job_id)
        response.rules.add(rule=rule.value, result=result)
    return response


def _explained(verdict: Verdict, job_id: str) -> Verdict:
    if verdict.status is not None:
        return verdict
    what = f"job {job_id} reads the rows" if job_id else "only estimates are allowed, so the rows are not read"
    return replace(verdict, status=v1.RST_UNKNOWN, message=f"{TOO_CLOSE}: {what}")


def check_rows(realm: Realm, job: v1.Job, measure: Measure) -> int:
    """Decide the rules of a job from the rows of the current snapshot, and return how many rules that were.

    Checks of later snapshots join a job that has not ended. So if the snapshot changes before it ends, the new one is read, too.
    """
    wanted = set(job.quality.rule_ids)
    for _ in range(REPEATS):
        table = hierarchy.table(realm, job.table_id).value
        chosen = [each for each in rules.of_table(realm, table.resource_id.id) if each.value.resource_id.id in wanted]
        known, snapshot_id = known_facts(realm, table)
        if snapshot_id is None or not chosen:
            return 0
        verdicts = _exact_verdicts(table, chosen, known, partial(measure, snapshot_id=snapshot_id))
        for rule, verdict in zip(chosen, verdicts, strict=True):
            store_result(realm, rule, verdict, snapshot_id=snapshot_id, job_id=job.job_id)
        if snapshots.current_id(realm, table.resource_id.id) == snapshot_id:
            break
    return len(chosen)


def _exact_verdicts(
    table: v1.Table, chosen: Sequence[Stored[v1.QualityRule]], known: TableFacts, measure: Callable[..., TableFacts]
) -> Iterator[Verdict]:
    """The verdict on each rule. Rules that statistics decide by now need no rows."""
    verdicts = [judged(each.value.check, known) for each in chosen]
    checks = [each.value.check for each, verdict in zip(chosen, verdicts, strict=True) if verdict.status is None]
    if checks:
        read = measure(table, checks)
        exact = replace(
            known, rows=read.rows, columns=read.columns, keys=read.keys, method=v1.RMT_EXACT, unmeasured=NOT_READ
        )
        verdicts = [
            judged(each.value.check, exact) if verdict.status is None else verdict
            for each, verdict in zip(chosen, verdicts, strict=True)
        ]
    for verdict in verdicts:
        yield verdict if verdict.status is not None else replace(verdict, status=v1.RST_UNKNOWN, message=STILL_OPEN)


METADATA_KINDS: Final = ("freshness", "row_count", "schema")


@dataclass(frozen=True, slots=True)
class Checked:
    """How many rules a step looked at, and where to continue; None at the end."""

    looked_at: int
    next_token: str | None = None


def check_metadata(
    stores: Stores, *, realm_of: Callable[[str], Realm], size: int = 100, token: str | None = None
) -> Checked:
    """Check the next rules of all accounts that need no profile. A rule that cannot be checked is logged."""

    def visit(account_id: str, pointer: Pointer) -> None:
        realm = realm_of(account_id)
        rule = realm.all(RULE).entry(pointer)
        if rule is not None and rule.value.check.WhichOneof("check") in METADATA_KINDS:
            _check_one(realm, rule)
        elif rule is not None:
            _check_new_snapshot(realm, rule)

    return Checked(*visit_accounts(stores, keys.rule, visit, size=size, token=token))


def _check_new_snapshot(realm: Realm, rule: Stored[v1.QualityRule]) -> None:
    """Check a rule about columns if it has no result for the current snapshot. That makes the profile that it needs."""
    try:
        table = hierarchy.table(realm, rule.value.table_id).value
        current = snapshots.current_id(realm, table.resource_id.id)
        before = rules.newest_result(realm, rule.value.resource_id.id)
        is_news = before is None or _snapshot_of(before) != current
        if current is not None and table.metadata_location and is_news:
            _checked(realm, table, [rule], profiles=True)
    except SkiwayError as error:
        log.debug("rule %s of account %s was not checked: %s", rule.value.display_name, realm.account_id, error)


def _check_one(realm: Realm, rule: Stored[v1.QualityRule]) -> None:
    """Check a rule, and store the result if it is news: the status or the snapshot differs from the last one."""
    try:
        facts, snapshot_id = known_facts(realm, hierarchy.table(realm, rule.value.table_id).value)
        verdict = judged(rule.value.check, facts)
        before = rules.newest_result(realm, rule.value.resource_id.id)
        is_known = before is not None and before.status == verdict.status and before.check == rule.value.check
        if verdict.status is not None and not (is_known and _snapshot_of(before) == snapshot_id):
            store_result(realm, rule, verdict, snapshot_id=snapshot_id)
    except SkiwayError as error:
        # One broken table must not stop the others.
        log.debug("rule %s of account %s was not checked: %s", rule.value.display_name, realm.account_id, error)
