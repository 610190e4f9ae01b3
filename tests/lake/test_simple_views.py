"""Which views have the statistics of their table, and of which of its columns."""

from __future__ import annotations

import pytest

from skiway.sql.relations import row_count, simple_view

TABLE = ["id", "name", "Region", "x"]


@pytest.mark.parametrize(
    ("sql", "column", "source"),
    [
        ("SELECT id FROM t", "id", "id"),
        ("SELECT id AS n FROM s.t WHERE id > 3", "n", "id"),
        ("SELECT ID AS n FROM c.s.t", "N", "id"),
        ("SELECT v.region FROM t AS v", "region", "Region"),
        ("SELECT t.id FROM s.t", "id", "id"),
        ("FROM t", "id", "id"),
        ("SELECT * FROM t WHERE id IN (SELECT 1)", "region", "Region"),
        ("SELECT id + 1 AS id FROM t", "id", None),
        ("SELECT CAST(id AS BIGINT) AS id FROM t", "id", None),
        ("SELECT point.x FROM t", "x", None),
        ("SELECT id FROM t", "name", None),
        ("SELECT id AS gone FROM t", "id", None),
    ],
)
def test_source_of_a_column(sql: str, column: str, source: str | None) -> None:
    found = simple_view(sql)
    assert found is not None
    assert found.source_of(column, TABLE) == source


def test_columns_that_differ_in_case_only_have_no_source() -> None:
    found = simple_view("SELECT id FROM t")
    assert found is not None
    assert found.source_of("id", ["id", "ID"]) is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM t, u",
        "SELECT id FROM t JOIN u USING (id)",
        "SELECT max(id) AS id FROM t GROUP BY name",
        "SELECT DISTINCT id FROM t",
        "SELECT id FROM t LIMIT 3",
        "SELECT id FROM t UNION SELECT id FROM t",
        "WITH t AS (SELECT 1 AS id) SELECT id FROM t",
        "SELECT id FROM (SELECT 1 AS id)",
        "SELECT id FROM range(3) AS t(id)",
        "SELECT id FROM t AS v(id)",
        "SELECT id FROM t TABLESAMPLE 10%",
        "SELECT id FROM t AT (VERSION => 3)",
        "SELECT id AS x, name AS x FROM t",
        "SELECT *, id AS x FROM t",
        "SELECT t.*, id AS x FROM t",
        "SELECT * EXCLUDE (id) FROM t",
        "SELECT * REPLACE (1 AS id) FROM t",
        "VALUES (1)",
        "this is not SQL",
    ],
)
def test_other_views_are_not_simple(sql: str) -> None:
    assert simple_view(sql) is None


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("SELECT count(*) FROM s.t", "count_star()"),
        ("select COUNT(*) AS n from c.s.t;", "n"),
        ("SELECT count(*) AS n FROM s.t AS x", "n"),
    ],
)
def test_queries_that_count_all_rows(sql: str, name: str) -> None:
    found = row_count(sql)
    assert found is not None
    assert (found.schema, found.table, found.name) == ("s", "t", name)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(id) FROM s.t",
        "SELECT count(DISTINCT id) FROM s.t",
        "SELECT count(*) FILTER (WHERE id > 1) FROM s.t",
        "SELECT count(*) OVER () FROM s.t",
        "SELECT count(*) + 1 FROM s.t",
        "SELECT count(*), 1 FROM s.t",
        "SELECT count(*) FROM s.t WHERE id > 1",
        "SELECT count(*) FROM s.t GROUP BY id",
        "SELECT count(*) FROM s.t LIMIT 0",
        "SELECT count(*) FROM s.t HAVING count(*) > 3",
        "SELECT count(*) FROM s.t, s.u",
        "SELECT count(*) FROM s.t AT (VERSION => 3)",
        "SELECT count(*) FROM s.t TABLESAMPLE 10%",
        "SELECT count(*) FROM (FROM s.t)",
        "SELECT count(*) FROM s.t; SELECT 1",
        "WITH t AS (SELECT 1) SELECT count(*) FROM s.t",
        "SELECT count(*) FROM read_parquet('x')",
        "FROM s.t",
    ],
)
def test_other_queries_do_not_count_all_rows(sql: str) -> None:
    assert row_count(sql) is None
