"""Statistics of snapshots: of the table, its columns and its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from skiway.client.metastore.collection import Area, Listing, build, listing_of
from skiway.client.metastore.names import Ref, table_id
from skiway.client.metastore.resources import TableStats
from skiway.client.metastore.snapshots import At, Snapshot, snapshot_id, snapshot_ref
from skiway.errors import InvalidArgument, NotFound
from skiway.model import v1

__all__ = ["Statistics"]

MESSAGE_BYTES: Final = 512 * 1024
"""The approximate size of a message of an upload, far below the limit of servers."""


class Statistics(Area):
    """`lake.statistics`, identified by a table and its snapshot."""

    def get(self, table: Ref, at: At = None) -> TableStats:
        """Return the statistics of a table in a snapshot, by default the current one; raise `NotFound` if there are none."""
        request = v1.GetTableStatsRequest(table_id=table_id(self._calls, table), snapshot=snapshot_ref(at))
        return TableStats(self._calls.call(request, v1.GetTableStatsResponse).stats)

    def find(self, table: Ref, at: At = None) -> TableStats | None:
        """Return the statistics of a table, or None if there are none."""
        try:
            return self.get(table, at)
        except NotFound:
            return None

    def columns(self, table: Ref, at: At = None, *, page_size: int | None = None) -> Listing[v1.ColumnStats]:
        """List the statistics of the columns of a table, by column id."""
        return self._list("ListColumnStats", "columns", table, at, page_size)

    def files(self, table: Ref, at: At = None, *, page_size: int | None = None) -> Listing[v1.FileColumnStats]:
        """List the statistics of the files of a table, by path."""
        return self._list("ListFileColumnStats", "files", table, at, page_size)

    def partitions(self, table: Ref, at: At = None, *, page_size: int | None = None) -> Listing[v1.PartitionStats]:
        """List the partitions of a table with their rows, bytes and files, and counts and bounds of columns."""
        return self._list("ListPartitionStats", "partitions", table, at, page_size)

    def history(
        self, table: Ref, *, columns: Sequence[str] = (), page_size: int | None = None
    ) -> Listing[v1.ProfiledSnapshot]:
        """List the statistics of profiled snapshots, the newest first: of all columns, or of those with these names."""

        def start() -> tuple[Mapping[str, Any], Callable[[Any], Any]]:
            return {"table_id": table_id(self._calls, table), "columns": columns}, lambda message: message

        return listing_of(self._calls, "ListStatisticsHistory", "snapshots", start, page_size)

    def _list(self, method: str, items: str, table: Ref, at: At, page_size: int | None) -> Listing[Any]:
        def start() -> tuple[Mapping[str, Any], Callable[[Any], Any]]:
            return {"table_id": table_id(self._calls, table), "snapshot": snapshot_ref(at)}, lambda message: message

        return listing_of(self._calls, method, items, start, page_size)

    def put(
        self,
        table: Ref,
        snapshot: int | Snapshot,
        *,
        row_count: int,
        data_file_count: int | None = None,
        total_size_bytes: int | None = None,
        ndv: v1.Ndv | None = None,
        upstream: v1.UpstreamStamp | None = None,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> TableStats:
        """Store the statistics of a table, replacing existing ones. The snapshot need not exist yet."""
        stats = build(
            v1.TableStats,
            row_count=row_count,
            data_file_count=data_file_count,
            total_size_bytes=total_size_bytes,
            ndv=ndv,
            upstream=upstream,
            properties=properties,
        )
        request = build(
            v1.PutTableStatsRequest,
            table_id=table_id(self._calls, table),
            snapshot_id=snapshot_id(snapshot),
            stats=stats,
            idempotency=self._calls.key(idempotency_key),
        )
        return TableStats(self._calls.call(request, v1.PutTableStatsResponse).stats)

    def put_columns(
        self,
        table: Ref,
        snapshot: int | Snapshot,
        columns: Iterable[v1.ColumnStats],
        *,
        idempotency_key: str | None = None,
        timeout_s: float | None = 600.0,
    ) -> int:
        """Upload the statistics of columns, replacing existing ones of the same columns; return their number.

        The upload streams with bounded memory. A list is sent again if the connection breaks. An iterator cannot be: call
        this again with a new one and the same `idempotency_key`, and statistics that were stored are not stored twice.
        """
        request, response = v1.PutColumnStatsRequest, v1.PutColumnStatsResponse
        upload = _Upload(request, "columns", v1.ColumnStats, columns)
        return self._upload(table, snapshot, upload, response, idempotency_key, timeout_s)

    def put_files(
        self,
        table: Ref,
        snapshot: int | Snapshot,
        files: Iterable[v1.FileColumnStats],
        *,
        idempotency_key: str | None = None,
        timeout_s: float | None = 600.0,
    ) -> int:
        """Upload the statistics of files, replacing existing ones of the same files; return their number.

        See `put_columns`.
        """
        request, response = v1.PutFileColumnStatsRequest, v1.PutFileColumnStatsResponse
        upload = _Upload(request, "files", v1.FileColumnStats, files)
        return self._upload(table, snapshot, upload, response, idempotency_key, timeout_s)

    def _upload(
        self,
        table: Ref,
        snapshot: int | Snapshot,
        upload: _Upload,
        response: Any,
        idempotency_key: str | None,
        timeout_s: float | None,
    ) -> int:
        # Getting the snapshot first reports a wrong one before the iterator is consumed, and notices a connection that
        # broke while it was idle with a call that can be retried.
        found = self._calls.rpc(
            "GetSnapshot", table_id=table_id(self._calls, table), snapshot=snapshot_ref(snapshot)
        ).snapshot
        key = self._calls.key(idempotency_key)

        def requests() -> Iterator[Message]:
            for chunk in _chunks(upload.items, upload.item_type):
                fields = {upload.field: chunk, "idempotency": key}
                yield build(upload.request, table_id=found.table_id, snapshot_id=found.snapshot_id, **fields)

        result = self._calls.upload(
            requests,
            response,
            kind=upload.request,
            timeout_s=timeout_s,
            repeatable=iter(upload.items) is not upload.items,
        )
        upserted: int = result.upserted
        return upserted


@dataclass(frozen=True, slots=True)
class _Upload:
    """The items of an upload, and the field of the request that carries them."""

    request: type[Message]
    field: str
    item_type: type[Message]
    items: Iterable[Message]


def _chunks(items: Iterable[Message], item_type: type[Message]) -> Iterator[list[Message]]:
    """Group items into chunks of about `MESSAGE_BYTES`; a larger item is a chunk of its own."""
    chunk: list[Message] = []
    size = 0
    for item in items:
        if not isinstance(item, item_type):
            raise InvalidArgument(
                f"cannot store {item!r:.100}: expected messages of type {item_type.DESCRIPTOR.full_name}", key="field"
            )
        item_bytes = item.ByteSize()
        if chunk and size + item_bytes > MESSAGE_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += item_bytes
    if chunk:
        yield chunk
