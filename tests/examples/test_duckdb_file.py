"""The server over a DuckDB file: client writes reach the file, and rejected statements change nothing."""

from __future__ import annotations

import decimal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples.scripts import FOLDER, load, running
from skiway.airport import DmlOptions, Server, Write
from skiway.client import AirportClient, col
from skiway.errors import (
    AlreadyExists,
    Conflict,
    ConstraintViolation,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    SchemaNotEmpty,
    SkiwayError,
    Unsupported,
)

CUSTOMERS = [(1, "Ada", decimal.Decimal("20.00")), (2, "Grace", decimal.Decimal("7.50"))]


@dataclass(frozen=True)
class Shop:
    """A served file: a client, and the file itself."""

    db: AirportClient
    catalog: Any
    path: Path

    def file(self, sql: str) -> list[tuple[Any, ...]]:
        """Query the file directly, on a separate cursor."""
        with self.catalog.database.cursor() as cursor:
            found: list[tuple[Any, ...]] = cursor.execute(sql).fetchall()
            return found

    def customers(self) -> list[tuple[Any, ...]]:
        return self.file("FROM sales.customers ORDER BY id")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load("duckdb_file")


@pytest.fixture
def shop(script: ModuleType, tmp_path: Path) -> Iterator[Shop]:
    path = tmp_path / "shop.duckdb"
    script.create_shop(path)
    with (
        script.opened(path) as catalog,
        Server(catalog, port=0) as server,
        AirportClient(server.location, "shop", timeout_s=60) as db,
    ):
        yield Shop(db, catalog, path)


def people(*ids: int, credit: str = "1.00") -> pa.Table:
    """Rows to insert."""
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids], "credit": [decimal.Decimal(credit)] * len(ids)})


def row_id(shop: Shop, customer: int) -> int:
    return int(shop.file(f"SELECT rowid FROM sales.customers WHERE id = {customer}")[0][0])


# -- discovery ----------------------------------------------------------------------------------------------------------


def test_clients_see_all_metadata_of_a_table(shop: Shop) -> None:
    assert [schema.name for schema in shop.db.schemas()] == ["main_", "sales"]
    customers = shop.db.table("sales.customers")
    assert customers.comment == "people who buy"
    assert customers.columns == ("id", "name", "credit")
    assert customers.schema.field("credit").metadata == {b"comment": b"in euros", b"default": b"10"}
    assert [field.nullable for field in customers.schema] == [False, False, True, True]
    checks = msgspec.msgpack.decode(customers.schema.metadata[b"check_constraints"])
    assert checks == {"constraints": ["(credit >= 0)"]}


def test_main_has_another_name_without_conflicts(shop: Shop) -> None:
    shop.file("CREATE TABLE main.t AS SELECT 1 AS a")
    shop.file("CREATE SCHEMA main_")
    shop.file("CREATE TABLE main_.t AS SELECT 2 AS a")
    assert shop.db.scan("main_.t").read_all().to_pydict() == {"a": [1]}
    assert shop.db.scan("main__.t").read_all().to_pydict() == {"a": [2]}
    with pytest.raises(AlreadyExists):
        shop.db.create_schema("main_")


def test_unsupported_objects_are_omitted(shop: Shop) -> None:
    for sql in (
        "CREATE TABLE generated (a INT, b INT GENERATED ALWAYS AS (a + 1))",
        "CREATE TABLE with_rowid (ROWID INT)",
        "CREATE VIEW seen AS SELECT 1",
        "CREATE TABLE plain (a INT)",
    ):
        shop.file(sql)
    (main, _) = shop.db.schemas()
    assert [table.name for table in main.tables] == ["plain"]


def test_all_names_are_quoted(script: ModuleType, tmp_path: Path) -> None:
    """The file, a schema and a table with the same name, and tables named like those in the generated SQL."""
    with duckdb.connect(tmp_path / "sales.duckdb") as database:
        for sql in (
            "CREATE SCHEMA sales.sales",
            "CREATE TABLE sales.sales.sales (a INT)",
            "CREATE TABLE main.waiting (batch INT)",
            "CREATE TABLE main.batch (waiting INT)",
            'CREATE TABLE sales.main."a ""b"".c" ("d ""e"".f" INT)',
        ):
            database.execute(sql)
    with (
        script.opened(tmp_path / "sales.duckdb") as catalog,
        Server(catalog, port=0) as server,
        AirportClient(server.location, "sales") as db,
    ):
        for table, column in (
            (("sales", "sales"), "a"),
            (("main_", "waiting"), "batch"),
            (("main_", "batch"), "waiting"),
            (("main_", 'a "b".c'), 'd "e".f'),
        ):
            assert db.insert(table, pa.table({column: [1, 2, 3]}), returning=True).count == 3
            assert db.update(table, {column: 7}, where=col(column) > 1).count == 2
            deleted = db.delete(table, where=col(column) == 7, returning=True).rows
            assert deleted is not None
            assert deleted.to_pydict() == {column: [7, 7]}
            assert db.scan(table).read_all().to_pydict() == {column: [1]}
        db.create_table(("sales", 'new "one"'), pa.schema([pa.field('x"y', pa.int8(), metadata={"comment": "it's"})]))
        assert db.table(("sales", 'new "one"')).schema.field('x"y').metadata == {b"comment": b"it's"}


EVERY_TYPE = """
    CREATE TABLE main.types (b BOOL, u UUID, j JSON, h HUGEINT, e ENUM ('x', 'y'), st STRUCT(a INT, flag BOOL), l BOOL[],
        ts TIMESTAMPTZ, bits BIT, bl BLOB, i INTERVAL, tz TIMETZ, un UNION(a INT, b VARCHAR), big BIGNUM, arr INT[3],
        m MAP(VARCHAR, INT), geo GEOMETRY, d DATE, dec DECIMAL(5, 2), ns TIMESTAMP_NS);
    INSERT INTO main.types VALUES (true, '123e4567-e89b-12d3-a456-426614174000', '{"a":1}', -(2 :: HUGEINT ** 100) :: HUGEINT,
        'y', {a: 1, flag: false}, [true, NULL], '2025-01-31 10:00:00+00', '101', '\\xAA'::BLOB, INTERVAL 3 MONTHS,
        '10:00:00+01', 'text', 12345678901234567890123, [1, 2, 3], MAP {'k': 1}, 'POINT (1 2)'::GEOMETRY, 'infinity', 1.5,
        '2025-01-31 10:00:00.123456789');
    INSERT INTO main.types (b) VALUES (NULL);
"""


def test_every_type_round_trips(shop: Shop) -> None:
    for sql in EVERY_TYPE.split(";"):
        if sql.strip():
            shop.file(sql)
    read = shop.db.scan("main_.types").read_all()
    assert shop.db.insert("main_.types", read).count == 2
    twice = shop.file("SELECT count(*) FROM main.types GROUP BY types::VARCHAR")
    assert twice == [(2,), (2,)]


def test_tables_are_created_with_unions_and_nested_extension_types(shop: Shop) -> None:
    kinds = "un UNION(a INT, b VARCHAR), flags BOOL[], ids UUID[], st STRUCT(flag BOOL)"
    shop.file(f"CREATE TABLE main.given ({kinds})")
    shop.db.reload()
    columns = shop.db.scan("main_.given").read_all().schema
    shop.db.create_table("main_.made", columns)
    assert shop.file("SELECT column_name, column_type FROM (DESCRIBE main.made)") == shop.file(
        "SELECT column_name, column_type FROM (DESCRIBE main.given)"
    )


def test_a_schema_may_be_called_temp(shop: Shop) -> None:
    shop.db.create_schema("temp")
    shop.db.create_table("temp.t", pa.schema({"i": pa.int64()}))
    assert shop.db.insert("temp.t", pa.table({"i": [1, 2, 3]})).count == 3
    assert shop.db.update("temp.t", {"i": 7}, where=col("i") == 2).count == 1
    assert shop.db.delete("temp.t", where=col("i") == 3).count == 1
    assert shop.db.scan("temp.t").read_all().to_pydict() == {"i": [1, 7]}


# -- scans --------------------------------------------------------------------------------------------------------------


def test_filters_and_columns_reach_the_file(shop: Shop) -> None:
    shop.db.insert("sales.customers", people(*range(10, 5000)))
    sent = shop.db.bind("sales.customers", columns=["name"], where=col("id") == 4000).selection.json_filters()
    rows = shop.db.scan(
        "sales.customers", columns=["name"], where=sent
    ).read_all()  # the client does not apply it again
    assert rows.to_pydict() == {"name": ["n4000"]}


def test_scan_reads_a_snapshot_from_its_start(shop: Shop) -> None:
    shop.file("CREATE TABLE main.many AS SELECT range AS i FROM range(400000)")
    with shop.db.scan("main_.many") as rows:
        seen = next(iter(rows)).num_rows
        assert shop.db.truncate("main_.many").count == 400_000
        seen += sum(batch.num_rows for batch in rows)
    assert seen == 400_000
    assert shop.db.count("main_.many") == 0


def test_statistics_remain_valid_after_later_writes(shop: Shop) -> None:
    assert shop.db.table("sales.customers").has_statistics
    number = shop.db.statistics("sales.customers", "id")
    assert (number.min, number.max, number.has_null, number.distinct_count) == (None, None, False, 2)
    credit = shop.db.statistics("sales.customers", "credit")
    assert (credit.has_null, credit.has_not_null) == (True, True), "there is no NULL now, but there may be later"
    name = shop.db.statistics("sales.customers", "name")
    shop.db.insert("sales.customers", pa.table({"id": [3], "name": ["\U0010ffff" * 2]}))
    assert name.min == ""
    assert name.max == shop.file("SELECT max(name) FROM sales.customers")[0][0]


# -- statements ---------------------------------------------------------------------------------------------------------


def test_writes_are_in_the_file_after_shutdown(script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "shop.duckdb"
    script.create_shop(path)
    with (
        script.opened(path) as catalog,
        Server(catalog, port=0) as server,
        AirportClient(server.location, "shop") as db,
    ):
        assert db.insert("sales.customers", people(3, 4)).count == 2
        assert db.update("sales.customers", {"credit": decimal.Decimal("0.50")}, where=col("id") >= 3).count == 2
        assert db.delete("sales.customers", where=col("id") == 1).count == 1
        db.create_table("sales.orders", pa.schema({"id": pa.int64()}), primary_key=["id"])
    with duckdb.connect(path, read_only=True) as database:
        half = decimal.Decimal("0.50")
        stored = database.execute("FROM sales.customers ORDER BY id").fetchall()
        assert stored == [CUSTOMERS[1], (3, "n3", half), (4, "n4", half)]
        assert database.execute("SELECT count(*) FROM sales.orders").fetchall() == [(0,)]


@pytest.mark.parametrize("count", [0, 1, 2048, 5000])
def test_returning_has_every_row_with_the_right_schema(shop: Shop, count: int) -> None:
    given = people(*range(10, 10 + count))
    added = shop.db.insert("sales.customers", given, returning=True)
    assert added.rows is not None
    assert added.rows.to_pydict() == given.to_pydict()
    cheap = shop.db.update(
        "sales.customers", {"credit": lambda credit: pc.add(credit, 1)}, where=col("id") >= 10, returning=True
    )
    assert cheap.rows is not None
    assert cheap.rows.column_names == ["id", "name", "credit"]
    assert sorted(cheap.rows["id"].to_pylist()) == given["id"].to_pylist()
    assert set(cheap.rows["credit"].to_pylist()) <= {decimal.Decimal("2.00")}
    deleted = shop.db.delete("sales.customers", where=col("id") >= 10, returning=True)
    assert deleted.rows is not None
    assert (deleted.count, sorted(deleted.rows["id"].to_pylist())) == (count, given["id"].to_pylist())
    assert shop.customers() == CUSTOMERS


def test_update_by_id_returns_its_own_columns(shop: Shop) -> None:
    ids = [row_id(shop, 2), row_id(shop, 1)]
    changed = shop.db.update("sales.customers", pa.table({"name": ["G", "A"], "rowid": ids}), returning=True).rows
    assert changed is not None
    assert changed.to_pydict() == {"name": ["G", "A"], "rowid": ids}
    assert [row[1] for row in shop.customers()] == ["A", "G"]


def test_delete_returns_rows_in_the_order_of_their_ids(shop: Shop) -> None:
    deleted = shop.db.delete("sales.customers", [row_id(shop, 2), row_id(shop, 1)], returning=True).rows
    assert deleted is not None
    assert deleted["name"].to_pylist() == ["Grace", "Ada"]
    assert shop.customers() == []


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        (people(*range(10, 5000), 1), 'Duplicate key "id: 1" violates primary key'),
        (people(3, 4, credit="-1.00"), "CHECK constraint failed"),
    ],
    ids=["primary key in the last batch", "check"],
)
@pytest.mark.parametrize("returning", [False, True])
def test_violated_constraint_changes_nothing(shop: Shop, rows: pa.Table, rule: str, *, returning: bool) -> None:
    with pytest.raises(ConstraintViolation, match=rule):
        shop.db.insert("sales.customers", rows, returning=returning)
    assert shop.customers() == CUSTOMERS


def test_update_that_violates_a_constraint_changes_nothing(shop: Shop) -> None:
    with pytest.raises(ConstraintViolation, match="CHECK"):
        shop.db.update("sales.customers", {"credit": lambda credit: pc.subtract(credit, decimal.Decimal("10.00"))})
    assert shop.customers() == CUSTOMERS


def test_not_null_is_enforced_by_the_file(shop: Shop) -> None:
    """The client checks first; rows that bypass this check, as with the JSON contract, must be rejected as well."""
    types = pa.schema({"id": pa.int64(), "name": pa.string(), "credit": pa.decimal128(9, 2)})
    nameless = pa.table({"id": [3], "name": [None], "credit": [None]}, types)
    with pytest.raises(ConstraintViolation, match=r"NOT NULL constraint failed: customers\.name"):
        shop.db.json.insert("sales.customers", nameless)
    assert shop.customers() == CUSTOMERS


@pytest.mark.parametrize("returning", [False, True])
@pytest.mark.parametrize("change", ["update", "delete"])
def test_missing_rows_change_nothing(shop: Shop, change: str, *, returning: bool) -> None:
    ids = [row_id(shop, 1), 4711]
    rows: Any = pa.table({"name": ["x", "y"], "rowid": ids}) if change == "update" else ids
    with pytest.raises(NotFound, match="1 of 2 rows no longer exist in 'customers'"):
        getattr(shop.db, change)("sales.customers", rows, returning=returning)
    assert shop.customers() == CUSTOMERS


def test_duplicate_row_id_counts_once(shop: Shop) -> None:
    ada = row_id(shop, 1)
    assert shop.db.update("sales.customers", pa.table({"name": ["A", "A"], "rowid": [ada, ada]})).count == 1
    deleted = shop.db.delete("sales.customers", [ada, ada], returning=True)
    assert deleted.rows is not None
    assert (deleted.count, deleted.rows["name"].to_pylist()) == (1, ["A", "A"])
    assert shop.customers() == CUSTOMERS[1:]


def test_a_scan_runs_while_a_statement_is_open(shop: Shop) -> None:
    """The client scans for rows to change while its exchange is open; its changes are not visible before the end."""
    open_statement = shop.catalog.schema("sales").table("customers").write(_insert())
    open_statement.apply(people(3).combine_chunks().to_batches()[0])
    assert shop.db.count("sales.customers") == 2
    assert shop.db.update("sales.customers", {"name": "Ada L."}, where=col("id") == 1).count == 1
    assert open_statement.commit() == 1
    assert [row[1] for row in shop.customers()] == ["Ada L.", "Grace", "n3"]


def test_aborted_statement_changes_nothing(shop: Shop) -> None:
    statement = shop.catalog.schema("sales").table("customers").write(_insert())
    statement.apply(people(3).combine_chunks().to_batches()[0])
    statement.abort()
    assert shop.customers() == CUSTOMERS


def _insert() -> Write:
    return Write("insert", people().schema, DmlOptions())


def test_concurrent_changes_are_not_overwritten(shop: Shop) -> None:
    table = shop.catalog.schema("sales").table("customers")
    schema = pa.schema({"name": pa.string(), "rowid": pa.int64()})
    slow = table.write(Write("update", schema, DmlOptions()))
    assert shop.db.update("sales.customers", {"name": "first"}, where=col("id") == 1).count == 1
    slow.apply(pa.record_batch({"name": ["second"], "rowid": [row_id(shop, 1)]}))
    with pytest.raises(Conflict):
        slow.commit()
    assert shop.customers()[0][1] == "first"


def test_concurrently_altered_table_is_a_conflict(shop: Shop) -> None:
    shop.file("CREATE TABLE main.t (a INT)")
    slow = shop.catalog.schema("main_").table("t").write(Write("insert", pa.schema({"a": pa.int32()}), DmlOptions()))
    slow.apply(pa.record_batch({"a": pa.array([1], pa.int32())}))
    shop.db.add_column("main_.t", pa.field("b", pa.int32()))
    with pytest.raises(Conflict):
        slow.commit()
    assert shop.file("FROM main.t") == []


def test_many_clients_write_concurrently(shop: Shop) -> None:
    def write(client: int) -> None:
        with AirportClient(shop.db.location, "shop") as db:
            for i in range(5):
                db.insert("sales.customers", people(*(1000 * client + 10 * i + j for j in range(10))), returning=True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(1, 9)))
    assert shop.file("SELECT count(*), count(DISTINCT id) FROM sales.customers") == [(402, 402)]


# -- DDL ----------------------------------------------------------------------------------------------------------------


def test_tables_are_created_with_all_their_constraints(shop: Shop) -> None:
    columns = pa.schema(
        [
            pa.field("a", pa.int64(), metadata={"comment": "first"}),
            pa.field("b", pa.string(), metadata={"default": "'x' || 'y'"}),
            pa.field("c", pa.decimal128(9, 2)),
        ]
    )
    shop.db.create_table(
        "sales.made", columns, primary_key=["a", "b"], not_null=["c"], unique=["c", ("b", "c")], checks=["c > 0"]
    )
    (sql,) = shop.file("SELECT sql FROM duckdb_tables() WHERE table_name = 'made'")[0]
    for rule in ("PRIMARY KEY(a, b)", "UNIQUE(c)", "UNIQUE(b, c)", "CHECK((c > 0))", "c DECIMAL(9,2) NOT NULL"):
        assert rule in sql
    facts = shop.file("SELECT column_name, comment, column_default FROM duckdb_columns() WHERE table_name = 'made'")
    assert facts == [("a", "first", None), ("b", None, "('x' || 'y')"), ("c", None, None)]


def test_on_conflict_fails_keeps_or_replaces(shop: Shop) -> None:
    other = pa.schema({"x": pa.int64()})
    with pytest.raises(AlreadyExists):
        shop.db.create_table("sales.Customers", other)
    existing = shop.db.create_table("sales.CUSTOMERS", other, on_conflict="ignore")
    assert (existing.name, existing.columns) == ("customers", ("id", "name", "credit"))
    shop.db.create_table("sales.customers", other, on_conflict="replace")
    assert shop.file("SELECT column_name FROM duckdb_columns() WHERE table_name = 'customers'") == [("x",)]


def test_tables_are_altered(shop: Shop) -> None:
    shop.file("CREATE TABLE sales.t (a INT, s STRUCT(x INT))")
    shop.file("INSERT INTO sales.t VALUES (1, {x: 2})")
    db, before = shop.db, shop.db.version().version
    db.add_column("sales.t", pa.field("n", pa.string(), metadata={"default": "'z'"}))
    db.add_column("sales.t", pa.field("n", pa.string()), if_not_exists=True)
    db.rename_column("sales.t", "n", "m")
    db.change_column_type("sales.t", "a", pa.string(), expression="'#' || a")
    db.set_not_null("sales.t", "m")
    db.add_field("sales.t", ["s"], pa.field("y", pa.int8()))
    db.rename_field("sales.t", ["s", "x"], "z")
    assert shop.file("FROM sales.t") == [("#1", {"z": 2, "y": None}, "z")]
    assert not db.table("sales.t").schema.field("m").nullable
    db.drop_not_null("sales.t", "m")
    db.set_default("sales.t", "m", "upper('q') -- so")
    db.remove_field("sales.t", ["s", "y"])
    db.remove_column("sales.t", "a")
    db.rename_table("sales.t", "T2")
    assert db.table("sales.T2").columns == ("s", "m")
    assert db.table("sales.T2").schema.field("m").metadata == {b"default": b"upper('q')"}
    assert db.version().version == before + 12, "each change increments the version"
    db.drop_table("sales.T2")
    db.create_schema("empty")
    db.drop_schema("empty")
    assert shop.file("SELECT schema_name FROM duckdb_schemas() WHERE schema_name = 'empty'") == []


REFUSED: list[tuple[type[SkiwayError], str, Callable[[AirportClient], object]]] = [
    (NotFound, "nothing", lambda db: db.rename_column("sales.customers", "nothing", "x")),
    (NotFound, "gone", lambda db: db.drop_schema("gone")),
    (AlreadyExists, "sales", lambda db: db.create_schema("sales")),
    (AlreadyExists, "name", lambda db: db.add_column("sales.plain", pa.field("name", pa.string()))),
    (SchemaNotEmpty, "drop its tables first", lambda db: db.drop_schema("sales")),
    (Unsupported, "comments", lambda db: db.create_schema("x", comment="why not")),
    (Unsupported, "ALTER TABLE", lambda db: db.add_constraint("sales.plain", "CHECK (name <> '')")),
    (PreconditionFailed, "depend", lambda db: db.remove_column("sales.customers", "id")),
    (PreconditionFailed, "NOT NULL", lambda db: db.set_not_null("sales.plain", "name")),
    (InvalidArgument, "row id", lambda db: db.rename_column("sales.plain", "name", "RowId")),
    (InvalidArgument, "row id", lambda db: db.create_table("sales.x", pa.schema({"rowid": pa.int64()}))),
    (InvalidArgument, "single", lambda db: db.set_default("sales.plain", "name", "1; DROP TABLE sales.plain")),
    (InvalidArgument, "single", lambda db: db.set_default("sales.plain", "name", "1, 2")),
    (
        InvalidArgument,
        "syntax",
        lambda db: db.change_column_type("sales.plain", "name", pa.string(), expression="1) ("),
    ),
    (
        InvalidArgument,
        "a single statement",
        lambda db: db.add_constraint("sales.plain", "PRIMARY KEY (name); DROP TABLE sales.plain"),
    ),
    (
        InvalidArgument,
        "syntax",
        lambda db: db.create_table("sales.x", pa.schema({"a": pa.int8()}), checks=["true)) AS SELECT ((1"]),
    ),
    (
        SkiwayError,
        "subquery",
        lambda db: db.change_column_type(
            "sales.plain", "name", pa.string(), expression="(SELECT content FROM read_text('/etc/hostname'))"
        ),
    ),
]


@pytest.mark.parametrize(
    ("error", "message", "change"), REFUSED, ids=[f"{i}-{row[0].__name__}" for i, row in enumerate(REFUSED)]
)
def test_rejected_ddl_explains_why_and_changes_nothing(
    shop: Shop, error: type[SkiwayError], message: str, change: Callable[[AirportClient], object]
) -> None:
    shop.file("CREATE TABLE sales.plain (name VARCHAR)")
    shop.file("INSERT INTO sales.plain VALUES (NULL)")
    before, version = shop.file("SELECT sql FROM duckdb_tables() ORDER BY ALL"), shop.db.version()
    with pytest.raises(error, match=message):
        change(shop.db)
    assert shop.file("SELECT sql FROM duckdb_tables() ORDER BY ALL") == before
    assert shop.db.version() == version


@pytest.mark.parametrize("sql", ["FROM read_text('/etc/hostname')", "ATTACH 'other.duckdb'", "SET threads = 1"])
def test_sql_in_the_file_cannot_access_anything_else(shop: Shop, sql: str) -> None:
    with pytest.raises((duckdb.PermissionException, duckdb.InvalidInputException), match=r"disabled|locked"):
        shop.file(sql)


# -- the script ---------------------------------------------------------------------------------------------------------


def test_existing_file_is_served_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "mine.duckdb"
    with duckdb.connect(path) as database:
        database.execute("CREATE TABLE notes (text VARCHAR)")
    with running("duckdb_file", "grpc://127.0.0.1:0", path, temporary=tmp_path) as script:
        with AirportClient(script.location, "mine") as db:
            assert db.insert("main_.notes", pa.table({"text": ["kept"]})).count == 1
        code, _, log = script.end(2)
    assert code == 0, log
    with duckdb.connect(path, read_only=True) as database:
        assert database.execute("FROM notes").fetchall() == [("kept",)]


def test_invalid_duckdb_file_is_rejected_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to look at " * 100)
    command = [sys.executable, FOLDER / "duckdb_file.py", "grpc://127.0.0.1:0", path]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert "not a valid DuckDB database file" in result.stderr
    assert "Traceback" not in result.stderr
