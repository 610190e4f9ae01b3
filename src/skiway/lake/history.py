"""Collects what statements do, and stores it every few seconds: `QueryLog` has the history of queries.

DuckDB reads a table with several calls, which have the same trace id: one that plans the scan, and one for each part. They are one
entry of the history. The server knows the SQL of queries that it runs itself, and of others what they read.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Event, Lock, Thread
from typing import Final, NamedTuple

import msgspec

from skiway.airport.request import ServedCall
from skiway.airport.wire.duckdb_sql import identifier
from skiway.errors import SkiwayError
from skiway.flightsql import READING
from skiway.foundation.doors import PAGES, disclosed, outcome_of
from skiway.metastore import Realm
from skiway.metastore.queries.history import FinishedQuery, TableRead, add_finished, trim_finished
from skiway.request_path import Call
from skiway.security import utc_now
from skiway.sql.measures import Measures, operators

log = logging.getLogger("skiway.lake")

EVERY_S: Final = 5.0
MAX_PENDING: Final = 2000
"""How many queries wait to be stored. More are counted, and not stored."""

IDLE_S: Final = 2.0
"""After how long without a call a scan is over."""

TRIM_EVERY: Final = 100
"""After how many stored queries of an account the oldest ones are deleted."""

_WRITES: Final = ("insert", "update", "delete")
_OF_THE_SERVER: Final = ("skiway", "information_schema")


class Collector(ABC):
    """Has a thread that calls `flush` every few seconds, from the first `begin` on. A crash loses the last seconds."""

    def __init__(self, name: str, every_s: float) -> None:
        self._name, self._every_s = name, every_s
        self._lock = Lock()
        self._thread: Thread | None = None
        self._closing = Event()

    @abstractmethod
    def flush(self) -> None:
        """Store what was collected."""

    def begin(self) -> None:
        """Start the thread, with the lock held."""
        if self._thread is None and not self._closing.is_set():
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Store what was collected, and end the thread."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            self.flush()


class _Pending(NamedTuple):
    realm: Realm
    query: FinishedQuery
    ended: datetime


class QueryLog(Collector):
    """The queries of this server that have ended and are not stored yet."""

    def __init__(
        self,
        *,
        keep: timedelta = timedelta(days=7),
        most: int = 10_000,
        every_s: float = EVERY_S,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        super().__init__("query-history", every_s)
        self._keep, self._most, self._clock = keep, most, clock
        self._pending: dict[tuple[str, str, str], _Pending] = {}
        self._stored = Counter[str]()
        self._lost = 0

    def add(
        self,
        realm: Callable[[], Realm],
        served: ServedCall,
        call: Call,
        measures: Measures,
        began: datetime,
        error: BaseException | None,
    ) -> None:
        """Add a call that has ended, if it is part of a query. One of the explorer's pages is not."""
        if not self._most or call.principal is None or call.context.engine_kind == PAGES:
            return
        query = _finished(served, call, measures, began, self._clock(), error)
        if query is not None:
            self.put(realm(), query)

    def put(self, realm: Realm, query: FinishedQuery) -> None:
        """Add a query, or a part of one that is known already."""
        key = (realm.account_id, query.caller, query.query_id)
        with self._lock:
            known = self._pending.get(key)
            if known is None and len(self._pending) >= MAX_PENDING:
                self._lost += 1
                return
            merged = query if known is None else _merged(known.query, query, self._clock())
            self._pending[key] = _Pending(realm, merged, self._clock())
            self.begin()

    def flush(self, *, now: bool = False) -> None:
        """Store the queries that have ended; with `now`, also those of which more calls may follow."""
        at = self._clock()
        with self._lock:
            is_over = now or self._closing.is_set()
            due = {
                key: each
                for key, each in self._pending.items()
                if is_over or (at - each.ended).total_seconds() >= IDLE_S
            }
            for key in due:
                del self._pending[key]
            lost, self._lost = self._lost, 0
        if lost:
            log.warning(
                "%d queries are not in the history: more than %d ended in %g s", lost, MAX_PENDING, self._every_s
            )
        by_account: dict[str, list[_Pending]] = {}
        for (account_id, *_), each in due.items():
            by_account.setdefault(account_id, []).append(each)
        for account_id, found in by_account.items():
            try:
                add_finished(found[0].realm, [each.query for each in found], kept=self._keep)
                self._stored[account_id] += len(found)
                if self._stored[account_id] >= min(TRIM_EVERY, self._most):
                    self._stored[account_id] = 0
                    trim_finished(found[0].realm, self._most)
            except SkiwayError:
                log.warning("%d queries could not be stored in the history", len(found), exc_info=True)


def _finished(
    served: ServedCall, call: Call, measures: Measures, began: datetime, now: datetime, error: BaseException | None
) -> FinishedQuery | None:
    """The query that a call is, or a part of; None for all other calls."""
    component, _, operation = served.operation.rpartition("/")
    is_query = bool(measures.text) and (
        operation in ("table_function", READING.rpartition("/")[2]) or error is not None
    )
    is_write = operation in _WRITES
    is_scan = not is_query and (bool(measures.reads) or operation == "scan") and served.schema not in _OF_THE_SERVER
    if not (is_query or is_write or (is_scan and not component)):
        return None
    reads = [each for each in measures.reads if isinstance(each, TableRead)]
    kind = "query" if is_query else operation if is_write else "scan"
    shown = None if error is None else disclosed(error)
    duration_ms = (now - began).total_seconds() * 1000
    assert call.principal is not None
    return FinishedQuery(
        started_at=began.timestamp(),
        query_id=_id(served, is_scan=kind == "scan"),
        caller=call.principal.subject,
        door=call.context.engine_kind or ("flight sql" if component else "airport"),
        kind=kind,
        text=measures.text if is_query else _described(served, kind, reads),
        outcome="OK" if error is None or isinstance(error, GeneratorExit) else outcome_of(error),
        error="" if error is None else shown.message if shown is not None else "a fault of the server",
        duration_ms=duration_ms,
        queue_ms=measures.queue_s * 1000,
        plan_ms=measures.plan_s * 1000,
        run_ms=measures.run_s * 1000,
        rows=served.rows_in if is_write else served.rows_out,
        bytes=served.bytes_in if is_write else served.bytes_out,
        reads=reads,
        operators=operators(measures.profile),
    )


def _id(served: ServedCall, *, is_scan: bool) -> str:
    """The id of a query. The calls of a scan share the trace id of the client."""
    trace = served.request.trace_id if is_scan else ""
    return (trace if trace and trace.replace("-", "").isalnum() else served.correlation_id)[:64]


def _described(served: ServedCall, kind: str, reads: list[TableRead]) -> str:
    """What a statement of a client does, as far as the server knows."""
    table = f"{identifier(served.schema)}.{identifier(served.name)}" if served.name else "a table"
    match kind:
        case "insert":
            return f"INSERT INTO {table}"
        case "update":
            return f"UPDATE {table}"
        case "delete":
            return f"DELETE FROM {table}"  # noqa: S608 - for people
    columns = ", ".join(map(identifier, reads[0].columns)) if reads and reads[0].columns else "*"
    where = f" WHERE {reads[0].filter}" if reads and reads[0].filter else ""
    return f"SELECT {columns or '*'} FROM {table}{where}"  # noqa: S608 - for people


def _merged(known: FinishedQuery, more: FinishedQuery, now: datetime) -> FinishedQuery:
    """An entry with one more call of the same scan, which may overlap the earlier ones."""
    first, second = (known, more) if known.reads or not more.reads else (more, known)
    began = min(known.started_at, more.started_at)
    is_failed = more.outcome != "OK"
    return msgspec.structs.replace(
        first,
        started_at=began,
        outcome=more.outcome if is_failed else known.outcome,
        error=more.error if is_failed else known.error,
        duration_ms=(now.timestamp() - began) * 1000,
        rows=known.rows + more.rows,
        bytes=known.bytes + more.bytes,
        reads=[*first.reads, *second.reads],
    )
