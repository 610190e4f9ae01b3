"""How many calls DuckDB's client makes for typical statements, and how long they take if the server is some milliseconds away.

The statements, and limits for their calls, are those of `make live` (`tests/live/calls.toml`). A few of them also run with DuckDB's
iceberg extension on the REST door. That extension reads the files themselves, here from the local disk and not over the network.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Container, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.delaying import delayed
from bench.disk import scratch
from bench.report import Figure
from bench.serving import skiway_serve

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the client of `make live`
from live.calls import STATEMENTS, counted, prepare, total_calls
from live.clients import Session, find_client

DELAYS_MS: Final = (0, 5, 20)
"""How much longer a round trip takes."""
ROUNDS: Final = 5
ALSO_ICEBERG: Final = (
    "all columns with LIMIT",
    "one row by its id",
    "count(*)",
    "join of two tables",
    "INSERT of one row",
)
ICEBERG: Final = "DuckDB's iceberg extension on the REST door"

Milliseconds = dict[tuple[str, int], float]


def figures(rounds: int = ROUNDS) -> Iterator[Figure]:
    """Yield the figures of this part."""
    client = find_client()
    with ExitStack() as stack:
        place = stack.enter_context(scratch())
        doors = stack.enter_context(skiway_serve(place / "home"))
        airport = {ms: stack.enter_context(delayed(doors["airport"], ms / 1000)) for ms in DELAYS_MS}
        rest = {ms: stack.enter_context(delayed(doors["http"], ms / 1000)) for ms in DELAYS_MS}
        attach = {ms: f"ATTACH 'lake' AS db (TYPE airport, LOCATION '{location}')" for ms, location in airport.items()}
        metrics = f"{doors['http']}/metrics"
        with client.session() as session:
            prepare(session, attach[0], doors["rpc"])
            calls = {statement.name: found.total() for statement, found in counted(session, attach[0], metrics)}
            session.need("DETACH db")
            times = _times(session, attach, [statement.name for statement in STATEMENTS], rounds)
        peer_calls, peer_times = dict[str, int](), Milliseconds()
        with client.session() as session:
            missing = _load_iceberg(session)
            if missing:
                print(f"without {ICEBERG}: {missing}", file=sys.stderr)
            else:
                attach = {ms: _iceberg(location) for ms, location in rest.items()}
                session.need(attach[0])
                peer_calls = {name: _requests(session, name, metrics) for name in ALSO_ICEBERG}
                session.need("DETACH db")
                peer_times = _times(session, attach, ALSO_ICEBERG, rounds)
    for statement in STATEMENTS:
        name, peer = statement.name, peer_calls.get(statement.name)
        yield Figure(f"{name}: calls", "", calls[name], peer, aim_below=statement.calls + 1, peer_is=ICEBERG)
        for ms in DELAYS_MS:
            took, theirs = times[name, ms], peer_times.get((name, ms))
            ratio = took / theirs if theirs else None
            yield Figure(f"{name}, {ms} ms away", "ms", took, theirs, ratio, peer_is=ICEBERG)


def _times(session: Session, attach: dict[int, str], names: Container[str], rounds: int) -> Milliseconds:
    """The median times of statements by name and delay, which take turns."""
    measured = defaultdict[tuple[str, int], list[float]](list)
    for _ in range(rounds):
        for ms, text in attach.items():
            session.need(text)
            for statement in STATEMENTS:
                if statement.name in names:
                    measured[statement.name, ms].append(session.timed(statement.sql) * 1000)
            session.need("DETACH db")
    return {key: statistics.median(taken) for key, taken in measured.items()}


def _load_iceberg(session: Session) -> str:
    """Load the extension, from `ICEBERG_EXTENSION` and `AVRO_EXTENSION` if they are set; return why it cannot be loaded."""
    for name in ("avro", "iceberg"):
        path = os.environ.get(f"{name.upper()}_EXTENSION")
        for sql in [f"LOAD '{path}'"] if path else [f"INSTALL {name}", f"LOAD {name}"]:
            outcome = session.run(sql)
            if outcome.status != "ok":
                return outcome.message.partition("\n")[0]
    return ""


def _iceberg(address: str) -> str:
    return f"ATTACH 'lake' AS db (TYPE iceberg, ENDPOINT '{address}/iceberg', AUTHORIZATION_TYPE 'none')"


def _requests(session: Session, name: str, metrics: str) -> int:
    """The requests of a statement, which has run before."""
    sql = next(statement.sql for statement in STATEMENTS if statement.name == name)
    session.need(sql)
    before = total_calls(metrics, "IcebergRest")
    session.timed(sql)
    return (total_calls(metrics, "IcebergRest") - before).total()


if __name__ == "__main__":
    from bench.report import report

    report("calls", figures(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS))
