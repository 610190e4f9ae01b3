"""The SQL of databases, and what the texts of their drivers mean."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from skiway.formats import TableName
from skiway.security.source_access.databases import JdbcDatabase
from skiway.spark_jobs.ingest.databases import DatabaseTable
from skiway.spark_jobs.ingest.jdbc import database_error, literal, quoted, read_column


def test_rows_without_times_are_read_on_spark_connect():
    """Spark Connect rejects an empty list of new columns when the plan is made, without a server."""
    connect = pytest.importorskip("pyspark.sql.connect.dataframe")
    plan = pytest.importorskip("pyspark.sql.connect.plan")
    frame = connect.DataFrame(plan.SQL("SELECT 1 AS id"), SimpleNamespace())
    database: Any = SimpleNamespace(
        quoted=lambda *names: ".".join(names),
        columns=lambda _: [read_column("postgresql", "id", "int4", None)],
        queries=SimpleNamespace(frame=lambda *_: frame),
    )
    assert DatabaseTable(database, TableName(("s",), "t")).rows("") is frame


def test_values_and_names_cannot_end_their_quotes():
    assert quoted("mysql", "a`b", 'c"d') == '`a``b`.`c"d`'
    assert quoted("postgresql", "a`b", 'c"d') == '"a`b"."c""d"'
    assert literal("postgresql", "it's", is_number=False) == "'it''s'"
    assert literal("mysql", "\\'ö", is_number=False) == "_utf8mb4 X'5c27c3b6'"
    assert literal("mysql", "12", is_number=True) == "12"


@pytest.mark.parametrize(
    ("data_type", "precision", "sql"),
    [
        ("int", 10, "`c`"),
        ("bit", 1, "`c`"),
        ("bit", 2, "CAST(`c` AS DECIMAL(20, 0)) AS `c`"),
        ("decimal", 38, "`c`"),
        ("decimal", 39, "CAST(`c` AS CHAR) AS `c`"),
        ("TIME", None, "CAST(`c` AS CHAR) AS `c`"),
        ("char", None, "CAST(`c` AS CHAR) AS `c`"),
    ],
)
def test_columns_of_mysql_are_converted_if_they_would_change(data_type, precision, sql):
    assert read_column("mysql", "c", data_type, precision).sql == sql


@pytest.mark.parametrize(
    ("data_type", "sql"),
    [
        ("int4", '"c"'),
        ("timestamptz", '"c"'),
        ("char", '"c"'),
        ("datetime", '"c"'),
        ("time", 'CAST("c" AS TEXT) AS "c"'),
        ("timetz", 'CAST("c" AS TEXT) AS "c"'),
        ("_time", 'CAST("c" AS TEXT[]) AS "c"'),
        ("_timetz", 'CAST("c" AS TEXT[]) AS "c"'),
    ],
)
def test_times_of_postgresql_are_converted(data_type, sql):
    column = read_column("postgresql", "c", data_type, None)
    assert (column.sql, column.is_datetime) == (sql, False)


@pytest.mark.parametrize("data_type", ["date", "datetime", "timestamp"])
def test_dates_of_mysql_are_read_only_if_they_exist(data_type):
    column = read_column("mysql", "c", data_type, None)
    assert column.sql.startswith("IF(DAYOFMONTH(`c`) BETWEEN 1 AND DAYOFMONTH(LAST_DAY(`c`)), ")
    assert column.is_datetime == (data_type == "datetime")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("java.sql.SQLException: Access denied for user 'me'@'h' (using password: YES)", "ingest.database.login"),
        ('PSQLException: FATAL: password authentication failed for user "me"', "ingest.database.login"),
        ("SQLNonTransientConnectionException: Public Key Retrieval is not allowed", "ingest.database.login"),
        ("SQLSyntaxErrorException: Access denied for user 'me'@'%' to database 'db'", "ingest.database.denied"),
        ("SELECT command denied to user 'me'@'h' for table `db`.`t`", "ingest.database.denied"),
        ("PSQLException: ERROR: permission denied for table t", "ingest.database.denied"),
        ("java.lang.ClassNotFoundException: com.mysql.cj.jdbc.Driver", "ingest.database.driver"),
        (
            "Communications link failure\nCaused by: java.security.cert.CertPathBuilderException",
            "ingest.database.certificate",
        ),
        ("SQLSyntaxErrorException: Table 'db.t' doesn't exist", "ingest.database.missing"),
        ("SQLSyntaxErrorException: Unknown database 'db'", "ingest.database.missing"),
        ("CommunicationsException: Communications link failure", "ingest.database"),
    ],
)
def test_errors_of_drivers_have_keys_and_hide_their_text(text, key):
    found = database_error(JdbcDatabase("mysql", "jdbc:mysql://h/db", "me"), f"{text} hunter2")
    assert found.key == key
    assert "hunter2" not in found.message
