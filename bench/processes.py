"""`server.processes`: calls and scans per second of a lake with one process, and with one for each core.

Eight connections call at the same time. A connection stays with one process, so a single client is not served faster. The
clients need cores, too: on a small machine they take most of what more processes would gain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from typing import Final

import pyarrow as pa
import pyarrow.flight as fl

from bench.disk import scratch
from bench.load import headers
from bench.report import Figure
from bench.serving import skiway_serve
from bench.turns import taken_in_turns
from skiway.airport.wire.protocol import CatalogRequest, encode
from skiway.client import AirportClient

PROCESSES: Final = max(2, os.cpu_count() or 2)
CONNECTIONS: Final = 8
CALLS: Final = 200
SCANS: Final = 4
ROUNDS: Final = 5
ROWS: Final = 500_000


def figures() -> Iterator[Figure]:
    """Yield the figures of this part."""
    with ExitStack() as stack:
        clients = stack.enter_context(ProcessPoolExecutor(CONNECTIONS, get_context("spawn")))
        many, one = (_served(stack, processes) for processes in (PROCESSES, 1))
        for name, work, amount in (
            ("calls of catalog_version", _version, CONNECTIONS * CALLS),
            (f"scans of {ROWS:,} rows", _scan, CONNECTIONS * SCANS),
        ):
            times = taken_in_turns(
                partial(_at_once, clients, many, work), partial(_at_once, clients, one, work), ROUNDS
            )
            yield Figure(
                f"{PROCESSES} processes: {name}",
                "/s",
                amount / times.ours,
                amount / times.peer,
                1 / times.ratio,
                peer_is="one process",
            )


def _served(stack: ExitStack, processes: int) -> str:
    home = stack.enter_context(scratch()) / "home"
    location = stack.enter_context(skiway_serve(home, f"server.processes={processes}"))["airport"]
    with AirportClient(location, "lake") as lake:
        lake.create_schema("s")
        rows = pa.table({"a": pa.array(range(ROWS)), "b": pa.array(float(number) for number in range(ROWS))})
        lake.create_table("s.t", rows.schema)
        lake.insert("s.t", rows)
    return location


def _at_once(clients: Executor, location: str, work: Callable[[str], None]) -> None:
    """Run the work on several connections at once, in processes of their own: one client has one connection."""
    list(clients.map(work, [location] * CONNECTIONS))


def _version(location: str) -> None:
    client, options = fl.connect(location), headers("catalog_version")
    for _ in range(CALLS):
        list(client.do_action(fl.Action("catalog_version", encode(CatalogRequest("lake"))), options))


def _scan(location: str) -> None:
    with AirportClient(location, "lake") as lake:
        for _ in range(SCANS):
            assert lake.scan("s.t").read_all().num_rows == ROWS
