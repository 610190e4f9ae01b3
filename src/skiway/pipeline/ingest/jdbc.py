"""Queries of one database over JDBC, which Spark runs.

The JDBC URL is built from an address that was checked: a connector cannot name classes, files or further hosts. The
password is an option of the driver, which Spark does not show in plans. The texts of drivers are only in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import PreconditionFailed, Unavailable
from skiway.pipeline.ingest.dialects import DRIVERS, database_error
from skiway.pipeline.ingest.distribution import collected
from skiway.pipeline.interruption import check_interrupted
from skiway.security.source_access.jdbc import JdbcDatabase

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Queries"]

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
        with self._translated():
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
        with self._translated():
            found: list[dict[str, Any]] = frame.toArrow().to_pylist()
        return found

    def collected(self, frame: DataFrame) -> list[Any]:
        """The results in a frame of outcomes."""
        with self._translated():
            return collected(frame)

    def _translated(self) -> _Translated:
        return _Translated(self._at)


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


class _Translated:
    """A block that uses a database. What its driver says is only in the log, since it can contain anything."""

    def __init__(self, at: JdbcDatabase) -> None:
        self._at = at

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        cause = error.__cause__ if isinstance(error, Unavailable | PreconditionFailed) else error
        if not isinstance(cause, PySparkException | Py4JError):
            return
        check_interrupted(cause)
        text = str(cause)
        log.warning("the database failed: %s", " ".join(text.split("\n")[:2])[:1000])
        raise database_error(self._at, text) from None
