"""Checks of rules: from what is known at once, and from the rows in a job where that does not decide.

Rules are checked on request, after a profile, and, if they are about freshness, by a sweep: a table that nobody writes to gets
no profiles either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from skiway.errors import NotFound, SkiwayError
from skiway.metastore import jobs
from skiway.metastore.quality import results, rules
from skiway.metastore.quality.facts import known_facts
from skiway.metastore.quality.verdicts import TableFacts, Verdict, judged
from skiway.metastore.records.errors import failure, invalid_field
from skiway.metastore.records.realm import Realm, local_id
from skiway.metastore.records.repository import Stored
from skiway.metastore.resources import hierarchy, snapshots
from skiway.model import v1

__all__ = ["Measure", "after_profile", "check", "check_rows", "get"]


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
    wanted = {local_id(realm, each, v1.RK_RULE, field="rule_ids") for each in request.rule_ids}
    unknown = wanted - {each.value.resource_id.id for each in chosen}
    if unknown:
        found, wanted_text = min(unknown), f"table {table.display_name} has no such rule"
        raise invalid_field("rule_ids", found, wanted_text)
    if wanted:
        chosen = [each for each in chosen if each.value.resource_id.id in wanted]
    return _checked(realm, table, chosen, estimates_only=request.estimates_only)


def get(realm: Realm, request: v1.GetCheckRequest) -> v1.GetCheckResponse:
    """The job, if it checks rules of this table. Callers whom policies restrict do not get it."""
    table = hierarchy.table(realm, request.table_id).value
    realm.require_unrestricted(table)
    found = jobs.get(realm, v1.GetReconcileJobRequest(job_id=request.job_id)).job
    if not found.HasField("quality") or found.table_id.id != table.resource_id.id:
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
    realm: Realm, table: v1.Table, chosen: Sequence[Stored[v1.QualityRule]], *, estimates_only: bool = False
) -> v1.CheckRulesResponse:
    facts, snapshot_id = known_facts(realm, table)
    verdicts = [(rule, judged(rule.value.check, facts)) for rule in chosen]
    undecided = [rule.value for rule, verdict in verdicts if verdict.status is None]
    readable = [rule for rule in undecided if not (rule.estimates_only or estimates_only)]
    job = jobs.enqueue_check(realm, table.resource_id, [each.resource_id.id for each in readable]) if readable else None
    response = v1.CheckRulesResponse(job=job)
    for rule, verdict in verdicts:
        job_id = job.job_id if job is not None and rule.value in readable else ""
        result = results.store(realm, rule, _explained(verdict, job_id), snapshot_id=snapshot_id, job_id=job_id)
        response.rules.add(rule=rule.value, result=result)
    return response


def _explained(verdict: Verdict, job_id: str) -> Verdict:
    if verdict.status is not None:
        return verdict
    what = f"job {job_id} reads the rows" if job_id else "only estimates are allowed, so the rows are not read"
    return replace(verdict, status=v1.RST_UNKNOWN, message=f"{TOO_CLOSE}: {what}")


def check_rows(realm: Realm, job: v1.Job, measure: Measure) -> int:
    """Decide the rules of a job from the rows of the current snapshot, and return how many rules that were.

    Checks of later snapshots join a job that has not ended. So if the snapshot changes meanwhile, the new one is read, too.
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
            results.store(realm, rule, verdict, snapshot_id=snapshot_id, job_id=job.job_id)
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
