"""Statistics of snapshots: of the table, of its columns, of its files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from skiway.client.metastore.collection import Area, Listing, Turn, filled
from skiway.client.metastore.references import Ref, table_id
from skiway.client.metastore.resources import TableStats
from skiway.client.metastore.snapshots import At, Snapshot, snapshot_id, snapshot_ref
from skiway.errors import InvalidArgument, NotFound
from skiway.model import v1

__all__ = ["Statistics"]

I = TypeVar("I", bound=Message)  # noqa: E741 - an item

MESSAGE_BYTES: Final = 512 * 1024
"""How many bytes of items are sent together, about: far below what servers accept at once."""


class Statistics(Area):
    """`lake.statistics`: named by their table and its snapshot."""

    def get(self, table: Ref, at: At = None) -> TableStats:
        """Of a table, in one of its snapshots or the current one; `NotFound` if there are none."""
        request = v1.GetTableStatsRequest(table_id=table_id(self._calls, table), snapshot=snapshot_ref(at))
        return TableStats(self._calls.ask(request, v1.GetTableStatsResponse).stats)

    def find(self, table: Ref, at: At = None) -> TableStats | None:
        """Of a table, or None."""
        try:
            return self.get(table, at)
        except NotFound:
            return None

    def columns(self, table: Ref, at: At = None, *, page_size: int | None = None) -> Listing[v1.ColumnStats]:
        """Of the columns of a table, by column id."""

        def open_() -> Turn[v1.ColumnStats]:
            found = table_id(self._calls, table)

            def turn(page: v1.PageRequest) -> tuple[Sequence[v1.ColumnStats], v1.PageResponse]:
                request = v1.ListColumnStatsRequest(table_id=found, snapshot=snapshot_ref(at), page=page)
                answer = self._calls.ask(request, v1.ListColumnStatsResponse)
                return answer.columns, answer.page

            return turn

        return Listing(open_, page_size)

    def files(self, table: Ref, at: At = None, *, page_size: int | None = None) -> Listing[v1.FileColumnStats]:
        """Of the files of a table, by path."""

        def open_() -> Turn[v1.FileColumnStats]:
            found = table_id(self._calls, table)

            def turn(page: v1.PageRequest) -> tuple[Sequence[v1.FileColumnStats], v1.PageResponse]:
                request = v1.ListFileColumnStatsRequest(table_id=found, snapshot=snapshot_ref(at), page=page)
                answer = self._calls.ask(request, v1.ListFileColumnStatsResponse)
                return answer.files, answer.page

            return turn

        return Listing(open_, page_size)

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
        """Store those of a table, in place of what there is. They may come before their snapshot does."""
        stats = filled(
            v1.TableStats,
            row_count=row_count,
            data_file_count=data_file_count,
            total_size_bytes=total_size_bytes,
            ndv=ndv,
            upstream=upstream,
            properties=properties,
        )
        request = filled(
            v1.PutTableStatsRequest,
            table_id=table_id(self._calls, table),
            snapshot_id=snapshot_id(snapshot),
            stats=stats,
            idempotency=self._calls.key(idempotency_key),
        )
        return TableStats(self._calls.ask(request, v1.PutTableStatsResponse).stats)

    def put_columns(
        self,
        table: Ref,
        snapshot: int | Snapshot,
        columns: Iterable[v1.ColumnStats],
        *,
        idempotency_key: str | None = None,
        timeout_s: float | None = 600.0,
    ) -> int:
        """Store those of columns, in place of what there is of the same ones; how many there were.

        They are sent as `columns` gives them, a few at a time in memory. If the connection breaks, what can be iterated
        over again, such as a list, is sent again; what arrived before is not stored twice. An iterator cannot be: then
        make a new one, and call again with the same `idempotency_key`.
        """
        found = self._snapshot(table, snapshot)
        key = self._calls.key(idempotency_key)

        def requests() -> Iterator[v1.PutColumnStatsRequest]:
            for some in _together(columns, v1.ColumnStats):
                yield filled(
                    v1.PutColumnStatsRequest,
                    table_id=found.table_id,
                    snapshot_id=found.snapshot_id,
                    columns=some,
                    idempotency=key,
                )

        answer = self._calls.upload(
            requests,
            v1.PutColumnStatsResponse,
            kind=v1.PutColumnStatsRequest,
            timeout_s=timeout_s,
            repeatable=_is_repeatable(columns),
        )
        return answer.upserted

    def put_files(
        self,
        table: Ref,
        snapshot: int | Snapshot,
        files: Iterable[v1.FileColumnStats],
        *,
        idempotency_key: str | None = None,
        timeout_s: float | None = 600.0,
    ) -> int:
        """Store those of files, in place of what there is of the same ones; how many there were. See `put_columns`."""
        found = self._snapshot(table, snapshot)
        key = self._calls.key(idempotency_key)

        def requests() -> Iterator[v1.PutFileColumnStatsRequest]:
            for some in _together(files, v1.FileColumnStats):
                yield filled(
                    v1.PutFileColumnStatsRequest,
                    table_id=found.table_id,
                    snapshot_id=found.snapshot_id,
                    files=some,
                    idempotency=key,
                )

        answer = self._calls.upload(
            requests,
            v1.PutFileColumnStatsResponse,
            kind=v1.PutFileColumnStatsRequest,
            timeout_s=timeout_s,
            repeatable=_is_repeatable(files),
        )
        return answer.upserted

    def _snapshot(self, table: Ref, snapshot: int | Snapshot) -> v1.Snapshot:
        """The snapshot, asked for before anything is sent.

        So a wrong one is told before an iterator is used up, and a connection that broke while nobody used it is noticed
        by a call that can be made again.
        """
        request = v1.GetSnapshotRequest(table_id=table_id(self._calls, table), snapshot=snapshot_ref(snapshot))
        return self._calls.ask(request, v1.GetSnapshotResponse).snapshot


def _together(items: Iterable[I], kind: type[I]) -> Iterator[list[I]]:
    """Items in parts of about `MESSAGE_BYTES`; a larger item is a part of its own."""
    some: list[I] = []
    size = 0
    for item in items:
        if not isinstance(item, kind):
            raise InvalidArgument(
                f"{item!r:.100} cannot be stored: give messages {kind.DESCRIPTOR.full_name}", key="field"
            )
        more = item.ByteSize()
        if some and size + more > MESSAGE_BYTES:
            yield some
            some, size = [], 0
        some.append(item)
        size += more
    if some:
        yield some


def _is_repeatable(items: Iterable[object]) -> bool:
    return iter(items) is not items
