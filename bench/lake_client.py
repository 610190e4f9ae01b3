"""Two readers of the same rows: one over Airport, one directly from the files.

The first plans as DuckDB's extension does and fetches with pyarrow's Flight client, which is the C++ code that the extension
uses, one thread per endpoint up to the number of cores. The second is DuckDB itself.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from types import TracebackType
from typing import Any, Self, TypeAlias

# DuckDB filters Arrow data with Acero, which warns about unaligned buffers as Flight delivers them; x86 and ARM read them.
os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "ignore")

import duckdb
import pyarrow as pa
import pyarrow.flight as fl

from bench.lake_home import Twin
from skiway.client import AirportClient, Predicate

THREADS = os.cpu_count() or 1
AHEAD = 4  # batches that each thread may queue for DuckDB

Arrived: TypeAlias = "queue.Queue[pa.RecordBatch | None]"


@dataclass(frozen=True)
class Question:
    """A query: as SQL for DuckDB, and as columns and a filter for the server."""

    name: str
    select: str = "*"
    columns: Sequence[str] | None = None
    condition: str = ""
    where: Predicate | None = field(default=None, compare=False)
    rest: str = ""

    def sql(self, source: str) -> str:
        """The SQL of the query over `source`, which is anything that DuckDB can read."""
        return f"SELECT {self.select} FROM {source} {self.condition} {self.rest}"


class OverAirport:
    """Reads one table from a server."""

    def __init__(self, location: str, twin: Twin) -> None:
        self._airport = AirportClient(location, twin.catalog)
        self._flight = fl.connect(location)
        self._table = twin.table
        self._threads = ThreadPoolExecutor(THREADS)
        self._database = duckdb.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._threads.shutdown(wait=False)
        self._database.close()
        self._flight.close()
        self._airport.close()

    def table(self, asked: Question) -> pa.Table:
        """The rows as an Arrow table. Rows that the server's filter let through are filtered again, as in DuckDB."""
        parts = list(self._threads.map(lambda ticket: self._read(ticket, asked), self._tickets(asked)))
        rows = pa.concat_tables(parts) if parts else self._airport.scan(self._table, columns=asked.columns).read_all()
        return self._database.sql(asked.sql("rows")).to_arrow_table() if asked.condition else rows

    def computed(self, asked: Question) -> Any:
        """The result that DuckDB computes from the rows as they arrive."""
        arrived: Arrived = queue.Queue(AHEAD * THREADS)
        threading.Thread(target=self._fetch_all, args=(asked, arrived)).start()
        coming = iter(arrived.get, None)
        try:
            first = next(coming)
            rows = pa.RecordBatchReader.from_batches(first.schema, chain([first], coming))  # noqa: F841 - SQL names it
            return self._database.sql(asked.sql("rows")).fetchall()
        finally:
            deque(coming, maxlen=0)  # unblock the threads that wait for room in the queue

    def _tickets(self, asked: Question) -> list[bytes]:
        found = self._airport.endpoints(self._table, columns=asked.columns, where=asked.where)
        return [endpoint.ticket for endpoint in found]

    def _read(self, ticket: bytes, asked: Question) -> pa.Table:
        rows = self._flight.do_get(fl.Ticket(ticket)).read_all()
        return rows.select(asked.columns or rows.column_names[:-1])  # the last column is the row id

    def _fetch_all(self, asked: Question, arrived: Arrived) -> None:
        def fetch(ticket: bytes) -> None:
            for chunk in self._flight.do_get(fl.Ticket(ticket)):
                arrived.put(chunk.data)

        try:
            list(self._threads.map(fetch, self._tickets(asked)))
        finally:
            arrived.put(None)


class FromFiles:
    """Reads the files of the same table with DuckDB."""

    def __init__(self, twin: Twin) -> None:
        self._database = duckdb.connect()
        self._source = f"read_parquet({twin.files})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._database.close()

    def table(self, asked: Question) -> pa.Table:
        return self._database.sql(asked.sql(self._source)).to_arrow_table()

    def computed(self, asked: Question) -> Any:
        return self._database.sql(asked.sql(self._source)).fetchall()
