"""Every type of DuckDB, alone and nested, through every way to a lake: values and types are those of plain DuckDB.

A table, or a query, has a column for each type, so that each way is taken once for each kind of nesting.
"""

from __future__ import annotations

import base64
import csv
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import adbc_driver_manager
import duckdb
import httpx
import pyarrow as pa
import pytest

import scope
from duckdb_types import TYPES, Type, nested_types
from flightsql.adbc import connected
from runtime.servers import Server, started
from skiway.cli import main
from skiway.client import AirportClient
from skiway.errors import InvalidArgument, Unsupported

NESTED = {shape.name: types for shape, types in nested_types()}
MIXED = [types[number % len(types)] for number, types in enumerate(zip(*NESTED.values(), strict=True))]
GROUPS: dict[str, list[Type]] = {"value": list(TYPES), **(NESTED if scope.ALL else {"mixed": MIXED})}
"""The types alone, and in each kind of nesting; in `make test`, each type is in one kind, and each kind has some."""
STORED = {
    group: [each for each in types if each.stored is not None and not each.rejects] for group, types in GROUPS.items()
}
STORABLE_GROUPS = [group for group, types in STORED.items() if types]

Columns = dict[str, tuple[str, list[str | None]]]
"""The type and the values of each column, as text of DuckDB, in the order of the rows."""


def written_in_queries(group: str) -> list[Type]:
    """The types that queries on the server can name: DuckDB cannot serialize a cast to an ENUM inside of another type."""
    return [each for each in GROUPS[group] if group == "value" or "ENUM" not in each.sql]


def rows_of(types: Sequence[Type]) -> str:
    """A query with a column for each type: all of its values, and NULL."""
    count = max(len(each.values) for each in types) + 1

    def row(number: int) -> str:
        values = (each.cast(each.values[number] if number < len(each.values) else "NULL") for each in types)
        columns = (f'{value} AS "{each.name}"' for value, each in zip(values, types, strict=True))
        return f"SELECT {number}::BIGINT AS id, {', '.join(columns)}"

    return " UNION ALL ".join(map(row, range(count)))


@contextmanager
def plain_duckdb(*, lossless: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"arrow_lossless_conversion": str(lossless).lower()}) as database:
        yield database


def texts(database: duckdb.DuckDBPyConnection, query: str, types: Sequence[tuple[str, str]]) -> Columns:
    """Columns of a query, cast to these types."""
    casts = ", ".join(f'CAST("{name}" AS {wanted}) AS "{name}"' if wanted else f'"{name}"' for name, wanted in types)
    database.execute(f"CREATE TEMP TABLE typed AS SELECT id, {casts} FROM ({query})")
    columns = ", ".join(f'CAST("{name}" AS VARCHAR)' for name, _ in types)
    rows = database.execute(f"SELECT {columns} FROM typed ORDER BY id").fetchall()
    kinds = database.sql("SELECT * FROM typed").types[1:]
    return {
        name: (str(kind), [row[place] for row in rows])
        for place, ((name, _), kind) in enumerate(zip(types, kinds, strict=True))
    }


def expected(types: Sequence[Type], kind: Callable[[Type], str], query: str = "") -> Columns:
    """What plain DuckDB returns, in the types that `kind` chooses."""
    with plain_duckdb() as database:
        return texts(database, query or rows_of(types), [(each.name, kind(each)) for each in types])


def in_results(kind: Type) -> str:
    return kind.result or kind.sql


def in_flight_sql(kind: Type) -> str:
    return kind.plain or in_results(kind)


def in_tables(kind: Type) -> str:
    return kind.stored or kind.sql


def of_tables_in_flight_sql(kind: Type) -> str:
    stored = kind.stored or kind.sql
    return stored.replace("UUID", "VARCHAR") if "UUID" in stored else kind.stored or kind.plain or kind.sql


def columns_in(rows: pa.Table, types: Sequence[Type]) -> Columns:
    with plain_duckdb() as database:
        database.register("found", rows)
        return texts(database, "SELECT * FROM found", [(each.name, "") for each in types])


def assert_same(found: Columns, wanted: Columns) -> None:
    different = {name: (found.get(name), wanted[name]) for name in wanted if found.get(name) != wanted[name]}
    assert different == {}, different


@dataclass
class Lake:
    """A running server, and the ways to it."""

    server: Server
    db: AirportClient
    browser: httpx.Client
    run_cli: Callable[..., tuple[int, str, str]]

    def query(self, sql: str) -> pa.Table:
        return self.db.call(("skiway", "query"), sql).read_all()

    def flight_sql(self, sql: str) -> pa.Table:
        location = self.server.addresses["airport"]
        with connected(location, catalog="lake") as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetch_arrow_table()

    def view(self, name: str, sql: str) -> pa.Table:
        self.db.call("skiway.create_view", f"s.{name}", sql, named={"replace": True}).read_all()
        self.db.reload()
        return self.db.scan(("s", name)).read_all()

    def explorer(self, sql: str) -> httpx.Response:
        return self.browser.get("/sql.json", params={"catalog": "lake", "sql": sql})

    def cli(self, sql: str) -> Columns:
        """The rows of a query in the output as CSV, without types."""
        code, out, err = self.run_cli("sql", "-o", "csv", sql)
        assert code == 0, err
        names, *rows = csv.reader(io.StringIO(out))
        return {name: ("", [row[place] for row in rows]) for place, name in enumerate(names)}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("types") / "home") as server:
        with AirportClient(server.addresses["airport"], "lake") as db:
            db.create_schema("s")
            for group in STORABLE_GROUPS:
                fill_table(db, group)
        yield server


@pytest.fixture
def lake(running: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Lake]:
    monkeypatch.setenv("SKIWAY_SERVER", running.address)

    def run_cli(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["skiway", *arguments])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return (code, *capsys.readouterr())

    with (
        AirportClient(running.addresses["airport"], "lake") as db,
        httpx.Client(base_url=running.addresses["http"], timeout=60) as browser,
    ):
        yield Lake(running, db, browser, run_cli)


def fill_table(db: AirportClient, group: str) -> None:
    """A table with the values, with a batch of NULLs only, one without rows, and one that is a slice."""
    types = STORED[group]
    with plain_duckdb(lossless=True) as database:
        rows = database.sql(rows_of(types)).to_arrow_table()
    db.create_table(("s", group), rows.schema)
    db.insert(("s", group), rows)
    db.insert(("s", group), rows[:0])
    db.insert(("s", group), nulls(rows.schema, first_id=100))
    db.insert(("s", group), with_ids(rows, 200).combine_chunks()[2:])  # a slice


def sent_rows(types: Sequence[Type]) -> pa.Table:
    """The rows, as lossless as the Python client sends them: it does not convert HUGEINT, which is a decimal in a lake."""
    with plain_duckdb() as database:
        rows = database.sql(rows_of(types)).to_arrow_table()
    with plain_duckdb(lossless=True) as database:
        lossless = database.sql(rows_of(types)).to_arrow_table()
    for place, each in enumerate(types, 1):
        if "HUGEINT" not in each.sql:
            rows = rows.set_column(place, lossless.field(place), lossless.column(place))
    return rows


def nulls(schema: pa.Schema, first_id: int) -> pa.Table:
    """Three rows of NULLs, as DuckDB sends them."""
    columns = [pa.nulls(3, field.type) for field in schema]
    return with_ids(pa.table(columns, schema=schema), first_id)


def with_ids(rows: pa.Table, first: int) -> pa.Table:
    return rows.set_column(0, "id", pa.array(range(first, first + rows.num_rows), pa.int64()))


def in_table(group: str) -> str:
    """The contents of the table of a group, as a query of plain DuckDB."""
    types = STORED[group]
    nothing = ", ".join(f'CAST(NULL AS {each.sql}) AS "{each.name}"' for each in types)
    batches = [
        f"SELECT * FROM ({rows_of(types)})",
        f"SELECT 100 + range, {nothing} FROM range(3)",
        f"SELECT * REPLACE (200 + id AS id) FROM ({rows_of(types)}) WHERE id >= 2",
    ]
    return " UNION ALL ".join(batches)


# -- tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", STORABLE_GROUPS)
def test_table_is_scanned_queried_and_viewed(lake: Lake, group: str) -> None:
    types, select = STORED[group], f"SELECT * FROM s.{group}"
    wanted = expected(types, in_tables, in_table(group))
    assert_same(columns_in(lake.db.scan(("s", group)).read_all(), types), wanted)
    assert_same(columns_in(lake.query(select), types), wanted)
    assert_same(columns_in(lake.view(f"{group}_view", select), types), wanted)
    assert columns_in(lake.query(f"{select} WHERE false"), types).keys() == wanted.keys()


@pytest.mark.parametrize("group", STORABLE_GROUPS)
def test_table_is_read_over_flight_sql(lake: Lake, group: str) -> None:
    types = STORED[group]
    wanted = expected(types, of_tables_in_flight_sql, in_table(group))
    assert_same(columns_in(lake.flight_sql(f"SELECT * FROM s.{group}"), types), wanted)


@pytest.mark.parametrize("group", STORABLE_GROUPS)
def test_table_is_read_by_the_command_line_and_the_explorer(lake: Lake, group: str) -> None:
    types = STORED[group]
    wanted = expected(types, in_tables, in_table(group))
    assert_same(lake.cli(f"SELECT * FROM lake.s.{group} ORDER BY id"), as_csv(wanted))
    check_explorer(lake, f"SELECT * FROM s.{group} ORDER BY id", types, in_table(group), in_tables)


@pytest.mark.parametrize("group", STORABLE_GROUPS)
def test_rows_are_written_by_create_as_and_update(lake: Lake, group: str) -> None:
    types, name = STORED[group], ("s", f"{group}_created")
    rows = sent_rows(types)
    lake.db.create_table_as(name, rows)
    wanted = expected(types, in_tables)
    lake.db.reload()
    assert_same(columns_in(lake.db.scan(name).read_all(), types), wanted)
    lake.db.update(name, {each.name: None for each in types})
    counts = lake.query(f"SELECT count(COLUMNS(* EXCLUDE (id))) FROM {'.'.join(name)}").to_pylist()[0]
    assert set(counts.values()) == {0}
    ids = lake.db.scan(name, columns=["id", "rowid"]).read_all().sort_by("id")["rowid"]
    lake.db.update(name, rows.sort_by("id"), row_ids=ids)
    assert_same(columns_in(lake.db.scan(name).read_all(), types), wanted)


@pytest.mark.parametrize("group", STORABLE_GROUPS)
def test_rows_are_written_by_the_command_line(lake: Lake, group: str) -> None:
    name = f"lake.s.{group}_of_cli"
    types = [each for each in STORED[group] if each.sql == "UUID" or "UUID" not in each.sql]  # nested ones are rejected
    sent = rows_of(types)
    definition = ", ".join(f'"{each.name}" {each.sql}' for each in types)
    firsts = {each.name: each.cast(each.values[0]) for each in types}
    sets = ", ".join(f'"{column}" = {value}' for column, value in firsts.items())
    for statement in (
        f"CREATE TABLE {name} (id BIGINT, {definition})",
        f"INSERT INTO {name} {sent}",
        f"INSERT INTO {name} SELECT * FROM ({sent}) WHERE false",
        f"CREATE TABLE {name}_as AS {sent}",
        f"UPDATE {name}_as SET {sets}",
    ):
        code, _, err = lake.run_cli("sql", statement)
        assert code == 0, err
    lake.db.reload()
    read = lake.db.scan(("s", f"{group}_of_cli")).read_all()
    assert_same(columns_in(read, types), expected(types, in_tables))
    columns = ", ".join(f'{value} AS "{column}"' for column, value in firsts.items())
    updated = f"SELECT id, {columns} FROM ({sent})"
    read = lake.db.scan(("s", f"{group}_of_cli_as")).read_all()
    assert_same(columns_in(read, types), expected(types, in_tables, updated))


def path_in(kind: Type) -> str:
    """The path of the nested type in a column `v`."""
    return {"struct": "v.a", "structs": "v.a", "deep": "v.m.d"}.get(kind.name.partition(" of ")[0], "v")


@pytest.mark.parametrize("group", GROUPS)
def test_columns_that_a_table_cannot_have_are_rejected_by_name(lake: Lake, group: str) -> None:
    for each in GROUPS[group]:
        if each.stored is not None or "VARIANT" in each.sql:
            continue
        with plain_duckdb(lossless=True) as database:
            rows = database.sql(each.rows()).to_arrow_table()
        refusal = f"column '{path_in(each)}' has type .*, which Iceberg tables cannot store"
        for create in (
            lambda rows=rows: lake.db.create_table("s.refused", rows.schema),
            lambda rows=rows: lake.db.create_table_as("s.refused", rows),
        ):
            with pytest.raises(Unsupported, match=refusal):
                create()
        for statement in (
            f"CREATE TABLE lake.s.refused (id INTEGER, v {each.sql})",
            f"CREATE TABLE lake.s.refused AS {each.rows()}",
        ):
            code, _, err = lake.run_cli("sql", statement)
            assert code, each.name
            values = each.unsent or refusal  # the command line converts values before it sends them
            assert re.search(f"{refusal}|{values}", err), (each.name, err)


@pytest.mark.parametrize("group", GROUPS)
def test_values_that_a_table_cannot_have_are_rejected(lake: Lake, group: str) -> None:
    for each in GROUPS[group]:
        if each.stored is None or not each.rejects:
            continue
        with plain_duckdb(lossless=True) as database:
            rows = database.sql(each.rows()).to_arrow_table()
        name = ("s", f"rejecting {each.name}")
        if "HUGEINT" not in each.sql:
            with pytest.raises(InvalidArgument, match=each.rejects):
                lake.db.create_table_as(name, rows)
        lake.db.create_table(name, rows.schema)
        with pytest.raises(InvalidArgument, match=each.rejects):
            lake.db.insert(name, rows)
        assert lake.db.count(name) == 0
        if group != "value":
            continue
        lake.db.insert(name, rows.filter(rows["v"].is_null()))
        ids = lake.db.scan(name, columns=["rowid"]).read_all()["rowid"]
        with pytest.raises(InvalidArgument, match=each.rejects):
            lake.db.update(name, rows[-2:-1], row_ids=ids[:1])


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", GROUPS)
def test_values_in_queries_and_views(lake: Lake, group: str) -> None:
    types = [each for each in written_in_queries(group) if not each.unsent or each.plain]
    wanted = expected(types, in_results)
    assert_same(columns_in(lake.query(rows_of(types)), types), wanted)
    assert_same(columns_in(lake.view(f"{group}_values", rows_of(types)), types), wanted)


def test_nested_enums_in_results_are_text(lake: Lake) -> None:
    enum = "CAST('low' AS ENUM('low', 'high'))"
    sql = f"SELECT [{enum}, NULL] AS l, {{'e': {enum}}} AS s, MAP {{{enum}: {enum}}} AS m"
    expected_values = [{"l": ["low", None], "s": {"e": "low"}, "m": [("low", "low")]}]
    assert lake.query(sql).to_pylist() == expected_values
    assert lake.flight_sql(sql).to_pylist() == expected_values


@pytest.mark.parametrize("group", GROUPS)
def test_values_over_flight_sql(lake: Lake, group: str) -> None:
    types = [each for each in written_in_queries(group) if not each.unsent]
    assert_same(columns_in(lake.flight_sql(rows_of(types)), types), expected(types, in_flight_sql))


@pytest.mark.parametrize("group", GROUPS)
def test_values_in_the_explorer(lake: Lake, group: str) -> None:
    types = [each for each in written_in_queries(group) if not each.unsent or each.plain]
    check_explorer(lake, rows_of(types), types, rows_of(types), in_results)


@pytest.mark.parametrize("group", GROUPS if scope.ALL else ["value"])  # the driver takes seconds to report an error
def test_values_that_cannot_be_sent_are_rejected_everywhere(lake: Lake, group: str) -> None:
    for each in GROUPS[group]:
        if not each.unsent:
            continue
        sql = each.rows()
        with pytest.raises(adbc_driver_manager.ProgrammingError, match=each.unsent) as caught:
            lake.flight_sql(sql)
        assert caught.value.status_code.name == "INVALID_ARGUMENT"
        if each.plain:
            continue
        with pytest.raises(InvalidArgument, match=each.unsent):
            lake.query(sql)
        with pytest.raises(InvalidArgument, match=each.unsent):
            lake.view("unsent", sql)
        answer = lake.explorer(sql)
        assert (answer.status_code, bool(re.search(each.unsent, answer.json()["error"]))) == (400, True)


# -- text --------------------------------------------------------------------------------------------------------------


def as_csv(columns: Columns) -> Columns:
    return {name: ("", [text or "" for text in values]) for name, (_, values) in columns.items()}


def check_explorer(lake: Lake, sql: str, types: Sequence[Type], query: str, kind: Callable[[Type], str]) -> None:
    """Compare the values of the explorer, with those in nested values as text, with those of DuckDB."""
    answer = lake.explorer(sql)
    assert answer.status_code == 200, answer.text
    result = answer.json()["result"]
    names = [column["name"] for column in result["columns"]]
    rows = sorted(result["rows"], key=lambda row: row[names.index("id")])
    texts = ", ".join(
        f'CAST(CAST("{each.name}" AS {kind(each)}) AS {LEAVES.sub("VARCHAR", kind(each))})' for each in types
    )
    with plain_duckdb() as database:
        wanted = database.execute(f"SELECT {texts} FROM ({query}) ORDER BY id").fetchall()
    different = {}
    for place, each in enumerate(types):
        pair = [row[names.index(each.name)] for row in rows], [row[place] for row in wanted]
        if leaves(pair[0]) != leaves(pair[1]):
            different[each.name] = pair
    assert different == {}, different


LEAVES = re.compile(
    r"""(?x)\b(?:BOOLEAN|U?(?:TINY|SMALL|BIG|HUGE)?INT(?:EGER)?|UINTEGER|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)|VARCHAR|DATE|
    TIMESTAMP(?:_S|_MS|_NS|TZ)?|TIME(?:_NS|TZ)?|INTERVAL|UUID|BIT|JSON|BIGNUM|GEOMETRY|ENUM\([^)]*\))(?![\w(])"""
)


def leaves(value: Any) -> Any:
    """A value of DuckDB, or of JSON, in which all parts that are not nested are text in one form."""
    match value:
        case None:
            return None
        case dict():
            return [[leaves(key), leaves(part)] for key, part in value.items()]  # JSON has no maps
        case list() | tuple():
            return [leaves(part) for part in value]
        case bool():
            return str(value).lower()
        case bytes():
            return base64.b64encode(value).decode()
    text = re.sub(r"^(\d{4}-\d\d-\d\d)T", r"\1 ", str(value))  # a timestamp
    if re.match(r"\d{4}-\d\d-\d\d \d", text):
        text = re.sub(r"Z$", "+00", text)
        return re.sub(r"(\.\d*?)0+(\+00)?$", lambda found: found[1].rstrip(".") + (found[2] or ""), text)
    return text
