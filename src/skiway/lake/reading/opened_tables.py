"""Opened tables, of connectors and of the warehouse, which are cached while they are unchanged; and points in time of them.

`AT (…)` names a snapshot by its id, by a name (a branch or tag of Iceberg, a version of Delta, the number of a Parquet listing), or by
the time at which it was current.

A range, such as `12..15`, has the rows that were appended after its first snapshot, up to its last one; `..15` begins with the
table. Between the two, rows may only have been appended: then the rows are those of the files that the last snapshot has and the
first one has not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import TimePoint
from skiway.errors import NotFound, PreconditionFailed, SkiwayError, Unsupported
from skiway.formats import OpenedTable, Snapshot, Source, TableHandle, open_source
from skiway.formats.folders.parquet import ParquetTable
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.foundation.cache import Cache
from skiway.metastore import Realm, connectors, snapshots, statistics
from skiway.metastore.managed import open_current, open_earlier
from skiway.metastore.reconcile.upstream import Opener, stored_upstream
from skiway.metastore.statistics.file_table import DIGEST
from skiway.metastore.transactions.staged_writes import TransactionState, open_state
from skiway.model import v1
from skiway.security import SecretsStore


class Sources:
    """The sources of connectors. Each is opened once, until its connector changes."""

    def __init__(self, secrets: SecretsStore, *, opener: Opener = open_source, keep: int = 64) -> None:
        self._secrets = secrets
        self._opener = opener
        self._cache = Cache[tuple[str, str], Source](keep)

    def of(self, realm: Realm, connector_id: str) -> Source:
        """The source of the connector with this id."""
        found = connectors.find(realm, connector_id)
        if found is None:
            raise NotFound(
                f"connector {connector_id!r}, which mirrored the table, was deleted: create it again, or drop the table",
                key="connector",
            )
        connector = found.value
        if connector.state == v1.CS_DELETING:
            raise PreconditionFailed(f"connector {connector.display_name!r} is being deleted", key="connector.deleting")
        # The secret is read only when the source is opened: new credentials also change the connector's record.
        return self._cache.get(
            (realm.account_id, found.etag), lambda: stored_upstream(realm, connector, self._secrets).open(self._opener)
        )


class Handles:
    """Opens tables. A table that is unchanged since it was last opened is not opened again.

    Without a warehouse there are no managed tables.
    """

    def __init__(self, sources: Sources, warehouse: Warehouse | None, *, keep: int = 512) -> None:
        self._sources = sources
        self._warehouse = warehouse
        self._cache = Cache[tuple[str, str, str], OpenedTable](keep)

    def apart(self) -> Handles:
        """Handles that keep none of the same tables."""
        return Handles(self._sources, self._warehouse)

    @property
    def warehouse(self) -> Warehouse:
        """The warehouse of managed tables."""
        if self._warehouse is None:
            raise PreconditionFailed("this server has no warehouse: set warehouse.uri", key="warehouse.missing")
        return self._warehouse

    def open(
        self,
        realm: Realm,
        table: v1.Table,
        *,
        relist: bool = False,
        current: Callable[[], snapshots.StoredSnapshot | None] | None = None,
    ) -> OpenedTable:
        """Open the table in the state that is current in the metastore; `current` returns the snapshot of a mirrored table.

        Files of a Parquet folder can disappear at any time, without a new snapshot. With `relist` the server lists the folder
        again, so that a table that was opened before is read like one that is opened now.

        An opened table gives all rows and files, so it is refused to callers under policies: the realm must be
        one without policies.
        """
        realm.require_unrestricted(table)
        if table.metadata_location:
            key = (realm.account_id, table.resource_id.id, table.metadata_location)
            return self._cache.get(key, lambda: self._managed(realm, table))
        with _naming_table(table.display_name):
            now = snapshots.current(realm, table.resource_id.id) if current is None else current()
            if now is None:  # never synchronised: not cached, because nothing tells when the source changes
                handle = self._load(realm, table)
                return OpenedTable(handle, handle.current())
            key = (realm.account_id, table.resource_id.id, f"{now.value.snapshot_id}:{now.etag}")
            opened = self._cache.get(key, lambda: self._mirrored(realm, table, now.value))
            if not relist or not isinstance(opened.handle, ParquetTable) or opened.handle.is_unchanged():
                return opened
            self._cache.discard(key)
            return self._cache.get(key, lambda: self._mirrored(realm, table, now.value))

    def open_earlier(self, realm: Realm, table: v1.Table, snapshot_id: int) -> OpenedTable | None:
        """Open a managed table in the last state that had a snapshot, which was removed since; None if none is left."""
        realm.require_unrestricted(table)
        handle = open_earlier(realm, self.warehouse, table, snapshot_id) if table.metadata_location else None
        return None if handle is None else OpenedTable(handle, handle.current())

    def open_in_transaction(
        self, realm: Realm, table: v1.Table, handle: IcebergTable, state: TransactionState
    ) -> OpenedTable:
        """Open a managed table as a transaction sees it that has written to it. `handle` reads the snapshot before."""
        realm.require_unrestricted(table)

        def load() -> OpenedTable:
            found = open_state(realm, self.warehouse, table, handle.metadata, state)
            return OpenedTable(found, found.current())

        # The columns of the table may change during the transaction.
        key = (realm.account_id, table.resource_id.id, f"{state.snapshot_id}:{handle.metadata_location}")
        return self._cache.get(key, load)

    def _managed(self, realm: Realm, table: v1.Table) -> OpenedTable:
        handle = open_current(realm, self.warehouse, table)
        return OpenedTable(handle, handle.current())

    def _mirrored(self, realm: Realm, table: v1.Table, known: v1.Snapshot) -> OpenedTable:
        handle = self._load(realm, table)
        if isinstance(handle, ParquetTable):
            return self._listed(realm, table.resource_id.id, handle, known.snapshot_id)
        opened, stored = OpenedTable(handle, None), _snapshot(known)
        for snapshot in opened.snapshots:
            if snapshot.id == stored.id and not _differ(snapshot.digest, stored.digest):
                return replace(opened, current=snapshot)
        raise PreconditionFailed(
            f"its snapshot {stored.id} no longer exists upstream; synchronise the connector", key="snapshot.gone"
        )

    def _listed(self, realm: Realm, table_id: str, handle: ParquetTable, snapshot_id: int) -> OpenedTable:
        """Open the last synchronised listing.

        If its files are gone, open the current listing instead, as the next one.
        """
        known = [_snapshot(each) for each in snapshots.scan(realm, table_id)]
        older = Cache[str, TableHandle](8)

        def recall(snapshot: Snapshot) -> TableHandle:
            return older.get(snapshot.digest, lambda: handle.as_listed(snapshot, _etags(realm, table_id, snapshot.id)))

        current = next((each for each in known if each.id == snapshot_id), None)
        try:
            if current is not None:
                recall(current)
        except NotFound:
            current = handle.current(known)
        return OpenedTable(handle, current, known, recall)

    def _load(self, realm: Realm, table: v1.Table) -> TableHandle:
        upstream = table.upstream
        if not upstream.HasField("connector_id"):
            raise PreconditionFailed(
                "it has no connector, which is needed to find and read its data; create a connector and synchronise it",
                key="table.no_connector",
            )
        source = self._sources.of(realm, upstream.connector_id.id)
        name = upstream.table_display_name or table.display_name
        return source.load(tuple(upstream.namespace_path), name)


def _etags(realm: Realm, table_id: str, snapshot_id: int) -> dict[str, str]:
    files = statistics.file_statistics(realm, table_id, snapshot_id)
    return dict(zip(files["file_path"].to_pylist(), files["etag"].to_pylist(), strict=True))


def _differ(one: str, other: str) -> bool:
    """Whether digests are known to differ: those of records from older versions, and of old versions in Delta, are empty."""
    return bool(one and other and one != other)


def _snapshot(record: v1.Snapshot) -> Snapshot:
    return Snapshot(
        id=record.snapshot_id,
        created_at=record.upstream_created_at.ToDatetime(UTC),
        parent_id=record.parent_snapshot_id if record.HasField("parent_snapshot_id") else None,
        sequence_number=record.sequence_number,
        schema_id=record.schema_id,
        summary=dict(record.summary),
        manifest_list=record.manifest_list,
        digest=record.format_metadata.get(DIGEST, b"").decode(),
    )


@contextmanager
def _naming_table(table: str) -> Iterator[None]:
    """A block in which errors are prefixed with the name of the table."""
    try:
        yield
    except SkiwayError as error:
        raise type(error)(f"table {table!r}: {error.message}", key=error.key, **error.params) from error


_RANGE: Final = re.compile(r"(\d*)\.\.(\d+)")


def snapshot_with_id(table: OpenedTable, snapshot_id: int) -> Snapshot:
    """The snapshot with this id."""
    for snapshot in table.snapshots:
        if snapshot.id == snapshot_id:
            return snapshot
    raise _none(table, f"with id {snapshot_id}")


def snapshot_at(table: OpenedTable, point: TimePoint) -> Snapshot:
    """The snapshot that `AT (…)` names."""
    if point.unit == "timestamp":
        snapshot = snapshot_as_of(table, point.timestamp())
        if snapshot is None:
            raise _none(table, f"as old as {point.value}")
        return snapshot
    named = table.handle.refs.get(point.value)
    if named is not None:
        return snapshot_with_id(table, named)
    between = AppendedRange.parse(point.value)
    if between is not None:
        return between.last(table)
    if not point.value.isdecimal():
        names = ", ".join(sorted(table.handle.refs)) or "none"
        raise _none(table, f"called {point.value!r} (named ones: {names})")
    return snapshot_with_id(table, int(point.value))


def snapshot_as_of(table: OpenedTable, moment: datetime) -> Snapshot | None:
    """The snapshot that was current at `moment`; None if there was none yet."""
    if isinstance(table.handle, IcebergTable):
        log = table.handle.metadata.snapshot_log
        earlier = [
            entry.snapshot_id for entry in log if datetime.fromtimestamp(entry.timestamp_ms / 1000, UTC) <= moment
        ]
        return snapshot_with_id(table, earlier[-1]) if earlier else None
    found = [snapshot for snapshot in table.snapshots if snapshot.created_at <= moment]
    return found[-1] if found else None


def _none(table: OpenedTable, which: str) -> NotFound:
    return NotFound(
        f"table {table.handle.name.name!r} has no snapshot {which}: skiway.snapshots lists its snapshots",
        key="snapshot.not_found",
        table=table.handle.name.name,
    )


@dataclass(frozen=True, slots=True)
class AppendedRange:
    """A range of snapshots; `after` is None if it begins with the table."""

    after: int | None
    until: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The range that a text describes; None if it describes none."""
        found = _RANGE.fullmatch(text)
        return None if found is None else cls(int(found[1]) if found[1] else None, int(found[2]))

    def last(self, table: OpenedTable) -> Snapshot:
        """The last snapshot. Raise unless rows were only appended after the first one."""
        name = table.handle.name.name
        if not isinstance(table.handle, IcebergTable):
            raise Unsupported(
                f"table {name!r} has the format {table.handle.format}: appended rows can only be read from Iceberg tables",
                key="snapshot.range",
            )
        known = {snapshot.id: snapshot for snapshot in table.snapshots}
        last = found = snapshot_with_id(table, self.until)
        if self.after is not None:
            snapshot_with_id(table, self.after)
        while found.id != self.after:
            operation = found.summary.get("operation", "")
            if operation != "append":
                raise PreconditionFailed(
                    f"rows of table {name!r} were not only appended: snapshot {found.id} is the result of {operation!r}; "
                    "read a range that does not contain it",
                    key="snapshot.range",
                    snapshot=str(found.id),
                )
            if found.parent_id is None and self.after is None:
                break
            if found.parent_id is None or found.parent_id not in known:
                raise PreconditionFailed(
                    f"snapshot {self.until} of table {name!r} does not follow snapshot {self.after or 'none'}: snapshots "
                    "between them have expired, or the table was rolled back",
                    key="snapshot.range",
                    snapshot=str(self.until),
                )
            found = known[found.parent_id]
        return last

    def appended(self, table: OpenedTable, files: pa.Table) -> pa.Table:
        """Those of the last snapshot's files that the first one has not."""
        if self.after is None:
            return files
        first = snapshot_with_id(table, self.after)
        before = table.at(first).files(first)["path"].combine_chunks()
        return files.filter(pc.invert(pc.is_in(files["path"], before)))
