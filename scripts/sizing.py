"""Measure what a server needs, for the section "Sizing" of docs/deploy.md: `make sizing`.

Starts a server with a new home, creates managed tables, writes to them with several clients, and prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from skiway.client import AirportClient

SKIWAY = (sys.executable, "-m", "skiway.cli")
MIB = 1024 * 1024
ROWS = pa.table({"id": range(100), "name": [f"name {number}" for number in range(100)]})


@contextmanager
def server(home: Path) -> Iterator[tuple[int, str]]:
    """A running server: its process id and its address."""
    ready = home.parent / "ready.json"
    addresses = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", str(ready))
    with subprocess.Popen([*SKIWAY, "serve", "--home", str(home), *addresses], stderr=subprocess.DEVNULL) as process:
        try:
            while not ready.exists():
                if process.poll() is not None:
                    raise SystemExit("the server did not start")
                time.sleep(0.05)
            yield process.pid, json.loads(ready.read_text())["airport"]
        finally:
            process.send_signal(signal.SIGTERM)


def memory(process: int) -> int:
    """The resident memory of a process in bytes."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def size(*places: Path) -> int:
    """The size of files and folders in bytes."""
    files = [file for place in places for file in (place.rglob("*") if place.is_dir() else [place]) if file.is_file()]
    return sum(file.stat().st_size for file in files)


def timed(work: Callable[[], object]) -> float:
    """The duration in seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def command(*arguments: str | Path) -> Callable[[], object]:
    """A command that must succeed."""
    return lambda: subprocess.run([*SKIWAY, *map(str, arguments)], check=True, capture_output=True)


def statements(
    address: str, clients: int, each: int, run: Callable[[AirportClient, int], object]
) -> tuple[float, float]:
    """Run statements with concurrent clients; return statements per second, and the 99th percentile in milliseconds."""

    def one(number: int) -> list[float]:
        with AirportClient(address, "lake") as db:
            run(db, number)  # connect first
            return [timed(lambda: run(db, number)) for _ in range(each)]

    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        times = [duration for found in pool.map(one, range(clients)) for duration in found]
    total = time.perf_counter() - began
    return len(times) / total, statistics.quantiles(times, n=100)[98] * 1000


def measure(tables: int, clients: int, each: int, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each figure."""
    home = folder / "home"
    with server(home) as (process, address):
        yield "memory of an idle server", f"{memory(process) / MIB:.0f} MiB"
        before = size(home / "pointers.db", home / "pointers.db-wal", home / "blobs")
        with AirportClient(address, "lake") as db:
            db.create_schema("s")
            for number in range(tables):
                db.create_table(f"s.t{number}", ROWS.schema)
                db.insert(f"s.t{number}", ROWS)
        stores = size(home / "pointers.db", home / "pointers.db-wal", home / "blobs") - before
        yield "metadata per managed table with one commit, in the stores", f"{stores / tables / 1024:.0f} KiB"
        yield (
            "metadata and 100 rows per managed table, in the warehouse",
            f"{size(home / 'warehouse') / tables / 1024:.0f} KiB",
        )
        rate, slow = statements(address, clients, each, lambda db, n: db.scan(f"s.t{n % tables}").read_all())
        yield f"small scans, {clients} clients", f"{rate:.0f}/s, p99 {slow:.0f} ms"
        rate, slow = statements(address, clients, each, lambda db, n: db.insert(f"s.t{n % tables}", ROWS))
        yield f"small inserts, {clients} clients, a table each", f"{rate:.0f}/s, p99 {slow:.0f} ms"
        yield f"memory after {2 * clients * each:,} statements", f"{memory(process) / MIB:.0f} MiB"
        yield (
            f"`skiway backup` of {tables} tables",
            f"{timed(command('backup', folder / 'backup', '--home', home)):.1f} s",
        )
        yield f"`skiway check` of {tables} tables", f"{timed(command('check', '--home', home)):.1f} s"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--statements", type=int, default=25, help="statements of each kind and client")
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="skiway-sizing-"))
    try:
        print("| figure | value |\n|---|---|")
        for name, value in measure(given.tables, given.clients, given.statements, folder):
            print(f"| {name} | {value} |", flush=True)
        print(f"\n{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the end, SQLite, local disk")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
