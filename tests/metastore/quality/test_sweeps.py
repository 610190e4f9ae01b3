"""Rules that need no profile are checked again and again, so that an old table is noticed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from metastore.quality.profiled_table import ProfiledTable, column
from metastore.resource_factory import ResourceFactory
from skiway.metastore import quality, tables
from skiway.model import v1


@pytest.fixture
def orders(factory: ResourceFactory) -> ProfiledTable:
    return ProfiledTable(factory)


def an_hour() -> v1.FreshnessCheck:
    made = v1.FreshnessCheck()
    made.max_age.FromTimedelta(timedelta(hours=1))
    return made


def sweep(orders: ProfiledTable, size: int = 100) -> int:
    """Check all rules in steps of this size; return the number of steps."""
    steps, token = 0, None
    while steps == 0 or token is not None:
        done = quality.check_metadata(orders.factory.stores, realm_of=orders.factory.realm, size=size, token=token)
        steps, token = steps + 1, done.next_token
    return steps


def statuses(orders: ProfiledTable, name: str = "r") -> list[int]:
    rule = quality.CALLS.get(orders.realm, v1.GetRuleRequest(display_name=name)).rule.rule
    found = quality.list_results(orders.realm, v1.ListRuleResultsRequest(rule_id=rule.resource_id)).results
    return [each.status for each in found]


def test_table_that_became_old_fails_without_a_profile(orders: ProfiledTable) -> None:
    orders.rule(freshness=an_hour())
    orders.snapshot(1)
    sweep(orders)
    assert statuses(orders) == [v1.RST_PASSED]
    orders.factory.clock.advance(3601)
    sweep(orders)
    assert statuses(orders) == [v1.RST_FAILED]


def test_result_is_stored_only_if_it_is_news(orders: ProfiledTable) -> None:
    orders.rule(freshness=an_hour())
    orders.snapshot(1)
    sweep(orders)
    before = quality.CALLS.get(orders.realm, v1.GetRuleRequest(display_name="r")).rule.result
    orders.factory.clock.advance(60)
    sweep(orders)
    assert quality.CALLS.get(orders.realm, v1.GetRuleRequest(display_name="r")).rule.result == before
    orders.snapshot(2)
    sweep(orders)
    assert len(statuses(orders)) == 2


def test_rules_that_need_a_profile_are_left_to_it(orders: ProfiledTable) -> None:
    orders.rule(null_share=v1.NullShareCheck(column="email", max=0))
    orders.snapshot(1)
    orders.profile(rows=1, email=column(1))
    sweep(orders)
    assert statuses(orders) == []


def test_all_rules_of_all_accounts_are_checked_in_steps(orders: ProfiledTable) -> None:
    for number in range(7):
        orders.rule(f"r{number}", row_count=v1.RowCountCheck(min=1))
    orders.factory.account("a0")
    orders.factory.account("z9")
    orders.snapshot(1)
    orders.rows(1, 5)
    assert sweep(orders, size=3) == 3
    assert all(statuses(orders, f"r{number}") == [v1.RST_PASSED] for number in range(7))


def test_rule_of_a_dropped_table_does_not_stop_the_others(orders: ProfiledTable) -> None:
    other = ProfiledTable.__new__(ProfiledTable)
    other.factory, other.realm = orders.factory, orders.realm
    other.table = orders.factory.table("gone", schema_json=orders.table.schema_json)
    other.rule("a", freshness=an_hour())
    orders.rule("b", freshness=an_hour())
    tables.delete(orders.realm, v1.DeleteTableRequest(table_id=other.table.resource_id))
    orders.snapshot(1)
    sweep(orders)
    assert statuses(orders, "b") == [v1.RST_PASSED]
