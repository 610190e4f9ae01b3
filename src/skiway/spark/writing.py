"""Writing a DataFrame: each task stages its rows in one transaction, which the driver commits.

A task may run several times: after a failure, or because a slow one has a speculative duplicate. Every run stages its rows as
a write of its own, and Spark reports one successful run of each task to the driver. The commit names the writes of these runs
only, so each row is written once. The server deletes the files of all other runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from skiway.client import Metastore
from skiway.client.metastore import Id, Transaction
from skiway.spark.archives import forget_archives
from skiway.spark.options import Options
from skiway.spark.written_columns import check_columns, table_rows

__all__ = ["AirportWriter"]

MESSAGE_BYTES = 4 * 1024 * 1024
"""About how many bytes are sent at once. Spark's own batches have 10,000 rows, however small these are."""


@dataclass(frozen=True)
class _Staged(WriterCommitMessage):
    """The rows of a successful run of a task; `write_id` is empty if there were none."""

    write_id: str
    row_count: int


class AirportWriter(DataSourceArrowWriter):
    """Writes one DataFrame. Spark pickles it for executors, with its options."""

    def __init__(
        self, options: Options, table_id: str, columns: pa.Schema, transaction_id: str, *, replaces: bool
    ) -> None:
        self._options, self._table_id, self._columns = options, Id(table_id), columns
        self._transaction_id, self._replaces = transaction_id, replaces

    @classmethod
    def begin(cls, options: Options, schema: StructType, *, replaces: bool) -> AirportWriter:
        """Begin the transaction of a write. Raise if the caller may not write these columns to the table."""
        options.check_writing()
        with options.client() as client, options.metastore() as lake:
            table = client.table(options.table)
            columns = pa.schema([field for place, field in enumerate(table.schema) if place != table.rowid])
            found = options.table_id(client, lake)
            check_columns(schema, columns, table=options.table)
            transaction = lake.transactions.begin(ttl_s=options.transaction_seconds)
            try:
                transaction.stage(Id(found), [])  # the server checks whether the caller may write
            except BaseException:
                transaction.abort()
                raise
        return cls(options, found, columns, transaction.id, replaces=replaces)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one run of a task, on an executor."""
        batches = (table_rows(batch, self._columns) for batch in _grouped(iterator))
        with self._options.metastore() as lake:
            # Connecting may take several attempts, but rows cannot be sent again.
            staged = lake.transactions.get(self._transaction_id).stage(self._table_id, batches, timeout_s=None)
        forget_archives()
        return _Staged(staged.write_id, staged.row_count)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows of the successful runs visible at once, and discard all others."""
        chosen = [each.write_id for each in messages if isinstance(each, _Staged) and each.write_id]
        replaced = [self._table_id] if self._replaces else []
        with self._options.metastore() as lake:
            self._transaction(lake).commit(only=chosen, replace=replaced)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Discard all rows."""
        with self._options.metastore() as lake:
            self._transaction(lake).abort()

    def _transaction(self, lake: Metastore) -> Transaction:
        return lake.transactions.resume(self._transaction_id)


def _grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= MESSAGE_BYTES:
            yield pa.concat_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_batches(waiting)
