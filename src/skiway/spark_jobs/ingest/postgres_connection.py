"""A connection to PostgreSQL in which values have the texts that copies read, and what its errors mean."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skiway.errors import PermissionDenied, PreconditionFailed, Unavailable
from skiway.foundation import extras
from skiway.security.source_access.databases import JdbcDatabase, checked_database
from skiway.spark_jobs.ingest.jdbc import database_error
from skiway.spark_jobs.ingest.postgres_values import SETTINGS

if TYPE_CHECKING:
    from psycopg import Connection

    from skiway.security.source_access import SourceAccess

log = logging.getLogger("skiway.ingest")


@dataclass
class PostgresConnection:
    """A connection that is opened when it is needed. `at` has the user, for errors."""

    parameters: Mapping[str, Any]
    at: JdbcDatabase
    _open: Connection[Any] | None = None

    @classmethod
    def to(cls, uri: str, password: str, access: SourceAccess) -> PostgresConnection:
        """A connection to the database at `uri`, if `access` permits it."""
        at = checked_database(uri, access, password=password)
        parts = {"user": at.username, "password": at.password, "dbname": at.database, **at.query}
        known = {name: value for name, value in parts.items() if value is not None}
        return cls(known, JdbcDatabase("postgresql", "", at.username or ""))

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self._open is not None:
            self._open.close()

    @property
    def now(self) -> Connection[Any]:
        """The open connection."""
        if self._open is None:
            with extras.needed("postgres", "copies of changes from PostgreSQL"):
                import psycopg
            with self.translated():
                self._open = psycopg.connect(**self.parameters, autocommit=True)
                for name, value in SETTINGS.items():
                    self._open.execute("SELECT set_config(%s, %s, false)", (name, value))
        return self._open

    def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        """The few rows of a query."""
        from psycopg.rows import dict_row

        with self.translated(), self.now.cursor(row_factory=dict_row) as cursor:
            cursor.execute(sql, values or None)
            return list(cursor) if cursor.description else []

    @contextmanager
    def translated(self) -> Iterator[None]:
        """A block that uses the database. Its texts are only in the log, since they can contain anything."""
        import psycopg

        try:
            yield
        except psycopg.errors.ObjectInUse:
            raise Unavailable(
                "another load reads the changes of the table: wait for it", key="ingest.log.busy"
            ) from None
        except psycopg.errors.ConfigurationLimitExceeded:
            raise PreconditionFailed(
                "PostgreSQL has no free replication slot, and each table needs one: raise max_replication_slots, drop slots that "
                "nobody uses, or copy fewer tables",
                key="ingest.log.slots",
            ) from None
        except psycopg.errors.InsufficientPrivilege as error:
            log.warning("the database failed: %s", str(error)[:1000])
            if "replication" in str(error):
                raise PermissionDenied(
                    f"user {self.at.user!r} may not read changes: ALTER USER {self.at.user} REPLICATION",
                    key="ingest.database.denied",
                ) from None
            if "must be owner" in str(error) or "for database" in str(error):
                raise PermissionDenied(
                    f"user {self.at.user!r} may not publish the table: as its owner, CREATE PUBLICATION name FOR TABLE ..., and set "
                    "the property publication=name",
                    key="ingest.database.denied",
                ) from None
            raise database_error(self.at, "permission denied for") from None
        except psycopg.Error as error:
            log.warning("the database failed: %s", str(error)[:1000])
            raise database_error(self.at, str(error)) from None
