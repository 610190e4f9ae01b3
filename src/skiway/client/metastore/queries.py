"""Queries: leases on the snapshots that a query reads, and the files to scan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Self

from skiway.client.metastore.calls import Calls
from skiway.client.metastore.collection import Area, Listing, build, listing_of, timestamp
from skiway.client.metastore.names import Ref, catalog_id, table_id
from skiway.client.metastore.resources import time_of
from skiway.model import v1

__all__ = ["Queries", "Query", "ScanBundle"]


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

    @property
    def id(self) -> str:
        """The id."""
        return self.message.query_id

    @property
    def state(self) -> str:
        """`active`, `ended_commit`, `ended_abort` or `expired`."""
        return v1.LeaseState.Name(self.message.state).removeprefix("LS_").lower()

    @property
    def kind(self) -> str:
        """`query`, or `transaction` for one of DuckDB."""
        return v1.QueryKind.Name(self.message.kind).removeprefix("QK_").lower()

    @property
    def caller(self) -> str:
        """Who began the query."""
        return self.message.caller

    @property
    def last_used_at(self) -> datetime:
        """The time of the last statement of a transaction; that of the begin for other queries."""
        return time_of(self.message.last_used_at) if self.message.HasField("last_used_at") else self.created_at

    @property
    def created_at(self) -> datetime:
        """The time when the query began."""
        return time_of(self.message.created_at)

    @property
    def expires_at(self) -> datetime:
        """The time when the lease expires, unless it is renewed."""
        return time_of(self.message.expires_at)

    @property
    def snapshots(self) -> dict[str, int]:
        """The snapshot that the query reads, by table id."""
        return {pin.table_id.id: pin.snapshot_id for pin in self.message.snapshots.pins}

    def renew(self, ttl_s: int = 0) -> datetime:
        """Extend the lease; return when it expires, never earlier than before."""
        request = v1.RenewQueryRequest(query_id=self.id, ttl_seconds=ttl_s)
        response = self._calls.call(request, v1.RenewQueryResponse)
        self.message.expires_at.CopyFrom(response.expires_at)
        return self.expires_at

    def end(self, *, commit: bool = True) -> None:
        """End the query and release its snapshots."""
        self._calls.call(v1.EndQueryRequest(query_id=self.id, commit=commit), v1.EndQueryResponse)

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
        return listing_of(
            self._calls, "ListQueries", "queries", lambda: ({}, lambda message: Query(message, self._calls)), page_size
        )

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
