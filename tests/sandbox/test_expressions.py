"""Expressions over one row: they read nothing else, and claims are constants in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from skiway.errors import InvalidArgument, LimitExceeded
from skiway.sandbox.queries import Queries, QueryProcess

CLAIMS: dict[str, Any] = {
    "quote": 'o\'x\\ "y" -- ; /* $1 ?',
    "number": 3,
    "half": 0.5,
    "yes": True,
    "groups": ["a'b", "c"],
    "nobody": [],
}


@pytest.fixture(scope="module")
def queries() -> Iterator[Queries]:
    made = Queries(memory_limit="300MB", timeout_s=60, workers=1, threads=1)
    yield made
    made.close()


@pytest.fixture
def process(queries: Queries) -> Iterator[QueryProcess]:
    found = queries.start()
    yield found
    found.close()


@pytest.mark.parametrize("claim", CLAIMS)
def test_claim_is_a_constant(process: QueryProcess, claim: str) -> None:
    (found,) = process.expressions([f"caller('{claim}')"], CLAIMS)
    assert duckdb.sql(f"SELECT {found.sql}").fetchall() == [(CLAIMS[claim],)]


def test_missing_claim_is_null_of_any_type(process: QueryProcess) -> None:
    texts = ["caller('x') = 'a'", "CALLER('x') > 3", "list_contains(caller('x'), 'a')", "caller('x') IS NULL"]
    found = process.expressions(texts, CLAIMS)
    assert [duckdb.sql(f"SELECT {each.sql}").fetchall()[0][0] for each in found] == [None, None, None, True]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ('a = 1 AND "B""c" LIKE \'x%\'', ['B"c', "a"]),
        ("s.member > 1 OR CASE WHEN a THEN b END", ["a", "b", "s"]),
        ("list_transform(l, x -> x + y) = [z for z in l]", ["l", "y"]),
        ("try_cast(a AS INTEGER) IS NOT NULL -- and a comment", ["a"]),
        ("caller('x')", []),
    ],
)
def test_columns_that_an_expression_reads(process: QueryProcess, text: str, columns: list[str]) -> None:
    (found,) = process.expressions([text], {})
    assert list(found.columns) == columns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a) FROM secrets WHERE (b",
        "a; SELECT 1",
        "a FROM secrets",
        "a, b",
        "a AS b",
        "a WHERE b",
        "a LIMIT 1",
        "a UNION SELECT 1",
        "*",
        "COLUMNS(*)",
        "(SELECT 1)",
        "EXISTS (SELECT 1)",
        "a IN (FROM secrets)",
        "count(*)",
        "sum(a)",
        "main.max(a)",
        "geomean(a)",
        "row_number() OVER ()",
        "unnest([1, 2])",
        "current_setting('threads')",
        "getenv('HOME')",
        "getvariable('x')",
        "nextval('s')",
        "system.main.abs(a)",
        "other.abs(a)",
        "$1",
        "?",
        "caller()",
        "caller(a)",
        "caller('a', 'b')",
        "caller(1)",
    ],
)
def test_what_reads_more_than_one_row_is_refused(process: QueryProcess, text: str) -> None:
    with pytest.raises(InvalidArgument):
        process.expressions([text], CLAIMS)
    assert process.expressions(["a"], {})[0].sql == "a"  # the process still works


def test_query_inside_another_one_does_not_wait_for_it(queries: Queries) -> None:
    outer = queries.start("ada")
    try:
        inner = [queries.start("ada", inside=True) for _ in range(4)]
        with pytest.raises(LimitExceeded):
            queries.start("ada", inside=True)
        for each in inner:
            each.close()
        again = queries.start("ada", inside=True)
        again.close()
    finally:
        outer.close()
    queries.start("grace").close()
