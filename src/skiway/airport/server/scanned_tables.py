"""Tables that clients are planning scans of, so that the many calls of one scan look up its table once.

DuckDB requests the statistics of a scan column by column, and twice for each column: a query over 1,500 columns makes 3,000
calls. All calls of a scan have the same id. If the server knows that nothing has changed since the first of them, the
others use the table that the first one found, and the same response.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from skiway.airport.request import Request, call_of
from skiway.airport.server.lookup import OpenedTable
from skiway.airport.server.tickets import ObjectPath

__all__ = ["HasState", "ScannedTable", "ScannedTables"]

MAX_TABLES: Final = 256
MAX_BYTES: Final = 32 << 20


@runtime_checkable
class HasState(Protocol):
    """Catalogs that can tell whether anything has changed."""

    def state(self) -> Hashable | None:
        """A value that changes whenever the caller could find or see something different; None if the catalogs cannot tell."""


@dataclass(frozen=True, slots=True)
class ScannedTable:
    """A table that was looked up for a scan, and the responses that were sent to the client, by request."""

    opened: OpenedTable
    key: Hashable = None
    responses: dict[Hashable, bytes] = field(default_factory=dict)


class ScannedTables:
    """The tables of recent scans. The oldest are forgotten first, by their number and by the size of their responses.

    `state` is that of `HasState`. Without it, every call looks up its table.
    """

    def __init__(
        self,
        state: Callable[[], Hashable | None] | None = None,
        *,
        max_tables: int = MAX_TABLES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._state = state
        self._max_tables, self._max_bytes = max_tables, max_bytes
        self._lock = threading.Lock()
        self._tables: OrderedDict[Hashable, ScannedTable] = OrderedDict()
        self._size = 0

    def of(self, request: Request, path: ObjectPath, find: Callable[[], OpenedTable]) -> ScannedTable:
        """The table at `path`: the one that an earlier call of the same scan has found, or else what `find` returns."""
        state = self._state() if self._state and request.trace_id else None  # before the table is read
        if state is None:
            return ScannedTable(find())
        key = (request.trace_id, request.transaction_id, request.identity, path, state)
        with self._lock:
            known = self._tables.get(key)
        if known is not None:
            call_of(request).target = known.opened.table
            return known
        found = ScannedTable(find(), key)
        with self._lock:
            kept = self._tables.setdefault(key, found)
            while len(self._tables) > self._max_tables:
                self._forget_oldest()
        return kept

    def response(self, table: ScannedTable, requested: Hashable, make: Callable[[OpenedTable], bytes]) -> bytes:
        """The response to an earlier call of the same scan, or else what `make` returns."""
        known = table.responses.get(requested)
        if known is not None:
            return known
        made = make(table.opened)
        with self._lock:
            if self._tables.get(table.key) is table and table.responses.setdefault(requested, made) is made:
                self._size += len(made)
            while self._size > self._max_bytes:
                self._forget_oldest()
        return made

    def _forget_oldest(self) -> None:
        _, forgotten = self._tables.popitem(last=False)
        self._size -= sum(map(len, forgotten.responses.values()))
