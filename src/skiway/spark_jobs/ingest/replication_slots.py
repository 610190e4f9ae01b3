"""The slot of a table: PostgreSQL keeps the log from a place on, until the slot forgets it.

Changes are read with plain SQL: the next ones are looked at, and the slot forgets them in a later call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from skiway.client.metastore.connectors import slots_of
from skiway.errors import NotFound, PreconditionFailed
from skiway.formats import TableName
from skiway.metastore.ingest.positions import Position
from skiway.spark_jobs.ingest.pgoutput import Relation, Transaction
from skiway.spark_jobs.ingest.postgres_connection import PostgresConnection
from skiway.spark_jobs.ingest.postgres_values import LogColumn

FULL: Final = "load the table again in full, with skiway connectors sync --full"
"""What to do if changes are lost."""

_FETCHED: Final = 5_000


@dataclass(frozen=True, slots=True)
class Slot:
    """The slot of a table for a connector, which may name a publication."""

    connection: PostgresConnection
    table: TableName
    connector_id: str
    named_publication: str = ""

    # --- the table ----------------------------------------------------------------------------------------------------

    def columns(self) -> list[LogColumn]:
        """The columns that the log has. Raise `NotFound` if there is no such table."""
        found = self.connection.rows(
            "SELECT a.attname AS name, COALESCE(b.typname, t.typname) AS type, COALESCE(a.attnum = ANY(i.indkey::int2[]), false) "
            "AS identity, CASE WHEN t.typbasetype <> 0 THEN t.typtypmod ELSE a.atttypmod END AS modifier "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid "
            "JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype "
            "LEFT JOIN pg_index i ON i.indrelid = c.oid AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE "
            "i.indisprimary END WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped "
            "AND a.attgenerated = '' ORDER BY a.attnum",
            *self.table.namespace,
            self.table.name,
        )
        if not found:
            raise NotFound(f"the database has no table {self.table}", key="ingest.database.missing")
        return [LogColumn(row["name"], row["type"], row["modifier"], row["identity"]) for row in found]

    def described(self, relation: Relation) -> list[LogColumn]:
        """The columns that a change of the log describes."""
        oids = [column.type_oid for column in relation.columns]
        types = {
            row["oid"]: row
            for row in self.connection.rows(
                "SELECT t.oid::int8 AS oid, COALESCE(b.typname, t.typname) AS name, t.typbasetype <> 0 AS is_domain, t.typtypmod "
                "AS modifier FROM pg_type t LEFT JOIN pg_type b ON b.oid = t.typbasetype WHERE t.oid = ANY(%s::oid[])",
                oids,
            )
        }
        made = []
        for column in relation.columns:
            of = types.get(column.type_oid, {"name": "text", "is_domain": False, "modifier": -1})
            modifier = of["modifier"] if of["is_domain"] else column.type_modifier
            made.append(LogColumn(column.name, of["name"], modifier, column.is_identity))
        return made

    @property
    def quoted(self) -> str:
        """The name in SQL."""
        return ".".join('"' + each.replace('"', '""') + '"' for each in (*self.table.namespace, self.table.name))

    # --- the slot -----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the slot, and of the publication unless the connector names one."""
        return slots_of(self.connector_id) + sha256(str(self.table).encode()).hexdigest()[:16]

    @property
    def publication(self) -> str:
        """The name of the publication."""
        return self.named_publication or self.name

    def published(self, *, is_made: bool = False) -> tuple[set[str] | None, str]:
        """The published columns, None for all, and the condition for rows. If none is named, a publication can be made.

        Raise `PreconditionFailed` if changes are not published. PostgreSQL leaves them out without an error.
        """
        listed = "SELECT to_jsonb(p) AS p FROM pg_publication_tables p WHERE pubname = %s AND schemaname = %s AND tablename = %s"
        asked = (self.publication, *self.table.namespace, self.table.name)
        found = self.connection.rows(listed, *asked)
        if not found and is_made and not self.named_publication:
            # A slot from before has changes that no publication has.
            self.connection.rows(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", self.name
            )
            self.connection.rows(
                f'CREATE PUBLICATION "{self.name}" FOR TABLE {self.quoted} WITH (publish_via_partition_root = true)'
            )
            found = self.connection.rows(listed, *asked)
        if not found:
            raise PreconditionFailed(
                f"publication {self.publication} does not exist, or does not have {self.table}, so changes may be lost: create it "
                "with the table, and for a partitioned table with publish_via_partition_root; then load the table again in full, "
                "with skiway connectors sync --full",
                key="ingest.log.publication",
            )
        facts = self.connection.rows(
            "SELECT to_jsonb(p) AS p FROM pg_publication p WHERE pubname = %s", self.publication
        )
        lacking = [what for what in ("insert", "update", "delete", "truncate") if not facts[0]["p"][f"pub{what}"]]
        if lacking:
            raise PreconditionFailed(
                f"publication {self.publication} leaves out {', '.join(lacking)}: publish all changes",
                key="ingest.log.publication",
            )
        names = found[0]["p"].get("attnames")
        return None if names is None else set(names), found[0]["p"].get("rowfilter") or ""

    def begin(self) -> int:
        """Make the slot, or use that of a load that did not end; return the place in the log from which it has all transactions."""
        state = self._state()
        if state is not None and state["wal_status"] == "lost":
            self.connection.rows("SELECT pg_drop_replication_slot(%s)", self.name)
            state = None
        if state is None:
            self.connection.rows("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", self.name)
            state = self._state()
        assert state is not None
        return int(state["place"])

    def _state(self) -> dict[str, Any] | None:
        found = self.connection.rows(
            "SELECT (confirmed_flush_lsn - '0/0')::int8 AS place, to_jsonb(s)->>'wal_status' AS wal_status "
            "FROM pg_replication_slots s WHERE slot_name = %s",
            self.name,
        )
        return found[0] if found else None

    def forget(self, position: Position) -> None:
        """Let the slot forget what was committed. Raise if changes after the position are lost."""
        state, lsn = self._state(), position["lsn"]
        why = ""
        if state is None:
            why = f"its slot {self.name} was dropped"
        elif state["wal_status"] == "lost":
            why = "its slot fell behind, and PostgreSQL has removed the log (see max_slot_wal_keep_size)"
        elif state["place"] > lsn:
            why = "its slot is beyond the rows of the copy, which were rolled back, or somebody else has read the slot"
        if why:
            raise PreconditionFailed(
                f"the changes of {self.table} since the last load are lost, because {why}: {FULL}",
                key="ingest.log.lost",
            )
        assert state is not None
        if state["place"] < lsn:
            self.connection.rows("SELECT pg_replication_slot_advance(%s, %s::text::pg_lsn)", self.name, _text(lsn))

    @contextmanager
    def messages(self, upto: int, limit: int) -> Iterator[Messages]:
        """The next messages of the slot, which keeps them: of transactions up to a place in the log, and at least `limit` of them."""
        connection = self.connection
        with (
            connection.translated(),
            connection.now.transaction(),
            connection.now.cursor(name="log", binary=True) as cursor,
        ):
            cursor.itersize = _FETCHED
            cursor.execute(
                "SELECT 0, data FROM pg_logical_slot_peek_binary_changes(%s, %s::text::pg_lsn, %s, 'proto_version', '1', "
                "'publication_names', %s)",
                (self.name, _text(upto), limit, f'"{self.publication}"'),
            )
            yield Messages(cursor)


@dataclass
class Messages:
    """Messages, which are counted as they are read."""

    rows: Any
    count: int = 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for row in self.rows:
            self.count += 1
            yield row


@dataclass(frozen=True, slots=True)
class Seen:
    """The transactions that a snapshot has seen, as PostgreSQL writes it: those before `least`, and those before `most` that had ended."""

    text: str = ""
    least: int = 0
    most: int = 0
    running: frozenset[int] = frozenset()

    @classmethod
    def parsed(cls, text: str) -> Seen:
        """Parse a `pg_snapshot`; empty for none."""
        if not text:
            return cls()
        least, most, running = text.split(":")
        return cls(text, int(least), int(most), frozenset(int(each) for each in running.split(",") if each))

    def has(self, transaction: Transaction) -> bool:
        """Whether the snapshot has the changes of a transaction. The log only has 32 bits of its number."""
        if not self.text:
            return False
        number = (self.least >> 32 << 32) + transaction.xid
        number = min((number + shift for shift in (-(1 << 32), 0, 1 << 32)), key=lambda each: abs(each - self.least))
        return number < self.least or (number < self.most and number not in self.running)

    def is_over(self, oldest: int) -> bool:
        """Whether all transactions that ran with the snapshot have ended, if `oldest` is the oldest one that runs."""
        return oldest >= self.most


def _text(lsn: int) -> str:
    """A place in the log as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
