"""Tables of PostgreSQL and their changes, by logical replication, as copies read them.

    the slot of a table  ->  a snapshot of its rows  ->  transactions after it, in steps  ->  commits with the position in the log

The worker reads changes with plain SQL: it looks at the next ones in the slot, commits their rows with the position, and only then lets
the slot forget them. So a load that dies in between reads them again, and leaves out what the position says is there. A snapshot
says which transactions it has seen. Their changes are in the slot, too, and are left out by their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.formats import TableName
from skiway.metastore.connectors.specs import CopyMode, CopyRules
from skiway.metastore.ingest.copying import Changes, CopiedTable, DatabaseSource
from skiway.metastore.ingest.keys import KeyJoins
from skiway.metastore.ingest.positions import Position
from skiway.spark_jobs.ingest.log_changes import LogChanges, SnapshotChanges
from skiway.spark_jobs.ingest.log_rows import Rows
from skiway.spark_jobs.ingest.pgoutput import Decoder, RowChange
from skiway.spark_jobs.ingest.postgres_connection import PostgresConnection
from skiway.spark_jobs.ingest.replication_slots import FULL, Seen, Slot
from skiway.spark_jobs.interruption import check_interrupted

if TYPE_CHECKING:
    from skiway.security.source_access import SourceAccess

STEP_CHANGES: Final = 100_000
"""After so many messages of the log, a step ends with the transaction that it is in."""

IDLE_BYTES: Final = 64 << 20
"""How much of the log may be kept for a table that does not change, before a commit without rows moves its position."""


def open_log(
    joins: KeyJoins,
    uri: str,
    connector_id: str,
    *,
    options: Mapping[str, str],
    credentials: Mapping[str, str],
    access: SourceAccess,
    step_changes: int = STEP_CHANGES,
) -> DatabaseSource:
    """Open the database at `uri`, if `access` permits it, for a connector that follows its changes."""
    unknown = sorted(options.keys() - {"allowed-locations", "publication"})
    if unknown:
        raise InvalidArgument(
            f"a database whose changes are copied has no property {unknown[0]!r}: remove it; it can have publication",
            key="source.option",
        )
    connection = PostgresConnection.to(uri, credentials.get("password", ""), access)
    return LogSource(joins, connection, connector_id, options.get("publication", ""), step_changes)


@dataclass
class LogSource(DatabaseSource):
    """A database of PostgreSQL. Each table that is copied has a slot of its own."""

    joins: KeyJoins
    connection: PostgresConnection
    connector_id: str
    publication: str
    step_changes: int

    def copied(self, name: TableName) -> CopiedTable:
        return LogTable(self, self.slot(name))

    def slot(self, name: TableName) -> Slot:
        """The slot of a table."""
        return Slot(self.connection, name, self.connector_id, self.publication)

    def rules_of(self, name: TableName, rules: CopyRules) -> CopyRules:
        """The rules with the columns that identify a row in PostgreSQL, if there are no others."""
        if rules.mode != CopyMode.UPSERT or rules.keys:
            return rules
        keys = tuple(column.name for column in self.slot(name).columns() if column.is_identity)
        if not keys:
            raise PreconditionFailed(
                f"table {name} has no primary key, so changed rows cannot be found: add one, or name key_columns and set "
                "REPLICA IDENTITY FULL",
                key="ingest.key.missing",
            )
        return replace(rules, keys=keys)

    def close(self) -> None:
        self.connection.close()

    def names(self) -> list[TableName]:
        kinds = "SELECT n.nspname AS s, c.relname AS t FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        found = self.connection.rows(
            f"{kinds} WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p' "
            "AND n.nspname NOT IN ('information_schema', 'pg_catalog') AND has_table_privilege(c.oid, 'SELECT')"
        )
        return [TableName((row["s"],), row["t"]) for row in found]


@dataclass
class LogTable:
    """A table of a database, and its slot."""

    source: LogSource
    slot: Slot
    upto: int = 0
    """Where this load ends in the log; it is the end of the log when the load begins."""

    def changes(self, rules: CopyRules, position: Position | None) -> Changes | None:
        """All rows if there is no position; otherwise the next changes after it."""
        if rules.mode == CopyMode.REPLACE:
            raise PreconditionFailed(
                f"the changes of {self.slot.table} can only be copied in the modes append and upsert", key="ingest.mode"
            )
        (found,) = self.slot.connection.rows("SELECT current_setting('wal_level') AS level")
        if found["level"] != "logical":
            raise PreconditionFailed(
                f"PostgreSQL does not log changes of rows, as wal_level is {found['level']}: set wal_level = logical, and restart it",
                key="ingest.log.level",
            )
        if position is None:
            return SnapshotChanges(self.slot, self.source.joins, rules, self.slot.columns())
        if position.get("kind") != "log":
            raise PreconditionFailed(
                f"the last load of {self.slot.table} did not follow the log, so the changes since then are unknown: {FULL}",
                key="ingest.position.other",
            )
        self.slot.published()
        self.slot.forget(position)
        return self._next(rules, position)

    def _next(self, rules: CopyRules, position: Position) -> LogChanges | None:
        """The next step of changes; None if there is nothing to commit."""
        (oldest,) = self.slot.connection.rows("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8 AS xid")
        if not self.upto:
            (end,) = self.slot.connection.rows("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8 AS place")
            self.upto = end["place"]
        lsn, seen = position["lsn"], Seen.parsed(position.get("snapshot", ""))
        if lsn >= self.upto:
            return None
        found = list[RowChange]()
        last = lsn
        with self.slot.messages(self.upto, self.source.step_changes) as messages:
            for transaction, changes in Decoder(self.slot.table).transactions(messages):
                check_interrupted()
                last = max(last, transaction.end)
                if transaction.end > lsn and not seen.has(transaction):
                    found += changes
        is_end = messages.count < self.source.step_changes
        last = max(last, self.upto) if is_end else last
        if not found and is_end and last - lsn < IDLE_BYTES:
            return None
        after: dict[str, Any] = {"kind": "log", "lsn": last}
        if not is_end:
            after["more"] = True
        if seen.text and not (is_end and seen.is_over(oldest["xid"])):
            after["snapshot"] = seen.text
        columns = self.slot.described(found[-1].relation) if found else []
        return LogChanges(self.slot, rules, Rows(columns, found), after)
