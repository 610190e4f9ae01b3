"""What changes of rows make of a table: a history with a row for each change, or the rows that are left, by their keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import PreconditionFailed
from skiway.formats import TableName, data_files
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.writing.data_files import conformed
from skiway.metastore.ingest.rows import Target
from skiway.spark_jobs.ingest.pgoutput import UNCHANGED, Row, RowChange, Transaction
from skiway.spark_jobs.ingest.postgres_values import LogColumn, batch_of, schema_of

HISTORY: Final = pa.schema(
    {
        "skiway_operation": pa.string(),
        "skiway_lsn": pa.int64(),
        "skiway_order": pa.int64(),
        "skiway_at": pa.timestamp("us", "UTC"),
        "skiway_unchanged": pa.string(),
    }
)
"""The columns that a history has besides those of the table: what happened, the commit in the log, the place in the transaction, its
time, and the names of large columns whose values were not sent, because they stayed as they were."""

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """A row that is left after changes. Values that were not sent are those of the row that the table has at `before`."""

    values: Row
    before: Key | None = None


@dataclass
class Rows:
    """The changes of some transactions, in the columns that the table has after them."""

    columns: list[LogColumn]
    changes: list[RowChange] = field(default_factory=list)

    def _places(self, change: RowChange, known: dict[int, list[int]]) -> list[int]:
        """Where the values of a change are among the columns; -1 for columns that the table had not yet."""
        found = known.get(id(change.relation))
        if found is None:
            names = [column.name for column in change.relation.columns]
            found = [names.index(each.name) if each.name in names else -1 for each in self.columns]
            known[id(change.relation)] = found
        return found

    def _arranged(self) -> Iterator[tuple[RowChange, Row | None, Row | None]]:
        """The changes with their old and new rows."""
        known: dict[int, list[int]] = {}
        for change in self.changes:
            places = self._places(change, known)
            old, new = (
                None if row is None else [row[place] if place >= 0 else None for place in places]
                for row in (change.old, change.new)
            )
            yield change, old, new

    # --- the history --------------------------------------------------------------------------------------------------

    def history(self) -> pa.RecordBatch:
        """A row for each change; for a deletion, the row before, or the columns that identify it."""
        rows, facts = list[Row](), list[tuple[Any, ...]]()
        last: Transaction | None = None
        order = 0
        for change, old, new in self._arranged():
            order = order + 1 if change.transaction is last else 0
            last = change.transaction
            row = new if new is not None else old or [None] * len(self.columns)
            if old is not None and new is not None and change.old_is_whole:
                row = [before if each is UNCHANGED else each for each, before in zip(new, old, strict=True)]
            unsent = [of.name for of, each in zip(self.columns, row, strict=True) if each is UNCHANGED]
            rows.append(row)
            facts.append((change.operation, last.end, order, last.at, ", ".join(unsent) or None))
        found = self._batch(rows)
        more = [pa.array(column, of.type) for column, of in zip(zip(*facts, strict=True), HISTORY, strict=True)]
        return pa.RecordBatch.from_arrays([*found.columns, *more], schema=history_columns(found.schema))

    # --- the rows that are left ---------------------------------------------------------------------------------------

    def left(self, keys: Sequence[str]) -> dict[Key, Left | None]:
        """The rows that are left, by key, with None for those that are gone. After TRUNCATE, all others are gone, too."""
        names = [column.name.casefold() for column in self.columns]
        places = [names.index(name.casefold()) for name in keys]
        found: dict[Key, Left | None] = {}
        for change, old, new in self._arranged():
            if change.operation == "truncate":
                found = {}
                continue
            before = old if old is not None else new
            assert before is not None
            key = tuple(before[place] for place in places)
            earlier = found.get(key)
            if change.operation != "insert":
                found[key] = None
            if new is None:
                continue
            base = None
            if UNCHANGED in new:
                if change.old_is_whole and old is not None:
                    source: Row | None = old
                else:
                    source = earlier.values if earlier is not None else None
                base = earlier.before if earlier is not None else key
                new = [
                    each if each is not UNCHANGED else UNCHANGED if source is None else source[place]
                    for place, each in enumerate(new)
                ]
            found[tuple(new[place] for place in places)] = Left(new, base if UNCHANGED in new else None)
        return found

    def keys_of(self, keys: Sequence[Key], names: Sequence[str]) -> pa.Table:
        """Keys as columns."""
        by_name = {column.name.casefold(): column for column in self.columns}
        columns = [by_name[name.casefold()] for name in names]
        texts = [pa.array([key[place] for key in keys], pa.string()) for place in range(len(names))]
        return pa.Table.from_batches([batch_of(columns, texts)])

    def batches(
        self, found: Mapping[Key, Left | None], keys: Sequence[str], target: Target
    ) -> Iterator[pa.RecordBatch]:
        """The rows that are left. Values that were not sent are read from the rows that the target has."""
        whole = [row.values for row in found.values() if row is not None and row.before is None]
        if whole:
            yield self._batch(whole)
        partial = [row for row in found.values() if row is not None and row.before is not None]
        if partial:
            yield from self._completed(partial, keys, target)

    def _completed(self, rows: Sequence[Left], keys: Sequence[str], target: Target) -> Iterator[pa.RecordBatch]:
        """Rows with the values that the target has. Only its keys and the columns that are needed are read, batch by batch."""
        missing = [n for n in range(len(self.columns)) if any(row.values[n] is UNCHANGED for row in rows)]
        incomplete = self._batch([row.values for row in rows])
        wanted = self.keys_of([row.before or () for row in rows], keys).append_column(
            "$row", pa.array(range(len(rows)), pa.int64())
        )
        handle = IcebergTable(TableName((), "target"), target.metadata, metadata_location="", files=target.files)
        own = {name.casefold(): name for name in target.columns.names}
        stored = [own[name.casefold()] for name in keys]
        needed = {n: own[self.columns[n].name.casefold()] for n in missing}
        done = 0
        snapshot = handle.current()
        files = None if snapshot is None else data_files(handle.files(snapshot))
        if snapshot is not None and files is not None and files.num_rows:
            columns = list(dict.fromkeys([*stored, *needed.values()]))
            for batch in handle.read(snapshot, files=files, schema=handle.schema.arrow, columns=columns):
                here = conformed(batch.select(stored).rename_columns(list(keys)), wanted.select(list(keys)).schema)
                here = here.append_column("$stored", pa.array(range(batch.num_rows), pa.int64()))
                matched = here.join(wanted, list(keys), join_type="inner").select(["$row", "$stored"])
                if not matched.num_rows:
                    continue
                numbers, places = (matched[name].combine_chunks() for name in ("$row", "$stored"))
                made = incomplete.take(numbers)
                for n, name in needed.items():
                    unsent = pa.array([rows[number].values[n] is UNCHANGED for number in numbers.to_pylist()])
                    known = batch.column(name).take(places).cast(made.column(n).type)
                    filled = pc.if_else(unsent, known, made.column(n))
                    made = made.set_column(n, made.schema.field(n), filled)
                done += made.num_rows
                yield made
        if done != len(rows):
            raise PreconditionFailed(
                f"{len(rows) - done} rows were changed that the copy does not have, without the values of their large columns "
                f"{', '.join(self.columns[n].name for n in missing)}: load the table again in full, with skiway connectors sync "
                "--full, or use REPLICA IDENTITY FULL in PostgreSQL",
                key="ingest.log.unsent",
            )

    def _batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        texts = [
            pa.array([None if row[n] is UNCHANGED else row[n] for row in rows], pa.string())
            for n in range(len(self.columns))
        ]
        return batch_of(self.columns, texts)


def history_columns(columns: pa.Schema) -> pa.Schema:
    """The columns of a history."""
    return pa.schema([*columns, *HISTORY])


def columns_of(columns: Sequence[LogColumn], *, is_history: bool) -> pa.Schema:
    """The columns of the copy of a table."""
    found = schema_of(columns)
    return history_columns(found) if is_history else found
