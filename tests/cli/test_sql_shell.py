"""`skiway sql` as a program: streaming, Ctrl-C, pipes, start-up, the formats of the output, and statements about the session."""

from __future__ import annotations

import csv
import ctypes
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import typer.main
import yaml

from cli.conftest import ROWS, Run
from runtime.servers import environment, eventually, launch
from scope import sample
from skiway.airport import CatalogBuilder, Server
from skiway.cli import output
from skiway.cli.app import app
from skiway.cli.command import Call
from skiway.cli.output import Output
from skiway.cli.sql.shell import Worker, split_input
from skiway.duckdb.engine import Engine, split_statements

# --- Ctrl-C, streaming and pipes ----------------------------------------------------------------------------------


@dataclass
class Slow:
    """A server whose table sends one batch and then waits until the scan ends."""

    address: str = ""
    is_scanning: threading.Event = field(default_factory=threading.Event)
    has_ended: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def slow() -> Iterator[Slow]:
    state = Slow()
    demo = CatalogBuilder("lake")

    @demo.schema("s").table(schema=pa.schema({"id": pa.int64()}))
    def endless(_scan: object) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield pa.record_batch({"id": range(4000)})
                state.is_scanning.set()
                if state.has_ended.wait(0.05):
                    return
        finally:
            state.has_ended.set()

    with Server(demo.build(), port=0) as server:
        state.address = server.location
        yield state
        state.has_ended.set()


def started_sql(slow: Slow, *arguments: str) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return launch("sql", *arguments, env=environment(SKIWAY_SERVER=slow.address), fresh=True, **pipes)


@pytest.mark.parametrize(
    "arguments",
    [
        ["SELECT sum(id) FROM lake.s.endless"],
        ["CREATE TEMP TABLE t AS SELECT * FROM lake.s.endless", "--output", "csv"],
    ],
)
def test_ctrl_c_cancels_the_query_here_and_on_the_server(slow: Slow, arguments: list[str]) -> None:
    with started_sql(slow, *arguments) as process:
        try:
            assert slow.is_scanning.wait(200)
            assert not slow.has_ended.is_set()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=200)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "skiway: cancelled\n")
    assert slow.has_ended.wait(200)


def test_ctrl_c_works_if_another_thread_receives_the_signal(slow: Slow) -> None:
    """The kernel may deliver a signal of a process to any of its threads, which does not wake the main thread."""
    with started_sql(slow, "SELECT sum(id) FROM lake.s.endless") as process:
        try:
            assert slow.is_scanning.wait(200)
            other = max(int(each.name) for each in Path(f"/proc/{process.pid}/task").iterdir())
            assert ctypes.CDLL(None).tgkill(process.pid, other, signal.SIGINT) == 0
            _, err = process.communicate(timeout=200)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, "skiway: cancelled\n")


@pytest.mark.parametrize(
    "output",
    sample(["csv", "table", "json", "ndjson", "yaml", "markdown"], every=6),
)
def test_first_rows_arrive_before_the_query_ends_and_a_closed_pipe_ends_it(slow: Slow, output: str) -> None:
    with started_sql(slow, "SELECT id, 'x' AS text FROM lake.s.endless", "-o", output, "--max-rows", "0") as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            first = [process.stdout.readline() for _ in range(3)]
            assert all(first)
            assert not slow.has_ended.is_set()
            process.stdout.close()
            assert process.wait(200) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()
    assert slow.has_ended.wait(200)


def test_statements_after_a_closed_pipe_are_reported(slow: Slow) -> None:
    with started_sql(slow, "SELECT * FROM lake.s.endless; SELECT 2", "-o", "csv") as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.wait(200) == 1
            assert "the statements after number 1 were not run" in process.stderr.read()
        finally:
            process.kill()


def test_cancelling_is_repeated_until_the_statement_ends() -> None:
    """One that is between two steps, such as planning and running a query, does not notice the first time."""
    noticed, times = threading.Event(), []

    def cancel() -> None:
        times.append(1)
        if len(times) == 2:
            noticed.set()

    worker = Worker(cancel)
    statement = threading.Thread(target=worker.run, args=(lambda: noticed.wait(200),))
    statement.start()
    eventually(lambda: worker._last is not None)
    worker.close()
    statement.join()
    assert len(times) == 2


# --- start-up -----------------------------------------------------------------------------------------------------

HEAVY = (
    "pyarrow",
    "grpc",
    "sqlglot",
    "rich",
    "google.protobuf",
    "pandas",
    "pydantic",
    "skiway.client",
    "skiway.config",
)


def test_query_without_tables_imports_no_heavy_module() -> None:
    program = (
        "import sys; sys.argv = ['skiway', 'sql', 'SELECT 1 AS a']\n"
        "from skiway.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules], len(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    *shown, imported = done.stdout.splitlines()
    assert shown == ["a", "1"]
    found, count = imported.rsplit(" ", 1)
    assert found == "[]"
    assert int(count) < 450


@pytest.mark.parametrize("server", ["of the fixture", ""])
@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*) FROM lake.raw.people; SELECT 'x'",
        "SELECT * FROM range(1001)",
        "SELECT * FROM lake.raw.peopel",
        "SELEC 1",
        "",
        ".tables raw.*",
    ],
)
def test_statements_without_options_run_as_with_options(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, server: str
) -> None:
    """A command line without options is not parsed by typer, because of the time that its imports take."""
    if not server:  # an empty variable is no address: the server of the home is used
        monkeypatch.setenv("SKIWAY_HOME", str(tmp_path))
        (tmp_path / "ready.json").write_text(json.dumps({"rpc": os.environ["SKIWAY_SERVER"]}))
        monkeypatch.setenv("SKIWAY_SERVER", "")
    assert run("sql", text) == run("sql", "--catalog", "lake", text)


def test_calls_without_options_use_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SERVER": "far:1", "TOKEN": "secret", "ACCOUNT": ""}.items():
        monkeypatch.setenv(f"SKIWAY_{name}", value)
    assert Call.from_environment() == Call(server="far:1", token="secret", account=None)


@pytest.mark.parametrize(
    ("text", "is_fast"),
    [
        ("SELECT 1", True),
        ("VALUES (1), (2)", True),
        ("SELECT * FROM x", False),
        ("select (from range(3))", False),
        ("SHOW TABLES", False),
        ("TABLE x", False),
        ("PIVOT x ON y", False),
        ("PRAGMA version", False),
        ("INSERT INTO x VALUES (1)", False),
    ],
)
def test_only_queries_without_tables_take_the_fast_path(text: str, *, is_fast: bool) -> None:
    assert split_statements(text)[-1].reads_no_table == is_fast


def test_statements_are_split_at_semicolons_outside_of_strings_and_comments(run: Run) -> None:
    text = "SELECT 'ä;b' AS a; -- c; d\nPIVOT lake.raw.people ON id USING count(*); /* ; */ SELECT $$;$$ AS z;"
    assert [each.text for each in split_statements(text)] == [
        "SELECT 'ä;b' AS a",
        "PIVOT lake.raw.people ON id USING count(*)",
        "SELECT $$;$$ AS z",
    ]
    shown = run("sql", text, "-o", "json").json
    assert shown[0] == [{"a": "ä;b"}]
    assert {"name": "Ada", "1": 1, "2": 0, "3": 0} in shown[1]
    assert shown[2] == [{"z": ";"}]
    wrong = run("sql", "SELECT 1 AS a; SELEC 2")
    assert (wrong.code, wrong.out, "syntax error" in wrong.err) == (1, "", True)


# --- values -------------------------------------------------------------------------------------------------------

VALUES = [
    "1::TINYINT",
    "170141183460469231731687303715884105727::HUGEINT",
    "340282366920938463463374607431768211455::UHUGEINT",
    "1.10::DECIMAL(4,2)",
    "'12345678901234567890123456789.123456789'::DECIMAL(38,9)",
    "0.1::FLOAT",
    "3.4028235e38::FLOAT",
    "[0.1::FLOAT, NULL]",
    "[0.1::FLOAT]::FLOAT[1]",
    "{'FLOAT': 0.1::FLOAT, 'x FLOAT,': 'FLOAT'::ENUM('FLOAT')}",
    "MAP {'k': [0.1::FLOAT]}",
    "union_value(num := 0.1::FLOAT)",
    "1e300::DOUBLE",
    "100000000000000000000.0::DOUBLE",
    "'nan'::DOUBLE",
    "'-inf'::FLOAT",
    "true",
    "DATE '2020-01-02'",
    "DATE '0044-03-15 (BC)'",
    "'infinity'::TIMESTAMP",
    "TIME '12:34:56.789'",
    "TIMETZ '12:00:00+02'",
    "TIME_NS '12:00:00.123456789'",
    "TIMESTAMP '2020-01-02 03:04:05.6'",
    "TIMESTAMPTZ '2020-01-02 03:04:05+00'",
    "TIMESTAMP_NS '2020-01-02 03:04:05.123456789'",
    "TIMESTAMP_S '2020-01-02 03:04:05'",
    "INTERVAL '1 month 2 days 3.5 seconds'",
    "'\\x00\\xFFabc'::BLOB",
    "'0101'::BIT",
    "'00000000-0000-0000-0000-000000000001'::UUID",
    "'a'::ENUM('a', 'b')",
    "[1, NULL, 3]",
    "['it''s', 'a, b', '']",
    "{'a': 1, 'b': 'x y', 'c': NULL, 't': TIMESTAMP '2020-01-01'}",
    "MAP {'k': 1, 'l': NULL}",
    "[1, 2]::INTEGER[2]",
    "union_value(num := 2)",
    "'{\"a\": [1, 2]}'::JSON",
    "'it''s \"q\", x | y'",
    "'POINT(1 2)'::GEOMETRY",
    "NULL",
]


@pytest.mark.parametrize("value", VALUES)
def test_values_are_rendered_as_duckdb_renders_them(value: str) -> None:
    expected = duckdb.execute(f"SELECT CAST({value} AS VARCHAR)").fetchone()
    engine = Engine()
    answer = engine.query(f"SELECT {value} AS x")
    assert [tuple(row) for page in answer.texts() for row in page] == [expected]
    (text,) = engine.query(f"SELECT {value} AS x").documents()
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    exact = value.replace("::FLOAT", "::DOUBLE")  # to_json shows the digits of the next DOUBLE, 0.10000000149011612
    typed = duckdb.execute(f"SELECT to_json({exact})").fetchone()
    assert typed is not None
    if expected is not None and expected[0] in ("nan", "-inf"):
        assert document == {"x": expected[0]}
    else:
        assert document == {"x": None if typed[0] is None else json.loads(typed[0])}


def test_rows_of_statements_that_are_no_queries_are_rendered_alike(run: Run) -> None:
    insert = (
        "INSERT INTO t VALUES (1, '\\xFF'::BLOB, ['a, b'], INTERVAL 1 day, 0.1, {'b': true}, NULL) RETURNING *, i AS j"
    )
    create = "CREATE TEMP TABLE t (i INTEGER, b BLOB, l VARCHAR[], v INTERVAL, f FLOAT, s STRUCT(b BOOLEAN), n DATE)"
    shown = run("sql", f"{create}; {insert}", "-o", "csv").out
    assert list(csv.reader(io.StringIO(shown)))[1:] == [
        ["1", "\\xFF", "['a, b']", "1 day", "0.1", "{'b': true}", "", "1"]
    ]
    values = {"i": 1, "b": "\\xFF", "l": ["a, b"], "v": "1 day", "f": 0.1, "s": {"b": True}, "n": None, "j": 1}
    assert rows(run, create, insert) == [values]
    assert rows(run, create, "PRAGMA table_info('t')")[0]["notnull"] is False  # type: ignore[index]


def test_text_that_looks_like_a_number_outside_of_json_stays_text() -> None:
    (text,) = Engine().query("SELECT 'NaN \"Infinity\"' AS a, 'inf'::DOUBLE AS b").documents()
    assert json.loads(text) == {"a": 'NaN "Infinity"', "b": "inf"}


# --- formats ------------------------------------------------------------------------------------------------------

QUERY = "SELECT 1 AS id, 'a|b' || chr(10) || 'c, \"d\"' AS text, [1.5, NULL] AS list, NULL AS nothing"
DOCUMENT = {"id": 1, "text": 'a|b\nc, "d"', "list": [1.5, None], "nothing": None}


def test_sql_has_all_formats(run: Run) -> None:
    shown = {str(output): run("sql", QUERY, "-o", str(output)).out for output in Output}
    assert shown["table"] == 'id  text         list         nothing\n 1  a|b\\nc, "d"  [1.5, NULL]     NULL\n'
    assert list(csv.reader(io.StringIO(shown["csv"]))) == [
        ["id", "text", "list", "nothing"],
        ["1", 'a|b\nc, "d"', "[1.5, NULL]", ""],
    ]
    assert json.loads(shown["json"]) == [DOCUMENT]
    assert [json.loads(line) for line in shown["ndjson"].splitlines()] == [DOCUMENT]
    assert yaml.safe_load(shown["yaml"]) == [DOCUMENT]
    assert shown["markdown"].splitlines()[2] == '| 1 | a\\|b<br>c, "d" | [1.5, NULL] | NULL |'


@pytest.mark.parametrize(
    "command", [("tables", "list"), ("catalogs", "list"), ("catalogs", "get", "lake"), ("config",)]
)
def test_every_command_has_all_formats(run: Run, command: tuple[str, ...]) -> None:
    document = run(*command, "-o", "json").json
    records = document if isinstance(document, list) else [document]
    assert yaml.safe_load(run(*command, "-o", "yaml").out) == document
    assert [json.loads(line) for line in run(*command, "-o", "ndjson").out.splitlines()] == records
    rows = list(csv.DictReader(io.StringIO(run(*command, "-o", "csv").out)))
    assert [list(row) for row in rows] == [list(record) for record in records]
    name = next(iter(records[0]))
    assert [row[name] for row in rows] == [str(record[name]) for record in records]
    lines = run(*command, "-o", "markdown").out.splitlines()
    assert lines[1].startswith("|---|")
    assert len(lines) > 2


PROCESSES = ("serve", "worker", "demo", "completion")
"""Commands without a result in the form of records."""


def test_all_commands_share_the_formats() -> None:
    def commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
        for name in group.list_commands(None):
            found = group.get_command(None, name)
            if hasattr(found, "list_commands"):
                yield from commands(found, *path, name)
            else:
                yield " ".join([*path, name]), found

    formats = {
        path: [each.type_descriptor.annotation for each in found.params if "--output" in each.opts]
        for path, found in commands(typer.main.get_command(app))
    }
    assert len(formats) > 70
    assert {path: kinds for path, kinds in formats.items() if kinds != [Output]} == {path: [] for path in PROCESSES}
    sources = {file.name: file.read_text() for file in Path(output.__file__).parent.rglob("*.py")}
    using = {name for name, text in sources.items() if re.search(r"^\s*(import|from) (csv|yaml)\b", text, re.M)}
    assert using == {"output.py", "templates.py"}
    # It renders the files of pipelines, whose project file is YAML, and prints nothing.
    assert not re.search(r"\b(typer|print\w*|echo|stdout)\b", sources["templates.py"])


def test_yaml_keeps_every_digit_and_quotes_what_looks_like_something_else(run: Run) -> None:
    query = "SELECT 170141183460469231731687303715884105727::HUGEINT AS a, 'no' AS b, '2020-01-01' AS d, '' AS e, 'x: y' AS f, 'g h' AS g"
    [row] = yaml.safe_load(run("sql", query, "-o", "yaml").out)
    expected = [2**127 - 1, "no", "2020-01-01", "", "x: y", "g h"]
    assert list(row.values()) == expected
    decimal = "12345678901234567890.123456789"
    found = run("sql", f"SELECT {decimal}::DECIMAL(38, 9) AS a, [{decimal}::DECIMAL(38, 9)] AS b", "-o", "yaml").out
    assert found == f"- a: {decimal}\n  b:\n    - {decimal}\n"


def test_several_results_keep_every_digit(run: Run) -> None:
    decimal = "12345678901234567890.123456789"
    query = (
        f"SELECT {decimal}::DECIMAL(38, 9) AS a; SELECT 'é' AS b WHERE false; SET threads = 2; SELECT 0.1::FLOAT AS c"
    )
    change = {"statement": "set", "count": None, "message": ""}
    expected = [[{"a": Decimal(decimal)}], [], change, [{"c": Decimal("0.1")}]]
    assert json.loads(run("sql", query, "-o", "json").out, parse_float=Decimal) == expected
    shown = run("sql", query, "-o", "yaml").out
    assert f"a: {decimal}\n" in shown
    assert yaml.safe_load(shown) == [[{"a": float(decimal)}], [], change, [{"c": 0.1}]]


# --- statements about the session ---------------------------------------------------------------------------------


def rows(run: Run, *statements: str) -> list[object]:
    """The result of the last of several statements."""
    found = run("sql", "; ".join(statements), "-o", "json").json
    last: list[object] = found[-1] if len(statements) > 1 else found
    return last


def test_use_sets_the_schema_of_names_without_one(run: Run) -> None:
    count = "SELECT count(*) AS n FROM people"
    assert rows(run, "USE lake.raw", count) == [{"n": 3}]
    assert rows(run, "USE raw", f"WITH people AS (SELECT 1) {count}") == [{"n": 1}]
    assert rows(run, "USE lake.raw", "USE lake", "SELECT count(*) AS n FROM raw.people") == [{"n": 3}]
    missing = run("sql", "USE lake.rwa")
    assert (missing.code, "did you mean raw?" in missing.err) == (1, True)


def test_show_lists_tables_schemas_and_databases(run: Run) -> None:
    assert {"name": "raw.people"} in rows(run, "SHOW TABLES")
    assert rows(run, "USE lake.raw", "SHOW TABLES") == [{"name": "orders"}, {"name": "people"}]
    assert rows(run, "SHOW TABLES FROM lake.raw") == [{"name": "orders"}, {"name": "people"}]
    assert {"database_name": "lake"} in rows(run, "SHOW DATABASES")
    assert {"database_name": "lake", "schema_name": "raw", "current": True} in rows(run, "USE lake.raw", "SHOW SCHEMAS")
    [people] = [each for each in rows(run, "SHOW ALL TABLES") if each["schema"] == "raw" and each["name"] == "people"]  # type: ignore[index]
    assert people["column_names"] == ["id", "name"]  # type: ignore[index]
    assert people["column_types"] == ["BIGINT", "VARCHAR"]  # type: ignore[index]


def test_describe_and_dot_schema_show_not_null(run: Run) -> None:
    run(
        "sql",
        "CREATE SCHEMA IF NOT EXISTS lake.strict; CREATE OR REPLACE TABLE lake.strict.t (id BIGINT NOT NULL, x DATE)",
    )
    for statement in ("DESCRIBE lake.strict.t", "DESC lake.strict.t", "SHOW lake.strict.t"):
        found = [(each["column_name"], each["null"]) for each in rows(run, statement)]  # type: ignore[index]
        assert found == [("id", "NO"), ("x", "YES")], statement
    assert run("sql", ".schema lake.strict.t").out == "CREATE TABLE lake.strict.t (id BIGINT NOT NULL, x DATE);\n"
    assert [each["column_name"] for each in rows(run, "DESCRIBE SELECT 1 AS a")] == ["a"]  # type: ignore[index]


def test_dot_schema_quotes_names_and_lists_the_schema_of_use(run: Run) -> None:
    created = [
        'CREATE TABLE lake.quoted."Two words" ("select ""x""" BIGINT, "Ä" DATE);',
        "CREATE TABLE lake.quoted.plain_1 (id BIGINT);",
    ]
    run("sql", f"CREATE SCHEMA lake.quoted; {''.join(created)}")
    assert run("sql", '.schema lake.quoted."Two words"').out == f"{created[0]}\n"
    assert run("sql", stdin_text="USE lake.quoted;\n.schema").out.splitlines()[1:] == created
    everything = run("sql", ".schema").out.splitlines()
    assert {*created, "CREATE TABLE lake.raw.people (id BIGINT, name VARCHAR);"} <= set(everything)


def test_dot_commands_work_between_statements(run: Run) -> None:
    shown = run("sql", stdin_text="SELECT 1 AS a;\n.tables raw.*\nSELECT 2 AS b")
    assert shown.out == "a\n1\nname\nraw.orders\nraw.people\nb\n2\n"
    assert ".tables" in run("sql", ".help").out
    assert split_input("SELECT 'x\n.help\n';")[0].text == "SELECT 'x\n.help\n'"  # type: ignore[union-attr]


def test_explain_shows_the_plan_of_a_query(run: Run) -> None:
    plan = run("sql", "EXPLAIN SELECT count(*) FROM lake.raw.people WHERE id > 1")
    assert plan.code == 0, plan.err
    assert "ARROW_SCAN" in plan.out or "PYTHON" in plan.out.upper()
    assert "\\n" not in plan.out
    assert run("sql", "EXPLAIN ANALYZE SELECT * FROM lake.raw.people").code == 0


def test_settings_apply_to_the_following_statements(run: Run) -> None:
    zoned = "SELECT CAST(TIMESTAMPTZ '2020-01-01 00:00:00+00' AS VARCHAR) AS t"
    assert rows(run, "SET TimeZone = 'Asia/Tokyo'", zoned) == [{"t": "2020-01-01 09:00:00+09"}]
    assert rows(run, "SET threads = 1", "SELECT current_setting('threads') AS n") == [{"n": 1}]
    assert run("sql", "SET nope = 1").code == 1


def test_temporary_tables_are_local_and_can_be_changed(run: Run) -> None:
    made = "CREATE TEMP TABLE mine AS SELECT * FROM lake.raw.people WHERE id < 3"
    assert run("sql", made).out == "created temporary table mine\n"
    assert rows(run, made, "SELECT count(*) AS n FROM mine") == [{"n": 2}]
    changed = run(
        "sql",
        f"{made}; INSERT INTO mine SELECT * FROM lake.raw.people; UPDATE mine SET name = 'x' WHERE id = 1;"
        "DELETE FROM mine WHERE id = 2; SELECT * FROM mine ORDER BY id; DROP TABLE mine; SELECT * FROM mine",
    )
    assert changed.code == 1
    assert changed.out == (
        "created temporary table mine\ninserted 3 rows\nupdated 2 rows\ndeleted 2 rows\nid  name\n 1  x\n 1  x\n 3  NULL\n"
        "dropped table mine\n"
    )
    view = run("sql", "CREATE TEMP VIEW v AS SELECT * FROM lake.raw.people")
    assert (view.code, "use CREATE TEMP TABLE" in view.err) == (1, True)


def test_filter_of_a_statement_does_not_leak_into_the_next(run: Run) -> None:
    first = "SELECT count(*) AS n FROM lake.raw.people WHERE id = 1"
    assert rows(run, first, "SELECT count(*) AS n FROM lake.raw.people") == [{"n": 3}]


def test_local_databases_and_catalogs_are_told_apart(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "own.duckdb"
    with duckdb.connect(str(file)) as own:
        own.execute("CREATE TABLE t AS SELECT 42 AS x")
    joined = "SELECT x, name FROM own.t, lake.raw.people WHERE id = 1"
    assert rows(run, f"ATTACH '{file}' AS own", joined) == [{"x": 42, "name": "Ada"}]
    assert rows(run, "SELECT count(*) > 0 AS any FROM information_schema.schemata") == [{"any": True}]


def test_large_results_are_complete(run: Run) -> None:
    found = run("sql", "SELECT id FROM lake.raw.orders ORDER BY id", "-o", "csv").out.splitlines()
    assert found == ["id", *map(str, range(ROWS))]
    assert os.linesep == "\n"
