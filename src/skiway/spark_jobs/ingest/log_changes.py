"""What a copy loads from PostgreSQL: all rows of a table in one snapshot, or the changes of some transactions."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from skiway.errors import ConstraintViolation, PreconditionFailed
from skiway.metastore.connectors.specs import CopyMode, CopyRules
from skiway.metastore.ingest.copying import NewRows
from skiway.metastore.ingest.keys import KeyJoins, KnownKeys, count_repeated
from skiway.metastore.ingest.merging import ReplacedKeys
from skiway.metastore.ingest.positions import Position
from skiway.metastore.ingest.rows import Target, Written, write_rows
from skiway.metastore.jobs.attempts import ONE_FILE, Amounts
from skiway.spark_jobs.ingest.log_rows import HISTORY, Rows, columns_of, history_columns
from skiway.spark_jobs.ingest.postgres_values import LogColumn, batch_of
from skiway.spark_jobs.ingest.replication_slots import Slot
from skiway.spark_jobs.interruption import check_interrupted

_BLOCK_BYTES: Final = 32 << 20


@dataclass
class SnapshotChanges:
    """All rows of a table, and the place in the log after which their changes are."""

    slot: Slot
    joins: KeyJoins
    rules: CopyRules
    own: Sequence[LogColumn]
    replaces: bool = False
    amounts: Amounts = ONE_FILE
    position: Position = field(default_factory=dict)

    @property
    def is_history(self) -> bool:
        """Whether the copy keeps all changes."""
        return self.rules.mode == CopyMode.APPEND

    def columns(self) -> pa.Schema:
        """The columns of the copy."""
        return columns_of(self.own, is_history=self.is_history)

    def steps(self, step_bytes: int, *, growing: bool) -> list[SnapshotChanges]:  # noqa: ARG002
        """One step: the snapshot ends with its connection."""
        return [self]

    def write(self, target: Target, keys: pa.Schema) -> NewRows:
        """Read the rows in one snapshot, and write them."""
        names, condition = self.slot.published(is_made=True)
        own = [column for column in self.own if names is None or column.name in names]
        lsn = self.slot.begin()
        connection = self.slot.connection
        with connection.translated(), connection.now.transaction():
            connection.now.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            (facts,) = connection.rows("SELECT pg_current_snapshot()::text AS seen, now() AS now")
            listed = ", ".join('"' + column.name.replace('"', '""') + '"' for column in own)
            where = f" WHERE {condition}" if condition else ""
            sql = f"COPY (SELECT {listed} FROM {self.slot.quoted}{where}) TO STDOUT (FORMAT csv)"  # noqa: S608
            with connection.now.cursor() as cursor, cursor.copy(sql) as copied:
                rows = (self._with_facts(batch, lsn, facts["now"]) for batch in read_copy(copied, own))
                written = write_rows(target, rows)
        position = {"kind": "log", "lsn": lsn, "snapshot": facts["seen"], "more": True}
        made = Written(written.files, written.rows, position)
        if not len(keys):
            return NewRows(made)
        replaced = ReplacedKeys.of(target, made.files, keys)
        identity = {column.name for column in own if column.is_identity}
        if not identity or not identity <= set(keys.names):
            repeated = count_repeated(self.joins, replaced.rows, replaced.columns)
            if repeated:
                target.files.remove(made.paths)
                raise ConstraintViolation(
                    f"the key columns {', '.join(keys.names)} of {self.slot.table} do not identify rows: {repeated} rows have the key "
                    "of another one; choose other key_columns",
                    key="ingest.key.duplicate",
                )
        return NewRows(made, replaced)

    def _with_facts(self, batch: pa.RecordBatch, lsn: int, now: object) -> pa.RecordBatch:
        if not self.is_history:
            return batch
        size = batch.num_rows
        more = [
            pa.array(["snapshot"] * size, pa.string()),
            pa.array([lsn] * size, pa.int64()),
            pa.array([0] * size, pa.int64()),
            pa.array([now] * size, HISTORY.field("skiway_at").type),
            pa.nulls(size, pa.string()),
        ]
        return pa.RecordBatch.from_arrays([*batch.columns, *more], schema=history_columns(batch.schema))


@dataclass
class LogChanges:
    """The changes of some transactions."""

    slot: Slot
    rules: CopyRules
    rows: Rows
    position: Position

    @property
    def replaces(self) -> bool:
        """Whether the table was emptied in between: then only later rows are left."""
        return self.rules.mode == CopyMode.UPSERT and any(each.operation == "truncate" for each in self.rows.changes)

    @property
    def amounts(self) -> Amounts:
        """The number of changes."""
        return Amounts(1, len(self.rows.changes))

    def columns(self) -> pa.Schema:
        """The columns of the copy; none if there are no changes."""
        if not self.rows.columns:
            return pa.schema([])
        return columns_of(self.rows.columns, is_history=self.rules.mode == CopyMode.APPEND)

    def steps(self, step_bytes: int, *, growing: bool) -> list[LogChanges]:  # noqa: ARG002
        """One step."""
        return [self]

    def write(self, target: Target, keys: pa.Schema) -> NewRows:
        """Write the rows that are left, or a history of the changes."""
        if not self.rows.changes:
            return NewRows(Written(position=self.position))
        if self.rules.mode == CopyMode.APPEND:
            written = write_rows(target, [self.rows.history()])
            return NewRows(Written(written.files, written.rows, self.position))
        self._require_identity(keys.names)
        found = self.rows.left(keys.names)
        written = write_rows(target, self.rows.batches(found, keys.names, target))
        made = Written(written.files, len(self.rows.changes), self.position)
        replaced = ReplacedKeys.of(target, made.files, keys)
        gone = [key for key, row in found.items() if row is None]
        if gone and not self.replaces:
            replaced = replaced.and_known(KnownKeys(self.rows.keys_of(gone, keys.names), keys))
        return NewRows(made, replaced)

    def _require_identity(self, keys: Sequence[str]) -> None:
        known = {column.name.casefold() for column in self.rows.columns if column.is_identity}
        missing = [name for name in keys if name.casefold() not in known]
        if missing and any(each.operation in ("update", "delete") for each in self.rows.changes):
            raise PreconditionFailed(
                f"changes of {self.slot.table} do not have the key column {missing[0]!r} of the rows before: use key_columns that "
                "are the primary key, or REPLICA IDENTITY FULL",
                key="ingest.key.missing",
                column=missing[0],
            )


def read_copy(blocks: Any, columns: Sequence[LogColumn]) -> Iterator[pa.RecordBatch]:
    """The rows of a COPY in CSV, in which a quoted empty text is not NULL."""
    from pyarrow import csv

    stream = io.BufferedReader(_Blocks(iter(blocks)), _BLOCK_BYTES)
    if not stream.peek(1):
        return
    names = [f"c{place}" for place in range(len(columns))]
    with csv.open_csv(
        stream,
        read_options=csv.ReadOptions(column_names=names, block_size=_BLOCK_BYTES, use_threads=False),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ) as rows:
        for batch in rows:
            check_interrupted()
            yield batch_of(columns, batch.columns)


class _Blocks(io.RawIOBase):
    """Blocks of bytes as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        while not len(self._rest):
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        size = min(len(into), len(self._rest))
        into[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
