"""DuckDB with its Airport extension, as users run it: small statements, inserts, scans and wide tables.

Statements on a library server are compared with a server that repeats the same answers (`bench.replaying`) and with airport-go,
if its sources are there (`bench.go_peer`), and statements on the lake with DuckDB's `read_parquet` and COPY on the same files.
All sides take turns in one client. The client is that of `make live`, which explains how to get it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, cast

from bench import go_peer
from bench.disk import scratch
from bench.report import Figure
from bench.servers import running
from bench.serving import skiway_serve, started
from bench.turns import Times, taken_in_turns
from skiway.client import Metastore
from skiway.foundation.native import chosen

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the client of `make live`
from live.clients import Session, find_client

ROUNDS: Final = 15
LAKE_ROUNDS: Final = 7
LAKE_ROWS: Final = 5_000_000
DAYS: Final = 1000

SMALL: Final = {
    "select of ten rows": "SELECT * FROM {db}.s.ten",
    "aggregate of one column": "SELECT sum(value) FROM {db}.s.big",
    "aggregate of four columns": "SELECT sum(id), sum(key), sum(value), max(name) FROM {db}.s.big",
    "filter to one row": "SELECT * FROM {db}.s.big WHERE id = 777777",
    "insert of one row": "INSERT INTO {db}.s.sink VALUES (1, 2, 3.0, 'x')",
    "insert of 200,000 rows": "INSERT INTO {db}.s.sink SELECT range, range, range, 'name' FROM range(200000)",
    "scalar function on 102,400 rows": "SELECT sum({db}.s.echo(range)) FROM range(102400)",
}
"""Statements on a library server with a million rows, whose data is in memory."""

SALES: Final = """
    SELECT range AS id, (random() * 1000000)::BIGINT AS customer, (random() * 500)::INTEGER AS store,
           random() * 1000 AS amount, random()::FLOAT AS rate, 'customer-' || (random() * 50000)::INTEGER AS name,
           ['open', 'paid', 'sent', 'lost'][1 + (range % 4)] AS state,
           DATE '2020-01-01' + (range * {days} // {rows})::INTEGER AS day,
           TIMESTAMP '2020-01-01' + to_microseconds(range * 1000) AS at, random() < 0.9 AS good
    FROM range({rows})
"""

SCANS: Final = {
    "all columns": ("SELECT * FROM {t}", 1.5),
    "one column": ("SELECT amount FROM {t}", 2.5),
    "group by": ("SELECT store, count(*), sum(amount) FROM {t} GROUP BY store", 2.5),
    "one day of 1,000": ("SELECT * FROM {t} WHERE day = DATE '2021-03-04'", 2.5),
    "one row by its id": ("SELECT * FROM {t} WHERE id = 3456789", 2.5),
    "limit 10": ("SELECT * FROM {t} LIMIT 10", 2.5),
    "count(*)": ("SELECT count(*) FROM {t}", None),
}
"""Statements on the lake, and how many times as long as `read_parquet` they may take."""

REPEATING: Final = "a grpcio server that repeats the answers"
GO: Final = "airport-go, a server in Go"
GO_AIMS: Final = {"select of ten rows": 1.11}
NATIVE_AIMS: Final = {"select of ten rows": 0.7}
WIDE: Final = 1500
WIDEST: Final = 10_000


def figures(total: int = LAKE_ROWS) -> Iterator[Figure]:
    """Yield the figures of this part."""
    client = find_client()
    with client.session("SET enable_progress_bar = false") as session:
        yield from library(session)
        yield from lake(session, total)
        yield from wide(session)


# -- a library server ---------------------------------------------------------------------------------------------------


def library(session: Session) -> Iterator[Figure]:
    """Compare a server of the library with one that repeats its answers."""
    with ExitStack() as stack:
        port = stack.enter_context(running("million"))
        address = f"127.0.0.1:{port}"
        peer = stack.enter_context(started([sys.executable, "-m", "bench.replaying", address]))
        attach(session, "ours", f"grpc://{address}", "demo")
        attach(session, "peer", peer["airport"], "demo")
        for name, sql in SMALL.items():
            times = in_turns(asking(session, sql, db="ours"), asking(session, sql, db="peer"), ROUNDS)
            yield _figure(name, times, REPEATING)
        session.need("DETACH peer")
        if go_peer.is_available():
            attach(session, "go", stack.enter_context(go_peer.serving(1_000_000)), "")
            for name, sql in SMALL.items():
                times = in_turns(asking(session, sql, db="ours"), asking(session, sql, db="go"), ROUNDS)
                yield _figure(f"{name}, beside airport-go", times, GO, at_most=GO_AIMS.get(name))
            session.need("DETACH go")
        if chosen("auto") == "native":
            attach(
                session,
                "native",
                f"grpc://127.0.0.1:{stack.enter_context(running('million', transport='native'))}",
                "demo",
            )
            for name, sql in SMALL.items():
                times = in_turns(asking(session, sql, db="native"), asking(session, sql, db="ours"), ROUNDS)
                at_most = NATIVE_AIMS.get(name, 1.0)
                yield _figure(f"{name}, native beside grpcio", times, "the same server on grpcio", at_most=at_most)
            session.need("DETACH native")
        session.need("DETACH ours")


# -- the lake -----------------------------------------------------------------------------------------------------------


def lake(session: Session, total: int) -> Iterator[Figure]:
    """Compare the lake with DuckDB on the same files."""
    with ExitStack() as stack:
        place = stack.enter_context(scratch())
        doors = stack.enter_context(skiway_serve(place / "home"))
        address = doors["airport"].removeprefix("grpc://")
        repeating = stack.enter_context(started([sys.executable, "-m", "bench.replaying", address]))
        source = place / "sales.parquet"
        session.need(f"COPY ({SALES.format(days=DAYS, rows=total)}) TO '{source}' (FORMAT parquet)")
        session.need(f"CREATE OR REPLACE TEMP TABLE sales AS SELECT * FROM read_parquet('{source}')")
        attach(session, "lake", doors["airport"], "lake")
        session.need("CREATE SCHEMA lake.shop")
        tables = iter(range(100))

        def create() -> float:
            return session.timed(f"CREATE TABLE lake.shop.sales_{next(tables)} AS SELECT * FROM sales")

        def copy() -> float:
            return session.timed(f"COPY sales TO '{place}/copy.parquet' (FORMAT parquet, COMPRESSION zstd)")

        times = in_turns(create, copy, 3)
        yield _figure(f"lake: CREATE TABLE AS, {total:,} rows", times, "DuckDB's COPY with zstd", at_most=1.0)
        files = sorted(str(each) for each in place.glob("home/warehouse/**/*.parquet"))
        names = {each.split("/data/")[0] for each in files}
        one = [each for each in files if each.startswith(min(names))]
        ours, peer = "lake.shop.sales_0", f"read_parquet({one})"
        for name, (sql, aim) in SCANS.items():
            times = in_turns(asking(session, sql, t=ours), asking(session, sql, t=peer), LAKE_ROUNDS)
            yield _figure(f"lake: {name}", times, "DuckDB's read_parquet", at_most=aim)
        attach(session, "peer", repeating["airport"], "lake")
        for name, (sql, _) in SCANS.items():
            repeated = asking(session, sql, t=ours.replace("lake", "peer", 1))
            times = in_turns(asking(session, sql, t=ours), repeated, LAKE_ROUNDS)
            yield _figure(f"lake: {name}, beside repeated answers", times, REPEATING)
        session.need("DETACH peer")
        session.need("CREATE TABLE lake.shop.few (id BIGINT, name VARCHAR)")
        insert = asking(session, "INSERT INTO lake.shop.few VALUES (1, 'x')")
        alone = in_turns(insert, insert, ROUNDS)
        yield Figure("lake: insert of one row", "ms", alone.ours * 1000, aim_below=15)
        session.need("DETACH lake")


def wide(session: Session) -> Iterator[Figure]:
    """Measure tables with very many columns. Statistics take one call per column, and DuckDB requests them twice."""
    with ExitStack() as stack:
        place = stack.enter_context(scratch())
        doors = stack.enter_context(skiway_serve(place / "home"))
        address = doors["airport"].removeprefix("grpc://")
        repeating = stack.enter_context(started([sys.executable, "-m", "bench.replaying", address]))
        with Metastore(doors["rpc"]) as metastore:
            metastore.catalogs.update("lake", properties={"statistics.offer": "always"})
        attach(session, "lake", doors["airport"], "lake")
        session.need("CREATE SCHEMA lake.s")
        seconds = [session.timed(f"CREATE TABLE lake.s.widest_{k} ({_columns(WIDEST)})") for k in range(3)]
        yield Figure(f"lake: creating {WIDEST:,} columns", "s", min(seconds), aim_below=2)
        session.need(f"CREATE TABLE lake.s.wide ({_columns(WIDE)})")
        session.need(f"INSERT INTO lake.s.wide SELECT {', '.join(['i'] * WIDE)} FROM range(100) t(i)")
        everything = ", ".join(f"min(c{i})" for i in range(WIDE))
        attach(session, "peer", repeating["airport"], "lake")
        explain = f"EXPLAIN SELECT {everything} FROM {{db}}.s.wide"
        times = in_turns(asking(session, explain, db="lake"), asking(session, explain, db="peer"), 5)
        name = f"lake: statistics of {WIDE:,} columns, {2 * WIDE:,} calls"
        yield Figure(name, "s", times.ours, times.peer, times.ratio, aim_below=1.5, peer_is=REPEATING)
        session.need("DETACH lake")
        session.need("DETACH peer")


def _columns(count: int) -> str:
    return ", ".join(f"c{number} BIGINT" for number in range(count))


def attach(session: Session, alias: str, location: str, catalog: str) -> None:
    session.need(f"ATTACH '{catalog}' AS {alias} (TYPE airport, LOCATION '{location}')")


def in_turns(ours: Callable[[], float], peer: Callable[[], float], rounds: int) -> Times:
    """Measure both in turns. The client measures: each call returns the duration of its statement."""
    return taken_in_turns(ours, peer, rounds, measure=lambda call: cast(float, call()))


def asking(session: Session, sql: str, **names: Any) -> Callable[[], float]:
    """A call that runs a statement, and returns how long the client took."""
    statement = sql.format(**names)
    return lambda: session.timed(statement)


def _figure(name: str, times: Times, peer: str, *, at_most: float | None = None) -> Figure:
    return Figure(name, "ms", times.ours * 1000, times.peer * 1000, times.ratio, aim_at_most=at_most, peer_is=peer)


if __name__ == "__main__":
    from bench.report import report

    report("live", figures(int(sys.argv[1]) if len(sys.argv) > 1 else LAKE_ROWS))
