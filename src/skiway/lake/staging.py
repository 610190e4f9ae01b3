"""Transactions of clients that commit themselves: INSERT, UPDATE, DELETE and MERGE write files, which the commit of the
transaction publishes together.

DuckDB has no such transactions, because it reports neither COMMIT nor ROLLBACK. Other clients say in a header that they end
their transactions themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from skiway.airport import TransactionStatus
from skiway.errors import NotFound
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.lake.callers import Callers
from skiway.lake.context import Versions
from skiway.lake.usage import UsageLog
from skiway.metastore.managed import ManagedTable
from skiway.metastore.transactions import endings, staged_writes
from skiway.metastore.transactions.combined_writes import TransactionState
from skiway.metastore.transactions.staged_writes import StagedChange
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

__all__ = ["StagedStatements"]

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
        done = endings.commit(realm, self._warehouse, transaction_id)
        self._versions.changed(realm)
        for table_id in dict.fromkeys(each.table_id.id for each in done.committed):
            self._usage.written(realm, table_id, caller=self._callers.principal.subject, unit=transaction_id)

    def abort(self, transaction_id: str, *, until: datetime) -> None:
        """Discard all writes of a transaction. The end of one without writes is stored, too."""
        realm = self._callers.realm()
        staged_writes.opened(realm.without_policies(), transaction_id, until=until)
        endings.abort(realm, self._warehouse, transaction_id)
