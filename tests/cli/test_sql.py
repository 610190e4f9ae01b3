"""`skiway sql`: DuckDB over the lake."""

from __future__ import annotations

import json
import os
import pty
import time
from pathlib import Path

import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from cli.conftest import ROWS, Run
from runtime.servers import Server, environment, launch, skiway
from skiway.client.airport.predicates import And, Between, Column, Comparison, In, IsNull, Op
from skiway.sql.pushdown import pushdown_filter

# --- reading ------------------------------------------------------------------------------------------------------


def test_rows_are_printed_as_a_table(run: Run) -> None:
    shown = run("sql", "SELECT * FROM lake.raw.people ORDER BY id")
    assert shown.out == "id  name\n 1  Ada\n 2  Grace\n 3  NULL\n"


def test_json_output_is_one_document(run: Run) -> None:
    assert run("sql", "SELECT * FROM lake.raw.people ORDER BY id", "-o", "json").json == [
        {"id": 1, "name": "Ada"},
        {"id": 2, "name": "Grace"},
        {"id": 3, "name": None},
    ]
    assert run("sql", "SELECT * FROM lake.raw.people WHERE id > 9", "-o", "json").json == []
    assert run("sql", "SELECT 1 AS a; SELECT 2 AS a, 3 AS a", "-o", "json").json == [[{"a": 1}], [{"a": 2, "a_2": 3}]]


def test_duckdb_features_work_such_as_joins_aggregates_and_files(run: Run, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("name,city\nAda,London\nGrace,New York\n")
    rows = run(
        *("sql", "-o", "json"),
        f"""
        WITH orders AS (SELECT customer, count(*) AS n FROM lake.raw.orders GROUP BY ALL)
        SELECT p.name, o.n, f.city FROM lake.raw.people p JOIN orders o ON o.customer = p.name
        JOIN '{tmp_path}/more.csv' f ON f.name = p.name ORDER BY ALL
        """,
    ).json
    assert rows == [
        {"name": "Ada", "n": ROWS // 2, "city": "London"},
        {"name": "Grace", "n": ROWS * 4 // 10, "city": "New York"},
    ]


def test_columns_can_be_fully_qualified_and_tables_can_omit_the_catalog(run: Run) -> None:
    assert run(
        "sql", "SELECT lake.raw.people.name AS n FROM lake.raw.people WHERE people.id = 1", "-o", "json"
    ).json == [{"n": "Ada"}]
    assert run("sql", "SELECT count(*) AS n FROM raw.people", "--catalog", "lake", "-o", "json").json == [{"n": 3}]


def test_table_can_be_read_twice_with_different_filters(run: Run) -> None:
    both = "SELECT (SELECT name FROM lake.raw.people WHERE id = 1) AS a, (SELECT name FROM lake.raw.people WHERE id = 2) AS b"
    assert run("sql", both, "-o", "json").json == [{"a": "Ada", "b": "Grace"}]


def test_geometries_are_shown_as_text(run: Run) -> None:
    query = "SELECT 'POINT (1 2)'::GEOMETRY AS place UNION ALL SELECT NULL"
    assert run("sql", query).out == "place\nPOINT (1 2)\nNULL\n"
    assert run("sql", query, "-o", "json").json == [{"place": "POINT (1 2)"}, {"place": None}]


def test_filters_are_sent_to_the_server(run: Run) -> None:
    query = "SELECT count(*) AS n FROM lake.raw.orders WHERE id >= 5500 AND paid AND abs(id) < 5600"
    assert run("sql", query, "-o", "json").json == [{"n": 75}]
    planned = run(
        *("sql", "-o", "json"),
        "SELECT filter, files_considered, files_pruned FROM lake.skiway.plans"
        " WHERE table_name = 'orders' ORDER BY planned_at DESC LIMIT 1",
    ).json[0]
    assert (planned["files_considered"], planned["files_pruned"]) == (6, 5)
    assert "5500" in planned["filter"]
    assert "paid" in planned["filter"]
    assert "5600" not in planned["filter"]


def test_time_travel_by_version_and_timestamp(run: Run) -> None:
    run("sql", "CREATE SCHEMA lake.travel; CREATE TABLE lake.travel.t AS SELECT 1 AS id")
    first = run("snapshots", "list", "lake.travel.t", "-o", "json").json[0]
    run("sql", "INSERT INTO lake.travel.t VALUES (2); ALTER TABLE lake.travel.t ADD COLUMN note VARCHAR")
    then = f"SELECT * FROM lake.travel.t AT (VERSION => {first['id']})"
    assert run("sql", then, "-o", "json").json == [{"id": 1}]
    moment = first["created_at"].replace("T", " ").removesuffix("Z")
    assert run("sql", f"SELECT t.id FROM lake.travel.t AT (TIMESTAMP => TIMESTAMP '{moment}')", "-o", "json").json == [
        {"id": 1}
    ]
    both = f"SELECT count(*) AS now, (SELECT count(*) FROM lake.travel.t AT (VERSION => {first['id']})) AS before"
    assert run("sql", f"{both} FROM lake.travel.t", "-o", "json").json == [{"now": 2, "before": 1}]
    assert run("sql", "SELECT * FROM lake.travel.t AT (VERSION => 5)").code == 1


def test_nan_is_the_greatest_number_as_in_duckdb(run: Run, table: str) -> None:
    run(
        "sql",
        f"CREATE OR REPLACE TABLE {table} AS SELECT x, {{'y': x}} AS s FROM (VALUES (1.0::DOUBLE), ('nan'), (9)) v(x)",
    )
    for condition in ("x > 5", "s.y > 5", "x NOT BETWEEN 0 AND 5", "x = 'nan' OR x = 9"):
        found = run("sql", f"SELECT x FROM {table} WHERE {condition} ORDER BY x", "-o", "json").json
        assert found == [{"x": 9.0}, {"x": "nan"}], condition
    _, schema, name = table.split(".")
    current = f"SELECT snapshot_id AS id FROM lake.skiway.snapshots WHERE is_current AND schema_name = '{schema}' AND table_name = '{name}'"
    [version] = run("sql", current, "-o", "json").json
    then = run("sql", f"SELECT x FROM {table} AT (VERSION => {version['id']}) WHERE x > 5 ORDER BY x", "-o", "json")
    assert then.json == [{"x": 9.0}, {"x": "nan"}]


def test_conditions_on_moments_compare_all_values_as_in_duckdb(run: Run, table: str) -> None:
    """Lists of them do not need Python's values, which have neither nanoseconds nor years before Christ."""
    values = {
        "TIMESTAMPTZ": ("2024-01-01 00:00:00+00", "2024-01-01 00:00:01+00", "2024-01-01 00:00:02+00"),
        "TIMESTAMP_NS": ("2024-01-01 00:00:00.000000001", "2024-01-01 00:00:00.000000002", "2024-01-01 00:00:01"),
        "DATE": ("0044-03-15 (BC)", "2024-01-01", "2024-01-02"),
    }
    columns = ", ".join(f"unnest({list(some)}::{of}[]) AS c{place}" for place, (of, some) in enumerate(values.items()))
    table += "_moments"
    created = run("sql", f"CREATE TABLE {table} AS SELECT unnest([1, 2, 3]) AS id, {columns}")
    assert created.code == 0, created.err
    for place, (of, some) in enumerate(values.items()):
        one, two, three = (f"'{value}'::{of}" for value in some)
        conditions = {
            f"= {two}": [2],
            f"<> {two}": [1, 3],
            f"IN ({one}, {two})": [1, 2],
            f"NOT IN ({one}, {two})": [3],
            f"BETWEEN {two} AND {three}": [2, 3],
            f"IN (SELECT unnest([{one}, {three}]))": [1, 3],
        }
        for condition, ids in conditions.items():
            found = run("sql", f"SELECT id FROM {table} WHERE c{place} {condition} ORDER BY id", "-o", "json").json
            assert found == [{"id": each} for each in ids], (of, condition)


def test_long_result_is_truncated_with_a_notice_for_people(run: Run) -> None:
    cut = run("sql", "SELECT id FROM lake.raw.orders", "--max-rows", "10")
    assert len(cut.lines) == 11
    assert "only the first 10 rows are shown" in cut.err
    assert len(run("sql", "SELECT id FROM lake.raw.orders", "--max-rows", "0").lines) == ROWS + 1
    assert len(run("sql", "SELECT id FROM lake.raw.orders", "--max-rows", "10", "-o", "json").json) == ROWS


def test_describe_and_copy_work(run: Run, tmp_path: Path) -> None:
    assert [each["column_name"] for each in run("sql", "DESCRIBE lake.raw.people", "-o", "json").json] == ["id", "name"]
    assert run("sql", f"COPY (SELECT * FROM lake.raw.people) TO '{tmp_path}/out.csv'").code == 0
    assert (tmp_path / "out.csv").read_text() == "id,name\n1,Ada\n2,Grace\n3,\n"


# --- writing ------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(run: Run, request: pytest.FixtureRequest) -> str:
    """A managed table with three rows, only for this test."""
    schema = f"lake.t{abs(hash(request.node.name))}"
    made = run("sql", f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.t (id BIGINT NOT NULL, name VARCHAR, day DATE)")
    assert made.code == 0, made.err
    added = run("sql", f"INSERT INTO {schema}.t VALUES (1, 'Ada', '1815-12-10'), (2, 'Grace', NULL), (3, NULL, NULL)")
    assert (added.code, added.out) == (0, "inserted 3 rows\n"), added.err
    return f"{schema}.t"


def rows(run: Run, table: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in run("sql", f"SELECT * FROM {table} ORDER BY id", "-o", "json").json]


def test_rows_are_inserted_by_position_by_column_and_by_name(run: Run, table: str) -> None:
    assert run("sql", f"INSERT INTO {table} (name, id) VALUES ('x', '4')").out == "inserted 1 row\n"
    assert run("sql", f"INSERT INTO {table} BY NAME SELECT 5.4 AS id, DATE '2025-01-01' AS day").code == 0
    assert rows(run, table)[3:] == [(4, "x", None), (5, None, "2025-01-01")]
    wrong = run("sql", f"INSERT INTO {table} VALUES (1)")
    assert (wrong.code, "3 columns (id, name, day), but the rows have 1" in wrong.err) == (1, True)
    assert run("sql", f"INSERT INTO {table} (id) VALUES ('x')").code == 1
    assert run("sql", f"INSERT INTO {table} (id) VALUES (NULL)").code == 1
    assert len(rows(run, table)) == 5


def test_returning_returns_the_affected_rows(run: Run, table: str) -> None:
    back = run(
        "sql", f"INSERT INTO {table} VALUES (7, 'new', NULL) RETURNING id * 10 AS ten, t.name", "-o", "json"
    ).json
    assert back == [{"ten": 70, "name": "new"}]
    changed = run("sql", f"UPDATE {table} SET name = upper(name) WHERE id < 3 RETURNING *")
    assert changed.out == "id  name   day\n 1  ADA    1815-12-10\n 2  GRACE  NULL\nupdated 2 rows\n"
    gone = run("sql", f"DELETE FROM {table} WHERE id = 7 RETURNING name", "-o", "json").json
    assert gone == [{"name": "new"}]


def test_rows_are_updated_with_any_duckdb_expression(run: Run, table: str) -> None:
    query = (
        f"UPDATE {table} AS x SET name = concat(x.name, '!'), day = (SELECT max(day) FROM {table}) WHERE x.id IN (2, 3)"
    )
    assert run("sql", query, "-o", "json").json == {"statement": "update", "count": 2, "message": "updated 2 rows"}
    assert rows(run, table)[1:] == [(2, "Grace!", "1815-12-10"), (3, "!", "1815-12-10")]
    assert run("sql", f"UPDATE {table} SET id = NULL").code == 1
    assert run("sql", f"UPDATE {table} SET nope = 1").code == 1


def test_ended_statements_hold_no_snapshots(run: Run, table: str) -> None:
    where = "schema_name = '{}' AND table_name = '{}'".format(*table.split(".")[1:])
    (first,) = run("sql", f"SELECT snapshot_id AS id FROM lake.skiway.snapshots WHERE {where}", "-o", "json").json
    past = f"(SELECT count(*) FROM {table} AT (VERSION => {first['id']}))"
    for statement, code in {
        f"UPDATE {table} SET name = {past} WHERE id = 2": 0,
        f"UPDATE {table} SET name = CASE WHEN {past} > 0 THEN error('no') END": 1,
        f"DELETE FROM {table} WHERE id = {past}": 0,
        f"DELETE FROM {table} WHERE {past} > 0 AND error('no') = 'x'": 1,
    }.items():
        assert run("sql", statement).code == code, statement
        held = "SELECT count(*) AS n FROM lake.skiway.queries WHERE kind = 'transaction'"
        assert run("sql", held, "-o", "json").json == [{"n": 0}], statement


def test_rows_are_deleted_with_any_condition(run: Run, table: str) -> None:
    query = f"DELETE FROM {table} WHERE id IN (SELECT id FROM lake.raw.people WHERE name IS NOT NULL)"
    assert run("sql", query).out == "deleted 2 rows\n"
    assert [row[0] for row in rows(run, table)] == [3]
    assert run("sql", f"TRUNCATE {table}").out == "deleted 1 row\n"
    assert rows(run, table) == []


def test_tables_are_created_from_queries_with_their_types(run: Run, table: str) -> None:
    made = run(
        "sql", f"CREATE TABLE {table}2 AS SELECT id, uuid() AS u, true AS b, sum(id) AS s FROM {table} GROUP BY id"
    )
    assert made.code == 0, made.err
    assert made.out.endswith(", inserted 3 rows\n")
    kinds = {row["column_name"]: row["column_type"] for row in run("sql", f"DESCRIBE {table}2", "-o", "json").json}
    assert kinds == {"id": "BIGINT", "u": "UUID", "b": "BOOLEAN", "s": "DECIMAL(38,0)"}
    assert run("sql", f"CREATE TABLE IF NOT EXISTS {table}2 AS SELECT 1 AS other").code == 0
    assert len(rows(run, f"{table}2")) == 3
    assert run("sql", f"CREATE TABLE {table}2 AS SELECT 1 AS other").code == 1
    assert run("sql", f"CREATE OR REPLACE TABLE {table}2 AS SELECT id FROM {table}2 WHERE id > 1").code == 0
    assert rows(run, f"{table}2") == [(2,), (3,)]


def test_query_that_fails_midway_creates_and_replaces_no_table(run: Run, table: str) -> None:
    failing = "SELECT i, CASE WHEN i > 99990 THEN error('no') END AS x FROM range(100000) r(i)"
    failed = run("sql", f"CREATE TABLE {table}3 AS {failing}")
    assert (failed.code, failed.err) == (1, "skiway: Invalid Input Error: no\n")
    assert run("sql", failing, "--max-rows", "0").err == failed.err
    assert run("sql", f"INSERT INTO {table} (id, name) {failing}").err == failed.err
    assert run("sql", f"SELECT * FROM {table}3").code == 1
    assert run("sql", f"CREATE OR REPLACE TABLE {table} AS {failing}").code == 1
    assert len(rows(run, table)) == 3


def test_tables_are_altered_and_dropped(run: Run, table: str) -> None:
    alter = f"ALTER TABLE {table}"
    done = run(
        "sql",
        f"{alter} ADD COLUMN score INTEGER; {alter} RENAME COLUMN name TO title; {alter} DROP COLUMN day;"
        f"{alter} ALTER COLUMN score TYPE BIGINT; {alter} ALTER COLUMN id DROP NOT NULL; {alter} RENAME TO u",
    )
    assert done.code == 0, done.err
    renamed = f"{table[:-1]}u"
    kinds = {row["column_name"]: row["column_type"] for row in run("sql", f"DESCRIBE {renamed}", "-o", "json").json}
    assert kinds == {"id": "BIGINT", "title": "VARCHAR", "score": "BIGINT"}
    assert run("sql", f"INSERT INTO {renamed} (score) VALUES (1)").code == 0
    assert run("sql", f"DROP TABLE {renamed}; DROP TABLE IF EXISTS {renamed}; DROP SCHEMA {table[:-2]}").code == 0
    assert run("sql", f"DROP TABLE {renamed}").code == 1


def test_merge_is_one_change(run: Run, table: str) -> None:
    """Names of tables that are not those of the server's function, in parts that have parentheses, strings and other names."""
    schema, name = table.rpartition(".")[::2]
    run("sql", f"INSERT INTO {table} (id, name) VALUES (10, 'ten')")
    done = run(
        "sql",
        f"""USE {schema}; MERGE INTO {name} AS t USING (SELECT 10 AS id, 'USING n ON t.id WHEN' AS name UNION ALL
            SELECT max(n.id) + 90, 'new' FROM {name} n) n ON (t.id = n.id) AND n.name != 'x'
            WHEN MATCHED AND t.name = 'ten' THEN UPDATE SET name = n.name
            WHEN NOT MATCHED THEN INSERT (id, name) VALUES (n.id, n.name)""",
    )
    assert (done.code, done.out) == (0, f"using {schema}\ninserted 1 row, updated 1 row\n"), done.err
    found = run("sql", f"SELECT id, name FROM {table} WHERE id >= 10 ORDER BY id", "-o", "json").json
    assert found == [{"id": 10, "name": "USING n ON t.id WHEN"}, {"id": 100, "name": "new"}]
    done = run(
        "sql",
        f"MERGE INTO {table} USING {table} s ON {name}.id = s.id WHEN MATCHED AND s.id > 9 THEN DELETE",
        "-o",
        "json",
    )
    assert done.json == {"statement": "merge", "count": 2, "message": "deleted 2 rows"}
    assert len(rows(run, table)) == 3


def test_views_are_created_replaced_and_dropped(run: Run, table: str) -> None:
    schema, name = table.rpartition(".")[::2]
    view, other = f"{schema}.v", f"{schema}2.v"
    done = run(
        "sql",
        f"CREATE SCHEMA {schema}2; USE {schema}; CREATE VIEW v AS WITH {name} AS (FROM {table}) SELECT id FROM {name} WHERE id > 1;"
        f"CREATE VIEW IF NOT EXISTS v AS SELECT 1; CREATE VIEW {other} AS SELECT count(*) AS id FROM {name}",
    )
    assert done.code == 0, done.err
    assert done.out.splitlines()[2:] == [f"created view {view}", f"view {view} already exists", f"created view {other}"]
    assert sorted(rows(run, view)) == [(2,), (3,)]
    assert rows(run, other) == [(3,)]
    assert "already exists" in run("sql", f"CREATE VIEW {view} AS SELECT 1").err
    assert run("sql", f"CREATE OR REPLACE VIEW {view} AS SELECT 7 AS id").code == 0
    assert rows(run, view) == [(7,)]
    assert (
        run("sql", f"DROP VIEW {view}; DROP VIEW IF EXISTS {view}; DROP VIEW {other}; DROP SCHEMA {schema}2").code == 0
    )
    assert run("sql", f"DROP VIEW {table}").err == f"skiway: {table.partition('.')[2]} is a table: use DROP TABLE\n"


@pytest.mark.parametrize(
    ("statement", "expected_error"),
    [
        ("BEGIN", "every statement commits on its own"),
        ("MERGE INTO lake.raw.people USING lake.raw.people x ON true WHEN MATCHED THEN DELETE", "read-only"),
        ("MERGE INTO lake.raw.people USING (SELECT 1) ON true WHEN MATCHED THEN DELETE", "without an alias"),
        (
            "MERGE INTO lake.raw.people p USING lake.raw.people q USING (id) WHEN MATCHED THEN DELETE",
            "ON condition WHEN",
        ),
        (
            "MERGE INTO lake.raw.people p USING x ON p.id = x.id WHEN MATCHED THEN DELETE",
            "x is not a table of the lake, and the server",
        ),
        ("EXPLAIN DELETE FROM lake.raw.people", "EXPLAIN is for queries only"),
        ("SET search_path = 'raw'", "USE catalog.schema"),
        ("USE lake.nope", "schema lake.nope does not exist"),
        (".nope", "type .help"),
        ("CREATE VIEW lake.raw.v (a) AS SELECT 1", "a view takes its columns from its query"),
        ("CREATE VIEW lake.raw.v AS FROM 'x.csv'", 'x.csv" is not a table of the lake'),
        ("CREATE SEQUENCE lake.raw.s", "CREATE SEQUENCE is not supported"),
        ("INSERT OR REPLACE INTO lake.raw.people VALUES (1, 'x')", "tables of the lake have no keys"),
        ("UPDATE lake.raw.people SET id = 1 FROM lake.raw.people o", "read-only"),
        ("COPY lake.raw.people FROM 'x.csv'", "INSERT INTO table SELECT * FROM 'file'"),
        ("DROP SCHEMA lake.raw CASCADE", "skiway namespaces delete --cascade"),
        ("SELEC 1", "syntax error"),
        ("SELECT nope FROM lake.raw.people", "nope"),
        ("SELECT * FROM nothing_like_it", "does not exist; write tables as catalog.schema.table"),
        ("INSERT INTO people VALUES (1)", "people is not a table of the lake: write catalog.schema.table"),
        ("INSERT INTO lake.raw.people VALUES (1, 'x')", "read-only"),
        ("DELETE FROM lake.raw.people", "read-only"),
        ("CREATE TABLE lake.raw.k (id INT PRIMARY KEY)", "PRIMARY KEY"),
        ("CREATE TABLE lake.raw.k (id INT DEFAULT 3)", "default"),
        ("CREATE TABLE lake.raw.k (id INT CHECK (id > 0))", "CHECK"),
        ("CREATE TABLE lake.raw.k (t TIMETZ)", "'t'"),
        ("", "there is no statement to run"),
    ],
)
def test_unsupported_statement_is_rejected_without_changes(run: Run, statement: str, expected_error: str) -> None:
    ended = run("sql", statement)
    assert (ended.code, ended.out) == (1, "")
    assert expected_error in ended.err
    assert "Traceback" not in ended.err
    assert run("sql", "SELECT count(*) AS n FROM lake.raw.people", "-o", "json").json == [{"n": 3}]


def test_name_without_its_schema_is_explained_with_the_full_name(run: Run) -> None:
    assert run("sql", "CREATE SCHEMA lake.suggested").code == 0
    assert run("sql", "CREATE TABLE lake.suggested.only_in_one_schema AS SELECT 1 AS id").code == 0
    ended = run("sql", "SELECT * FROM only_in_one_schema")
    assert (ended.code, ended.out) == (1, "")
    assert "does not exist; did you mean lake.suggested.only_in_one_schema?" in ended.err
    assert "Traceback" not in ended.err
    assert run("namespaces", "delete", "lake.suggested", "--cascade").code == 0


# --- where statements come from -----------------------------------------------------------------------------------


def test_statements_are_read_from_stdin_or_a_file(run: Run, tmp_path: Path) -> None:
    assert run("sql", stdin_text="SELECT 1 AS a;\n-- and no more\n").out == "a\n1\n"
    (tmp_path / "q.sql").write_text("SELECT 'a;b' AS text; SELECT 2 AS b")
    assert run("sql", "-f", tmp_path / "q.sql").out == "text\na;b\nb\n2\n"
    both = run("sql", "SELECT 1", "-f", tmp_path / "q.sql")
    assert (both.code, "not both" in both.err) == (2, True)
    missing = run("sql", "-f", tmp_path / "none.sql")
    assert (missing.code, "cannot read the file" in missing.err and "No such file" in missing.err) == (1, True)


def test_failed_statement_stops_the_following_ones(run: Run) -> None:
    ended = run("sql", "SELECT 1 AS a; SELECT nope; SELECT 2 AS b")
    assert (ended.code, ended.out) == (1, "a\n1\n")


def test_terminal_gets_an_interactive_prompt(lake: Server) -> None:
    controller, terminal = pty.openpty()
    env = environment(SKIWAY_SERVER=lake.address, TERM="dumb", COLUMNS="80")
    with launch("sql", env=env, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        try:
            os.close(terminal)
            _read_until(controller, "skiway> ")
            os.write(controller, b"SELECT count(*) AS people\n")
            _read_until(controller, "...> ")
            os.write(controller, b"FROM lake.raw.people;\n")
            assert "people\r\n     3\r\n" in _read_until(controller, "skiway> ")
            os.write(controller, b"SELECT nope;\n")
            assert "error: " in _read_until(controller, "skiway> ")
            os.write(controller, b"exit\n")
            assert process.wait(200) == 0
        finally:
            process.kill()
            os.close(controller)


def _read_until(controller: int, word: str) -> str:
    expected_error, deadline = "", time.monotonic() + 60
    while word not in expected_error:
        assert time.monotonic() < deadline, expected_error
        expected_error += os.read(controller, 4096).decode()
    return expected_error


# --- pushdown -----------------------------------------------------------------------------------------------------

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.string(),
        "price": pa.decimal128(10, 2),
        "score": pa.float64(),
        "low": pa.float32(),
        "day": pa.date32(),
        "at": pa.timestamp("us"),
        "zoned": pa.timestamp("us", "UTC"),
        "paid": pa.bool_(),
    }
)


def pushed(condition: str, source: str = "lake.s.t") -> object:
    statement = sqlglot.parse_one(f"SELECT * FROM {source} WHERE {condition}", dialect="duckdb")
    node = next(each for each in statement.find_all(exp.Table) if each.name == "t")
    return pushdown_filter(statement, node, SCHEMA)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("id = 5", Comparison(Op.EQUAL, "id", 5)),
        ("ID = 5", Comparison(Op.EQUAL, "id", 5)),
        ("5 < t.id", Comparison(Op.GREATER, "id", 5)),
        ("id <> -5", Comparison(Op.NOT_EQUAL, "id", -5)),
        ("name >= 'x'", Comparison(Op.GREATER_OR_EQUAL, "name", "x")),
        ("id BETWEEN 1 AND 2", Between("id", 1, 2)),
        ("name IN ('a', 'b')", In("name", ("a", "b"))),
        ("name IS NULL", IsNull("name")),
        ("name IS NOT NULL", IsNull("name", negated=True)),
        ("id = 5 AND (name = 'x')", And((Comparison(Op.EQUAL, "id", 5), Comparison(Op.EQUAL, "name", "x")))),
        ("id = 5 AND name LIKE 'x%'", Comparison(Op.EQUAL, "id", 5)),
    ],
)
def test_comparisons_of_a_column_with_constants_are_pushed_down(condition: str, expected: object) -> None:
    assert pushed(condition) == expected


def test_temporal_values_and_decimals_keep_their_types_in_pushdown() -> None:
    assert "datetime.date(2025, 1, 2)" in repr(pushed("day > '2025-01-02'"))
    assert "datetime.date(2025, 1, 2)" in repr(pushed("day > DATE '2025-01-02'"))
    assert "datetime.datetime(2025, 1, 2, 3, 0)" in repr(pushed("at <= TIMESTAMP '2025-01-02 03:00:00'"))
    assert "Decimal('1.50')" in repr(pushed("price = 1.50"))
    assert "value=0.1" in repr(pushed("score < 0.1"))
    assert isinstance(pushed("paid"), Column)


@pytest.mark.parametrize(
    "condition",
    [
        "id = 5 OR name = 'x'",
        "id = 1.5",
        "id = '5'",
        "id = 99999999999999999999",
        "name = 5",
        "id + 1 = 5",
        "id = score",
        "NOT (id = 5)",
        "id IN (SELECT 1)",
        "price = 1.005",
        "low = 0.1",
        "day > TIMESTAMP '2025-01-02 12:00:00'",
        "zoned > TIMESTAMP '2025-01-02 12:00:00'",
        "nope = 5",
        "id = NULL",
        "name ILIKE 'x'",
    ],
)
def test_conditions_with_duckdb_specific_semantics_are_not_pushed_down(condition: str) -> None:
    assert pushed(condition) is None


@pytest.mark.parametrize(
    ("source", "is_pushed"),
    [
        ("lake.s.t x", True),
        ("lake.s.t x JOIN lake.s.u ON x.id = u.id", True),
        ("lake.s.t x, lake.s.u", True),
        ("lake.s.u LEFT JOIN lake.s.t x ON x.id = u.id", False),
        ("lake.s.t x FULL JOIN lake.s.u ON x.id = u.id", False),
        ("lake.s.t x ANTI JOIN lake.s.u ON x.id = u.id", False),
        ("lake.s.t x TABLESAMPLE 10%", False),
    ],
)
def test_filters_are_pushed_through_inner_joins_only(source: str, *, is_pushed: bool) -> None:
    assert (pushed("x.id = 5", source) is not None) == is_pushed
    if "," in source or "JOIN" in source:
        assert pushed("id = 5", source) is None, "the column is ambiguous"


def test_json_is_one_document_for_any_number_of_rows(lake: Server) -> None:
    """Run in its own process, because the output is streamed."""
    query = ("sql", "SELECT id, customer FROM lake.raw.orders ORDER BY id", "-o", "json")
    done = skiway(*query, timeout_s=100, SKIWAY_SERVER=lake.address)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["id"] for row in found] == list(range(ROWS))
