"""The SQL of views: DuckDB's own definition is preferred, and others are translated."""

from __future__ import annotations

import pytest

from skiway.errors import InvalidArgument
from skiway.metastore.resources.view_dialects import duckdb_sql
from skiway.model import v1


def sql(*definitions: tuple[str, str]) -> str:
    return duckdb_sql([v1.ViewSql(dialect=dialect, sql=text) for dialect, text in definitions])


def test_definition_of_duckdb_is_used_as_it_is() -> None:
    assert sql(("spark", "SELECT `a` FROM t"), ("duckdb", "select  A from T")) == "select  A from T"
    assert sql(("duckdb", "not even SQL")) == "not even SQL"


def test_first_other_dialect_is_translated() -> None:
    assert sql(("spark", "SELECT `a b` FROM t"), ("trino", "SELECT 2")) == 'SELECT "a b" FROM "t" AS "t"'


@pytest.mark.parametrize(
    ("spark", "expected"),
    [
        ("SELECT x FROM t", 'SELECT x FROM "deep.er"."t" AS "t"'),
        ("SELECT x FROM other.t", 'SELECT x FROM "other"."t" AS "t"'),
        ("SELECT x FROM mine.other.t", 'SELECT x FROM "other"."t" AS "t"'),
        ("SELECT t.x FROM main.t AS u", 'SELECT t.x FROM "main_"."t" AS u'),
        ("WITH t AS (SELECT 1 AS x) SELECT x FROM t", "WITH t AS (SELECT 1 AS x) SELECT x FROM t"),
    ],
)
def test_names_are_completed_with_the_namespace_of_the_view(spark: str, expected: str) -> None:
    found = duckdb_sql([v1.ViewSql(dialect="spark", sql=spark)], namespace=["deep", "er"], catalogs={"mine"})
    assert found == expected


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (("spark", "SELECT FROM WHERE (\nx"), "its SQL in the dialect spark cannot be translated"),
        (("spark", "SELECT levenshtein(a, b, 3) FROM t"), "to that of duckdb: Argument 'ins_cost' is not supported"),
        (("klingon", "SELECT 1"), "its SQL in the dialect klingon cannot be translated"),
        (("spark", "SELECT 1; SELECT 2"), "it has 2 statements: a view is one query"),
    ],
)
def test_definitions_that_cannot_be_translated_are_rejected(definition: tuple[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as refused:
        sql(definition)
    assert "\n" not in refused.value.message
