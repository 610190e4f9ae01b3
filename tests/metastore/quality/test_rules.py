"""Rules as resources, their checks and results, the events that follow, and what policies hide of them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from metastore.quality.profiled_table import ProfiledTable, about, column
from metastore.resource_factory import ResourceFactory, expect_error, mask
from skiway.errors import InvalidArgument, NotFound, PermissionDenied
from skiway.metastore import Realm, events, jobs, quality, tables
from skiway.metastore.quality import checks as results
from skiway.metastore.quality import rules
from skiway.metastore.quality.checks import HISTORY
from skiway.metastore.quality.verdicts import ColumnFacts, Interval, KeyFacts, TableFacts, Verdict
from skiway.metastore.records import keys
from skiway.metastore.records.realm import PolicyGuard
from skiway.metastore.resources import policies
from skiway.metastore.statistics.bounds import logical_type
from skiway.model import v1

NO_NULLS = v1.NullShareCheck(column="email", max=0)


@pytest.fixture
def orders(factory: ResourceFactory) -> ProfiledTable:
    return ProfiledTable(factory)


def results_of(orders: ProfiledTable, rule: v1.QualityRule, realm: Realm | None = None) -> list[v1.RuleResult]:
    request = v1.ListRuleResultsRequest(rule_id=rule.resource_id)
    return list(quality.list_results(realm or orders.realm, request).results)


def rule_names(realm: Realm, **request: Any) -> list[str]:
    return [each.rule.display_name for each in quality.list_(realm, v1.ListRulesRequest(**request)).rules]


# --- resources --------------------------------------------------------------------------------------------------------


def test_rule_gets_another_name_and_check(orders: ProfiledTable) -> None:
    made = orders.rule("no-nulls", null_share=NO_NULLS, severity=v1.RSV_WARNING)
    change = v1.UpdateRuleRequest(
        rule_id=made.resource_id,
        spec=v1.QualityRuleSpec(display_name="rows", check=v1.RuleCheck(row_count=v1.RowCountCheck(min=1))),
        update_mask=mask("display_name", "check"),
    )
    changed = quality.CALLS.update(orders.realm, change).rule
    assert (changed.display_name, changed.severity) == ("rows", v1.RSV_WARNING)
    assert rule_names(orders.realm, table_id=orders.table.resource_id) == ["rows"]


def test_error_is_the_default_severity(orders: ProfiledTable) -> None:
    assert orders.rule(null_share=NO_NULLS, severity=v1.RSV_UNSPECIFIED).severity == v1.RSV_ERROR


@pytest.mark.parametrize(
    ("check", "found"),
    [
        ({}, "of no kind"),
        ({"null_share": v1.NullShareCheck(column="age", max=0)}, "'age', which table orders does not have"),
        ({"null_share": v1.NullShareCheck(column="tags", max=0)}, "'tags' of type"),
        ({"null_share": v1.NullShareCheck(column="email", max=1.5)}, "1.5"),
        ({"row_count": v1.RowCountCheck()}, "without limits"),
        ({"row_count": v1.RowCountCheck(min=-1)}, "-1"),
        ({"row_count": v1.RowCountCheck(min=2, max=1)}, "cannot exceed max"),
        ({"row_count": v1.RowCountCheck(max_decrease=2)}, "2.0"),
        ({"row_count": v1.RowCountCheck(max_increase=float("nan"))}, "nan"),
        ({"distinct_count": v1.DistinctCountCheck(column="id")}, "without limits"),
        ({"range": v1.RangeCheck(column="id")}, "without limits"),
        ({"range": v1.RangeCheck(column="id", min="one")}, "'one'"),
        ({"range": v1.RangeCheck(column="id", min="10", max="9")}, "cannot exceed max"),
        ({"range": v1.RangeCheck(column="day", min="yesterday")}, "'yesterday'"),
        ({"quantile": v1.QuantileCheck(column="id", quantile=95, max="1")}, "95"),
        ({"freshness": v1.FreshnessCheck()}, "0 s"),
        ({"allowed_values": v1.AllowedValuesCheck(column="email")}, "a list of 0"),
        ({"allowed_values": v1.AllowedValuesCheck(column="id", values=["x"])}, "'x'"),
        ({"allowed_values": v1.AllowedValuesCheck(column="email", values=["x" * 2000])}, "too long"),
        ({"unique": v1.UniqueCheck()}, "empty"),
        ({"unique": v1.UniqueCheck(columns=["id", "id"])}, "id, id"),
        ({"schema": v1.SchemaCheck(columns=[v1.ExpectedColumn(name="id")])}, "id"),
    ],
)
def test_rule_that_cannot_be_checked_is_rejected(orders: ProfiledTable, check: dict[str, Any], found: str) -> None:
    with expect_error(InvalidArgument, "field.invalid") as error:
        orders.rule(**check)
    assert found in error.value.message


def test_error_names_the_columns_to_choose_from(orders: ProfiledTable) -> None:
    with pytest.raises(InvalidArgument, match="choose from id, email, amount"):
        orders.rule(unique=v1.UniqueCheck(columns=["nope"]))


def test_rule_needs_an_existing_table(orders: ProfiledTable) -> None:
    spec = v1.QualityRuleSpec(
        display_name="r", table_id=v1.ResourceId(id="nope"), check=v1.RuleCheck(null_share=NO_NULLS)
    )
    with expect_error(NotFound, "table"):
        quality.CALLS.create(orders.realm, v1.CreateRuleRequest(spec=spec))


def test_rule_needs_a_name_and_a_check(orders: ProfiledTable) -> None:
    spec = v1.QualityRuleSpec(table_id=orders.table.resource_id, check=v1.RuleCheck(null_share=NO_NULLS))
    with expect_error(InvalidArgument, "display.name.required", resource="rule"):
        quality.CALLS.create(orders.realm, v1.CreateRuleRequest(spec=spec))
    spec = v1.QualityRuleSpec(display_name="r", table_id=orders.table.resource_id)
    with expect_error(InvalidArgument, "field.invalid", field="check"):
        quality.CALLS.create(orders.realm, v1.CreateRuleRequest(spec=spec))
    rule = orders.rule(null_share=NO_NULLS)
    request = v1.UpdateRuleRequest(rule_id=rule.resource_id, spec=spec, update_mask=mask("check"))
    with expect_error(InvalidArgument, "check.cannot.clear"):
        quality.CALLS.update(orders.realm, request)


def test_rule_stays_with_its_table(orders: ProfiledTable) -> None:
    rule, other = orders.rule(null_share=NO_NULLS), orders.factory.table("other")
    spec = v1.QualityRuleSpec(description="x", table_id=other.resource_id)
    with expect_error(InvalidArgument, "field.invalid", field="spec.table_id"):
        quality.CALLS.update(
            orders.realm,
            v1.UpdateRuleRequest(rule_id=rule.resource_id, spec=spec, update_mask=mask("description")),
        )
    own = v1.QualityRuleSpec(table_id=rule.table_id)
    request = v1.UpdateRuleRequest(rule_id=rule.resource_id, spec=own, update_mask=mask("table_id"))
    with expect_error(InvalidArgument, "update.mask.path.invalid", path="table_id"):
        quality.CALLS.update(orders.realm, request)


def test_schema_of_the_table_is_expected_by_default(orders: ProfiledTable) -> None:
    made = orders.rule(schema=v1.SchemaCheck())
    assert {each.name: each.type for each in made.check.schema.columns}["price"] == "decimal(9,2)"
    orders.snapshot(1)
    assert orders.check()["r"].status == v1.RST_PASSED


def test_allowed_values_are_compared_as_values(orders: ProfiledTable) -> None:
    orders.rule(allowed_values=v1.AllowedValuesCheck(column="price", values=["1.50", "2"]))
    orders.snapshot(1)
    values = {"top_values": '[["1.5", 2], ["2", 1]]', "quality.top_values": "exact"}
    orders.profile(rows=3, price=column(3, properties=values, logical_type="DECIMAL(9,2)"))
    assert orders.check()["r"].status == v1.RST_PASSED


def test_rule_of_a_dropped_table_stays_and_can_be_deleted(orders: ProfiledTable) -> None:
    made = orders.rule(null_share=NO_NULLS)
    tables.delete(orders.realm, v1.DeleteTableRequest(table_id=orders.table.resource_id))
    assert rule_names(orders.realm) == ["r"]
    quality.CALLS.delete(orders.realm, v1.DeleteRuleRequest(rule_id=made.resource_id))
    assert rule_names(orders.realm) == []


# --- checks and results -----------------------------------------------------------------------------------------------


def test_check_stores_results_with_their_reason_and_method(orders: ProfiledTable) -> None:
    failing = orders.rule("nulls", null_share=NO_NULLS)
    orders.rule("rows", row_count=v1.RowCountCheck(min=1))
    orders.rule("missing", range=v1.RangeCheck(column="id", min="0"))
    orders.snapshot(7)
    orders.profile(rows=10, snapshot_id=7, email=column(10, nulls=1))
    found = orders.check()
    assert {name: (each.status, each.method) for name, each in found.items()} == {
        "nulls": (v1.RST_FAILED, v1.RMT_PROFILE),
        "rows": (v1.RST_PASSED, v1.RMT_METADATA),
        "missing": (v1.RST_UNKNOWN, v1.RMT_UNSPECIFIED),
    }
    assert (found["nulls"].observed, found["nulls"].message) == ("10% of email is NULL", "expected at most 0%")
    assert "does not include column 'id'" in found["missing"].message
    assert results_of(orders, failing) == [found["nulls"]]
    assert found["nulls"].snapshot_id == 7
    listed = quality.list_(orders.realm, v1.ListRulesRequest()).rules
    assert [each.result for each in listed] == [found[each.rule.display_name] for each in listed]


def test_check_of_some_rules(orders: ProfiledTable) -> None:
    one, _ = orders.rule("one", null_share=NO_NULLS), orders.rule("two", null_share=NO_NULLS)
    assert list(orders.check(rule_ids=[one.resource_id])) == ["one"]
    with expect_error(InvalidArgument, "field.invalid", field="rule_ids"):
        orders.check(rule_ids=[v1.ResourceId(id="nope")])


def test_history_is_limited_and_has_one_result_per_snapshot(orders: ProfiledTable) -> None:
    rule = orders.rule(row_count=v1.RowCountCheck(min=1))
    for number in range(1, HISTORY + 4):
        orders.snapshot(number)
        orders.rows(number, number, snapshot_id=number)
        orders.check()
        orders.check()
        orders.factory.clock.advance(1)
    found = results_of(orders, rule)
    assert [each.snapshot_id for each in found] == list(range(HISTORY + 3, 3, -1))
    assert found[0].observed == f"{HISTORY + 3} rows"


def test_profile_is_followed_by_a_check(orders: ProfiledTable) -> None:
    rule = orders.rule(null_share=NO_NULLS)
    orders.snapshot(1)
    orders.profile(rows=10, email=column(10, nulls=1))
    quality.after_profile(orders.realm, orders.table.resource_id)
    assert [each.status for each in results_of(orders, rule)] == [v1.RST_FAILED]


def test_failed_check_after_a_profile_is_logged(orders: ProfiledTable, caplog: pytest.LogCaptureFixture) -> None:
    orders.rule(null_share=NO_NULLS)
    tables.delete(orders.realm, v1.DeleteTableRequest(table_id=orders.table.resource_id))
    quality.after_profile(orders.realm, orders.table.resource_id)
    assert "were not checked" in caplog.text


def test_result_of_a_rule_that_changed_meanwhile_is_not_stored(orders: ProfiledTable) -> None:
    rule = orders.rule(null_share=NO_NULLS)
    before = rules.require(orders.realm, rule.resource_id.id)
    change = v1.UpdateRuleRequest(
        rule_id=rule.resource_id, spec=v1.QualityRuleSpec(description="x"), update_mask=mask("description")
    )
    quality.CALLS.update(orders.realm, change)
    assert results.store_result(orders.realm, before, Verdict(v1.RST_FAILED), snapshot_id=1) is None
    assert results_of(orders, rule) == []


def test_deleted_rule_gets_no_results(orders: ProfiledTable) -> None:
    rule = orders.rule(null_share=NO_NULLS)
    orders.snapshot(1)
    orders.check()
    quality.CALLS.delete(orders.realm, v1.DeleteRuleRequest(rule_id=rule.resource_id))
    assert orders.check() == {}
    left = [each.key for each in orders.realm.stores.pointers.scan(keys.of_account("a1")) if "rule" in each.key]
    assert [each for each in left if "idempotency" not in each] == []


# --- exact checks -----------------------------------------------------------------------------------------------------


def close_call(orders: ProfiledTable, **options: Any) -> v1.QualityRule:
    """A rule that the profile does not decide."""
    rule = orders.rule("key", unique=v1.UniqueCheck(columns=["id"]), **options)
    orders.snapshot(1)
    orders.profile(rows=10_000, id=column(10_000, ndv=about(9_990, 200)))
    return rule


def measured(repeated: int, calls: list[int] | None = None) -> Any:
    def measure(table: v1.Table, checks: Any, *, snapshot_id: int) -> TableFacts:
        if calls is not None:
            calls.append(snapshot_id)
        facts = ColumnFacts(logical_type("long"))
        return TableFacts({}, rows=Interval(9, 9), columns={"id": facts}, keys={("id",): KeyFacts(repeated, 0)})

    return measure


def test_close_estimate_starts_one_job_that_decides(orders: ProfiledTable) -> None:
    rule = close_call(orders)
    found = orders.check()["key"]
    job = jobs.list_(orders.realm, v1.ListReconcileJobsRequest()).jobs[0]
    assert (found.status, found.method, found.job_id) == (v1.RST_UNKNOWN, v1.RMT_UNSPECIFIED, job.job_id)
    assert f"job {job.job_id} reads the rows" in found.message
    assert "about 9590 to 10390" in found.observed
    assert orders.check()["key"].job_id == job.job_id
    assert list(job.quality.rule_ids) == [rule.resource_id.id]
    request = v1.GetCheckRequest(table_id=orders.table.resource_id, job_id=job.job_id)
    assert quality.get_check(orders.realm, request).job == job
    assert quality.check_rows(orders.realm, job, measured(repeated=2)) == 1
    (result,) = results_of(orders, rule)
    assert (result.status, result.method) == (v1.RST_FAILED, v1.RMT_EXACT)
    assert result.observed == "2 values of id occur more than once, and 0 rows have NULL in it"


def test_job_reads_a_snapshot_that_appears_while_it_runs(orders: ProfiledTable) -> None:
    close_call(orders)
    orders.check()
    job = jobs.list_(orders.realm, v1.ListReconcileJobsRequest()).jobs[0]
    calls: list[int] = []

    def measure(table: v1.Table, checks: Any, *, snapshot_id: int) -> TableFacts:
        if snapshot_id == 1:
            orders.factory.clock.advance(1)
            orders.snapshot(2, parent_snapshot_id=1)
            orders.profile(rows=10_000, snapshot_id=2, id=column(10_000, ndv=about(9_990, 200)))
        return measured(0, calls)(table, checks, snapshot_id=snapshot_id)

    quality.check_rows(orders.realm, job, measure)
    assert calls == [1, 2]


def test_job_does_not_read_what_statistics_decide_by_now(orders: ProfiledTable) -> None:
    close_call(orders)
    orders.check()
    job = jobs.list_(orders.realm, v1.ListReconcileJobsRequest()).jobs[0]
    orders.profile(rows=10_000, id=column(10_000, ndv=v1.Ndv(exact=10_000)))
    calls: list[int] = []
    quality.check_rows(orders.realm, job, measured(1, calls))
    assert calls == []


@pytest.mark.parametrize("of_rule", [True, False])
def test_rows_are_not_read_if_estimates_must_suffice(orders: ProfiledTable, of_rule: bool) -> None:
    close_call(orders, estimates_only=of_rule)
    found = orders.check(estimates_only=not of_rule)["key"]
    assert (found.status, found.job_id) == (v1.RST_UNKNOWN, "")
    assert "only estimates are allowed" in found.message
    assert list(jobs.list_(orders.realm, v1.ListReconcileJobsRequest()).jobs) == []


def test_job_of_another_table_is_not_found(orders: ProfiledTable) -> None:
    close_call(orders)
    job_id = orders.check()["key"].job_id
    other = orders.factory.table("other")
    with expect_error(NotFound, "job"):
        quality.get_check(orders.realm, v1.GetCheckRequest(table_id=other.resource_id, job_id=job_id))


# --- events -----------------------------------------------------------------------------------------------------------


def rule_events(realm: Realm) -> list[v1.Event]:
    return [each for each in events.list_(realm, v1.ListEventsRequest(limit=1000)).events if each.kind == "rule"]


def test_changes_of_the_status_are_events(orders: ProfiledTable) -> None:
    rule = orders.rule("nulls", null_share=NO_NULLS)
    for number, nulls in enumerate((0, 1, 2, 0), 1):
        orders.snapshot(number)
        orders.profile(rows=10, snapshot_id=number, email=column(10, nulls=nulls))
        orders.check()
        orders.factory.clock.advance(1)
    orders.snapshot(5)  # without a profile: unknown, which is no news
    orders.check()
    quality.CALLS.delete(orders.realm, v1.DeleteRuleRequest(rule_id=rule.resource_id))
    found = rule_events(orders.realm)
    assert [each.action for each in found] == ["created", "failed", "recovered", "deleted"]
    table_id = orders.table.resource_id.id
    assert {(each.object_id, each.name, each.table_id) for each in found} == {(rule.resource_id.id, "nulls", table_id)}


def test_unknown_results_do_not_hide_a_recovery(orders: ProfiledTable) -> None:
    orders.rule(null_share=NO_NULLS)
    orders.snapshot(1)
    orders.profile(rows=10, email=column(10, nulls=1))
    orders.check()
    orders.factory.clock.advance(1)
    orders.snapshot(2)
    assert orders.check()["r"].status == v1.RST_UNKNOWN
    orders.profile(rows=10, snapshot_id=2, email=column(10))
    orders.check()
    assert [each.action for each in rule_events(orders.realm)] == ["created", "failed", "recovered"]


def test_rule_that_stays_failed_is_no_news(orders: ProfiledTable) -> None:
    orders.rule(null_share=NO_NULLS)
    for number, has_profile in ((1, True), (2, False), (3, True)):
        orders.snapshot(number)
        if has_profile:
            orders.profile(rows=10, snapshot_id=number, email=column(10, nulls=1))
        orders.check()
        orders.factory.clock.advance(1)
    assert [each.action for each in rule_events(orders.realm)] == ["created", "failed"]


def test_rule_that_first_was_unknown_did_not_recover(orders: ProfiledTable) -> None:
    orders.rule(null_share=NO_NULLS)
    orders.snapshot(1)
    orders.check()
    orders.profile(rows=10, email=column(10))
    orders.check()
    assert [each.action for each in rule_events(orders.realm)] == ["created"]


def test_events_of_rules_are_hidden_from_restricted_callers(orders: ProfiledTable) -> None:
    orders.rule(null_share=NO_NULLS)
    restrict(orders, mask=v1.PolicyMask(kind=v1.MK_NULL, columns=["email"]))
    assert rule_events(orders.restricted()) == []
    assert len(rule_events(orders.restricted("bob"))) == 1


def test_renamed_rule_does_not_fail_again(orders: ProfiledTable) -> None:
    rule = orders.rule(null_share=NO_NULLS)
    orders.snapshot(1)
    orders.profile(rows=10, email=column(10, nulls=1))
    orders.check()
    change = v1.UpdateRuleRequest(
        rule_id=rule.resource_id, spec=v1.QualityRuleSpec(display_name="s"), update_mask=mask("display_name")
    )
    quality.CALLS.update(orders.realm, change)
    orders.check()
    assert [(each.action, each.name) for each in rule_events(orders.realm)] == [
        ("created", "r"),
        ("failed", "r"),
        ("renamed", "s"),
    ]


# --- policies ---------------------------------------------------------------------------------------------------------


def restrict(orders: ProfiledTable, **rule: Any) -> None:
    spec = v1.PolicySpec(display_name="p", subjects=["user:ada"], objects=[orders.table.resource_id], **rule)
    policies.calls(lambda *_: []).create(orders.realm, v1.CreatePolicyRequest(spec=spec))


def many_rules(orders: ProfiledTable) -> None:
    orders.rule("emails", null_share=NO_NULLS)
    orders.rule("ids", range=v1.RangeCheck(column="id", min="0"))
    orders.rule("key", unique=v1.UniqueCheck(columns=["id", "email"]))
    orders.rule("rows", row_count=v1.RowCountCheck(min=1))
    orders.rule("columns", schema=v1.SchemaCheck())
    fresh = v1.FreshnessCheck()
    fresh.max_age.FromTimedelta(timedelta(days=1))
    orders.rule("fresh", freshness=fresh)
    orders.snapshot(1)
    orders.profile(rows=10, email=column(10, nulls=1), id=column(10, min="1", max="9"))
    orders.check()


def test_row_filter_hides_all_rules_about_rows(orders: ProfiledTable) -> None:
    many_rules(orders)
    restrict(orders, row_filter=v1.PolicyFilter(predicate="id = 1"))
    assert rule_names(orders.restricted()) == ["columns", "fresh"]
    with expect_error(NotFound, "rule"):
        quality.CALLS.get(orders.restricted(), v1.GetRuleRequest(display_name="rows"))
    assert rule_names(orders.restricted("bob")) == ["columns", "emails", "fresh", "ids", "key", "rows"]


def test_mask_hides_rules_about_its_columns(orders: ProfiledTable) -> None:
    many_rules(orders)
    restrict(orders, mask=v1.PolicyMask(kind=v1.MK_NULL, columns=["EMAIL"]))
    assert rule_names(orders.restricted(), table_id=orders.table.resource_id) == ["columns", "fresh", "ids", "rows"]


def test_results_from_before_a_rule_changed_stay_hidden(orders: ProfiledTable) -> None:
    rule = orders.rule(null_share=NO_NULLS)
    orders.snapshot(1)
    orders.profile(rows=10, email=column(10, nulls=1), id=column(10))
    orders.check()
    change = v1.UpdateRuleRequest(
        rule_id=rule.resource_id,
        spec=v1.QualityRuleSpec(check=v1.RuleCheck(null_share=v1.NullShareCheck(column="id", max=0))),
        update_mask=mask("check"),
    )
    quality.CALLS.update(orders.realm, change)
    orders.check()
    assert len(results_of(orders, rule)) == 2
    restrict(orders, mask=v1.PolicyMask(kind=v1.MK_NULL, columns=["email"]))
    assert [each.check.null_share.column for each in results_of(orders, rule, orders.restricted())] == ["id"]


def test_last_status_may_come_from_a_hidden_result(orders: ProfiledTable) -> None:
    checks = [
        v1.RuleCheck(row_count=v1.RowCountCheck(min=1)),
        v1.RuleCheck(null_share=NO_NULLS),
        v1.RuleCheck(null_share=v1.NullShareCheck(column="former")),
        v1.RuleCheck(),  # of a kind that this server does not know
    ]
    stored = v1.RuleResults(
        table_id=orders.table.resource_id,
        results=[v1.RuleResult(check=each) for each in checks],
        last_decided=v1.RST_FAILED,
    )
    restrict(orders, mask=v1.PolicyMask(kind=v1.MK_NULL, columns=["email"]))
    ada, bob = (orders.restricted(name).policies for name in ("ada", "bob"))
    assert ada is not None
    assert bob is not None
    assert PolicyGuard(ada).shown(stored) == v1.RuleResults(table_id=stored.table_id, results=stored.results[:1])
    assert PolicyGuard(bob).shown(stored) == stored


def test_mask_whose_column_is_gone_hides_all_rules_about_rows(orders: ProfiledTable) -> None:
    """No rows can be read then, so their number is hidden, too."""
    many_rules(orders)
    restrict(orders, mask=v1.PolicyMask(kind=v1.MK_NULL, columns=["email"]))
    without_email = json.loads(orders.table.schema_json)
    without_email["fields"] = [each for each in without_email["fields"] if each["name"] != "email"]
    change = v1.UpdateTableRequest(
        table_id=orders.table.resource_id,
        spec=v1.TableSpec(schema_json=json.dumps(without_email)),
        update_mask=mask("schema_json"),
    )
    tables.update(orders.realm, change)
    assert rule_names(orders.restricted()) == ["columns", "fresh"]


def test_restricted_callers_neither_check_nor_change_rules(orders: ProfiledTable) -> None:
    rule = close_call(orders)
    restrict(orders, mask=v1.PolicyMask(kind=v1.MK_NULL, columns=["email"]))
    ada = orders.restricted()
    with expect_error(PermissionDenied, "policy.restricted"):
        orders.check(realm=ada)
    assert list(jobs.list_(orders.realm, v1.ListReconcileJobsRequest()).jobs) == []
    with expect_error(PermissionDenied, "policy.restricted"):
        quality.CALLS.delete(ada, v1.DeleteRuleRequest(rule_id=rule.resource_id))
    spec = v1.QualityRuleSpec(
        display_name="probe", table_id=orders.table.resource_id, check=v1.RuleCheck(null_share=NO_NULLS)
    )
    with expect_error(PermissionDenied, "policy.restricted"):
        quality.CALLS.create(ada, v1.CreateRuleRequest(spec=spec))
