"""Two servers on PostgreSQL are upgraded one after the other, and then the store, while clients write.

The old servers know format 1 only. To run the servers of a real older version instead, set `SKIWAY_TEST_OLD_PYTHON` to the Python
of its environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from metastore.migrations.old_stores import OldStore, format_1
from ports import lasting_port
from runtime.servers import Server, environment, eventually, launch, skiway, wait_until_ready
from skiway.client import AirportClient, Metastore
from skiway.client.metastore.calls import Retries
from skiway.errors import Conflict, PreconditionFailed, SkiwayError
from skiway.storage import StoreFormat
from storage.homes import running_postgres

pytestmark = [pytest.mark.needs("postgres"), pytest.mark.full, pytest.mark.timeout(600)]

REAL = os.environ.get("SKIWAY_TEST_OLD_PYTHON")
OLD = [REAL, "-m", "skiway.cli"] if REAL else [sys.executable, str(Path(__file__).with_name("old_server.py"))]
SCHEMA = pa.schema({"id": pa.int64()})
ENOUGH = 3
"""Writes of each kind that must succeed in each phase."""

LONGEST_GAP_S = 20.0
"""The longest time without any acknowledged write, on a busy machine."""


@dataclass
class Site:
    """Two addresses, behind which old or new servers of one store run."""

    store: OldStore
    ports: tuple[tuple[int, int], ...] = field(
        default_factory=lambda: tuple((lasting_port(), lasting_port()) for _ in range(2))
    )

    @property
    def settings(self) -> tuple[str, ...]:
        return (*self.store.settings, "--set", f"warehouse.uri={(self.store.home / 'warehouse').as_uri()}")

    def arguments(self, number: int, ready: Path) -> tuple[str, ...]:
        grpc, http = (f"127.0.0.1:{port}" for port in self.ports[number])
        return (
            "--home",
            str(self.store.home),
            "--grpc",
            grpc,
            "--http",
            http,
            "--ready-file",
            str(ready),
            *self.settings,
        )

    @contextmanager
    def server(self, number: int, *, old: bool) -> Iterator[Server]:
        """Start a server at an address; do not wait until it is ready."""
        ready = self.store.home.parent / f"ready-{time.monotonic_ns()}.json"
        arguments = ("serve", *self.arguments(number, ready))
        tests = str(Path(__file__).parents[1])
        start: Callable[[], subprocess.Popen[str]] = (
            (
                lambda: subprocess.Popen(
                    [*OLD, *arguments],
                    env=environment(PYTHONPATH="" if REAL else tests),
                    text=True,
                    stderr=subprocess.PIPE,
                )
            )
            if old
            else (lambda: launch(*arguments, stderr=subprocess.PIPE))
        )
        with start() as process:
            try:
                yield Server(process, ready)
            finally:
                process.kill()

    def metastore(self, number: int) -> Metastore:
        return Metastore(f"127.0.0.1:{self.ports[number][0]}", timeout_s=10, retries=Retries(limit=0))

    def airport(self, number: int) -> AirportClient:
        return AirportClient(f"grpc://127.0.0.1:{self.ports[number][0]}", "lake")

    def is_ready(self, number: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[number][1]}/readyz", timeout=10) as response:
                return bool(response.status == 200)
        except urllib.error.HTTPError:
            return False


class Writers:
    """Clients that write to both servers and, if one does not answer, go on with the next write at the other one.

    `acknowledged` has the names of catalogs and the ids of rows.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.acknowledged: list[str | int] = []
        self.counts: Counter[tuple[str, int]] = Counter()
        self.moments: list[float] = []
        self.unexpected: list[BaseException] = []

    def _write(self, kind: str, first: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            server = (number + first) % 2
            try:
                if kind == "catalog":
                    what: str | int = f"catalog {first} {number}"
                    with self._site.metastore(server) as lake:
                        lake.catalogs.create(str(what))
                else:
                    what = first * 1_000_000 + number
                    with self._site.airport(server) as db:
                        db.insert("s.t", pa.table({"id": [what]}, schema=SCHEMA))
            except Conflict:
                continue  # another writer was faster
            except (SkiwayError, OSError):
                self._stop.wait(0.02)
                continue
            except BaseException as error:
                self.unexpected.append(error)
                raise
            self.acknowledged.append(what)
            self.moments.append(time.monotonic())
            self.counts[kind, server] += 1

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._threads = [
            threading.Thread(target=self._write, args=(kind, first), daemon=True)
            for kind in ("catalog", "row")
            for first in (0, 1)
        ]
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """Let the last writes finish."""
        self._stop.set()
        for thread in self._threads:
            thread.join(200)
            assert not thread.is_alive()

    def wait_for_writes(self, *servers: int) -> None:
        """Wait until each of these servers has acknowledged more writes of each kind."""
        goals = {
            (kind, server): self.counts[kind, server] + ENOUGH for kind in ("catalog", "row") for server in servers
        }
        eventually(lambda: all(self.counts[each] >= goal for each, goal in goals.items()), within_s=120)

    def longest_gap(self) -> float:
        return max(after - before for before, after in zip(self.moments, self.moments[1:], strict=False))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with running_postgres() as url:
        yield Site(format_1("postgres", tmp_path / "home", lambda _: url))


def lost_writes(site: Site, writers: Writers, *, server: int) -> set[str | int]:
    with site.metastore(server) as lake, site.airport(server) as db:
        rows = db.scan("s.t").read_all()["id"].to_pylist()
        assert len(rows) == len(set(rows)), "every row exists once"
        return set(writers.acknowledged) - set(rows) - {catalog.name for catalog in lake.catalogs()}


def test_no_acknowledged_write_is_lost_during_an_upgrade(site: Site) -> None:
    writers = Writers(site)
    with ExitStack() as parts:
        servers = [parts.enter_context(site.server(number, old=True)) for number in (0, 1)]
        for server in servers:
            wait_until_ready(server)
        with site.airport(0) as db:
            db.create_schema("s")
            db.create_table("s.t", SCHEMA)
        parts.enter_context(writers.writing())
        writers.wait_for_writes(0, 1)

        for number in (0, 1):
            assert servers[number].stop() == 0
            writers.wait_for_writes(1 - number)
            servers[number] = parts.enter_context(site.server(number, old=False))
            wait_until_ready(servers[number])
            writers.wait_for_writes(0, 1)
        with site.store.open() as stores:
            assert stores.pointers.format() == StoreFormat(1)

        migrated = skiway("migrate", "--home", site.store.home, *site.settings)
        assert migrated.returncode == 0, migrated.stderr
        writers.wait_for_writes(0, 1)
        with site.store.open() as stores:
            assert stores.pointers.format() == StoreFormat(2)
        assert site.is_ready(0)
        assert site.is_ready(1)

        writers.stop()
        assert writers.unexpected == []
        assert lost_writes(site, writers, server=0) == set()
        assert writers.longest_gap() < LONGEST_GAP_S
        checked = skiway("check", "--home", site.store.home, *site.settings)
        assert (checked.returncode, checked.stdout) == (0, "")

        assert servers[0].stop() == 0
        late = parts.enter_context(site.server(0, old=True))
        assert late.ended() != 0
        assert "has format 2, but this version of Skiway reads up to 1; upgrade Skiway" in late.output()


@pytest.mark.skipif(REAL is not None, reason="that version may not watch the format")
def test_old_server_stops_serving_when_the_store_is_migrated(site: Site) -> None:
    writers = Writers(site)
    with ExitStack() as parts:
        servers = [parts.enter_context(site.server(number, old=number == 0)) for number in (0, 1)]
        for server in servers:
            wait_until_ready(server)
        with site.airport(1) as db:
            db.create_schema("s")
            db.create_table("s.t", SCHEMA)
        parts.enter_context(writers.writing())
        writers.wait_for_writes(0, 1)
        assert skiway("migrate", "--home", site.store.home, *site.settings).returncode == 0
        eventually(lambda: not site.is_ready(0))
        with site.metastore(0) as lake, pytest.raises(PreconditionFailed, match="upgrade and restart this server"):
            lake.catalogs.create("too late")
        writers.wait_for_writes(1)
        assert site.is_ready(1)
        assert servers[0].stop() == 0
        assert "migrated to format 2, but this server reads up to 1" in servers[0].output()
        writers.stop()
        assert lost_writes(site, writers, server=1) == set()
