"""Transactions: all statements of a block take effect together when it ends, or none does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skiway.client.airport import functions, scans, writing
from skiway.client.airport.calls import TransactionContext
from skiway.client.airport.catalog import TableName
from skiway.client.airport.results import Rows
from skiway.client.airport.selection import Where
from skiway.client.airport.session import OpenTransaction, Session
from skiway.errors import Unsupported

__all__ = ["Transaction"]


class Transaction(OpenTransaction):
    """A transaction of one thread.

    What its methods write becomes visible at the end of the block, all at once, or never. They take the same arguments as the
    methods of the same name of the client, which commit at once, unless the transaction is explicit.
    """

    def __init__(self, session: Session, *, explicit: bool, release: bool) -> None:
        super().__init__(session.calls, explicit=explicit, release=release)
        self._session = session

    def insert(self, table: TableName, rows: Any) -> int:
        """Insert rows, and return their number."""
        return writing.insert(self._session, table, rows, returning=False, transaction=self._staging()).count

    def update(self, table: TableName, rows: Any, *, row_ids: Any = None, where: Where = None) -> int:
        """Update rows by id or by predicate, and return their number. Row ids are those of the transaction's own `scan`."""
        return writing.update(
            self._session, table, rows, row_ids=row_ids, where=where, returning=False, transaction=self._staging()
        ).count

    def delete(self, table: TableName, row_ids: Any = None, *, where: Where = None) -> int:
        """Delete rows by id or by predicate, and return their number. Row ids are those of the transaction's own `scan`."""
        return writing.delete(
            self._session, table, row_ids, where=where, returning=False, transaction=self._staging()
        ).count

    def scan(self, table: TableName, *, columns: Sequence[str] | None = None, where: Where = None) -> Rows:
        """Stream the rows of a table as the transaction has changed it."""
        return scans.bind(self._session, table, columns=columns, where=where, transaction=self._staging()).read()

    def call(self, function: TableName, *arguments: Any, named: Mapping[str, Any] | None = None) -> Rows:
        """Call a table function that reads tables as the transaction has changed them, or stages what it writes."""
        return functions.call_table_function(
            self._session,
            function,
            arguments,
            named or {},
            rows=None,
            columns=None,
            where=None,
            plan=False,
            transaction=self._staging(),
        )

    def _staging(self) -> TransactionContext:
        if not self.id:
            raise Unsupported(
                f"catalog {self._calls.catalog!r} has no transactions: use the methods of the client, which commit at once"
            )
        self._must_end = True
        return TransactionContext(self.id, explicit=True)
