"""Work on several tables at one point in time.

A query has leases on the snapshots that it reads, and the files to scan. A transaction writes rows for several tables, which
become visible together, or never.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from skiway.client.airport.exchange import to_batches
from skiway.client.metastore.calls import Calls, Ref, catalog_id, table_id
from skiway.client.metastore.collection import Area, Listing, build, listing_of, timestamp
from skiway.client.metastore.resources import Attribute
from skiway.errors import Unsupported
from skiway.model import v1


@dataclass(frozen=True, slots=True)
class ScanBundle:
    """The files to scan for a query on one table. Data files refer to `delete_files` by index."""

    table: v1.TableInfo
    report: v1.ScanReport
    delete_files: list[v1.ScanFile] = field(default_factory=list)
    data_files: list[v1.ScanFile] = field(default_factory=list)


@dataclass(slots=True)
class Query:
    """A query, as a context manager: leaving the block ends it, with commit unless an exception was raised."""

    message: v1.QueryDescriptor
    _calls: Calls

    id = Attribute[str]("query_id")
    """The id."""
    state = Attribute[str]()
    """`active`, `ended_commit`, `ended_abort` or `expired`."""
    kind = Attribute[str]()
    """`query`, or `transaction` for one of DuckDB."""
    caller = Attribute[str]()
    """Who began the query."""
    created_at = Attribute[datetime]()
    """The time when the query began."""
    expires_at = Attribute[datetime]()
    """The time when the lease expires, unless it is renewed."""
    _last_used_at = Attribute[datetime | None]("last_used_at")

    @property
    def last_used_at(self) -> datetime:
        """The time of the last statement of a transaction; that of the begin for other queries."""
        return self._last_used_at or self.created_at

    @property
    def snapshots(self) -> dict[str, int]:
        """The snapshot that the query reads, by table id."""
        return {pin.table_id.id: pin.snapshot_id for pin in self.message.snapshots.pins}

    def renew(self, ttl_s: int = 0) -> datetime:
        """Extend the lease; return when it expires, never earlier than before."""
        response = self._calls.rpc("RenewQuery", query_id=self.id, ttl_seconds=ttl_s)
        self.message.expires_at.CopyFrom(response.expires_at)
        return self.expires_at

    def end(self, *, commit: bool = True) -> None:
        """End the query and release its snapshots."""
        self._calls.rpc("EndQuery", query_id=self.id, commit=commit)

    def scan(
        self,
        table: Ref,
        *,
        predicates: Iterable[v1.Predicate] = (),
        columns: Iterable[str] = (),
        tasks: int = 0,
        column_stats: bool = True,
    ) -> ScanBundle:
        """Return the files that may contain rows matching all predicates, divided into about equal `tasks`.

        `columns` are those whose statistics are included.
        """
        request = v1.FetchScanBundleRequest(
            query_id=self.id,
            table_id=table_id(self._calls, table),
            predicates=predicates,
            required_columns=columns,
            tasks=tasks,
            exclude_column_stats=not column_stats,
        )
        bundle = ScanBundle(v1.TableInfo(), v1.ScanReport())
        for part in self._calls.stream(request, v1.FetchScanBundleResponse):
            bundle.table.MergeFrom(part.table_info)
            bundle.report.MergeFrom(part.report)
            bundle.delete_files.extend(part.delete_files)
            bundle.data_files.extend(part.data_files)
        return bundle

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(commit=kind is None)


class Queries(Area):
    """`lake.queries`, identified by id."""

    def __call__(self, *, page_size: int | None = None) -> Listing[Query]:
        """List the active queries and transactions of the caller; for administrators, those of the account."""
        return listing_of(self._calls, "ListQueries", "queries", lambda message: Query(message, self._calls), page_size)

    def begin(
        self,
        *tables: Ref,
        catalog: Ref,
        inputs: Iterable[v1.QueryInput] = (),
        ttl_s: int = 0,
        as_of: datetime | None = None,
        query_id: str | None = None,
    ) -> Query:
        """Begin a query that reads the current snapshots of these tables, or those as of a time.

        `inputs` are further inputs, as messages.
        """
        tables_read = [v1.QueryInput(table_id=table_id(self._calls, each)) for each in tables]
        request = build(
            v1.BeginQueryRequest,
            default_catalog_id=catalog_id(self._calls, catalog),
            inputs=[*tables_read, *inputs],
            ttl_seconds=ttl_s,
            as_of_default=None if as_of is None else timestamp(as_of),
            query_id=query_id,
        )
        return Query(self._calls.call(request, v1.BeginQueryResponse).query, self._calls)

    def get(self, query_id: str) -> Query:
        """Return a query in any state; raise `NotFound` if there is none."""
        return Query(self._calls.rpc("GetQuery", query_id=query_id).query, self._calls)


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

    id = Attribute[str]("transaction_id")
    """The id, which only the caller who began the transaction can use."""
    state = Attribute[str]()
    """`open`, `committed`, `aborted` or `expired`, as of the last call."""
    expires_at = Attribute[datetime]()
    """The time when the transaction expires, unless it is committed."""

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
            lambda message: Transaction(message, self._calls),
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
