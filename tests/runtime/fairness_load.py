"""A server, a caller that floods it, and what that costs somebody else: `python -m runtime.fairness_load serve|flood …`."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import grpc

from runtime.test_quotas import FREE, LIST, process
from skiway.airport.wire import headers
from skiway.config.quotas import Quota
from skiway.metastore import PLATFORM, Realm
from skiway.metastore.resources import accounts, catalogs
from skiway.model import flight_pb2 as flight
from skiway.model import v1
from skiway.runtime.parts import REFUSAL_S
from skiway.storage import open_stores

ACTION = flight.Action(type="list_schemas", body=b"\x81\xaccatalog_name\xa4lake").SerializeToString()
OUTSTANDING = 64


def main() -> None:
    if sys.argv[1] == "serve":
        serve(float(sys.argv[2]))
    else:
        flood(sys.argv[2])


def serve(per_second: float) -> None:
    """Serve two accounts, print the address, and wait for the end of the standard input."""
    with open_stores("memory://") as stores, tempfile.TemporaryDirectory() as folder:
        for name in ("a1", "a2"):
            spec, account_id = v1.AccountSpec(display_name=name), v1.ResourceId(id=name)
            accounts.create(Realm(stores, PLATFORM), v1.CreateAccountRequest(spec=spec, account_id=account_id))
            catalogs.create(Realm(stores, name), v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="lake")))
        with process(Path(folder), stores, FREE, Quota(per_second=per_second, calls=0), pause_s=REFUSAL_S) as served:
            print(served.grpc, flush=True)
            sys.stdin.read()


def flood(address: str) -> None:
    """Keep many calls of account `a1` open, until this process is killed."""
    slots = threading.Semaphore(OUTSTANDING)
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(LIST)
        for number in count():
            if number == 500:  # more than the quota allows at once
                print("flooding", flush=True)
            slots.acquire()
            call.future(b"", metadata=(("authorization", "Bearer eve@a1"),)).add_done_callback(
                lambda _: slots.release()
            )


def latencies(address: str, seconds: float) -> list[float]:
    """How long small statements of account `a2` take, one after another."""
    found = []
    sent = (("authorization", "Bearer ada@a2"), (headers.ACTION_NAME, "list_schemas"))
    with grpc.insecure_channel(address) as channel:
        action, listing = channel.unary_unary(f"/{headers.SERVICE}/DoAction"), channel.unary_unary(LIST)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            started = time.perf_counter()
            action(ACTION, metadata=sent, timeout=20)
            listing(b"", metadata=sent, timeout=20)
            found.append(time.perf_counter() - started)
            time.sleep(0.025)  # fewer calls than the quota
    return found


def p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """This module in a process of its own."""
    command = [sys.executable, "-m", "runtime.fairness_load", *arguments]
    started = subprocess.Popen(
        command, cwd=Path(__file__).parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def measure(rounds: int = 5, seconds: float = 2.0, per_second: float = 100.0) -> tuple[float, float]:
    """The 99th percentile of the latency of a quiet account: alone, and while another account exceeds its quotas.

    Both are measured in turns, so that other work of the machine affects them alike.
    """
    alone: list[float] = []
    flooded: list[float] = []
    with running("serve", str(per_second)) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        latencies(address, 1)
        with running("flood", address) as flooder:
            assert flooder.stdout is not None
            flooder.stdout.readline()
            for _ in range(rounds):
                flooded += latencies(address, seconds)
                flooder.send_signal(signal.SIGSTOP)
                time.sleep(0.2)
                alone += latencies(address, seconds)
                flooder.send_signal(signal.SIGCONT)
                time.sleep(1.5)  # until it has used up what its quota allows after a pause, and exceeds it again
    return p99(alone), p99(flooded)


if __name__ == "__main__":
    main()
