"""Rules are decided from statistics where these suffice, and are open where they do not."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from metastore.quality.profiled_table import BOUND, EXACT, ProfiledTable, about, column
from metastore.resource_factory import ResourceFactory
from skiway.metastore.quality.facts import known_facts
from skiway.metastore.quality.verdicts import ColumnFacts, Interval, KeyFacts, TableFacts, Verdict, judged
from skiway.metastore.statistics.bounds import logical_type
from skiway.model import v1

PASSED, FAILED, UNKNOWN, OPEN = v1.RST_PASSED, v1.RST_FAILED, v1.RST_UNKNOWN, None


@pytest.fixture
def orders(factory: ResourceFactory) -> ProfiledTable:
    return ProfiledTable(factory)


def verdict(orders: ProfiledTable, **check: Any) -> Verdict:
    facts, _ = known_facts(orders.realm, orders.table)
    return judged(v1.RuleCheck(**check), facts)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"min": 1}, PASSED),
        ({"min": 100, "max": 100}, PASSED),
        ({"min": 101}, FAILED),
        ({"max": 99}, FAILED),
        ({"max_decrease": 0.5}, PASSED),
        ({"max_decrease": 0.49}, FAILED),
        ({"max_increase": 0.0}, PASSED),
        ({"min": 1, "max_decrease": 0.1}, FAILED),
    ],
)
def test_row_count_and_its_change(orders: ProfiledTable, limits: dict[str, Any], expected: int) -> None:
    orders.snapshot(1)
    orders.rows(1, 200)
    orders.snapshot(2, parent_snapshot_id=1)
    orders.rows(2, 100, snapshot_id=2)
    found = verdict(orders, row_count=v1.RowCountCheck(**limits))
    assert (found.status, found.method) == (expected, v1.RMT_METADATA)


def test_growth_beyond_the_limit_fails(orders: ProfiledTable) -> None:
    orders.snapshot(1)
    orders.rows(1, 100)
    orders.snapshot(2, parent_snapshot_id=1)
    orders.rows(2, 151, snapshot_id=2)
    assert verdict(orders, row_count=v1.RowCountCheck(max_increase=0.5)).status == FAILED
    assert verdict(orders, row_count=v1.RowCountCheck(max_increase=0.51)).status == PASSED


def test_first_snapshot_has_not_changed(orders: ProfiledTable) -> None:
    orders.snapshot(1)
    orders.rows(1, 100)
    assert verdict(orders, row_count=v1.RowCountCheck(max_decrease=0)).status == PASSED


def test_change_is_unknown_if_the_previous_snapshot_has_no_count(orders: ProfiledTable) -> None:
    orders.snapshot(1)
    orders.snapshot(2, parent_snapshot_id=1)
    orders.rows(2, 100, snapshot_id=2)
    found = verdict(orders, row_count=v1.RowCountCheck(max_decrease=0.1))
    assert found.status == UNKNOWN
    assert "previous snapshot" in found.message


def test_upper_limit_of_the_row_count_decides_only_what_it_can(orders: ProfiledTable) -> None:
    orders.snapshot(1)
    orders.rows(1, 100, **{"quality.row_count": "bound"})  # some rows may be deleted
    assert verdict(orders, row_count=v1.RowCountCheck(max=100)).status == PASSED
    assert verdict(orders, row_count=v1.RowCountCheck(min=101)).status == FAILED
    assert verdict(orders, row_count=v1.RowCountCheck(min=50)).status is OPEN


@pytest.mark.parametrize(("most", "expected"), [(0.1, PASSED), (0.0999, FAILED)])
def test_null_share(orders: ProfiledTable, most: float, expected: int) -> None:
    orders.snapshot(1)
    orders.profile(rows=100, email=column(100, nulls=10))
    found = verdict(orders, null_share=v1.NullShareCheck(column="email", max=most))
    assert (found.status, found.method, found.observed) == (expected, v1.RMT_PROFILE, "10% of email is NULL")


def test_null_share_is_open_if_it_is_from_a_sample(orders: ProfiledTable) -> None:
    orders.snapshot(1)
    orders.profile(rows=100, email=column(100, nulls=10, properties={**EXACT, "quality.null_count": "sample"}))
    assert verdict(orders, null_share=v1.NullShareCheck(column="email", max=0.9)).status is OPEN


def test_null_share_is_open_if_rows_were_deleted(orders: ProfiledTable) -> None:
    orders.snapshot(1)
    orders.profile(rows=50, email=column(100, nulls=10, properties=BOUND))
    assert verdict(orders, null_share=v1.NullShareCheck(column="email", max=0.2)).status == PASSED  # at most 10 of 50
    assert verdict(orders, null_share=v1.NullShareCheck(column="email", max=0.15)).status is OPEN


@pytest.mark.parametrize(
    ("ndv", "limits", "expected"),
    [
        (v1.Ndv(exact=7), {"min": 7, "max": 7}, PASSED),
        (v1.Ndv(exact=7), {"min": 8}, FAILED),
        (v1.Ndv(exact=7), {"max": 6}, FAILED),
        (about(10_000, 300), {"min": 9_400, "max": 10_600}, PASSED),
        (about(10_000, 300), {"min": 9_401}, OPEN),
        (about(10_000, 300), {"max": 10_599}, OPEN),
        (about(10_000, 300), {"max": 9_399}, FAILED),
        (about(10_000, 300), {"min": 10_601}, FAILED),
    ],
)
def test_distinct_count(orders: ProfiledTable, ndv: v1.Ndv, limits: dict[str, int], expected: int | None) -> None:
    orders.snapshot(1)
    orders.profile(rows=20_000, id=column(20_000, ndv=ndv))
    assert verdict(orders, distinct_count=v1.DistinctCountCheck(column="id", **limits)).status == expected


@pytest.mark.parametrize(
    ("least", "version", "status_of"),
    [
        ("", "", {"max 2": OPEN, "max 3": PASSED, "min 2": PASSED, "min 3": OPEN, "unique": OPEN}),
        (None, "", {"max 2": OPEN, "max 3": PASSED, "min 2": PASSED, "min 3": OPEN, "unique": OPEN}),
        ("", "1", {"max 2": PASSED, "max 3": PASSED, "min 2": PASSED, "min 3": FAILED, "unique": FAILED}),
        ("a", "", {"max 2": PASSED, "max 3": PASSED, "min 2": PASSED, "min 3": FAILED, "unique": FAILED}),
    ],
)
def test_profile_before_version_1_may_lack_the_empty_value(
    orders: ProfiledTable, least: str | None, version: str, status_of: dict[str, int | None]
) -> None:
    """It has two distinct values in three rows."""
    orders.snapshot(1)
    stats = column(3, ndv=v1.Ndv(exact=2), **({} if least is None else {"min": least}))
    stats.properties["profile.version"] = version
    orders.profile(rows=3, email=stats)
    found = {
        f"{name} {limit}": verdict(
            orders,
            distinct_count=v1.DistinctCountCheck(column="email", **{name: limit}),  # type: ignore[arg-type]
        ).status
        for name, limit in (("max", 2), ("max", 3), ("min", 2), ("min", 3))
    }
    found["unique"] = verdict(orders, unique=v1.UniqueCheck(columns=["email"])).status
    assert found == status_of


def test_statistics_of_other_programs_have_no_version(orders: ProfiledTable) -> None:
    orders.snapshot(1)
    stats = column(3, ndv=v1.Ndv(exact=2), min="")
    for name in ("profile.version", "rows.profiled", "rows.total"):
        del stats.properties[name]
    orders.profile(rows=3, email=stats)
    assert verdict(orders, distinct_count=v1.DistinctCountCheck(column="email", max=2)).status == PASSED


def test_estimate_that_was_reduced_to_the_number_of_rows_does_not_prove_a_key(orders: ProfiledTable) -> None:
    """A sketch can estimate 10,400 distinct values in 10,000 rows, of which two are the same."""
    orders.snapshot(1)
    given = v1.NdvApprox(
        estimate=10_000, confidence_lower=10_000, confidence_upper=10_000, relative_standard_error=0.0156
    )
    orders.profile(rows=10_000, id=column(10_000, ndv=v1.Ndv(approx=given)))
    assert verdict(orders, unique=v1.UniqueCheck(columns=["id"])).status == OPEN
    assert verdict(orders, distinct_count=v1.DistinctCountCheck(column="id", min=9_999)).status == OPEN
    assert verdict(orders, distinct_count=v1.DistinctCountCheck(column="id", min=9_000)).status == PASSED


@pytest.mark.parametrize(
    ("limits", "expected"), [({"max": 100}, OPEN), ({"min": 1}, OPEN), ({"max": 9}, OPEN), ({"min": 11}, OPEN)]
)
def test_row_count_without_some_files_is_no_limit(orders: ProfiledTable, limits: Any, expected: int | None) -> None:
    orders.snapshot(1)
    orders.rows(1, 10, **{"quality.row_count": "estimate"})
    assert verdict(orders, row_count=v1.RowCountCheck(**limits)).status == expected


@pytest.mark.parametrize(
    ("name", "more", "expected"),
    [
        ("id", {}, PASSED),
        ("id", {"quantiles.rounded": "true"}, OPEN),
        ("id", {"profile.version": ""}, OPEN),
        ("amount", {"profile.version": ""}, PASSED),
    ],
)
def test_rounded_quantiles_decide_nothing(
    orders: ProfiledTable, name: str, more: dict[str, str], expected: int | None
) -> None:
    """Before version 1, profiles did not say that numbers beyond 2^53 were rounded."""
    orders.snapshot(1)
    stats = column(3, properties={**EXACT, "quantiles": '{"0.5": "7"}', "quality.quantiles": "exact"})
    stats.properties.update(more)
    orders.profile(rows=3, **{name: stats})
    assert verdict(orders, quantile=v1.QuantileCheck(column=name, quantile=0.5, min="7")).status == expected


@pytest.mark.parametrize(
    ("properties", "limits", "expected"),
    [
        (EXACT, {"min": "-2", "max": "10"}, PASSED),  # compared as numbers, not as text
        (EXACT, {"min": "-1"}, FAILED),
        (EXACT, {"max": "9"}, FAILED),
        (BOUND, {"min": "-2", "max": "10"}, PASSED),
        (BOUND, {"min": "-1"}, OPEN),
        (BOUND, {"max": "9"}, OPEN),
    ],
)
def test_range(orders: ProfiledTable, properties: Any, limits: dict[str, str], expected: int | None) -> None:
    orders.snapshot(1)
    orders.profile(rows=5, id=column(5, min="-2", max="10", properties=properties))
    assert verdict(orders, range=v1.RangeCheck(column="id", **limits)).status == expected


def test_range_that_the_profile_does_not_have_is_read(orders: ProfiledTable) -> None:
    orders.snapshot(1)
    orders.profile(rows=5, amount=column(5, nan_count=5))
    check = {"range": v1.RangeCheck(column="amount", max="9")}
    orders.rule("r", **check)
    assert verdict(orders, **check).status == OPEN
    result = orders.check()["r"]
    assert (result.status, bool(result.job_id)) == (UNKNOWN, True)
    facts, _ = known_facts(orders.realm, orders.table)
    exact = replace(facts, method=v1.RMT_EXACT)
    assert judged(v1.RuleCheck(**check), exact).status == UNKNOWN, "rows that were read are not read again"


@pytest.mark.parametrize("check", ["range", "quantile", "allowed_values", "distinct_count"])
def test_column_without_values_has_none_that_are_wrong(orders: ProfiledTable, check: str) -> None:
    orders.snapshot(1)
    orders.profile(rows=5, id=column(5, nulls=5))
    limits: dict[str, Any] = {
        "range": v1.RangeCheck(column="id", min="1"),
        "quantile": v1.QuantileCheck(column="id", quantile=0.5, min="1"),
        "allowed_values": v1.AllowedValuesCheck(column="id", values=["1"]),
        "distinct_count": v1.DistinctCountCheck(column="id", max=1),
    }
    assert verdict(orders, **{check: limits[check]}).status == PASSED


def quantiles(quality: str, error: str) -> dict[str, str]:
    ranks = {"0.25": "25", "0.5": "50", "0.75": "75", "0.99": "99"}
    return {**EXACT, "quantiles": json.dumps(ranks), "quality.quantiles": quality, "quantiles.rank_error": error}


@pytest.mark.parametrize(
    ("quality", "error", "most", "expected"),
    [
        ("exact", "0", "50", PASSED),
        ("exact", "0", "49", FAILED),
        ("estimate", "0.0133", "75", PASSED),  # the median is certainly not above the 0.75 quantile
        ("estimate", "0.0133", "24", FAILED),
        ("estimate", "0.0133", "50", OPEN),
    ],
)
def test_quantile(orders: ProfiledTable, quality: str, error: str, most: str, expected: int | None) -> None:
    orders.snapshot(1)
    stats = column(1000, min="1", max="100", properties=quantiles(quality, error))
    orders.profile(rows=1000, id=stats)
    assert verdict(orders, quantile=v1.QuantileCheck(column="id", quantile=0.5, max=most)).status == expected


def test_estimated_quantile_is_not_a_lower_limit_of_itself(orders: ProfiledTable) -> None:
    orders.snapshot(1)
    orders.profile(rows=1000, id=column(1000, min="1", max="100", properties=quantiles("estimate", "0.0133")))
    assert verdict(orders, quantile=v1.QuantileCheck(column="id", quantile=0.5, min="50")).status is OPEN
    assert verdict(orders, quantile=v1.QuantileCheck(column="id", quantile=0.5, min="25")).status == PASSED


def test_quantiles_do_not_decide_if_rows_were_deleted(orders: ProfiledTable) -> None:
    orders.snapshot(1)
    properties = {**quantiles("estimate", "0"), **BOUND}
    orders.profile(rows=900, id=column(1000, min="1", max="100", properties=properties))
    assert verdict(orders, quantile=v1.QuantileCheck(column="id", quantile=0.5, max="50")).status is OPEN


def test_freshness(orders: ProfiledTable) -> None:
    orders.snapshot(1)
    check = v1.FreshnessCheck()
    check.max_age.FromTimedelta(timedelta(hours=1))
    orders.factory.clock.advance(3599)
    assert verdict(orders, freshness=check).status == PASSED
    orders.factory.clock.advance(2)
    found = verdict(orders, freshness=check)
    assert (found.status, found.method) == (FAILED, v1.RMT_METADATA)


def top(*pairs: tuple[str, int], quality: str = "exact") -> dict[str, str]:
    return {**EXACT, "top_values": json.dumps(pairs), "quality.top_values": quality}


@pytest.mark.parametrize(
    ("properties", "ndv", "expected"),
    [
        (top(("a", 6), ("b", 3)), None, PASSED),
        (top(("a", 6), ("c", 3)), None, FAILED),
        (top(("a", 6), ("b", 2)), None, OPEN),  # one value is not in the list
        (top(("a", 6), ("b", 3), quality="estimate"), None, OPEN),
        (top(("a", 6), ("c", 2), quality="estimate"), None, FAILED),  # it occurs, however often
        (top(("a", 6), ("b", 2)), v1.Ndv(exact=3), FAILED),  # three values cannot be among two
        (EXACT, v1.Ndv(exact=2), OPEN),
    ],
)
def test_allowed_values(orders: ProfiledTable, properties: Any, ndv: v1.Ndv | None, expected: int | None) -> None:
    orders.snapshot(1)
    orders.profile(rows=10, email=column(10, nulls=1, properties=properties, ndv=ndv))
    check = v1.AllowedValuesCheck(column="email", values=["a", "b"])
    assert verdict(orders, allowed_values=check).status == expected


def test_frequent_value_may_have_been_deleted(orders: ProfiledTable) -> None:
    orders.snapshot(1)
    properties = {**top(("a", 6), ("c", 2), quality="estimate"), **BOUND}
    orders.profile(rows=9, email=column(10, properties=properties))
    assert verdict(orders, allowed_values=v1.AllowedValuesCheck(column="email", values=["a"])).status is OPEN


@pytest.mark.parametrize(
    ("ndv", "nulls", "expected"),
    [
        (v1.Ndv(exact=1000), 0, PASSED),
        (v1.Ndv(exact=999), 0, FAILED),
        (v1.Ndv(exact=999), 1, FAILED),  # a key has no NULL
        (about(990, 20), 0, OPEN),
        (about(900, 20), 0, FAILED),
    ],
)
def test_key_of_one_column(orders: ProfiledTable, ndv: v1.Ndv, nulls: int, expected: int | None) -> None:
    orders.snapshot(1)
    orders.profile(rows=1000, id=column(1000, nulls=nulls, ndv=ndv))
    assert verdict(orders, unique=v1.UniqueCheck(columns=["id"])).status == expected


@pytest.mark.parametrize(
    ("first", "second", "nulls", "expected"),
    [
        (1000, 3, 0, PASSED),  # a unique column makes the key unique
        (1000, 3, 1, FAILED),
        (10, 99, 0, FAILED),  # 990 combinations for 1000 rows
        (10, 100, 0, OPEN),
    ],
)
def test_key_of_two_columns(orders: ProfiledTable, first: int, second: int, nulls: int, expected: int | None) -> None:
    orders.snapshot(1)
    ids, emails = column(1000, ndv=v1.Ndv(exact=first)), column(1000, nulls=nulls, ndv=v1.Ndv(exact=second))
    orders.profile(rows=1000, id=ids, email=emails)
    assert verdict(orders, unique=v1.UniqueCheck(columns=["id", "email"])).status == expected


def test_key_is_open_if_a_column_may_have_null(orders: ProfiledTable) -> None:
    orders.snapshot(1)
    emails = column(1000, ndv=v1.Ndv(exact=3))
    emails.ClearField("null_count")
    orders.profile(rows=1000, id=column(1000, ndv=v1.Ndv(exact=1000)), email=emails)
    assert verdict(orders, unique=v1.UniqueCheck(columns=["id", "email"])).status is OPEN


def expected_columns(**types: str) -> list[v1.ExpectedColumn]:
    return [v1.ExpectedColumn(name=name, type=type_) for name, type_ in types.items()]


@pytest.mark.parametrize(
    ("columns", "allow_added", "expected"),
    [
        ({"id": "long", "email": "string"}, False, PASSED),
        ({"id": "int", "email": "string"}, True, FAILED),
        ({"id": "long", "email": "string", "age": "int"}, True, FAILED),
        ({"id": "long"}, False, FAILED),
        ({"id": "long"}, True, PASSED),
    ],
)
def test_schema(columns: dict[str, str], allow_added: bool, expected: int) -> None:
    facts = TableFacts({"id": "long", "email": "string"})
    check = v1.SchemaCheck(columns=expected_columns(**columns), allow_added=allow_added)
    found = judged(v1.RuleCheck(schema=check), facts)
    assert (found.status, found.method) == (expected, v1.RMT_METADATA)


def test_missing_profile_is_unknown_with_the_reason(orders: ProfiledTable) -> None:
    orders.snapshot(1)
    orders.rows(1, 10, **{"files.profiled": "0"})
    found = verdict(orders, null_share=v1.NullShareCheck(column="email", max=0))
    assert found.status == UNKNOWN
    assert "no profile" in found.message


def test_table_without_snapshots_is_unknown(orders: ProfiledTable) -> None:
    check = v1.FreshnessCheck()
    check.max_age.FromTimedelta(timedelta(hours=1))
    assert verdict(orders, freshness=check).status == UNKNOWN
    assert verdict(orders, null_share=v1.NullShareCheck(column="email", max=0)).status == UNKNOWN


def test_column_that_was_dropped_is_unknown(orders: ProfiledTable) -> None:
    orders.snapshot(1)
    orders.profile(rows=1, id=column(1))
    found = verdict(orders, null_share=v1.NullShareCheck(column="age", max=0))
    assert found.status == UNKNOWN
    assert "no column 'age'" in found.message


@pytest.mark.parametrize(("repeated", "nulls", "expected"), [(0, 0, PASSED), (1, 0, FAILED), (0, 1, FAILED)])
def test_rows_decide_what_was_open(repeated: int, nulls: int, expected: int) -> None:
    facts = TableFacts(
        {"id": "long"},
        rows=Interval(10, 10),
        columns={"id": ColumnFacts(logical_type("long"))},
        keys={("id",): KeyFacts(repeated, nulls)},
        method=v1.RMT_EXACT,
    )
    found = judged(v1.RuleCheck(unique=v1.UniqueCheck(columns=["id"])), facts)
    assert (found.status, found.method) == (expected, v1.RMT_EXACT)
