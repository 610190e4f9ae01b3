"""Queries of databases over JDBC, which Spark runs, and what differs among the databases: drivers, SQL, types, and errors.

Some types do not arrive as they are through a JDBC driver and Spark. Such columns are converted in the query, so that
nothing is lost without notice: see `read_column`.

The JDBC URL is built from an address that was checked: a connector cannot name classes, files or further hosts. The
password is an option of the driver, which Spark does not show in plans. The texts of drivers are only in the log.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import NotFound, PermissionDenied, PreconditionFailed, SkiwayError, Unauthorized, Unavailable
from skiway.security.source_access.databases import Dialect, JdbcDatabase
from skiway.spark_jobs.interruption import check_interrupted
from skiway.spark_jobs.tasks import collected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DRIVERS: Final[Mapping[Dialect, tuple[str, str]]] = {
    "postgresql": ("org.postgresql:postgresql:42.7.8", "org.postgresql.Driver"),
    "mysql": ("com.mysql:mysql-connector-j:9.4.0", "com.mysql.cj.jdbc.Driver"),
    "sqlite": ("org.xerial:sqlite-jdbc:3.50.3.0", "org.sqlite.JDBC"),
}
"""The Maven coordinates and the class of each driver."""

LISTING: Final[Mapping[Dialect, str]] = {
    "postgresql": "SELECT table_schema AS s, table_name AS t FROM information_schema.tables WHERE table_schema NOT IN "
    "('information_schema', 'pg_catalog')",
    "mysql": "SELECT table_schema AS s, table_name AS t FROM information_schema.tables WHERE table_schema = DATABASE()",
    "sqlite": "SELECT 'main' AS s, name AS t FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite~_%' "
    "ESCAPE '~'",
}
"""The queries that list tables and views by schema."""

COLUMNS: Final[Mapping[Dialect, str]] = {
    "postgresql": "SELECT a.attname AS name, COALESCE(b.typname, t.typname) AS type, NULL AS digits, "
    "CAST(c.relkind AS TEXT) AS kind FROM pg_catalog.pg_attribute a "
    "JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "JOIN pg_catalog.pg_type t ON t.oid = a.atttypid LEFT JOIN pg_catalog.pg_type b ON b.oid = t.typbasetype "
    "WHERE n.nspname = {schema} AND c.relname = {table} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
    "mysql": "SELECT column_name AS name, data_type AS type, numeric_precision AS digits FROM information_schema.columns "
    "WHERE table_schema = {schema} AND table_name = {table} ORDER BY ordinal_position",
}
"""The queries that list the columns of a table, also those that the user may not read; the type of a domain is its base type."""

NOW: Final[Mapping[Dialect, str]] = {
    "postgresql": "CAST(EXTRACT(EPOCH FROM now()) AS BIGINT)",
    "mysql": "UNIX_TIMESTAMP()",
    "sqlite": "CAST(strftime('%s', 'now') AS INTEGER)",
}
"""The time of the database, in seconds."""

OLDEST_TRANSACTION: Final = "(SELECT txid_snapshot_xmin(txid_current_snapshot()))"
"""The oldest transaction of PostgreSQL that is still running."""

_ROW_XID: Final = "CAST(CAST(xmin AS TEXT) AS BIGINT)"
_NEXT_XID: Final = "(SELECT txid_snapshot_xmax(txid_current_snapshot()))"
ROW_TRANSACTION: Final = (
    f"(CASE WHEN {_ROW_XID} < 3 THEN 0 ELSE {_NEXT_XID} - ({_NEXT_XID} - {_ROW_XID}) % 4294967296 END)"
)
"""The transaction of PostgreSQL that has written a row. A row has only 32 bits of its number, and may seem younger than it is."""

_TEXT: Final[Mapping[Dialect, str]] = {"postgresql": "TEXT", "mysql": "CHAR", "sqlite": "TEXT"}
_MOST_DIGITS: Final = 38
"""The precision of Iceberg's decimals."""

_DENIED: Final = re.compile(
    r"Access denied for user \S+ to database|command denied to user|permission denied for", re.I
)
_WRONG_LOGIN: Final = re.compile(
    r"password authentication failed|no password was provided|Access denied for user|Public Key Retrieval is not allowed",
    re.I,
)
_NO_DRIVER: Final = re.compile(r"ClassNotFoundException|unresolved dependency|No suitable driver")
_MISSING: Final = re.compile(r"does not exist|doesn't exist|no such (table|column)|Unknown (column|database)")
_UNTRUSTED: Final = re.compile(r"CertPath|PKIX|SSLHandshakeException|SSL root certificate|CertificateException")


def quoted(dialect: Dialect, *names: str) -> str:
    """An identifier in SQL."""
    mark = "`" if dialect == "mysql" else '"'
    return ".".join(f"{mark}{name.replace(mark, mark * 2)}{mark}" for name in names)


def literal(dialect: Dialect, value: str, *, is_number: bool) -> str:
    """A value of a column in SQL, given as text."""
    if is_number:
        return value
    if dialect == "mysql":  # the mode of the server decides whether a backslash in a quoted text is one
        return f"_utf8mb4 X'{value.encode().hex()}'"
    return "'" + value.replace("'", "''") + "'"


def as_text(dialect: Dialect, expression: str) -> str:
    """An expression as text in SQL."""
    return f"CAST({expression} AS {_TEXT[dialect]})"


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """A column in the list of a SELECT. If it `is_datetime`, it arrives as text that Spark has to convert."""

    name: str
    sql: str
    is_datetime: bool = False


def read_column(dialect: Dialect, name: str, data_type: str, precision: int | None) -> ReadColumn:
    """A column in a type that Spark reads without losing or changing values. Some types of MySQL and PostgreSQL are converted:

    - `time` becomes text. Spark would make a moment with milliseconds of it. PostgreSQL has 24:00:00 and times with a zone, and
      MySQL has up to 838 hours, also negative ones.
    - `datetime` of MySQL becomes text: its driver changes dates before 1582.
    - `bit(2)` and longer would arrive as text in bytes. They become decimals, like `bigint unsigned`.
    - `char` would be padded with spaces by Spark, which MySQL does not return.
    - Decimals with more digits than Iceberg has become text.
    - Dates that do not exist, such as 0000-00-00 and 2026-02-00, become NULL.
    """
    column = quoted(dialect, name)
    data_type = data_type.lower()
    chosen = _postgresql(column, data_type) if dialect == "postgresql" else _mysql(column, data_type, precision)
    if not chosen:
        return ReadColumn(name, column)
    is_datetime = dialect == "mysql" and data_type == "datetime"
    return ReadColumn(name, f"{chosen} AS {column}", is_datetime=is_datetime)


def _postgresql(column: str, data_type: str) -> str:
    """The expression for a column; empty if it is read as it is."""
    match data_type:
        case "time" | "timetz":
            return as_text("postgresql", column)
        case "_time" | "_timetz":  # arrays
            return f"CAST({column} AS TEXT[])"
        case _:
            return ""


def _mysql(column: str, data_type: str, precision: int | None) -> str:
    """The expression for a column; empty if it is read as it is."""
    exists = f"DAYOFMONTH({column}) BETWEEN 1 AND DAYOFMONTH(LAST_DAY({column}))"
    match data_type:
        case "time" | "char":
            return as_text("mysql", column)
        case "bit" if (precision or 1) > 1:
            return f"CAST({column} AS DECIMAL(20, 0))"
        case "decimal" if (precision or 0) > _MOST_DIGITS:
            return as_text("mysql", column)
        case "date" | "timestamp":
            return f"IF({exists}, {column}, NULL)"
        case "datetime":
            return f"IF({exists}, {as_text('mysql', column)}, NULL)"
        case _:
            return ""


def database_error(at: JdbcDatabase, text: str) -> SkiwayError:
    """The error for what a driver says, without its text, which can contain anything."""
    dialect = at.dialect
    if _DENIED.search(text):
        return PermissionDenied(
            f"the {dialect} database does not let user {at.user!r} read a table, or use the database of the address: grant SELECT "
            "on them to the user, or correct the address",
            key="ingest.database.denied",
        )
    if _WRONG_LOGIN.search(text):
        return Unauthorized(
            f"the {dialect} database refused user {at.user!r} with the password of the connector: correct the credentials, or, if "
            "the user may connect only with TLS, use sslmode=require in the address",
            key="ingest.database.login",
        )
    if _NO_DRIVER.search(text):
        return Unavailable(
            f"the JDBC driver {DRIVERS[dialect][0]} could not be fetched: check the network, or give its jar to Spark with "
            "spark.jars",
            key="ingest.database.driver",
        )
    if _UNTRUSTED.search(text):
        return Unavailable(
            f"the certificate of the {dialect} database is not trusted on the machine of the worker: add its authority to the "
            "certificates that Java trusts, or use sslmode=require in the address, which does not check certificates",
            key="ingest.database.certificate",
        )
    if _MISSING.search(text):
        return NotFound(
            f"the {dialect} database does not have a table, a column or a database that was asked for; the log of the worker says "
            "which",
            key="ingest.database.missing",
        )
    return Unavailable(
        f"the {dialect} database does not answer as expected; the log of the worker has its message",
        key="ingest.database",
    )


_FETCHED_ROWS: Final = "10000"

log = logging.getLogger("skiway.ingest")


class Queries:
    """Queries of the database `at` an address."""

    def __init__(self, spark: Callable[[], SparkSession], at: JdbcDatabase, password: str) -> None:
        self._spark, self._at, self._password = spark, at, password

    def frame(self, sql: str, conditions: Iterable[str] = ()) -> DataFrame:
        """The rows of a query; one connection reads those of each condition."""
        each = list(conditions)
        properties = {
            "driver": DRIVERS[self._at.dialect][1],
            "user": self._at.user,
            "password": self._password,  # also if it is empty: without one, drivers look for files with passwords
            "fetchsize": _FETCHED_ROWS,
            "preferTimestampNTZ": "true",
            **({"open_mode": "1"} if self._at.dialect == "sqlite" else {}),  # read-only
        }
        table = f"({sql}) AS copied"
        with _translated(self._at):
            if each:
                return self._spark().read.jdbc(self._at.url, table, predicates=each, properties=properties)
            return self._spark().read.jdbc(self._at.url, table, properties=properties)

    def asked(self, sql: str) -> list[dict[str, Any]]:
        """The few rows of a query about tables, by lower-case names of columns."""
        if self._at.dialect == "sqlite":
            return _asked_sqlite(self._at, sql)
        return [{name.lower(): value for name, value in row.items()} for row in self.fetched(self.frame(sql))]

    def fetched(self, frame: DataFrame) -> list[dict[str, Any]]:
        """The few rows of a frame."""
        with _translated(self._at):
            found: list[dict[str, Any]] = frame.toArrow().to_pylist()
        return found

    def collected(self, frame: DataFrame) -> list[Any]:
        """The results in a frame of outcomes."""
        with _translated(self._at):
            return collected(frame)


def _asked_sqlite(at: JdbcDatabase, sql: str) -> list[dict[str, Any]]:
    """The rows of a query. The JDBC driver of SQLite does not know the types of expressions, so it is not asked."""
    import sqlite3

    file = Path(at.url.removeprefix("jdbc:sqlite:"))
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql)]
    except sqlite3.Error as error:
        log.warning("the database failed: %s", error)
        raise PreconditionFailed(
            f"the SQLite database {file.name!r} cannot be read: check the file, and the names of tables and columns",
            key="ingest.database",
        ) from None


@contextmanager
def _translated(at: JdbcDatabase) -> Iterator[None]:
    """A block that uses a database. What its driver says is only in the log, since it can contain anything."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, Unavailable, PreconditionFailed) as error:
        cause = error.__cause__ if isinstance(error, SkiwayError) else error
        if not isinstance(cause, PySparkException | Py4JError):
            raise
        check_interrupted(cause)
        text = str(cause)
        log.warning("the database failed: %s", " ".join(text.split("\n")[:2])[:1000])
        raise database_error(at, text) from None
