"""Leases of transactions that DuckDB begins: they appear in `skiway.queries`, and can be ended.

DuckDB begins a transaction for each statement. Nothing is stored for one with a single statement, so transactions stay free of
charge. From the second statement on, a lease lists what the transaction reads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from typing import Final

from cachetools import LRUCache

from skiway.airport import Request
from skiway.airport.request import call_of
from skiway.errors import NotFound
from skiway.metastore import Realm
from skiway.metastore.queries import TransactionUse, check_transaction, end, use_in_transaction
from skiway.model import v1

__all__ = ["Statements", "TransactionLeases"]

_PLANNING: Final = ("column_statistics", "flight_info")
"""Calls that a client makes for all tables of a statement, before it executes the statement."""


@dataclass(slots=True)
class _Use:
    """What this server knows about a transaction."""

    statements: int = 0
    traces: set[str] = field(default_factory=set)
    bound: int | None = None
    """How many tables the session had bound when the current statement was executed; None before that."""
    snapshots: dict[tuple[str, int], None] = field(default_factory=dict)
    is_stored: bool = False


class Statements:
    """Counts the statements of transactions.

    No call says to which statement it belongs. Each use of a table has a trace id, and DuckDB requests the version of the
    catalog whenever it binds a table. So a new trace id after such a request belongs to another statement, if the current
    one is executed already. Sessions are processes, so statements of other connections can be counted, too: then a
    transaction has a lease although it has only one statement, which is harmless. For clients that request no versions, each
    use of a table counts.
    """

    def __init__(self, keep: int = 10_000) -> None:
        self._lock = Lock()
        self._bound: LRUCache[str, int] = LRUCache(keep)

    def bind(self, session_id: str) -> None:
        """Record that a session has bound a table."""
        with self._lock:
            self._bound[session_id] = self._bound.get(session_id, 0) + 1

    def count(self, use: _Use, request: Request) -> bool:
        """Count the statement that a request belongs to, unless it is known; return whether it is a new one."""
        with self._lock:
            bound = self._bound.get(request.session_id, 0)
            is_new = request.trace_id not in use.traces and (
                use.statements == 0 or (use.bound is not None and (bound == 0 or bound > use.bound))
            )
            use.traces.add(request.trace_id)
            if is_new:
                use.statements += 1
                use.bound = None
            if use.bound is None and call_of(request).operation not in _PLANNING:
                use.bound = bound
            return is_new


class TransactionLeases:
    """The leases of the transactions that this server has seen. `realm` is that of the current caller."""

    def __init__(self, realm: Callable[[], Realm], *, keep: int = 100_000) -> None:
        self._realm = realm
        self.statements = Statements()
        self._lock = Lock()
        self._uses: LRUCache[str, _Use] = LRUCache(keep)

    def begun(self, transaction_id: str) -> None:
        """Remember a transaction of this server, for which no other server can have stored a lease yet."""
        with self._lock:
            self._uses[transaction_id] = _Use()

    def enter(self, transaction_id: str, request: Request, *, began: datetime, until: datetime) -> None:
        """Count the statement of a call. Raise `PreconditionFailed` if the transaction was ended."""
        use = self._use(transaction_id)
        is_new = self.statements.count(use, request)
        if use.statements > 1 and (is_new or not use.is_stored):
            self._store(transaction_id, use, began=began, until=until)
        elif use.is_stored:
            check_transaction(self._realm(), transaction_id)

    def reads(self, transaction_id: str, table_id: str, snapshot_id: int, *, began: datetime, until: datetime) -> None:
        """Record the snapshot of a table that the transaction reads from now on."""
        use = self._use(transaction_id)
        if (table_id, snapshot_id) not in use.snapshots:
            use.snapshots[table_id, snapshot_id] = None
            if use.is_stored:
                self._store(transaction_id, use, began=began, until=until)

    def release(self, transaction_id: str) -> None:
        """Release the snapshots of a transaction that its client has ended."""
        with self._lock:
            use: _Use | None = self._uses.pop(transaction_id, None)
        if use is None or use.is_stored:
            with suppress(NotFound):  # it has no lease
                end(self._realm(), v1.EndQueryRequest(query_id=transaction_id, commit=True))

    def _use(self, transaction_id: str) -> _Use:
        with self._lock:
            found: _Use | None = self._uses.get(transaction_id)
        if found is None:  # another server has begun it, and may have stored a lease
            found = _Use(is_stored=check_transaction(self._realm(), transaction_id))
            with self._lock:
                found = self._uses.setdefault(transaction_id, found)
        return found

    def _store(self, transaction_id: str, use: _Use, *, began: datetime, until: datetime) -> None:
        use_in_transaction(
            self._realm(),
            TransactionUse(transaction_id, began, until, tuple(use.snapshots), use.statements),
        )
        use.is_stored = True
