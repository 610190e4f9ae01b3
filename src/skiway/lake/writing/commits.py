"""Commits to managed tables: of single statements, and of transactions of clients that commit themselves.

In such a transaction, INSERT, UPDATE, DELETE and MERGE write files, which its commit publishes together.

DuckDB has no such transactions, because it reports neither COMMIT nor ROLLBACK. Other clients say in a header that they end
their transactions themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from skiway.airport import TransactionStatus, current_request
from skiway.errors import NotFound, PreconditionFailed, Unsupported
from skiway.formats.iceberg.changes.commits import Producer
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.lake.callers import Callers
from skiway.lake.context import Context, UsageLog, Versions, unit_of_work
from skiway.lake.transactions import is_explicit
from skiway.metastore import Realm, connectors, managed, snapshots
from skiway.metastore.managed import ManagedTable, TableChange
from skiway.metastore.records.policies import NOT_CHANGED
from skiway.metastore.transactions import api, staged_writes
from skiway.metastore.transactions.staged_writes import StagedChange, TransactionState
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile


def check_managed(catalog: v1.Catalog) -> None:
    """Raise unless tables and schemas can be created in the catalog."""
    if catalog.connector_ref:
        raise PreconditionFailed(
            f"catalog {catalog.display_name!r} is read-only: connector {catalog.connector_ref!r} mirrors an external "
            "catalog in it; change the tables there, or use a managed catalog",
            key="catalog.not_managed",
        )


def check_auto_commit() -> None:
    """Raise if the statement is part of an explicit transaction."""
    if is_explicit():
        raise Unsupported(
            "this statement commits by itself and cannot be rolled back: of all statements that write to a lake, only INSERT, "
            "UPDATE, DELETE and MERGE can be part of an explicit transaction; run this one outside of it",
            key="transaction.explicit",
        )


@dataclass(frozen=True)
class Changes:
    """Changes of one managed table, each of which is one commit."""

    context: Context
    record: v1.Table
    within_policies: bool = False
    """Whether callers whom policies restrict may make the changes, because these reveal nothing."""

    @property
    def realm(self) -> Realm:
        """The metastore of the caller's account."""
        realm = self.context.callers.realm()
        return realm.without_policies() if self.within_policies else realm

    def check_allowed(self, *, may_stage: bool = False) -> None:
        """Raise unless the caller may change this table with this statement; `may_stage` in an explicit transaction, too."""
        self.context.callers.require("table.write", self.record)
        if not self.record.damage:
            self.realm.require_unrestricted(self.record, why=NOT_CHANGED)
        if not (self.record.metadata_location or self.record.damage):
            raise PreconditionFailed(
                f"table {self.record.display_name!r} is read-only: connector {self._connector()!r} mirrors it from "
                f"{self.record.upstream.uri!r}; change it there, or copy it into a managed catalog",
                key="table.not_managed",
                table=self.record.display_name,
            )
        if not may_stage:
            check_auto_commit()

    def load(self) -> ManagedTable:
        """The table in its current state."""
        return managed.load(self.realm, self.context.handles.warehouse, self.record.resource_id)

    def commit(self, producer: Producer) -> ManagedTable:
        """Commit a change. It is visible to this transaction and to all others from then on."""
        transaction, realm = current_request().transaction_id, self.realm
        until = self.context.transactions.expiry(transaction)

        def also(published: Sequence[ManagedTable]) -> Iterator[Any]:
            for each in published:
                snapshot_id = each.metadata.current_snapshot_id
                if until is not None and snapshot_id is not None:
                    yield snapshots.writing(realm, transaction, each.id, snapshot_id, until=until)

        (changed,) = managed.change_all(
            realm, self.context.handles.warehouse, [TableChange(self.record.resource_id, producer)], also=also
        )
        self.context.transactions.repin(transaction, changed.id, changed.metadata.current_snapshot_id)
        caller = self.context.callers.principal.subject
        self.context.usage.written(realm, changed.id, caller=caller, unit=unit_of_work(current_request()))
        self.context.versions.changed(self.realm)
        return changed

    def stage(
        self,
        base: ManagedTable,
        files: Sequence[DataFile],
        *,
        rows: int,
        change: StagedChange | None = None,
        expected_snapshot_id: int | None = None,
    ) -> None:
        """Add data files, and the change of an UPDATE or DELETE, to the explicit transaction of the statement.

        Its commit makes them visible. With `expected_snapshot_id`, it fails unless this is still the current snapshot; 0 is none.
        """
        policies = self.context.callers.realm().policies
        if change is not None and policies is not None and (found := policies.of(base.table)) is not None:
            change = replace(change, policies=found.digest)
        self.context.transactions.stage(
            current_request().transaction_id,
            base,
            files,
            rows=rows,
            change=change,
            expected_snapshot_id=expected_snapshot_id,
        )

    def run(self, change: Callable[[], object]) -> None:
        """Make a change of more than the table's content, such as its name."""
        self.check_allowed()
        change()
        self.context.versions.changed(self.realm)

    def undo_create(self, session_id: str) -> None:
        """Drop the table if it is as it was created, which its session does not know. Garbage collection deletes its files."""
        warehouse = self.context.handles.warehouse
        if managed.drop_unused(self.realm, warehouse, self.record.resource_id):
            self.context.versions.changed(self.realm)
            self.context.failed_creations.add(session_id, self.record.namespace_id.id, self.record.display_name)

    def _connector(self) -> str:
        found = connectors.find(self.realm, self.record.upstream.connector_id.id)
        return found.value.display_name if found else "none"


_STATUS = {
    v1.TX_OPEN: TransactionStatus.ACTIVE,
    v1.TX_COMMITTED: TransactionStatus.COMMITTED,
    v1.TX_ABORTED: TransactionStatus.ABORTED,
    v1.TX_EXPIRED: TransactionStatus.ABORTED,
}


class StagedStatements:
    """What callers have written in transactions which they commit themselves."""

    def __init__(self, callers: Callers, warehouse: Warehouse, versions: Versions, usage: UsageLog) -> None:
        self._callers, self._warehouse, self._versions, self._usage = callers, warehouse, versions, usage

    def add(
        self,
        transaction_id: str,
        base: ManagedTable,
        files: Sequence[DataFile],
        *,
        rows: int,
        until: datetime,
        change: StagedChange | None = None,
        expected_snapshot_id: int | None = None,
    ) -> None:
        """Add files to a transaction, which expires at a time unless it is committed or rolled back before.

        The statement has checked whether the caller may make the change, under its policies, too.
        """
        realm = self._callers.realm().without_policies()
        staged_writes.opened(realm, transaction_id, until=until)
        staged_writes.stage(
            realm,
            transaction_id,
            base,
            files,
            row_count=rows,
            change=change,
            expected_snapshot_id=expected_snapshot_id,
        )

    def state(self, transaction_id: str, table_id: str, *, read: int | None) -> TransactionState:
        """A table as a transaction sees it, which reads the snapshot `read`, or none."""
        try:
            found = staged_writes.find(self._callers.realm(), transaction_id).value
        except NotFound:
            found = v1.Transaction(transaction_id=transaction_id)
        return TransactionState.of(found, table_id, read=read)

    def status(self, transaction_id: str) -> TransactionStatus | None:
        """The status of a transaction; None if it has written nothing."""
        try:
            found = staged_writes.find(self._callers.realm(), transaction_id)
        except NotFound:
            return None
        return _STATUS[found.value.state]

    def commit(self, transaction_id: str, *, until: datetime) -> None:
        """Make all writes of a transaction visible at once. The end of one without writes is stored, too."""
        realm = self._callers.realm()
        found = staged_writes.opened(realm.without_policies(), transaction_id, until=until)
        if found.value.state == v1.TX_COMMITTED:  # repeating a commit changes nothing
            return
        done = api.commit_transaction(realm, self._warehouse, transaction_id)
        self._versions.changed(realm)
        for table_id in dict.fromkeys(each.table_id.id for each in done.committed):
            self._usage.written(realm, table_id, caller=self._callers.principal.subject, unit=transaction_id)

    def abort(self, transaction_id: str, *, until: datetime) -> None:
        """Discard all writes of a transaction. The end of one without writes is stored, too."""
        realm = self._callers.realm()
        staged_writes.opened(realm.without_policies(), transaction_id, until=until)
        api.abort_transaction(realm, self._warehouse, transaction_id)
