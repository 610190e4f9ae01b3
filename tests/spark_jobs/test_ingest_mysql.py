"""Copies of tables in MySQL, with a real MariaDB server and the driver of MySQL."""

from __future__ import annotations

import datetime as dt
import logging
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from metastore.resource_factory import expect_error
from metastore.upstreams import SECRETS
from skiway.errors import PermissionDenied, Unauthorized, Unavailable
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1
from skiway.security.source_access import SourceAccess
from skiway.spark_jobs.worker import SparkCopies
from spark_jobs.ingest_sources import CopyingConnector, password
from spark_jobs.lakes import SPARK
from spark_jobs.mariadb import MariaDb, running_mariadb

pytestmark = [*SPARK, pytest.mark.needs("mariadb")]


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    with running_mariadb() as running:
        yield running


@pytest.fixture
def copied(managed_lake: Any, spark: Any, mariadb: MariaDb) -> Any:
    """Makes a connector that copies all tables of a database."""

    def create(database: str, *, uri: str = "", **settings: Any) -> CopyingConnector:
        auth = {"auth": settings.pop("auth")} if "auth" in settings else {}
        source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=[database]))
        copy = v1.CopySettings(**settings)
        return CopyingConnector.create(
            managed_lake, spark, v1.CK_JDBC, uri or mariadb.uri(database), copy, source=source, **auth
        )

    return create


def as_text(rows: list[tuple[Any, ...]]) -> list[tuple[str, ...]]:
    """Rows as the command line of MariaDB shows them."""
    return sorted(tuple("NULL" if value is None else str(value) for value in row) for row in rows)


def test_append_reads_new_rows_with_several_connections(mariadb, copied):
    mariadb.new_database(
        "appended",
        "CREATE TABLE orders (id bigint, name text)",
        "INSERT INTO orders SELECT CAST(seq AS signed) - 50, concat('n', seq) FROM seq_0_to_1050",
    )
    copy = copied("appended", mode=v1.COM_APPEND, cursor_column="ID", read_partitions=4)
    assert copy.run().failures == {}
    assert as_text(copy.rows("appended.orders")) == mariadb.rows("SELECT * FROM orders", "appended")
    assert copy.run().changed == 0
    mariadb.run("INSERT INTO orders SELECT seq, NULL FROM seq_1001_to_1010", database="appended")
    assert copy.run().changed == 1
    assert as_text(copy.rows("appended.orders")) == mariadb.rows("SELECT * FROM orders", "appended")
    mariadb.run("INSERT INTO orders VALUES (-60, 'late')", database="appended")
    assert (copy.run().changed, copy.run().changed) == (1, 0)
    assert as_text(copy.rows("appended.orders")) == mariadb.rows("SELECT * FROM orders", "appended")


@pytest.mark.parametrize("cursor", ["datetime(6)", "timestamp(6) NULL"])
def test_upsert_follows_random_changes(mariadb, copied, cursor):
    """The cursor is a time with microseconds. The server, its client and this process have different time zones."""
    database = mariadb.new_database(
        f"upserted_{cursor[:4]}",
        f"CREATE TABLE stock (shop int, item varchar(20), amount decimal(9, 2), at {cursor}, PRIMARY KEY (shop, item))",
        "CREATE VIEW amounts AS SELECT shop, item, amount, at FROM stock",
    )
    copy = copied(database, mode=v1.COM_UPSERT, cursor_column="at", key_columns=["shop", "item"])
    rng = random.Random(17)
    for _ in range(3):
        mariadb.run(
            *(
                f"REPLACE INTO stock VALUES ({rng.randrange(3)}, 'i''{rng.randrange(6)}', {rng.randrange(1000) / 100}, now(6))"
                for _ in range(15)
            ),
            database=database,
        )
        assert copy.run().failures == {}
        expected = mariadb.rows("SELECT shop, item, amount FROM stock", database)
        for table in ("stock", "amounts"):
            assert as_text([row[:3] for row in copy.rows(f"{database}.{table}")]) == expected


def test_rows_that_commit_after_higher_values_are_merged_by_key(mariadb, copied):
    """A transaction takes a number, and another one that took a higher number commits first. A changed row masks the late one."""
    mariadb.new_database(
        "late",
        "CREATE TABLE t (k int, id bigint AUTO_INCREMENT UNIQUE, v text)",
        "INSERT INTO t (k, v) VALUES (1, 'a'), (2, 'b')",
    )
    copy = copied("late", mode=v1.COM_UPSERT, cursor_column="id", key_columns=["k"])
    with mariadb.transaction("late", "INSERT INTO t (k, v) VALUES (3, 'late')"):
        mariadb.run("INSERT INTO t (k, v) VALUES (4, 'higher')", database="late")
        assert copy.run().failures == {}
        assert [row[0] for row in copy.rows("late.t")] == [1, 2, 4]
    mariadb.run("UPDATE t SET id = 9, v = 'moved' WHERE k = 1", database="late")
    for changed in (1, 0):
        outcome = copy.run()
        assert (outcome.failures, outcome.changed) == ({}, changed)
        assert as_text(copy.rows("late.t")) == mariadb.rows("SELECT * FROM t", "late")


def test_late_row_is_appended_although_as_many_rows_were_deleted(mariadb, copied):
    mariadb.new_database(
        "masked",
        "CREATE TABLE t (id bigint AUTO_INCREMENT UNIQUE, v text)",
        "INSERT INTO t (v) VALUES ('a'), ('gone')",
    )
    copy = copied("masked", mode=v1.COM_APPEND, cursor_column="id")
    with mariadb.transaction("masked", "INSERT INTO t (v) VALUES ('late')"):
        mariadb.run("INSERT INTO t (v) VALUES ('higher')", database="masked")
        assert copy.run().failures == {}
        assert [row[0] for row in copy.rows("masked.t")] == [1, 2, 4]
    mariadb.run("DELETE FROM t WHERE v = 'gone'", database="masked")
    for changed in (1, 0):
        outcome = copy.run()
        assert (outcome.failures, outcome.changed) == ({}, changed)
        assert copy.rows("masked.t") == [(1, "a"), (2, "gone"), (3, "late"), (4, "higher")]


def test_cursor_can_be_a_text_with_any_characters(mariadb, copied):
    mariadb.new_database("texts", "CREATE TABLE t (k varchar(20))", "INSERT INTO t VALUES ('a'), ('a\\\\''b\\\"ö')")
    copy = copied("texts", mode=v1.COM_APPEND, cursor_column="k")
    assert copy.run().failures == {}
    assert copy.run().changed == 0
    mariadb.run("INSERT INTO t VALUES ('b')", database="texts")
    assert copy.run().changed == 1
    assert copy.rows("texts.t") == sorted([("a",), ("b",), ("a\\'b\"ö",)], key=repr)


def test_replace_follows_deleted_rows_and_new_columns(mariadb, copied):
    mariadb.new_database("replaced", "CREATE TABLE t (id int, v text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    copy = copied("replaced", mode=v1.COM_REPLACE)
    assert copy.run().failures == {}
    mariadb.run(
        "DELETE FROM t WHERE id = 1",
        "ALTER TABLE t ADD COLUMN `an.odd name` time",
        "INSERT INTO t VALUES (3, NULL, '12:00')",
        database="replaced",
    )
    assert copy.run().failures == {}
    assert copy.rows("replaced.t") == [(2, "b", None), (3, None, "12:00:00")]


MOMENT = dt.datetime(2026, 3, 8, 2, 30, 6, 123456)  # it does not exist in New York
TYPES: dict[str, tuple[str, str, pa.DataType, object]] = {
    "tiny": ("tinyint", "-128", pa.int32(), -128),
    "tiny_u": ("tinyint unsigned", "255", pa.int32(), 255),
    "truth": ("boolean", "5", pa.int32(), 5),
    "small": ("smallint", "-32768", pa.int32(), -32768),
    "small_u": ("smallint unsigned", "65535", pa.int32(), 65535),
    "medium": ("mediumint", "-8388608", pa.int32(), -8388608),
    "medium_u": ("mediumint unsigned", "16777215", pa.int32(), 16777215),
    "whole": ("int", "-2147483648", pa.int32(), -(1 << 31)),
    "whole_u": ("int unsigned", "4294967295", pa.int64(), (1 << 32) - 1),
    "big": ("bigint", "-9223372036854775808", pa.int64(), -(1 << 63)),
    "big_u": ("bigint unsigned", "18446744073709551615", pa.decimal128(20, 0), Decimal((1 << 64) - 1)),
    "price": ("decimal(10, 3)", "-1234567.891", pa.decimal128(10, 3), Decimal("-1234567.891")),
    "wide": ("decimal(38, 10)", "0.0000000001", pa.decimal128(38, 10), Decimal("0.0000000001")),
    "wider": ("decimal(65, 30)", "1.000000000000000000000000000001", pa.string(), f"1.{'0' * 29}1"),
    "part": ("float", "1.5", pa.float32(), 1.5),
    "double_": ("double", "2.5", pa.float64(), 2.5),
    "bit_1": ("bit(1)", "b'1'", pa.bool_(), True),
    "bit_9": ("bit(9)", "b'100000001'", pa.decimal128(20, 0), Decimal(257)),
    "bit_64": ("bit(64)", "18446744073709551615", pa.decimal128(20, 0), Decimal((1 << 64) - 1)),
    "year_": ("year", "2026", pa.int32(), 2026),
    "day": ("date", "'2026-02-03'", pa.date32(), dt.date(2026, 2, 3)),
    "oldest": ("date", "'1000-01-01'", pa.date32(), dt.date(1000, 1, 1)),
    "span": ("time(6)", "'-838:59:58.123456'", pa.string(), "-838:59:58.123456"),
    "second": ("datetime", "'2026-02-03 04:05:06'", pa.timestamp("us"), dt.datetime(2026, 2, 3, 4, 5, 6)),
    "moment": ("datetime(6)", f"'{MOMENT}'", pa.timestamp("us"), MOMENT),
    "instant": ("timestamp(6) NULL", f"'{MOMENT}'", pa.timestamp("us", "UTC"), MOMENT.replace(tzinfo=dt.UTC)),
    "fixed": ("char(5)", "'ab'", pa.string(), "ab"),
    "word": ("varchar(20)", "'wörd 😀'", pa.string(), "wörd 😀"),
    "latin": ("varchar(20) CHARACTER SET latin1", "'wörd'", pa.string(), "wörd"),
    "tiny_text": ("tinytext", "''", pa.string(), ""),
    "text_": ("text", "'text'", pa.string(), "text"),
    "long_text": ("longtext", "'long'", pa.string(), "long"),
    "choice": ("enum('a', 'b')", "'b'", pa.string(), "b"),
    "choices": ("set('x', 'y')", "'x,y'", pa.string(), "x,y"),
    "doc": ("json", "'{\"a\": 1}'", pa.string(), '{"a": 1}'),
    "bytes_3": ("binary(3)", "'ab'", pa.binary(), b"ab\0"),
    "bytes_": ("varbinary(5)", "x'00ff'", pa.binary(), b"\0\xff"),
    "blob_": ("longblob", "x'ff00'", pa.binary(), b"\xff\0"),
}


def test_types_are_mapped_as_documented(mariadb, copied):
    """The smallest or largest values of each type, and NULL."""
    defined = ", ".join(f"{name} {of}" for name, (of, _, _, _) in TYPES.items())
    values = ", ".join(value for _, value, _, _ in TYPES.values())
    mariadb.new_database(
        "types",
        f"CREATE TABLE every (id int, {defined})",
        "SET time_zone = '+00:00'",
        f"INSERT INTO every VALUES (1, {values})",
        "INSERT INTO every (id) VALUES (2)",
    )
    copy = copied("types", mode=v1.COM_APPEND, cursor_column="id")
    assert copy.run().failures == {}
    found = copy.arrow("types.every").sort_by("id")
    large = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    types = {field.name: large.get(field.type, field.type) for field in found.schema}
    assert types == {"id": pa.int32(), **{name: of for name, (_, _, of, _) in TYPES.items()}}
    first, second = found.to_pylist()
    assert first == {"id": 1, **{name: value for name, (_, _, _, value) in TYPES.items()}}
    assert second == {"id": 2, **dict.fromkeys(TYPES)}


def test_dates_that_do_not_exist_are_null(mariadb, copied):
    mariadb.new_database(
        "zeros",
        "CREATE TABLE t (id int, d date, at datetime)",
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        "INSERT INTO t VALUES (1, '0000-00-00', '0000-00-00 00:00:00'), (2, '2026-02-00', '2026-00-03 04:05:06'), "
        "(3, '2026-02-31', '2026-02-30 01:02:03'), (4, '2024-02-29', '1000-01-01 00:00:00')",
    )
    copy = copied("zeros", mode=v1.COM_APPEND, cursor_column="id")
    assert copy.run().failures == {}
    nothing = [(number, None, None) for number in (1, 2, 3)]
    assert copy.rows("zeros.t") == [*nothing, (4, dt.date(2024, 2, 29), dt.datetime(1000, 1, 1))]


def test_wrong_password_is_reported_without_it(mariadb, copied, caplog):
    mariadb.new_database("login", "CREATE TABLE t (id int)")
    wrong = "another-secret-that-nobody-sees"
    copy = copied("login", mode=v1.COM_REPLACE, auth=password(wrong))
    with caplog.at_level(logging.DEBUG), expect_error(Unauthorized, "ingest.database.login") as raised:
        copy.run()
    assert "refused user 'copier'" in raised.value.message
    assert wrong not in f"{raised.value}{raised.value.__cause__}{caplog.text}"


def test_database_that_the_user_may_not_read_is_reported(mariadb, copied):
    with expect_error(PermissionDenied, "ingest.database.denied"):
        copied("mysql", mode=v1.COM_REPLACE).run()


def test_server_that_does_not_run_is_reported(copied):
    with expect_error(Unavailable, "ingest.database"):
        copied("x", mode=v1.COM_REPLACE, uri="mysql://copier@127.0.0.1:1/x").run()


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("disable", (Unauthorized, "ingest.database.login")),
        ("prefer", None),
        ("require", None),
        ("verify-ca", (Unavailable, "ingest.database.certificate")),
    ],
)
def test_modes_of_tls(mariadb, copied, mode, error):
    """The user may connect only with TLS, and the certificate of the server is not trusted."""
    database = mariadb.new_database("tls", "CREATE TABLE t (id int)", "INSERT INTO t VALUES (7)")
    copy = copied(database, uri=mariadb.uri(database, user="tls", more=f"?sslmode={mode}"), mode=v1.COM_REPLACE)
    if error:
        with expect_error(*error):
            copy.run()
    else:
        assert copy.run().failures == {}
        assert copy.rows("tls.t") == [(7,)]


def test_database_that_sources_may_not_reach_is_refused(mariadb, copied, managed_lake, spark):
    copy = copied("closed", mode=v1.COM_REPLACE)
    closed = Reconciler(
        SECRETS, warehouse=managed_lake.warehouse, access=SourceAccess(addresses=()), copies=SparkCopies(lambda: spark)
    )
    with expect_error(PermissionDenied, "address.refused"):
        closed.run(managed_lake.home, copy.connector.resource_id, mode=v1.CAP_METADATA_ONLY_CORE)
