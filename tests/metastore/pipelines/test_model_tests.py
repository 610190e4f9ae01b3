"""Unit tests of models. DuckDB runs the queries here."""

from __future__ import annotations

import pytest

from metastore.pipelines.pipeline_lake import DuckQueries
from skiway.metastore.pipelines.projects import read_project
from skiway.spark_jobs.model_tests import run_unit_tests

FILES = {
    "pipeline.yml": "name: p\ncatalog: lake\nnamespace: shop",
    "big.sql": "SELECT id, region, price * 2 AS double FROM orders WHERE price > 2",
    "totals.sql": "SELECT b.region, CAST(sum(b.double) AS DECIMAL(10, 2)) AS total FROM big AS b LEFT JOIN codes USING (region) GROUP BY 1",
}
GIVEN = "given: {orders: [{id: 1, region: eu, price: 5}, {id: 2, price: 1}]}"


def problem(test: str) -> str:
    files = FILES | {"tests.yml": f"unit_tests:\n  - name: t\n{test}"}
    (result,) = run_unit_tests(read_project(files), DuckQueries())
    assert result.state == ("failed" if result.problem else "passed")
    return result.problem


def test_a_query_makes_the_expected_rows() -> None:
    assert problem(f"    model: big\n    {GIVEN}\n    expect: [{{id: 1, double: 10}}]") == ""
    given = "given: {big: [{region: eu, double: 1}, {region: eu, double: 2.5}], codes: [{region: eu}]}"
    assert problem(f"    model: totals\n    {given}\n    expect: [{{region: eu, total: 3.5}}]") == ""


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (
            f"    model: big\n    {GIVEN}\n    expect: [{{id: 1, double: 11}}]",
            "tests.yml, line 2: (id, double): missing (1, 11); unexpected (1, 10)",
        ),
        (f"    model: big\n    {GIVEN}\n    expect: []", "unexpected (1, 'eu', 10)"),
        (f"    model: big\n    {GIVEN}\n    expect: [{{id: one}}]", "do not have the types of the query"),
        (
            f"    model: big\n    {GIVEN}\n    expect: [{{number: 1}}]",
            "the query has no column 'number'; it has id, region",
        ),
        (f"    model: small\n    {GIVEN}\n    expect: []", "tests.yml, line 2: the pipeline has no query for small"),
        ("    model: big\n    expect: []", "tests.yml, line 2: big reads orders: give its rows"),
        ("    model: big\n    given: {orders: [{price: a}]}\n    expect: []", "rejects the query"),
    ],
)
def test_a_difference_is_shown(test: str, message: str) -> None:
    assert message in problem(test)
