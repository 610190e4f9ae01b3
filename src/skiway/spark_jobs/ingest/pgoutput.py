"""The messages of PostgreSQL's output plugin `pgoutput`, in version 1 of its protocol, and the changes that they describe.

A transaction arrives after its commit, as a whole. The columns of a table are described before its first change, and again
whenever they have changed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, TypeAlias

from skiway.errors import PreconditionFailed
from skiway.formats import TableName

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


class Unchanged(Enum):
    """The value of a large column that a change has left as it was. PostgreSQL does not send it again."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED
Value: TypeAlias = str | Unchanged | None
"""A value as PostgreSQL prints it."""

Row: TypeAlias = list[Value]


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column, with the number and the modifier of its type."""

    name: str
    type_oid: int
    type_modifier: int
    is_identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as a change describes it."""

    schema: str
    name: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Transaction:
    """A committed transaction: its number, the end of its commit in the log, and the time of the commit."""

    xid: int
    end: int
    at: datetime


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of a row: `insert`, `update` or `delete`; or `truncate`, of all rows.

    `old` has the row before, or only the columns that identify it; None for an update that leaves these as they are.
    """

    operation: str
    relation: Relation
    transaction: Transaction
    old: Row | None = None
    new: Row | None = None
    old_is_whole: bool = False


class Decoder:
    """Decodes messages of one reading of a slot, about one table."""

    def __init__(self, table: TableName) -> None:
        self._wanted = table
        self._relations: dict[int, Relation] = {}

    def transactions(self, messages: Iterable[tuple[int, bytes]]) -> Iterator[tuple[Transaction, list[RowChange]]]:
        """The changes of each transaction."""
        xid, at, changes = 0, _EPOCH, list[tuple[str, Relation, Row | None, Row | None, bool]]()
        for _, data in messages:
            kind = data[:1]
            if kind == b"B":
                _, micros, xid = struct.unpack_from(">QqI", data, 1)
                at, changes = _EPOCH + timedelta(microseconds=micros), []
            elif kind == b"C":
                _, end, _ = struct.unpack_from(">QQq", data, 2)
                whole = Transaction(xid, end, at)
                yield whole, [RowChange(what, of, whole, old, new, full) for what, of, old, new, full in changes]
            elif kind == b"R":
                self._relation(data)
            elif kind in (b"I", b"U", b"D"):
                (number,) = struct.unpack_from(">I", data, 1)
                relation = self._relations.get(number)
                if relation is not None:
                    changes.append(_row_change(kind, relation, data))
            elif kind == b"T":
                count, _ = struct.unpack_from(">IB", data, 1)
                for number in struct.unpack_from(f">{count}I", data, 6):
                    if number in self._relations:
                        changes.append(("truncate", self._relations[number], None, None, False))
            elif kind not in (b"Y", b"O", b"M"):
                raise PreconditionFailed(
                    f"PostgreSQL sent a message of kind {kind!r}, which this release does not know: update Skiway",
                    key="ingest.log.message",
                )

    def _relation(self, data: bytes) -> None:
        (number,) = struct.unpack_from(">I", data, 1)
        schema, place = _text(data, 5)
        name, place = _text(data, place)
        if TableName((schema or "pg_catalog",), name) != self._wanted:
            return
        (count,) = struct.unpack_from(">H", data, place + 1)
        place += 3
        columns = []
        for _ in range(count):
            is_identity = bool(data[place] & 1)
            column, place = _text(data, place + 1)
            oid, modifier = struct.unpack_from(">Ii", data, place)
            place += 8
            columns.append(RelationColumn(column, oid, modifier, is_identity))
        self._relations[number] = Relation(schema, name, tuple(columns))


def _text(data: bytes, place: int) -> tuple[str, int]:
    end = data.index(b"\0", place)
    return data[place:end].decode(), end + 1


def _row_change(kind: bytes, relation: Relation, data: bytes) -> tuple[str, Relation, Row | None, Row | None, bool]:
    old: Row | None = None
    new: Row | None = None
    place, is_whole = 5, False
    while place < len(data):
        mark = data[place : place + 1]
        row, place = _row(data, place + 1)
        if mark == b"N":
            new = row
        else:
            old, is_whole = row, mark == b"O"
    return {b"I": "insert", b"U": "update", b"D": "delete"}[kind], relation, old, new, is_whole


def _row(data: bytes, place: int) -> tuple[Row, int]:
    (count,) = struct.unpack_from(">H", data, place)
    place += 2
    row: Row = []
    for _ in range(count):
        kind = data[place]
        place += 1
        if kind == 0x74:  # t
            (size,) = struct.unpack_from(">I", data, place)
            row.append(data[place + 4 : place + 4 + size].decode())
            place += 4 + size
        else:
            row.append(UNCHANGED if kind == 0x75 else None)  # u, n
    return row, place
