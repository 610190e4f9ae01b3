"""A server, callers that flood or abuse it, and what that costs another account.

`python -m runtime.fairness_load serve|flood|abuse …`
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa

from runtime.test_quotas import FREE, LIST, process
from skiway.airport.wire import protocol
from skiway.client import AirportClient
from skiway.config.server import Http, Quota
from skiway.errors import SkiwayError
from skiway.metastore import PLATFORM, Realm
from skiway.metastore.resources import accounts, catalogs
from skiway.model import flight_pb2 as flight
from skiway.model import v1
from skiway.runtime.http.door import HttpDoor
from skiway.runtime.lifecycle import favor_short_calls
from skiway.runtime.parts import REFUSAL_S
from skiway.storage import open_stores

ACTION = flight.Action(type="list_schemas", body=b"\x81\xaccatalog_name\xa4lake").SerializeToString()
OUTSTANDING = 64


def main() -> None:
    if sys.argv[1] == "serve":
        serve(float(sys.argv[2]))
    elif sys.argv[1] == "flood":
        flood(sys.argv[2])
    else:
        abuse(sys.argv[2], sys.argv[3])


def serve(per_second: float) -> None:
    """Serve two accounts, print the address, and wait for the end of the standard input."""
    with open_stores("memory://") as stores, tempfile.TemporaryDirectory() as folder:
        for name in ("a1", "a2"):
            spec, account_id = v1.AccountSpec(display_name=name), v1.ResourceId(id=name)
            accounts.create(Realm(stores, PLATFORM), v1.CreateAccountRequest(spec=spec, account_id=account_id))
            catalogs.create(Realm(stores, name), v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="lake")))
        with process(Path(folder), stores, FREE, Quota(per_second=per_second, calls=0), pause_s=REFUSAL_S) as served:
            door = HttpDoor(served.app, Http(address="127.0.0.1:0"), drain_s=1.0)
            favor_short_calls()  # as a server does
            print(served.grpc, door.start()["http"], flush=True)
            sys.stdin.read()
            door.drain()
            door.close()


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


def abuse(address: str, http: str) -> None:
    """Do at once, as account `a1`, all that could block a server, until this process is killed."""
    rows = pa.table({"id": pa.array(range(2_000_000))})
    lake = AirportClient(f"grpc://{address}", "lake", token="eve@a1")
    lake.create_schema("s")
    lake.create_table_as("s.big", rows)
    readers = [iter(lake.scan("s.big")) for _ in range(8)]
    for reader in readers:
        next(reader)  # and never read again
    for _ in range(8):
        threading.Thread(target=_insert_slowly, args=(lake, rows.slice(0, 10)), daemon=True).start()
    host, _, port = http.removeprefix("http://").partition(":")
    threading.Thread(target=_open_unfinished, args=(host, int(port)), daemon=True).start()
    values = list(range(1_000_000))
    plan = json.dumps({"filter": {"type": "in", "term": "id", "values": values}}).encode()
    target = f"{http}/v1/lake/namespaces/s/tables/big/plan"
    condition = json.dumps({"filters": [among(9_000)], "column_binding_names_by_index": ["id"]})
    for _ in range(4):
        threading.Thread(target=_plan_forever, args=(target, plan), daemon=True).start()
        threading.Thread(target=_filter_forever, args=(lake, condition), daemon=True).start()
    time.sleep(2)
    print("abusing", flush=True)
    threading.Event().wait()


def among(count: int) -> dict[str, Any]:
    """A pushed-down IN with so many values, which is just small enough to be parsed."""
    kind = {"id": "BIGINT", "type_info": None}
    column = {"expression_class": "BOUND_COLUMN_REF", "return_type": kind, "binding": {"column_index": 0}, "depth": 0}
    values = [
        {"expression_class": "BOUND_CONSTANT", "value": {"type": kind, "is_null": False, "value": number}}
        for number in range(count)
    ]
    boolean = {"id": "BOOLEAN", "type_info": None}
    return {
        "expression_class": "BOUND_OPERATOR",
        "type": "COMPARE_IN",
        "return_type": boolean,
        "children": [column, *values],
    }


def _insert_slowly(lake: AirportClient, rows: pa.Table) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows.to_batches()
        threading.Event().wait()

    lake.insert("s.big", pa.RecordBatchReader.from_batches(rows.schema, batches()))


def _open_unfinished(host: str, port: int) -> None:
    """Keep 1,100 connections open whose headers are unfinished, and replace those that the server closes."""
    clients: deque[socket.socket] = deque()
    while True:
        client = socket.create_connection((host, port))
        client.sendall(b"GET / HTTP/1.1\r\nhost: ")
        clients.append(client)
        if len(clients) > 1100:
            clients.popleft().close()
            time.sleep(0.005)


def _plan_forever(target: str, body: bytes) -> None:
    sent = {"authorization": "Bearer eve@a1", "content-type": "application/json"}
    while True:
        with suppress(OSError):
            urllib.request.urlopen(urllib.request.Request(target, body, sent), timeout=60).read()


def _filter_forever(lake: AirportClient, condition: str) -> None:
    while True:
        with suppress(SkiwayError):
            lake.endpoints("s.big", where=condition)


def latencies(address: str, seconds: float) -> list[float]:
    """How long small statements of account `a2` take, one after another."""
    return alternating([address], seconds)[address]


def alternating(addresses: list[str], seconds: float) -> dict[str, list[float]]:
    """How long small statements of account `a2` take, one after another, on each of the servers in turn."""
    found: dict[str, list[float]] = {address: [] for address in addresses}
    sent = (("authorization", "Bearer ada@a2"), (protocol.ACTION_NAME, "list_schemas"))
    with ExitStack() as open_channels:
        calls = {}
        for address in addresses:
            channel = open_channels.enter_context(grpc.insecure_channel(address))
            calls[address] = channel.unary_unary(f"/{protocol.SERVICE}/DoAction"), channel.unary_unary(LIST)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for address, (action, listing) in calls.items():
                started = time.perf_counter()
                action(ACTION, metadata=sent, timeout=20)
                listing(b"", metadata=sent, timeout=20)
                found[address].append(time.perf_counter() - started)
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


def measure_flood(rounds: int = 5, seconds: float = 2.0, per_second: float = 100.0) -> tuple[float, float]:
    """The 99th percentile of the latency of a quiet account: alone, and while another account floods the server.

    Both are measured in turns, so that other work of the machine affects them alike.
    """
    alone: list[float] = []
    flooded: list[float] = []
    with running("serve", str(per_second)) as server:
        address, _ = _addresses(server)
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


def measure_abuse(seconds: float = 15.0, per_second: float = 100.0) -> tuple[float, float]:
    """The 99th percentile of the latency of a quiet account: on a server of its own, and on one that another account abuses.

    Both servers are on this machine at the same time, and get the same statements in turn. So the time that the abusing client
    takes from the processors, which it would not take on another machine, affects them alike.
    """
    with running("serve", str(per_second)) as quiet_server, running("serve", str(per_second)) as abused_server:
        (quiet, _), (abused, http) = _addresses(quiet_server), _addresses(abused_server)
        with running("abuse", abused, http) as abuser:
            assert abuser.stdout is not None
            abuser.stdout.readline()
            alternating([quiet, abused], 3)  # until it has used up what its quota allows at first
            found = alternating([quiet, abused], seconds)
    return p99(found[quiet]), p99(found[abused])


def _addresses(server: subprocess.Popen[str]) -> list[str]:
    """Where a server listens, for gRPC and HTTP, once it does."""
    assert server.stdout is not None
    return server.stdout.readline().split()


if __name__ == "__main__":
    main()
