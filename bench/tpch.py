"""TPC-H in the lake, through DuckDB's client: with the statistics of columns offered always, never, and by default.

    python -m bench.tpch 0.1

measures at another scale than 1. The server is 0, 5 and 20 ms away. DuckDB's extension tpch makes the data and the queries: the one in
`TPCH_EXTENSION`, or else the one that DuckDB installs. All three read the same tables, which were profiled, and take turns: the property
`statistics.offer` counts when a client attaches.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.delaying import delayed
from bench.disk import scratch
from bench.live import attach
from bench.report import Figure
from bench.serving import skiway_serve
from skiway.client import Metastore

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the client of `make live`
from live.clients import Session, find_client

TABLES: Final = ("region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem")
OFFERS: Final = ("auto", "always", "never")
DELAYS_MS: Final = (0, 5, 20)
ROUNDS: Final = 10
AIM: Final = {0: 1.03, 20: 1 / 1.5}
"""How many times as long as with `always` the queries may take with `auto`."""

Times = dict[tuple[str, int], list[float]]


def figures(scale: float = 1, rounds: int = ROUNDS, delays: tuple[int, ...] = DELAYS_MS) -> Iterator[Figure]:
    """Yield the figures of this part."""
    with ExitStack() as stack:
        place = stack.enter_context(scratch())
        doors = stack.enter_context(skiway_serve(place / "home"))
        session = stack.enter_context(find_client().session("SET enable_progress_bar = false"))
        _load(session, doors, scale)
        queries = [(int(number), sql) for number, sql in session.rows("FROM tpch_queries()") if number and sql]
        for ms in delays:
            location = stack.enter_context(delayed(doors["airport"], ms / 1000))
            for offer in OFFERS:
                with Metastore(doors["rpc"]) as lake:
                    lake.catalogs.update("lake", properties={"statistics.offer": offer})
                attach(session, f"{offer}_{ms}", location, "lake")
                session.need(f"FROM {offer}_{ms}.tpch.region")  # lists the tables
            times = _measured(session, [sql for _, sql in queries], ms, rounds)
            yield from _compared(times, ms, scale)


def _load(session: Session, doors: dict[str, str], scale: float) -> None:
    """Create the tables, and profile them."""
    extension = os.environ.get("TPCH_EXTENSION")
    for sql in [f"LOAD '{extension}'"] if extension else ["INSTALL tpch", "LOAD tpch"]:
        session.need(sql)
    session.need(f"CALL dbgen(sf = {scale})")
    attach(session, "loading", doors["airport"], "lake")
    session.need("CREATE SCHEMA loading.tpch")
    for table in TABLES:
        session.need(f"CREATE TABLE loading.tpch.{table} AS FROM memory.main.{table}")
        session.need(f"DROP TABLE memory.main.{table}")
        session.need(f"CALL loading.skiway.profile('tpch.{table}', wait_s => 180)")


def _measured(session: Session, queries: list[str], ms: int, rounds: int) -> Times:
    """The seconds of all queries of each round."""
    times: Times = defaultdict(list)
    for number in range(rounds):
        total = dict.fromkeys(OFFERS, 0.0)
        for query, sql in enumerate(queries):
            first = (number + query) % len(OFFERS)
            for offer in OFFERS[first:] + OFFERS[:first]:
                session.need(f"USE {offer}_{ms}.tpch")
                total[offer] += session.timed(sql)
        for offer, seconds in total.items():
            times[offer, ms].append(seconds)
    return times


def _compared(times: Times, ms: int, scale: float) -> Iterator[Figure]:
    for offer in ("auto", "never"):
        ours, peer = times[offer, ms], times["always", ms]
        ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, peer, strict=True))
        yield Figure(
            f"22 queries at scale {scale:g}, {ms} ms away, {offer}",
            "s",
            statistics.median(ours),
            statistics.median(peer),
            ratio,
            aim_at_most=AIM.get(ms) if offer == "auto" else None,
            peer_is="statistics.offer = always",
        )


if __name__ == "__main__":
    from bench.report import report

    given = [float(text) for text in sys.argv[1:3]]
    scale = given[0] if given else 1
    report("tpch" if scale == 1 else f"tpch-{scale:g}", figures(scale, int(given[1]) if len(given) > 1 else ROUNDS))
