"""Queries: leases on what is read, and the files to read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Self

from skiway.client.metastore.calls import Calls
from skiway.client.metastore.collection import Area, filled, time_of, timestamp
from skiway.client.metastore.references import Ref, catalog_id, table_id
from skiway.model import v1

__all__ = ["Queries", "Query", "ScanBundle"]


@dataclass(frozen=True, slots=True)
class ScanBundle:
    """The files that a query may have to read of a table. Indices in data files count `delete_files`."""

    table: v1.TableInfo
    report: v1.ScanReport
    delete_files: list[v1.ScanFile] = field(default_factory=list)
    data_files: list[v1.ScanFile] = field(default_factory=list)


@dataclass(slots=True)
class Query:
    """A query that was begun. A context manager: leaving ends it, and commits it unless there was an error."""

    message: v1.QueryDescriptor
    _calls: Calls

    @property
    def id(self) -> str:
        """Its id."""
        return self.message.query_id

    @property
    def state(self) -> str:
        """`active`, `ended_commit`, `ended_abort` or `expired`."""
        return v1.LeaseState.Name(self.message.state).removeprefix("LS_").lower()

    @property
    def created_at(self) -> datetime:
        """When it began."""
        return time_of(self.message.created_at)

    @property
    def expires_at(self) -> datetime:
        """Until when it lives, unless it is renewed."""
        return time_of(self.message.expires_at)

    @property
    def snapshots(self) -> dict[str, int]:
        """The snapshot of each table that is read, by the table's id."""
        return {pin.table_id.id: pin.snapshot_id for pin in self.message.snapshots.pins}

    def renew(self, ttl_s: int = 0) -> datetime:
        """Until when it lives now; never shorter than before."""
        request = v1.RenewQueryRequest(query_id=self.id, ttl_seconds=ttl_s)
        answer = self._calls.ask(request, v1.RenewQueryResponse)
        self.message.expires_at.CopyFrom(answer.expires_at)
        return self.expires_at

    def end(self, *, commit: bool = True) -> None:
        """Let go of what it reads."""
        self._calls.ask(v1.EndQueryRequest(query_id=self.id, commit=commit), v1.EndQueryResponse)

    def scan(
        self,
        table: Ref,
        *,
        predicates: Iterable[v1.Predicate] = (),
        columns: Iterable[str] = (),
        tasks: int = 0,
        column_stats: bool = True,
    ) -> ScanBundle:
        """The files of a table that may hold rows which fulfil all predicates, in about equal `tasks`.

        `columns` are those whose statistics come along.
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
    """`lake.queries`."""

    def begin(
        self,
        *tables: Ref,
        catalog: Ref,
        inputs: Iterable[v1.QueryInput] = (),
        ttl_s: int = 0,
        as_of: datetime | None = None,
        query_id: str | None = None,
    ) -> Query:
        """A new query that reads these tables as they are now, or were at a time; `inputs` say the same in messages."""
        direct = [v1.QueryInput(table_id=table_id(self._calls, each)) for each in tables]
        request = filled(
            v1.BeginQueryRequest,
            default_catalog_id=catalog_id(self._calls, catalog),
            inputs=[*direct, *inputs],
            ttl_seconds=ttl_s,
            as_of_default=None if as_of is None else timestamp(as_of),
            query_id=query_id,
        )
        return Query(self._calls.ask(request, v1.BeginQueryResponse).query, self._calls)

    def get(self, query_id: str) -> Query:
        """The query, in whatever state."""
        answer = self._calls.ask(v1.GetQueryRequest(query_id=query_id), v1.GetQueryResponse)
        return Query(answer.query, self._calls)
