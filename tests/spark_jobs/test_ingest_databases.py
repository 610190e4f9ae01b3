"""Copies of tables in databases, over JDBC, with a real PostgreSQL and SQLite."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metastore.resource_factory import expect_error
from metastore.upstreams import SECRETS, mirrored
from skiway.errors import Cancelled, PermissionDenied, PreconditionFailed, Unauthorized
from skiway.formats import TableName
from skiway.metastore.connectors.specs import CopyMode, CopyRules
from skiway.metastore.ingest import positions
from skiway.metastore.ingest.rows import Target
from skiway.metastore.reconcile.outcomes import Outcome
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1
from skiway.security.source_access import SourceAccess
from skiway.spark_jobs.ingest import databases
from skiway.spark_jobs.worker import SparkCopies
from spark_jobs.ingest_sources import (
    PASSWORD,
    USER,
    CopyingConnector,
    Postgres,
    password,
    running_postgres_on_tcp,
)
from spark_jobs.lakes import SPARK

pytestmark = SPARK


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres_on_tcp() as running:
        yield running


def source(schema: str, *include: str) -> v1.ConnectorSource:
    return v1.ConnectorSource(namespace=v1.NamespacePath(segments=[schema]), include_tables=include)


def appending(**more: object) -> v1.CopySettings:
    return v1.CopySettings(mode=v1.COM_APPEND, cursor_column="id", **more)  # type: ignore[arg-type]


def test_append_reads_new_rows_with_several_connections(postgres, managed_lake, spark):
    schema = postgres.new_schema("appended")
    postgres.run(
        f"CREATE TABLE {schema}.orders (id bigint, name text)",
        f"INSERT INTO {schema}.orders SELECT n, 'n' || n FROM generate_series(-50, 1000) n",
    )
    copy = CopyingConnector.create(
        managed_lake, spark, v1.CK_JDBC, postgres.uri, appending(read_partitions=4), source=source(schema)
    )
    assert copy.run().failures == {}
    assert copy.rows(f"{schema}.orders") == sorted(postgres.rows(f"SELECT * FROM {schema}.orders"), key=repr)
    assert copy.run().changed == 0
    postgres.run(f"INSERT INTO {schema}.orders SELECT n, NULL FROM generate_series(1001, 1010) n")
    assert copy.run().changed == 1
    assert copy.rows(f"{schema}.orders") == sorted(postgres.rows(f"SELECT * FROM {schema}.orders"), key=repr)


def test_upsert_follows_random_changes(postgres, managed_lake, spark):
    """The cursor is a timestamp with microseconds, set by each change. Rows with two key columns are changed and added."""
    schema = postgres.new_schema("upserted")
    postgres.run(
        f"CREATE TABLE {schema}.stock (shop int, item text, amount numeric(9,2), at timestamptz, PRIMARY KEY (shop, item))"
    )
    copy = CopyingConnector.create(
        managed_lake,
        spark,
        v1.CK_JDBC,
        postgres.uri,
        v1.CopySettings(mode=v1.COM_UPSERT, cursor_column="at", key_columns=["shop", "item"]),
        source=source(schema),
    )
    rng = random.Random(17)
    for _ in range(3):
        changes = [(rng.randrange(3), f"i'{rng.randrange(6)}", rng.randrange(1000) / 100) for _ in range(15)]
        for shop, item, amount in changes:
            quoted = item.replace("'", "''")
            postgres.run(
                f"INSERT INTO {schema}.stock VALUES ({shop}, '{quoted}', {amount}, clock_timestamp()) "
                "ON CONFLICT (shop, item) DO UPDATE SET amount = excluded.amount, at = excluded.at"
            )
        assert copy.run().failures == {}
        expected = postgres.rows(f"SELECT shop, item, amount FROM {schema}.stock")
        found = [row[:3] for row in copy.rows(f"{schema}.stock")]
        assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_rows_that_are_added_during_a_load_belong_to_the_next_one(postgres, managed_lake, spark):
    schema = postgres.new_schema("during")
    postgres.run(f"CREATE TABLE {schema}.t (id int)", f"INSERT INTO {schema}.t VALUES (1), (3)")
    source_ = SparkCopies(lambda: spark).database(
        postgres.uri, options={}, credentials={"password": PASSWORD}, access=SourceAccess()
    )
    rules = CopyRules(CopyMode.APPEND, cursor="id")
    table = source_.copied(TableName((schema,), "t"))
    changes = table.changes(rules, None)
    postgres.run(f"INSERT INTO {schema}.t VALUES (2), (4)")  # one of them is late
    made = managed_lake.create("t", pa.schema({"id": pa.int32()}))
    written = changes.write(Target(made.files, made.metadata), pa.schema([]))
    assert (written.rows, written.position["value"], written.position["rows"]) == (3, "3", 2)
    chosen = table.changes(rules, written.position).chosen
    assert (chosen.after, chosen.upto, chosen.since) == ("3", "4", written.position["transaction"])


@pytest.mark.parametrize("mode", [v1.COM_APPEND, v1.COM_UPSERT])
def test_load_in_steps_continues_after_the_last_one(postgres, managed_lake, spark, monkeypatch, mode):
    """Rows are added everywhere after the load was stopped. A full load is not published in steps."""
    schema = postgres.new_schema(f"stepped{mode}")
    postgres.run(
        f"CREATE TABLE {schema}.t (id int PRIMARY KEY, v text)",
        f"INSERT INTO {schema}.t SELECT n, 'v' || n FROM generate_series(10, 100, 2) n",
    )
    copy = v1.CopySettings(mode=mode, cursor_column="id", key_columns=["id"] if mode == v1.COM_UPSERT else [])
    copied = CopyingConnector.create(managed_lake, spark, v1.CK_JDBC, postgres.uri, copy, source=source(schema))
    copied.step_bytes = 10 * databases._ROW_BYTES
    assert f"{schema}.t: create the table, and " in copied.run(dry_run=True).message
    assert copied.run(dry_run=True).message.endswith("46 rows in 5 steps")
    usual, ranges = databases.DatabaseChanges.write, []

    def write(changes: Any, *about: Any) -> Any:
        if len(ranges) == 2:
            raise Cancelled("stopped", key="job.cancelled")
        ranges.append((changes.chosen.after, changes.chosen.upto))
        return usual(changes, *about)

    monkeypatch.setattr(databases.DatabaseChanges, "write", write)
    with expect_error(Cancelled, "job.cancelled"):
        copied.run()
    assert ranges == [(None, "28"), ("28", "48")]
    assert len(copied.rows(f"{schema}.t")) == 20
    monkeypatch.undo()
    postgres.run(f"INSERT INTO {schema}.t VALUES (1, 'late'), (51, 'between'), (200, 'new')")
    assert copied.run(dry_run=True).message.endswith("27 rows in 3 steps")
    assert copied.run().failures == {}
    assert copied.rows(f"{schema}.t") == sorted(postgres.rows(f"SELECT * FROM {schema}.t"), key=repr)
    assert copied.run().changed == 0
    before = copied.snapshots(f"{schema}.t")
    assert copied.run(full_rescan=True).failures == {}
    assert copied.snapshots(f"{schema}.t") == before + 1


def test_spark_judges_the_rows_of_a_copy(managed_lake, spark, tmp_path):
    """In the types of Spark, and with keys of each kind."""
    (tmp_path / "s" / "t").mkdir(parents=True)
    rules = "[{not_null: v, on_failure: drop}, {unique: [at, v]}, {name: low, condition: id < 3, on_failure: warn}]"
    copy = v1.CopySettings(mode=v1.COM_UPSERT, key_columns=["id", "at"], expect=rules)
    copied = CopyingConnector.create(managed_lake, spark, v1.CK_PARQUET, str(tmp_path / "s"), copy)

    def add(name: str, *rows: tuple[int, int, str | None]) -> Outcome:
        ids, days, texts = zip(*rows, strict=True)
        moments = pa.array([day * 86_400_000_000 for day in days], pa.timestamp("us", "UTC"))
        table = pa.table({"id": ids, "at": moments, "v": pa.array(texts, pa.string())})
        pq.write_table(table, tmp_path / "s" / "t" / f"{name}.parquet")
        return copied.run()

    outcome = add("1", (1, 1, "a"), (2, 1, None), (3, 1, "c"))
    assert outcome.failures == {}
    assert "t: 1 of 3 rows break not_null_v (v is not NULL) and are in quarantine" in outcome.note
    (table,) = (name for name in mirrored(managed_lake.factory) if name.endswith(".t"))
    assert [row[0] for row in copied.rows(table)] == [1, 3]
    assert add("2", (2, 1, "a"), (1, 1, "b")).failures == {}, "the value moves to another row"
    assert [(row[0], row[2]) for row in copied.rows(table)] == [(1, "b"), (2, "a"), (3, "c")]
    assert "1 of 1 rows break unique_at_v" in add("3", (9, 1, "c")).failures["t"]
    assert len(copied.rows(table)) == 3


LATE_TABLES = {
    "logged": ("id bigint, v text", "1, 'first'), (2, 'gone", v1.CopySettings(mode=v1.COM_APPEND, cursor_column="id")),
    "keyed": ("id bigint, v text", "1, 'first'), (2, 'gone", None),
    "equal": ("id bigint, v text", "1, 'first'), (2, 'gone", v1.CopySettings(mode=v1.COM_APPEND, cursor_column="id")),
    "saved": ("id bigint, v text", "1, 'first'), (2, 'gone", None),
}
"""Tables whose rows commit in another order than that of their cursor values, with their first rows. The default is an upsert."""


def test_rows_that_commit_after_higher_values_are_copied_once(postgres, managed_lake, spark):
    """A late row and a deleted row do not change the number of rows. One late row is written after a savepoint, and one has the value of
    the last row that was loaded.
    """
    schema = postgres.new_schema("late")
    for name, (columns, values, _) in LATE_TABLES.items():
        postgres.run(f"CREATE TABLE {schema}.{name} ({columns})", f"INSERT INTO {schema}.{name} VALUES ({values}')")
    settings = v1.CopySettings(mode=v1.COM_UPSERT, cursor_column="id", key_columns=["id"])
    for name, (_, _, own) in LATE_TABLES.items():
        if own is not None:
            settings.tables[name].CopyFrom(own)
    copy = CopyingConnector.create(managed_lake, spark, v1.CK_JDBC, postgres.uri, settings, source=source(schema))
    with psycopg.connect(postgres.socket_url) as late:
        for name, number in {"logged": 5, "keyed": 5, "equal": 6, "saved": 5}.items():
            if name == "saved":
                late.execute("SAVEPOINT before_saved")
            late.execute(f"INSERT INTO {schema}.{name} VALUES ({number}, 'late')")
            postgres.run(f"INSERT INTO {schema}.{name} VALUES (6, 'higher')")
        assert copy.run().failures == {}
        assert copy.rows(f"{schema}.logged") == [(1, "first"), (2, "gone"), (6, "higher")]
    assert copy.run().failures == {}
    for name in LATE_TABLES:
        postgres.run(f"DELETE FROM {schema}.{name} WHERE id = 2", f"INSERT INTO {schema}.{name} VALUES (7, 'next')")
    for _ in range(2):
        assert copy.run().failures == {}
        for name in LATE_TABLES:
            expected = [*postgres.rows(f"SELECT * FROM {schema}.{name}"), (2, "gone")]  # deleted rows stay
            assert copy.rows(f"{schema}.{name}") == sorted(expected, key=repr), name
    assert copy.run().changed == 0


def test_late_row_is_copied_although_as_many_rows_were_deleted_or_changed(postgres, managed_lake, spark):
    """The cursors are a number and a time that the source sets when the transaction begins."""
    schema = postgres.new_schema("masked")
    for name, of, default in (("numbers", "bigint", "nextval('masked.s')"), ("times", "timestamptz", "now()")):
        if name == "numbers":
            postgres.run(f"CREATE SEQUENCE {schema}.s")
        postgres.run(
            f"CREATE TABLE {schema}.{name} (k int, at {of} DEFAULT {default}, v text)",
            f"INSERT INTO {schema}.{name} (k) VALUES (1), (2)",
        )
    settings = v1.CopySettings(mode=v1.COM_UPSERT, cursor_column="at", key_columns=["k"])
    settings.tables["times"].CopyFrom(v1.CopySettings(mode=v1.COM_APPEND, cursor_column="at"))
    copy = CopyingConnector.create(managed_lake, spark, v1.CK_JDBC, postgres.uri, settings, source=source(schema))
    with psycopg.connect(postgres.socket_url) as late:
        late.execute("SELECT now()")  # the transaction begins, and has no number yet
        late.execute(f"INSERT INTO {schema}.numbers (k) VALUES (3)")
        postgres.run(f"INSERT INTO {schema}.numbers (k) VALUES (4)", f"INSERT INTO {schema}.times (k) VALUES (4)")
        assert copy.run().failures == {}
        late.execute(f"INSERT INTO {schema}.times (k) VALUES (3)")
    postgres.run(
        f"UPDATE {schema}.numbers SET at = DEFAULT, v = 'moved' WHERE k = 1",  # the number of rows below the position stays
        f"DELETE FROM {schema}.times WHERE k = 1",
        f"UPDATE {schema}.times SET v = 'same time' WHERE k = 4",
    )
    assert copy.run().failures == {}
    assert [row[::2] for row in copy.rows(f"{schema}.numbers")] == [(1, "moved"), (2, None), (3, None), (4, None)]
    assert [row[0] for row in copy.rows(f"{schema}.times")] == [1, 2, 3, 4]
    assert copy.run().changed == 0


def test_position_of_an_older_version_is_continued(postgres, managed_lake, spark):
    schema = postgres.new_schema("older")
    postgres.run(f"CREATE TABLE {schema}.t (id int)", f"INSERT INTO {schema}.t VALUES (1), (3)")
    database = SparkCopies(lambda: spark).database(
        postgres.uri, options={}, credentials={"password": PASSWORD}, access=SourceAccess()
    )
    table = database.copied(TableName((schema,), "t"))
    position = {"kind": "cursor", "column": "id", "value": "3", "rows": 2}
    rules = CopyRules(CopyMode.APPEND, cursor="id")
    assert table.changes(rules, position) is None
    postgres.run(f"INSERT INTO {schema}.t VALUES (4)")
    assert (table.changes(rules, position).chosen.after, table.changes(rules, position).chosen.since) == ("3", None)
    postgres.run(f"INSERT INTO {schema}.t VALUES (2)")
    with expect_error(PreconditionFailed, "ingest.cursor.backward", column="id"):
        table.changes(rules, position)


def test_all_rows_are_read_again_after_the_database_was_restored(postgres, spark):
    """Its transactions have smaller numbers than that of the position."""
    schema = postgres.new_schema("restored")
    postgres.run(f"CREATE TABLE {schema}.t (id int)", f"INSERT INTO {schema}.t VALUES (1), (3)")
    database = SparkCopies(lambda: spark).database(
        postgres.uri, options={}, credentials={"password": PASSWORD}, access=SourceAccess()
    )
    table, rules = database.copied(TableName((schema,), "t")), CopyRules(CopyMode.APPEND, cursor="id")
    position = table.changes(rules, None).chosen.position(2)
    assert table.changes(rules, position) is None
    chosen = table.changes(rules, {**position, "transaction": 10**15, "pending": "0:0"}).chosen
    assert (chosen.after, chosen.upto, chosen.since) == ("3", "3", 0)


def test_cursor_that_goes_backward_is_an_error_of_its_table_only(postgres, managed_lake, spark):
    schema = postgres.new_schema("backward")
    for name in ("a", "b", "c", "d"):
        postgres.run(f"CREATE TABLE {schema}.{name} (id int)", f"INSERT INTO {schema}.{name} VALUES (10), (20)")
    copy = CopyingConnector.create(managed_lake, spark, v1.CK_JDBC, postgres.uri, appending(), source=source(schema))
    assert copy.run().failures == {}
    postgres.run(
        f"INSERT INTO {schema}.a VALUES (15), (30)",  # one of them is late
        f"UPDATE {schema}.b SET id = 5 WHERE id = 20",  # the highest value decreases
        f"INSERT INTO {schema}.c VALUES (NULL)",
        f"INSERT INTO {schema}.d VALUES (21)",
    )
    outcome = copy.run()
    assert "its highest value is 10, but rows up to 20 were loaded" in outcome.failures[f"{schema}.b"]
    assert "is NULL in 1 rows" in outcome.failures[f"{schema}.c"]
    assert (len(outcome.failures), outcome.changed) == (2, 2)
    assert copy.rows(f"{schema}.a") == [(10,), (15,), (20,), (30,)]
    assert copy.rows(f"{schema}.b") == [(10,), (20,)]
    assert copy.rows(f"{schema}.d") == [(10,), (20,), (21,)]
    assert f"{schema}.b" not in copy.run(full_rescan=True).failures
    assert copy.rows(f"{schema}.b") == [(10,), (5,)]


def test_keys_that_are_not_unique_or_null_are_errors(postgres, managed_lake, spark):
    schema = postgres.new_schema("keys")
    postgres.run(
        f"CREATE TABLE {schema}.twice (id int, k int)",
        f"INSERT INTO {schema}.twice VALUES (1, 7), (2, 7)",
        f"CREATE TABLE {schema}.unset (id int, k int)",
        f"INSERT INTO {schema}.unset VALUES (1, NULL)",
    )
    settings = v1.CopySettings(mode=v1.COM_UPSERT, cursor_column="id", key_columns=["k"])
    copy = CopyingConnector.create(managed_lake, spark, v1.CK_JDBC, postgres.uri, settings, source=source(schema))
    outcome = copy.run()
    assert "2 rows have 1 different keys" in outcome.failures[f"{schema}.twice"]
    assert "'k' is NULL in 1 rows" in outcome.failures[f"{schema}.unset"]
    assert copy.rows(f"{schema}.twice") == []


def test_types_of_postgresql_are_mapped_as_documented(postgres, managed_lake, spark):
    schema = postgres.new_schema("types")
    columns = {
        "id": ("bigint", "1", pa.int64()),
        "small": ("smallint", "2", pa.int32()),
        "whole": ("integer", "3", pa.int32()),
        "part": ("real", "1.5", pa.float32()),
        "double": ("double precision", "2.5", pa.float64()),
        "price": ("numeric(9,2)", "3.25", pa.decimal128(9, 2)),
        "flag": ("boolean", "true", pa.bool_()),
        "word": ("text", "'wörd'", pa.string()),
        "short": ("varchar(5)", "'abc'", pa.string()),
        "day": ("date", "'2026-02-03'", pa.date32()),
        "moment": ("timestamp", "'2026-02-03 04:05:06.123456'", pa.timestamp("us")),
        "instant": ("timestamptz", "'2026-02-03 04:05:06.123456+02'", pa.timestamp("us", "UTC")),
        "clock": ("time", "'04:05:06.123456'", pa.string()),
        "data": ("bytea", "'\\x0102'", pa.binary()),
        "ident": ("uuid", "'00000000-0000-0000-0000-000000000007'", pa.string()),
        "doc": ("jsonb", "'{\"a\": 1}'", pa.string()),
        "numbers": ("integer[]", "'{1,2}'", pa.list_(pa.int32())),
    }
    defined = ", ".join(f'"{name}" {of}' for name, (of, _, _) in columns.items())
    postgres.run(
        f"CREATE TABLE {schema}.every ({defined})",
        f"INSERT INTO {schema}.every VALUES ({', '.join(value for _, value, _ in columns.values())})",
    )
    copy = CopyingConnector.create(managed_lake, spark, v1.CK_JDBC, postgres.uri, appending(), source=source(schema))
    assert copy.run().failures == {}
    found = copy.arrow(f"{schema}.every")
    for name, (_, _, expected) in columns.items():
        of = found.schema.field(name).type
        plain = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(of, of)
        assert plain == expected or (pa.types.is_list(expected) and of.value_type == expected.value_type), name
    row = found.to_pylist()[0]
    assert (row["word"], str(row["price"]), row["data"], row["numbers"]) == ("wörd", "3.25", b"\1\2", [1, 2])
    assert (row["moment"].isoformat(), row["instant"].isoformat()) == (
        "2026-02-03T04:05:06.123456",
        "2026-02-03T02:05:06.123456+00:00",
    )


def test_times_of_postgresql_are_copied_exactly(postgres, managed_lake, spark):
    """The cursor is a time. If the user may not read all columns, the copy fails, instead of leaving some out."""
    schema = postgres.new_schema("times")
    postgres.run(
        f"CREATE DOMAIN {schema}.opening AS time(0)",
        f"CREATE TABLE {schema}.clocks (at time, zoned timetz, whole {schema}.opening, many time[], v int)",
        f"INSERT INTO {schema}.clocks VALUES ('00:00:00', '00:00:00+00', '00:00:00', '{{}}', 1), "
        "('23:59:59.999999', '23:59:59.999999-15:59', '23:59:59', '{00:00:00.000001,NULL}', 2), "
        "('04:05:06.1', '24:00:00+05:30', '08:30', NULL, 3)",
    )
    settings = v1.CopySettings(mode=v1.COM_APPEND, cursor_column="at")
    copy = CopyingConnector.create(managed_lake, spark, v1.CK_JDBC, postgres.uri, settings, source=source(schema))
    assert copy.run().failures == {}
    postgres.run(f"INSERT INTO {schema}.clocks VALUES ('24:00:00', NULL, NULL, NULL, 4)")
    assert copy.run().failures == {}
    assert copy.rows(f"{schema}.clocks") == [
        ("00:00:00", "00:00:00+00", "00:00:00", [], 1),
        ("04:05:06.1", "24:00:00+05:30", "08:30:00", None, 3),
        ("23:59:59.999999", "23:59:59.999999-15:59", "23:59:59", ["00:00:00.000001", None], 2),
        ("24:00:00", None, None, None, 4),
    ]
    postgres.run(f"REVOKE SELECT ON {schema}.clocks FROM {USER}", f"GRANT SELECT (at, v) ON {schema}.clocks TO {USER}")
    assert "grant SELECT" in copy.run(full_rescan=True).failures[f"{schema}.clocks"]


def test_wrong_password_is_reported_without_it(postgres, managed_lake, spark, caplog):
    wrong = "another-secret-that-nobody-sees"
    copy = CopyingConnector.create(
        managed_lake, spark, v1.CK_JDBC, postgres.uri, appending(), source=source("public"), auth=password(wrong)
    )
    with caplog.at_level(logging.DEBUG), expect_error(Unauthorized, "ingest.database.login") as raised:
        copy.run()
    assert "refused user 'copier'" in raised.value.message
    assert wrong not in f"{raised.value}{raised.value.__cause__}{caplog.text}"


def test_password_is_not_in_the_plan(postgres, managed_lake, spark, capsys):
    schema = postgres.new_schema("planned")
    postgres.run(f"CREATE TABLE {schema}.t (id int)")
    database = SparkCopies(lambda: spark).database(
        postgres.uri, options={}, credentials={"password": PASSWORD}, access=SourceAccess()
    )
    frame = database.copied(TableName((schema,), "t")).rows("")  # type: ignore[attr-defined]
    frame.explain(extended=True)
    shown = capsys.readouterr().out
    assert "planned" in shown
    assert PASSWORD not in shown


def test_database_that_sources_may_not_reach_is_refused(postgres, managed_lake, spark):
    copy = CopyingConnector.create(managed_lake, spark, v1.CK_JDBC, postgres.uri, appending(), source=source("public"))
    closed = Reconciler(
        SECRETS, warehouse=managed_lake.warehouse, access=SourceAccess(addresses=()), copies=SparkCopies(lambda: spark)
    )
    with expect_error(PermissionDenied, "address.refused"):
        closed.run(managed_lake.home, copy.connector.resource_id, mode=v1.CAP_METADATA_ONLY_CORE)


def test_sqlite_is_replaced_as_a_whole(managed_lake, spark, tmp_path):
    file = tmp_path / "shop.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE items (id INTEGER, name TEXT)")
        database.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    database.close()
    copy = CopyingConnector.create(
        managed_lake,
        spark,
        v1.CK_JDBC,
        f"sqlite:///{file}",
        v1.CopySettings(mode=v1.COM_REPLACE),
        source=source("main"),
    )
    assert copy.run().failures == {}
    with sqlite3.connect(file) as database:
        database.execute("DELETE FROM items WHERE id = 1")
        database.execute("INSERT INTO items VALUES (3, NULL)")
    database.close()
    assert copy.run().changed == 1
    assert copy.rows("main.items") == [(2, "b"), (3, None)]


def test_sqlite_is_loaded_by_a_cursor(managed_lake, spark, tmp_path):
    file = tmp_path / "shop.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE items (id INTEGER, name TEXT)")
        database.execute("INSERT INTO items VALUES (9, 'a'), (10, 'b')")
    copy = CopyingConnector.create(
        managed_lake, spark, v1.CK_JDBC, f"sqlite:///{file}", appending(), source=source("main")
    )
    assert copy.run().failures == {}
    with database:
        database.execute("INSERT INTO items VALUES (11, 'c'), (100, 'd')")
    assert (copy.run().changed, copy.run().changed) == (1, 0)
    assert copy.rows("main.items") == [(10, "b"), (100, "d"), (11, "c"), (9, "a")]
    with database:
        database.execute("INSERT INTO items VALUES (50, 'late'), (100, 'equal')")
    assert (copy.run().changed, copy.run().changed) == (1, 0)
    assert copy.rows("main.items") == [(10, "b"), (100, "d"), (100, "equal"), (11, "c"), (50, "late"), (9, "a")]
    with database:
        database.execute("DELETE FROM items")
    assert "deleted rows stay in the copy" in copy.run().failures["main.items"]
    assert copy.run(full_rescan=True).failures == {}
    assert copy.rows("main.items") == []
    with database:
        database.execute("INSERT INTO items VALUES (1, 'again')")
    assert copy.run().failures == {}
    assert copy.rows("main.items") == [(1, "again")]
    database.close()


def test_late_rows_of_sqlite_are_merged_by_key(managed_lake, spark, tmp_path):
    """A row moves above the position, and a late one takes its place in the number of rows. The source sets the times."""
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as database:
        with database:
            database.execute("CREATE TABLE items (k INTEGER, at TEXT, v TEXT)")
            database.execute("INSERT INTO items VALUES (1, '10:01', 'a'), (2, '10:02', 'b'), (4, '10:06', 'd')")
        settings = v1.CopySettings(mode=v1.COM_UPSERT, cursor_column="at", key_columns=["k"])
        copy = CopyingConnector.create(
            managed_lake, spark, v1.CK_JDBC, f"sqlite:///{file}", settings, source=source("main")
        )
        assert copy.run().failures == {}
        with database:
            database.execute("UPDATE items SET at = '10:07', v = 'moved' WHERE k = 1")
            database.execute("INSERT INTO items VALUES (3, '10:05', 'late')")
        for changed in (1, 0):
            outcome = copy.run()
            assert (outcome.failures, outcome.changed) == ({}, changed)
            assert copy.rows("main.items") == sorted(database.execute("SELECT * FROM items").fetchall(), key=repr)


def test_late_row_of_sqlite_is_appended_although_as_many_rows_were_deleted(managed_lake, spark, tmp_path):
    """Nothing else is new. The second late row has the cursor value of the deleted one, and the same values in other columns."""
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as database:
        with database:
            database.execute("CREATE TABLE items (id INTEGER, v TEXT, w TEXT)")
            database.execute(
                "INSERT INTO items VALUES (1, 'a', NULL), (2, 'gone', 'x'), (6, 'kept', NULL), (6, 'b', NULL)"
            )
        copy = CopyingConnector.create(
            managed_lake, spark, v1.CK_JDBC, f"sqlite:///{file}", appending(), source=source("main")
        )
        assert copy.run().failures == {}
        for delete, late in (("v = 'gone'", (5, "late", None)), ("v = 'b'", (6, None, "b"))):
            with database:
                database.execute(f"DELETE FROM items WHERE {delete}")
                database.execute("INSERT INTO items VALUES (?, ?, ?)", late)
            for changed in (1, 0):
                outcome = copy.run()
                assert (outcome.failures, outcome.changed) == ({}, changed)
                expected = [*database.execute("SELECT * FROM items").fetchall(), (2, "gone", "x")]
                assert copy.rows("main.items") == sorted(expected, key=repr)


def test_overlap_of_sqlite_moves_and_rows_below_it_are_an_error(spark, tmp_path, monkeypatch):
    """A row that appears below the overlap would never be copied."""
    monkeypatch.setattr(databases, "_RECENT_ROWS", 2)
    monkeypatch.setattr(positions, "OVERLAP_S", 0)
    monkeypatch.setattr(positions, "_MARK_S", 0)
    file, rules = tmp_path / "shop.db", CopyRules(CopyMode.APPEND, cursor="id")
    with closing(sqlite3.connect(file)) as database:
        with database:
            database.execute("CREATE TABLE items (id INTEGER)")
            database.execute("INSERT INTO items VALUES (10), (20), (30), (40)")
        opened = SparkCopies(lambda: spark).database(
            f"sqlite:///{file}", options={}, credentials={}, access=SourceAccess()
        )
        table, position = opened.copied(TableName(("main",), "items")), None
        assert isinstance(table, databases.DatabaseTable)
        for added, start, below in ((50, "40", 3), (60, "50", 4), (70, "60", 5)):
            with database:
                database.execute("INSERT INTO items VALUES (?)", (added,))
            chosen = table.changes(rules, position).chosen
            position = chosen.position(1, table.count_below("id", chosen.next_overlap, is_number=True))
            assert (position["value"], position["from"], position["below"]) == (str(added), start, below)
        with database:
            database.execute("DELETE FROM items WHERE id = 70")
            database.execute("INSERT INTO items VALUES (65), (70)")
        chosen = table.changes(rules, position).chosen
        assert (chosen.after, chosen.upto, chosen.repeats, chosen.overlap) == ("70", "70", True, "60")
        with database:
            database.execute("DELETE FROM items WHERE id > 60 AND id < 70")
            database.execute("INSERT INTO items VALUES (15)")
        with expect_error(PreconditionFailed, "ingest.cursor.backward", column="id"):
            table.changes(rules, position)


def test_late_row_of_a_view_is_appended_although_as_many_rows_were_deleted(postgres, managed_lake, spark):
    schema = postgres.new_schema("viewed")
    postgres.run(
        f"CREATE TABLE {schema}.t (id bigint, v text)",
        f"INSERT INTO {schema}.t VALUES (1, 'a'), (2, 'gone'), (6, 'b')",
        f"CREATE VIEW {schema}.shown AS SELECT id, v FROM {schema}.t",
    )
    copy = CopyingConnector.create(
        managed_lake, spark, v1.CK_JDBC, postgres.uri, appending(), source=source(schema, "shown")
    )
    assert copy.run().failures == {}
    postgres.run(f"DELETE FROM {schema}.t WHERE id = 2", f"INSERT INTO {schema}.t VALUES (5, 'late')")
    for changed in (1, 0):
        outcome = copy.run()
        assert (outcome.failures, outcome.changed) == ({}, changed)
        assert copy.rows(f"{schema}.shown") == [(1, "a"), (2, "gone"), (5, "late"), (6, "b")]


@pytest.mark.parametrize("recent", [2, 100], ids=["below the overlap", "in the overlap"])
def test_late_row_that_commits_while_sqlite_is_read_is_copied_once(managed_lake, spark, tmp_path, monkeypatch, recent):
    """It appears after the rows are counted and before they are read, or after that, in the first load and in the next one."""
    monkeypatch.setattr(databases, "_RECENT_ROWS", recent)
    monkeypatch.setattr(positions, "OVERLAP_S", 0)
    monkeypatch.setattr(positions, "_MARK_S", 0)
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as database:
        with database:
            database.execute("CREATE TABLE items (id INTEGER)")
            database.executemany("INSERT INTO items VALUES (?)", [(number * 10,) for number in range(1, 7)])
        copy = CopyingConnector.create(
            managed_lake, spark, v1.CK_JDBC, f"sqlite:///{file}", appending(), source=source("main")
        )
        late = iter([5, 15, 25, 35])
        usual = databases.DatabaseChanges.write

        def write(self: Any, *target: Any) -> Any:
            insert()
            return usual(self, *target)

        def insert() -> None:
            with database:
                database.executemany("INSERT INTO items VALUES (?)", [(each,) for each in islice(late, 1)])

        counted = databases.DatabaseTable.count_below

        def count_below(self: Any, *args: Any, **more: Any) -> int:
            insert()
            return counted(self, *args, **more)

        monkeypatch.setattr(databases.DatabaseChanges, "write", write)
        monkeypatch.setattr(databases.DatabaseTable, "count_below", count_below)
        for number in range(4):
            assert copy.run().failures == {}
            with database:
                database.execute("INSERT INTO items VALUES (?)", (100 + number,))
        assert copy.run().failures == {}
        assert copy.run().changed == 0
        found = sorted(row[0] for row in copy.rows("main.items"))
        assert found == [row[0] for row in database.execute("SELECT id FROM items ORDER BY id")]
        assert {5, 15, 25, 35} <= {*found}
