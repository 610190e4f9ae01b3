"""Repeated checks of rules that need no profile: a table that nobody writes to is never profiled, but becomes old.

The same rules are also about the number of rows and the columns, which change without a profile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from skiway.errors import SkiwayError
from skiway.metastore.platform import visit_accounts
from skiway.metastore.quality import results, rules
from skiway.metastore.quality.facts import known_facts
from skiway.metastore.quality.verdicts import judged
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import RULE
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Stored
from skiway.metastore.resources import hierarchy
from skiway.model import v1
from skiway.storage import Pointer, Stores

__all__ = ["Checked", "check_metadata"]

KINDS: Final = ("freshness", "row_count", "schema")

log = logging.getLogger("skiway.quality")


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
        found = realm.all(RULE).entry(pointer)
        if found is not None and found.value.check.WhichOneof("check") in KINDS:
            _check(realm, found)

    return Checked(*visit_accounts(stores, keys.rule, visit, size=size, token=token))


def _check(realm: Realm, rule: Stored[v1.QualityRule]) -> None:
    """Check a rule, and store the result if it is news: the status or the snapshot differs from the last one."""
    try:
        facts, snapshot_id = known_facts(realm, hierarchy.table(realm, rule.value.table_id).value)
        verdict = judged(rule.value.check, facts)
        before = rules.newest_result(realm, rule.value.resource_id.id)
        is_known = before is not None and before.status == verdict.status and before.check == rule.value.check
        if verdict.status is not None and not (is_known and _is_of(before, snapshot_id)):
            results.store(realm, rule, verdict, snapshot_id=snapshot_id)
    except SkiwayError as error:
        # One broken table must not stop the others.
        log.debug("rule %s of account %s was not checked: %s", rule.value.display_name, realm.account_id, error)


def _is_of(result: v1.RuleResult | None, snapshot_id: int | None) -> bool:
    known = None if result is None or not result.HasField("snapshot_id") else result.snapshot_id
    return known == snapshot_id
