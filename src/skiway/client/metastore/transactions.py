"""Transactions: rows for several tables that become visible together, or never."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from skiway.client.airport.exchange import to_batches
from skiway.client.metastore.calls import Calls
from skiway.client.metastore.collection import Area, Listing, build, listing_of
from skiway.client.metastore.names import Ref, table_id
from skiway.client.metastore.resources import time_of
from skiway.errors import Unsupported
from skiway.model import v1

__all__ = ["StagedRows", "Transaction", "Transactions"]

MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""About how many bytes of rows a message contains."""


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows that one call has written. Without rows, `write_id` is empty, and the commit does not need it."""

    write_id: str
    row_count: int


@dataclass(slots=True)
class Transaction:
    """A transaction, as a context manager: leaving the block commits it, or aborts it if an exception was raised."""

    message: v1.Transaction
    _calls: Calls

    @property
    def id(self) -> str:
        """The id, which only the caller who began the transaction can use."""
        return self.message.transaction_id

    @property
    def state(self) -> str:
        """`open`, `committed`, `aborted` or `expired`, as of the last call."""
        return v1.TransactionState.Name(self.message.state).removeprefix("TX_").lower()

    @property
    def expires_at(self) -> datetime:
        """The time when the transaction expires, unless it is committed."""
        return time_of(self.message.expires_at)

    @property
    def snapshots(self) -> dict[str, int]:
        """The snapshots that the commit created, by table id; empty before."""
        return {each.table_id.id: each.snapshot_id for each in self.message.committed}

    def insert(
        self, table: Ref, rows: Any, *, expected_snapshot: int | None = None, timeout_s: float | None = 600.0
    ) -> int:
        """Write rows for a table, in any form that `AirportClient.insert` accepts; return their number.

        They become visible with the commit. With `expected_snapshot` the commit fails unless this is still the table's current
        snapshot then; 0 means that it has none.
        """
        return self._append(table, rows, expected_snapshot, timeout_s).row_count

    def stage(
        self, table: Ref, rows: Any, *, expected_snapshot: int | None = None, timeout_s: float | None = 600.0
    ) -> StagedRows:
        """Write rows like `insert`; return the id by which the commit can choose them."""
        response = self._append(table, rows, expected_snapshot, timeout_s)
        if response.row_count and not response.write_id:
            raise Unsupported(
                f"the server at {self._calls.channel.location.text} cannot commit single writes of a transaction: upgrade it"
            )
        return StagedRows(response.write_id, response.row_count)

    def _append(
        self, table: Ref, rows: Any, expected_snapshot: int | None, timeout_s: float | None
    ) -> v1.AppendRowsResponse:
        target = table_id(self._calls, table)
        _, batches = to_batches(rows)

        def requests() -> Iterator[v1.AppendRowsRequest]:
            yield build(
                v1.AppendRowsRequest,
                transaction_id=self.id,
                table_id=target,
                expected_snapshot_id=expected_snapshot,
            )
            for batch in batches:
                yield from (v1.AppendRowsRequest(rows=part) for part in _parts(batch))

        return self._calls.upload(
            requests,
            v1.AppendRowsResponse,
            kind=v1.AppendRowsRequest,
            timeout_s=timeout_s,
            repeatable=False,
        )

    def commit(self, *, only: Iterable[str] | None = None, replace: Iterable[Ref] = ()) -> None:
        """Make all rows visible at once. Raise `Conflict` if a table does not allow it; then nothing is changed.

        With `only`, the ids of `stage`, all other rows are discarded. The rows of the tables in `replace` are replaced by the
        new ones.
        """
        request = v1.CommitTransactionRequest(
            transaction_id=self.id, replaced_table_ids=[table_id(self._calls, each) for each in replace]
        )
        if only is not None:
            request.only.CopyFrom(v1.WriteSelection(write_ids=only))
        self.message = self._calls.call(request, v1.CommitTransactionResponse).transaction

    def abort(self) -> None:
        """Discard all rows."""
        self.message = self._calls.rpc("AbortTransaction", transaction_id=self.id).transaction

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._discard()
            return
        try:
            self.commit()
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        with suppress(Exception):  # the error that ends the block matters more, and the transaction expires
            self.abort()


class Transactions(Area):
    """`lake.transactions`, identified by id."""

    def __call__(self, *, page_size: int | None = None) -> Listing[Transaction]:
        """List the open transactions of the caller."""
        return listing_of(
            self._calls,
            "ListTransactions",
            "transactions",
            lambda: ({}, lambda message: Transaction(message, self._calls)),
            page_size,
        )

    def begin(self, *, ttl_s: int = 0) -> Transaction:
        """Begin a transaction, which expires after an hour or the given time."""
        return Transaction(self._calls.rpc("BeginTransaction", ttl_seconds=ttl_s).transaction, self._calls)

    def resume(self, transaction_id: str) -> Transaction:
        """The open transaction with this id, which another process of the caller has begun. The server is not asked."""
        return Transaction(v1.Transaction(transaction_id=transaction_id, state=v1.TX_OPEN), self._calls)

    def get(self, transaction_id: str) -> Transaction:
        """Return a transaction of the caller in any state; raise `NotFound` if there is none."""
        found = self._calls.rpc("GetTransaction", transaction_id=transaction_id).transaction
        return Transaction(found, self._calls)


def _parts(batch: pa.RecordBatch) -> Iterator[bytes]:
    """The batch as Arrow IPC streams of limited size."""
    count = max(1, -(-batch.nbytes // MESSAGE_BYTES))
    size = max(1, -(-batch.num_rows // count))
    for start in range(0, batch.num_rows, size):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch.slice(start, size))
        yield sink.getvalue().to_pybytes()
