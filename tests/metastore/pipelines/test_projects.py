"""The files of a pipeline, their queries and their order. No test here needs Spark."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from skiway.errors import InvalidArgument, NotFound
from skiway.formats import TableName
from skiway.metastore.pipelines.projects import Project, in_order, read_folder, read_project, selected
from skiway.metastore.pipelines.spark_sql import parse_query

HEAD = "name: sales\ncatalog: lake\nnamespace: shop\n"


def project(head: str = HEAD, **queries: str) -> Project:
    return read_project({"pipeline.yml": head, **{f"{name}.sql": sql for name, sql in queries.items()}})


def names(found: Project) -> list[str]:
    return [table.name.name for table in in_order(found)]


def test_a_folder_becomes_a_project(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yml").write_text(HEAD + "schedule: 30m\n")
    (tmp_path / "marts").mkdir()
    (tmp_path / "marts" / "totals.sql").write_text(
        "-- A note: not an option.\n-- @refresh: full\n-- @partition_by: region\nSELECT region FROM orders"
    )
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.sql").write_text("nonsense")
    found = read_project(read_folder(tmp_path))
    assert (found.name, found.schedule, found.on_change) == ("sales", timedelta(minutes=30), False)
    (table,) = found.tables.values()
    assert (str(table.name), table.refresh, table.partition_by) == ("shop.totals", "full", "region")
    assert [str(each) for each in table.reads.values()] == ["shop.orders"]


def test_a_folder_without_the_project_file_is_not_a_pipeline(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"it has no pipeline\.yml"):
        read_folder(tmp_path)


def test_tables_come_after_those_that_they_read() -> None:
    found = project(
        a="SELECT * FROM c",
        b="SELECT * FROM lake.shop.A JOIN raw.orders USING (id)",
        c="WITH a AS (SELECT 1 AS x) SELECT * FROM a, orders",
    )
    assert names(found) == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        ({"a": "SELECT * FROM SHOP.a"}, "table shop.a reads itself, in a.sql"),
        (
            {"a": "SELECT * FROM b", "b": "SELECT * FROM c", "c": "SELECT * FROM a"},
            "shop.a reads shop.b reads shop.c reads shop.a",
        ),
    ],
)
def test_cycles_are_named(queries: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        in_order(project(**queries))
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("head", "queries", "message"),
    [
        ("name: x", {"a": "SELECT 1"}, "namespace is missing"),
        ("[1]", {"a": "SELECT 1"}, "it must be a mapping"),
        ("a: [", {"a": "SELECT 1"}, "it is not valid YAML"),
        (HEAD + "colour: red", {"a": "SELECT 1"}, "there is no field 'colour'"),
        (HEAD + "schedule: soon", {"a": "SELECT 1"}, "schedule is 'soon'; give the time"),
        (HEAD + "schedule: 0m", {"a": "SELECT 1"}, "schedule is '0m'; give the time"),
        (HEAD + "on_change: maybe", {"a": "SELECT 1"}, "on_change is 'maybe'; it must be true or false"),
        (HEAD + "schedule: 1h\non_change: true", {"a": "SELECT 1"}, "it has both schedule and on_change"),
        (HEAD, {}, "the project has no .sql, .py or .csv files"),
        (HEAD, {"a": "-- @refresh: often\nSELECT 1"}, "@refresh is 'often'; it must be incremental or full"),
        (HEAD, {"a": "-- @size: 3\nSELECT 1"}, "there is no option @size"),
        (HEAD, {"a": "-- @table: b\nSELECT 1", "b": "SELECT 1"}, "a.sql also defines table shop.b"),
        (HEAD, {"a": "SELECT 1; SELECT 2"}, "it has 2 statements: write one SELECT"),
        (HEAD, {"a": "DROP TABLE x"}, "it is not a SELECT"),
        (HEAD, {"a": "SELECT FROM WHERE ("}, "it cannot be parsed as SQL of Spark"),
    ],
)
def test_mistakes_in_files_are_explained(head: str, queries: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        project(head, **queries)
    assert message in raised.value.message


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT reflect('java.lang.System', 'getenv', 'HOME') FROM orders",
        "SELECT `java_method`('java.lang.System', 'exit', 1)",
        "SELECT system.builtin.reflect('java.lang.System', 'getenv')",
        "SELECT TRANSFORM(a) USING 'bash -c id' AS (b) FROM orders",
        "SELECT '${env:HOME}' FROM orders",
        "SELECT * FROM IDENTIFIER('a.b')",
        "SELECT * FROM read_files('/etc')",
        "SELECT * FROM orders VERSION AS OF 3",
        "SELECT current_user()",
        "SELECT (SELECT max(reflect('java.lang.System', 'nanoTime')) FROM t) FROM orders",
        "SELECT '$\\u007benv:HOME}' FROM orders",
        "SELECT '$\\173env:HOME}' FROM orders",
        "SELECT 1 AS `${env:HOME}`",
        "SELECT spark_catalog.default.upper(region) FROM orders",
        "SELECT session_user",
        "SELECT `current_user` FROM orders",
        "SELECT current_setting('a') FROM orders",
        "SELECT from_protobuf(a, 'b', '/etc/passwd') FROM orders",
        "WITH reflect(a) AS (SELECT 1) SELECT reflect(a) FROM reflect",
        "SELECT /*+ BROADCAST(orders) */ id FROM orders",
        "SELECT :x FROM orders",
        "SELECT * FROM range(3)",
        "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x FROM r) SELECT x FROM r",
    ],
)
def test_queries_cannot_leave_the_lake(sql: str) -> None:
    with pytest.raises(InvalidArgument, match=r"the query in a\.sql cannot be used"):
        parse_query(sql, file="a.sql")


@pytest.mark.parametrize(
    ("sql", "advice"),
    [
        ("SELECT uper(region) FROM orders", "the function uper is not allowed: .*; did you mean upper?"),
        (
            "SELECT ask_oracle(region) FROM orders",
            "the function ask_oracle is not allowed: .*, so write the query without it",
        ),
        ("SELECT /*+ MERGE(orders) */ id FROM orders", "it has the hint .*: remove it"),
        (
            "SELECT user FROM orders",
            "Spark may read 'user' as a function: write the table before the name of the column",
        ),
    ],
)
def test_refused_queries_get_advice(sql: str, advice: str) -> None:
    with pytest.raises(InvalidArgument, match=advice):
        parse_query(sql, file="a.sql")


def test_a_column_with_the_name_of_a_function_can_be_read() -> None:
    query = parse_query("SELECT o.user, o.current_date FROM orders AS o", file="a.sql")
    assert (query.changes_by_itself, query.why_not_row_wise) == (False, "")


def test_functions_keep_their_names_and_arguments() -> None:
    sql = "SELECT to_date(a, 'y'), array(1, 2)[0], date_sub(a, 2), percentile_cont(0.5) WITHIN GROUP (ORDER BY a), 'it''s' FROM t"
    wanted = sql.replace("array", "ARRAY").replace("it''s", "it\\'s")
    assert parse_query(sql, file="a.sql").text == wanted


def test_a_common_table_expression_is_visible_only_after_it() -> None:
    query = parse_query(
        "WITH b(x) AS (SELECT * FROM a), a AS (SELECT * FROM b) SELECT * FROM A, (SELECT * FROM c) AS c", file="a.sql"
    )
    assert [str(each) for each in query.reads] == ["c", "a"]
    assert query.reading({each: f"v{number}" for number, each in enumerate(query.reads)}) == (
        "WITH `cte b`(x) AS (SELECT * FROM `v1` AS `a`), `cte a` AS (SELECT * FROM `cte b` AS `b`) "
        "SELECT * FROM `cte a` AS `A` CROSS JOIN (SELECT * FROM `v0` AS `c`) AS c"
    )


def test_a_path_is_read_as_the_name_of_a_table() -> None:
    assert parse_query("SELECT * FROM parquet.`/etc/passwd`", file="a.sql").reads == (
        TableName(("parquet",), "/etc/passwd"),
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t",
        "SELECT id, upper(name) AS n, price * 2 AS p FROM t WHERE price > 3 AND name LIKE 'a%'",
        "SELECT CASE WHEN a THEN 1 ELSE 2 END AS x, coalesce(b, 0) AS y, CAST(c AS INT) AS z FROM shop.t AS u",
        "SELECT date_trunc('month', at) AS m, s.f AS f FROM t WHERE at >= DATE '2026-01-01'",
        "SELECT transform(a, x -> x + 1) AS b, from_json(c, 'x INT').x AS x, sha2(d, 256) AS e FROM t",
    ],
)
def test_projections_and_filters_are_row_wise(sql: str) -> None:
    assert parse_query(sql, file="a.sql").why_not_row_wise == ""


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) AS n FROM t",
        "SELECT any(x) AS n FROM t",
        "SELECT bool_and(x) AS n FROM t",
        "SELECT DISTINCT a FROM t",
        "SELECT a FROM t LIMIT 3",
        "SELECT a FROM t ORDER BY a",
        "SELECT a FROM t GROUP BY a",
        "SELECT a FROM t HAVING a > 1",
        "SELECT row_number() OVER (ORDER BY a) AS n FROM t",
        "SELECT t.a FROM t JOIN u ON t.a = u.a",
        "SELECT t.a FROM t JOIN t AS u ON t.a = u.a",
        "SELECT a FROM t WHERE a IN (SELECT a FROM t)",
        "SELECT a FROM t UNION ALL SELECT a FROM t",
        "SELECT a FROM t TABLESAMPLE (10 PERCENT)",
        "SELECT rand() AS r FROM t",
        "SELECT current_date() AS d FROM t",
        "SELECT monotonically_increasing_id() AS i FROM t",
        "SELECT explode(a) AS x FROM t",
        "SELECT window(at, '1 day') AS w FROM t",
        "SELECT unix_timestamp() AS w FROM t",
        "SELECT 1 AS x",
    ],
)
def test_other_queries_are_not_row_wise(sql: str) -> None:
    assert parse_query(sql, file="a.sql").why_not_row_wise != ""


def test_queries_with_time_or_chance_change_by_themselves() -> None:
    for sql in ("SELECT current_date()", "SELECT rand()", "SELECT now()", "SELECT uuid()", "SELECT shuffle(a) FROM t"):
        assert parse_query(sql, file="a.sql").changes_by_itself, sql
    assert not parse_query("SELECT a FROM t", file="a.sql").changes_by_itself


def test_views_take_the_place_of_tables_and_keep_their_names() -> None:
    query = parse_query(
        "WITH t AS (SELECT * FROM raw.t) SELECT t.a, o.b FROM t JOIN shop.orders o ON t.a = o.a JOIN users ON users.a = t.a",
        file="a.sql",
    )
    assert [str(each) for each in query.reads] == ["shop.orders", "users", "raw.t"]
    made = query.reading({each: f"v{number}" for number, each in enumerate(query.reads)})
    assert made == (
        "WITH `cte t` AS (SELECT * FROM `v2` AS `t`) SELECT t.a, o.b FROM `cte t` AS `t` JOIN `v0` AS o ON t.a = o.a "
        "JOIN `v1` AS `users` ON users.a = t.a"
    )


def test_columns_can_be_qualified_by_namespaces() -> None:
    query = parse_query("SELECT lake.shop.orders.id, shop.orders.price, a.b.c FROM lake.shop.orders", file="a.sql")
    (name,) = query.reads
    assert query.reading({name: "v"}) == "SELECT orders.id, orders.price, a.b.c FROM `v` AS `orders`"


def test_comments_and_white_space_do_not_change_a_definition() -> None:
    first, second, third = (
        next(iter(project(a=sql).tables.values()))
        for sql in ("SELECT a FROM t", "-- a note\nselect  a\nfrom t -- more", "SELECT a FROM t WHERE a > 1")
    )
    assert first.digest == second.digest != third.digest


SELECTABLE = {
    "a": "SELECT id FROM orders",
    "b": "SELECT id FROM a",
    "c": "SELECT id FROM b",
    "other": "SELECT id FROM orders",
}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ([], "a b c other"),
        (["b"], "b"),
        (["+b"], "a b"),
        (["b+"], "b c"),
        (["+b+"], "a b c"),
        (["a", "other"], "a other"),
        (["a,c"], "a c"),
        (["o*"], "other"),
        (["shop.b"], "b"),
        (["state:changed"], "b"),
        (["state:changed+"], "b c"),
    ],
)
def test_a_selection_names_tables_and_those_around_them(wanted: list[str], found: str) -> None:
    files = {f"{name}.sql": text for name, text in SELECTABLE.items()}
    project = read_project({"pipeline.yml": "name: p\ncatalog: lake\nnamespace: shop", **files})
    keys = selected(project, wanted, lambda: {"shop.b"})
    assert sorted(keys) == [f"shop.{each}" for each in found.split()]


def test_a_selection_that_names_nothing_is_an_error() -> None:
    files = {f"{name}.sql": text for name, text in SELECTABLE.items()}
    project = read_project({"pipeline.yml": "name: p\ncatalog: lake\nnamespace: shop", **files})
    with pytest.raises(
        InvalidArgument, match=r"the selection 'totals\+' names no table of pipeline p; its tables are shop"
    ):
        selected(project, ["totals+"], set)


def test_a_csv_file_that_cannot_be_read_is_refused() -> None:
    files = {"pipeline.yml": "name: p\ncatalog: lake\nnamespace: shop", "seeds/codes.csv": "a,b\n1,2\n3\n"}
    with pytest.raises(InvalidArgument, match=r"seeds/codes\.csv: it is not a CSV file"):
        read_project(files)
    with pytest.raises(InvalidArgument, match=r"seeds/codes\.csv, line 1: the columns need different names"):
        read_project({**files, "seeds/codes.csv": "a,A\n1,2\n"})


def test_a_cycle_is_reported_with_the_places_of_its_reads() -> None:
    queries = {"a.sql": "SELECT *\nFROM b", "b.sql": "-- @refresh: full\nSELECT *\n\nFROM a"}
    project = read_project({"pipeline.yml": "name: p\ncatalog: lake\nnamespace: shop", **queries})
    with pytest.raises(InvalidArgument) as error:
        in_order(project)
    assert "a.sql line 2" in error.value.message
    assert "b.sql line 4" in error.value.message
