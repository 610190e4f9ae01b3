"""Two readers of the same rows: one over Airport, one straight from the files.

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

# DuckDB filters Arrow data by Acero, which warns of buffers as Flight brings them; the machines we know do not mind.
os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "ignore")

import duckdb
import pyarrow as pa
import pyarrow.flight as fl

from bench.lake_home import Twin
from skiway.client import AirportClient, Predicate

THREADS = os.cpu_count() or 1
AHEAD = 4  # batches that wait for DuckDB, of each thread

Arrived: TypeAlias = "queue.Queue[pa.RecordBatch | None]"


@dataclass(frozen=True)
class Question:
    """What is asked of a table: in SQL, and as columns and a filter for the server."""

    name: str
    select: str = "*"
    columns: Sequence[str] | None = None
    condition: str = ""
    where: Predicate | None = field(default=None, compare=False)
    rest: str = ""

    def sql(self, source: str) -> str:
        """The question to DuckDB, about anything that it can read."""
        return f"SELECT {self.select} FROM {source} {self.condition} {self.rest}"


class OverAirport:
    """Reads one table of a server."""

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
        """The rows in an Arrow table; those that a filter let through too many are taken out, as DuckDB would."""
        parts = list(self._threads.map(lambda ticket: self._read(ticket, asked), self._tickets(asked)))
        rows = pa.concat_tables(parts) if parts else self._airport.scan(self._table, columns=asked.columns).read_all()
        return self._database.sql(asked.sql("rows")).to_arrow_table() if asked.condition else rows

    def computed(self, asked: Question) -> Any:
        """What DuckDB makes of the rows while they come."""
        arrived: Arrived = queue.Queue(AHEAD * THREADS)
        threading.Thread(target=self._fetch_all, args=(asked, arrived)).start()
        coming = iter(arrived.get, None)
        try:
            first = next(coming)
            rows = pa.RecordBatchReader.from_batches(first.schema, chain([first], coming))  # noqa: F841 - SQL names it
            return self._database.sql(asked.sql("rows")).fetchall()
        finally:
            deque(coming, maxlen=0)  # nobody waits for room any more

    def _tickets(self, asked: Question) -> list[bytes]:
        found = self._airport.endpoints(self._table, columns=asked.columns, where=asked.where)
        return [endpoint.ticket for endpoint in found]

    def _read(self, ticket: bytes, asked: Question) -> pa.Table:
        rows = self._flight.do_get(fl.Ticket(ticket)).read_all()
        return rows.select(asked.columns or rows.column_names[:-1])  # the last one is the row id

    def _fetch_all(self, asked: Question, arrived: Arrived) -> None:
        def fetch(ticket: bytes) -> None:
            for chunk in self._flight.do_get(fl.Ticket(ticket)):
                arrived.put(chunk.data)

        try:
            list(self._threads.map(fetch, self._tickets(asked)))
        finally:
            arrived.put(None)


class FromFiles:
    """Reads the files of the same table."""

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
