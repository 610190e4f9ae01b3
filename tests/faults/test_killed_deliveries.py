"""A server that is killed while it delivers an event: the next one sends it again, and every event arrives in order."""

from __future__ import annotations

import json
import signal
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from pathlib import Path

import pytest

from runtime.servers import eventually, started
from skiway.client import Metastore

pytestmark = pytest.mark.timeout(180)

SECRET = "a secret of many bytes"
RULES = ("poll_every=50ms", "timeout=1s", "max_attempts=1000", "max_backoff=1s")
SETTINGS = tuple(part for each in RULES for part in ("--set", f"webhooks.{each}"))


class SlowEndpoint(ThreadingHTTPServer):
    """Accepts events, but answers only while `answers` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.received = threading.Event(), list[int]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"

    def has_received(self, count: int) -> bool:
        return len(self.received) >= count


class Handler(BaseHTTPRequestHandler):
    server: SlowEndpoint

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.received.append(event["sequence"])
        if self.server.answers.wait(200):
            self.send_response(204)
            self.end_headers()

    def log_message(self, *_: object) -> None:
        """Stay silent."""


def test_events_arrive_at_least_once_and_in_order(tmp_path: Path) -> None:
    with SlowEndpoint() as endpoint:
        threading.Thread(target=endpoint.serve_forever, args=(0.01,), daemon=True).start()
        for number in range(3):
            with started(tmp_path / "home", *SETTINGS) as server, Metastore(server.address) as lake:
                if not number:
                    lake.webhooks.create("hook", url=endpoint.url, events=["catalog.created"], secret=SECRET)
                begun = len(endpoint.received) + 1
                for name in range(3):
                    lake.catalogs.create(f"c{number}-{name}")
                eventually(partial(endpoint.has_received, begun))
                server.stop(signal.SIGKILL)
        endpoint.answers.set()
        with started(tmp_path / "home", *SETTINGS) as server, Metastore(server.address) as lake:
            created = [each.sequence for each in lake.events() if (each.kind, each.action) == ("catalog", "created")]
            wanted = created[-9:]  # the first one is that of the new home
            eventually(lambda: endpoint.received[-1:] == wanted[-1:])
            eventually(lambda: lake.webhooks.get("hook").position == wanted[-1])
        endpoint.shutdown()
    assert [
        sequence for sequence, _ in groupby(endpoint.received)
    ] == wanted  # repeated, but never skipped or reordered
    assert endpoint.received.count(wanted[0]) >= 4  # once by each killed server, and then accepted
