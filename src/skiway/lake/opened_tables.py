"""Opened tables, of connectors and of the warehouse, which are cached while they are unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC

from skiway.cache import Cache
from skiway.errors import NotFound, PreconditionFailed, SkiwayError
from skiway.formats import OpenedTable, Snapshot, Source, TableHandle, open_source
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.formats.parquet.table import ParquetTable
from skiway.metastore import Realm, connectors, snapshots, statistics
from skiway.metastore.managed import open_current, open_earlier
from skiway.metastore.reconcile.upstream import Opener, stored_upstream
from skiway.metastore.statistics.file_table import DIGEST
from skiway.metastore.transactions.combined_writes import TransactionState, open_state
from skiway.model import v1
from skiway.security import SecretsStore

__all__ = ["Handles", "Sources"]


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
            (realm.account_id, found.etag),
            lambda: stored_upstream(realm, connector, self._secrets).open(self._opener),
        )


class Handles:
    """Opens tables. A table that is unchanged since it was last opened is not opened again.

    Without a warehouse there are no managed tables.
    """

    def __init__(self, sources: Sources, warehouse: Warehouse | None, *, keep: int = 512) -> None:
        self._sources = sources
        self._warehouse = warehouse
        self._cache = Cache[tuple[str, str, str], OpenedTable](keep)

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

        An opened table gives all rows and files, so it is refused to callers whom policies restrict: the realm must be
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
        for each in opened.snapshots:
            if each.id == stored.id and not _differ(each.digest, stored.digest):
                return replace(opened, current=each)
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
