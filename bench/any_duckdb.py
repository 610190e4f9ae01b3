"""`skiway.duckdb` with DuckDB 2.0 beside DuckDB's Airport extension, on the same tables of a lake.

    python -m bench.any_duckdb 500000

measures with fewer rows. Ratios are those of speed: 2 is twice as fast as the extension. Both clients have a process of their
own and take turns; the extension is that of `make live`. Without it, the peer is `read_parquet` on the same files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.disk import scratch
from bench.live import DAYS, SALES, asking, attach, in_turns
from bench.report import Figure, report
from bench.serving import skiway_serve

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the client of `make live`
from any_duckdb.versions import VERSIONS
from live.clients import ClientMissing, Session, find_client, plain_session, server_environment

ROWS: Final = 5_000_000
BULK_ROUNDS: Final = 5
SMALL_ROUNDS: Final = 21
CACHE: Final = Path(__file__).parents[1] / ".cache"

BULK: Final = {
    "all columns": "SELECT * FROM {t}",
    "one column": "SELECT amount FROM {t}",
    "group by": "SELECT store, count(*), sum(amount) FROM {t} GROUP BY store",
    "one day of 1,000": "SELECT * FROM {t} WHERE day = DATE '2021-03-04'",
}
SMALL: Final = {
    "select of ten rows": "SELECT * FROM {ten}",
    "filter of ten rows": "SELECT id FROM {ten} WHERE id = 3",
    "join of ten rows": "SELECT count(*) FROM {ten} a JOIN {ten} b USING (id)",
}
INSERTS: Final = {"insert of one row": "INSERT INTO {ten} VALUES (1, 'x')"}


class Client:
    """A process with `skiway.duckdb` that runs statements and measures them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def timed(self, sql: str) -> float:
        """Seconds that a statement takes, with its result as an Arrow table."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(sql) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError(f"the client has ended: {sql}")
        return float(answer)


def figures(rows: int = ROWS, version: str = VERSIONS[-1]) -> Iterator[Figure]:
    """Yield the figures of this part."""
    with ExitStack() as stack:
        place = stack.enter_context(scratch())
        doors = stack.enter_context(skiway_serve(place / "home"))
        ours = stack.enter_context(client(doors["airport"], version))
        source = place / "sales.parquet"
        ours.timed("CREATE SCHEMA lake.shop")
        ours.timed(f"COPY ({SALES.format(days=DAYS, rows=rows)}) TO '{source}' (FORMAT parquet)")
        ours.timed(f"CREATE TABLE lake.shop.sales AS SELECT * FROM '{source}'")
        ours.timed("CREATE TABLE lake.shop.ten AS SELECT i AS id, 'n' || i AS name FROM range(10) r(i)")
        files = {
            name: sorted(map(str, place.glob(f"home/warehouse/**/{name}*/**/*.parquet"))) for name in ("sales", "ten")
        }
        names = {"t": "lake.shop.sales", "ten": "lake.shop.ten"}
        try:
            peer = stack.enter_context(find_client().session("SET enable_progress_bar = false"))
            attach(peer, "lake", doors["airport"], "lake")
            theirs, what, statements = names, "the Airport extension", BULK | SMALL | INSERTS
        except ClientMissing:
            peer = stack.enter_context(plain_session())
            theirs = {"t": f"read_parquet({files['sales']})", "ten": f"read_parquet({files['ten']})"}
            what, statements = "read_parquet on the same files", BULK | SMALL
        yield from _compared(ours, peer, statements, names, theirs, what, version)


def _compared(
    ours: Client,
    peer: Session,
    statements: dict[str, str],
    names: dict[str, str],
    theirs: dict[str, str],
    what: str,
    version: str,
) -> Iterator[Figure]:
    for name, sql in statements.items():
        rounds = BULK_ROUNDS if name in BULK else SMALL_ROUNDS
        times = in_turns(_asking(ours, sql.format(**names)), asking(peer, sql, **theirs), rounds)
        aim = None if "Airport" not in what else 1.0 if name in BULK else 0.8
        title = f"DuckDB {version}: {name}"
        yield Figure(title, "ms", times.ours * 1000, times.peer * 1000, 1 / times.ratio, aim=aim, peer_is=what)


def _asking(client: Client, sql: str) -> Callable[[], float]:
    return lambda: client.timed(sql)


@contextmanager
def client(location: str, version: str) -> Iterator[Client]:
    """A client with a version of DuckDB, which is downloaded once."""
    folder = CACHE / f"duckdb-{version}"
    if not folder.is_dir():
        install = ["-m", "uv", "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
        subprocess.run([sys.executable, *install, "--target", str(folder), f"duckdb=={version}"], check=True)
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    command = [sys.executable, "-m", "bench.any_client", location]
    pipe = subprocess.PIPE
    env = {**server_environment(), "PYTHONPATH": path}
    with subprocess.Popen(command, env=env, text=True, stdin=pipe, stdout=pipe) as process:
        try:
            yield Client(process)
        finally:
            process.kill()


if __name__ == "__main__":
    report("any_duckdb", figures(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS))
