"""Three servers on PostgreSQL with very many tables and sessions, and what follows for larger ones.

    python -m bench.scale 1000000 10000

measures with another number of tables and of idle sessions. Sessions are raw clients: connections that make the calls of
DuckDB's client. From memory and CPU per session, table and call follows how many servers a number of clients needs. The model is
checked with half of the sessions, from which it predicts the memory with all of them.
"""

from __future__ import annotations

import os
import resource
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from bench.disk import scratch
from bench.explorer import SCHEMA
from bench.report import Figure, Measured, report
from bench.serving import skiway_serve
from skiway.airport.wire import protocol
from skiway.airport.wire.protocol import CatalogRequest, ScanParameters, encode
from skiway.client import AirportClient
from skiway.client.airport.calls import Trace
from skiway.metastore import Realm
from skiway.metastore.resources import catalogs, namespaces, tables
from skiway.metastore.seeding import seed_home
from skiway.model import flight_pb2 as flight
from skiway.model import v1
from skiway.storage import ABSENT, Put, Stores, open_blobs, open_pointers

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # PostgreSQL
from storage.homes import running_postgres

TABLES: Final = 100_000
SESSIONS: Final = 3_000
PER_NAMESPACE: Final = 100
SERVERS: Final = 3
CALLS: Final = 300
ACTIVE_S: Final = 10.0
WAIT_S: Final = 1.0
MIB: Final = 1 << 20
ROWS: Final = pa.table({"id": range(10), "name": [f"name {number}" for number in range(10)]})
WANTED: Final = (100_000, 10_000)
"""Tables and clients of the model."""
BUSY: Final = 0.7
"""The share of a core that calls may take before they wait for each other."""


@dataclass(frozen=True)
class Server:
    """A server, and what its processes use."""

    airport: str
    pid: int

    @property
    def memory(self) -> int:
        """Bytes of memory."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    @property
    def cpu_s(self) -> float:
        """Seconds of CPU so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def figures(count: int = TABLES, sessions: int = SESSIONS) -> Iterator[Measured]:
    """Yield the figures of this part."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with ExitStack() as stack:
        place = stack.enter_context(scratch())
        stores = {"kv.url": stack.enter_context(running_postgres()), "blob.url": (place / "blobs").as_uri()}
        began = time.perf_counter()
        seeded(stores["kv.url"], stores["blob.url"], count)
        yield Figure(f"seeding {count:,} tables", "s", time.perf_counter() - began)
        shared = stores | {"secrets.file.directory": str(place / "secrets")}
        settings = [f"{name}={value}" for name, value in shared.items()]
        servers = []
        for number in range(SERVERS):
            doors = stack.enter_context(skiway_serve(place / f"home_{number}", *settings))
            servers.append(Server(doors["airport"], int(doors["pid"])))
        yield from measured(servers, count, sessions)


def measured(servers: list[Server], count: int, sessions: int) -> Iterator[Measured]:
    """Memory per listed table and per session, CPU per call, and the servers that this means for many clients."""
    first = servers[0]
    with AirportClient(first.airport, "lake") as client:
        client.create_schema("written")
        client.create_table("written.rows", ROWS.schema)
        client.insert("written.rows", ROWS)
        idle = first.memory
        yield Figure("memory of a server before it lists tables", "MiB", idle / MIB)
        listed = min(count, 20_000)
        cpu = first.cpu_s
        for number in range(listed // PER_NAMESPACE):
            assert sum(1 for _ in client._session.calls.list_schema(f"area_{number}")) == PER_NAMESPACE
        per_table = (first.memory - idle) / listed
        listing_ms = (first.cpu_s - cpu) / listed * 1000
        yield Figure("memory per table that clients have listed", "KiB", per_table / 1024)
        yield Figure("CPU to list a table for the first time", "ms", listing_ms)
        calls = {name: cpu_per_call(first, call) for name, call in kinds(client).items()}
        for name, seconds in calls.items():
            yield Figure(f"CPU per call: {name}", "ms", seconds * 1000)
        tables_s = cpu_per_call(first, partial(count_tables, client), 5)
        yield Figure(f"CPU of SELECT count(*) FROM lake.skiway.tables, {count:,} tables", "s", tables_s)
    per_session = 0.0
    with ExitStack() as stack:
        before = [each.memory for each in servers]
        half = sessions // 2
        stack.enter_context(open_sessions(servers, half))
        per_session = sum(each.memory - old for each, old in zip(servers, before, strict=True)) / half
        yield Figure(f"memory per idle session, {half:,} sessions", "KiB", per_session / 1024)
        stack.enter_context(open_sessions(servers, sessions - half))
        found = sum(each.memory - old for each, old in zip(servers, before, strict=True))
        yield Figure(
            f"memory of {sessions:,} idle sessions, beside the model",
            "MiB",
            found / MIB,
            per_session * sessions / MIB,
            found / (per_session * sessions),
            aim_at_most=1.25,
            peer_is="the model from half of them",
        )
        statement_s = sum(calls[name] for name in STATEMENT)
        rate, used = active(servers)
        yield Figure(
            "CPU per statement of active sessions, beside the model",
            "ms",
            used * 1000,
            statement_s * 1000,
            used / statement_s,
            aim_at_most=1.5,
            peer_is="the sum of its calls, one at a time",
        )
        yield Figure("statements per second of all servers, on the cores that the sessions leave", "/s", rate)
    yield from model(idle, per_table, per_session, used, listing_ms / 1000)


STATEMENT: Final = ("create_transaction", "endpoints and DoGet")


def model(
    idle: float, per_table: float, per_session: float, statement_s: float, listing_s: float
) -> Iterator[Measured]:
    """What a server with one core serves, and how many there must be: each client runs a statement every ten seconds."""
    count, clients = WANTED
    cores = clients / 10 * statement_s / BUSY
    yield Figure(f"model: cores for {clients:,} clients with a statement every 10 s", "cores", cores)
    number = max(1, -(-int(cores * 100) // 100))
    memory = idle + count * per_table + clients / number * per_session
    yield Figure(f"model: memory of each of {number} processes, {count:,} listed tables", "MiB", memory / MIB)
    yield Figure(f"model: CPU of a server to list {count:,} tables once", "s", count * listing_s)


def seeded(pointers: str, blobs: str, count: int) -> None:
    """Create the tables. Pointers are made in memory and copied, because a transaction per table would take most of the time."""
    with Stores(open_pointers("memory://"), open_blobs(blobs)) as stores, open_pointers(pointers) as target:
        seed_home(stores)
        realm = Realm(stores, "default")
        lake = catalogs.find(realm, "lake")
        assert lake is not None
        for first in range(0, count, PER_NAMESPACE):
            spec = v1.NamespaceSpec(catalog_id=lake.value.resource_id, display_name=f"area_{first // PER_NAMESPACE}")
            space = namespaces.create(realm, v1.CreateNamespaceRequest(spec=spec)).namespace
            for number in range(first, min(count, first + PER_NAMESPACE)):
                made = v1.TableSpec(
                    display_name=f"table_{number}",
                    catalog_id=space.catalog_id,
                    namespace_id=space.resource_id,
                    schema_json=SCHEMA,
                    upstream=v1.UpstreamRef(uri=f"/data/{number}", table_display_name="t", format=v1.TF_PARQUET),
                )
                tables.create(realm, v1.CreateTableRequest(spec=made))
        found = stores.pointers.scan("")
        while batch := list(islice(found, 1000)):
            target.apply([Put(each.key, each.blob_uri, expect=ABSENT) for each in batch])


def kinds(client: AirportClient) -> dict[str, Callable[[], Any]]:
    """The calls of a client, by name."""
    calls = client._session.calls
    table = client.table("written.rows")
    trace = Trace("00000000-0000-0000-0000-000000000001", table.descriptor)
    parameters = ScanParameters(column_ids=[0, 1])
    return {
        "create_transaction": calls.create_transaction,
        "catalog_version": calls.catalog_version,
        "list_schemas": calls.list_schemas,
        "a schema of 100 tables": lambda: list(calls.list_schema("area_0")),
        "endpoints": lambda: calls.endpoints(trace, parameters),
        "endpoints and DoGet": lambda: [
            list(calls.get(trace, part.ticket.ticket)) for part in calls.endpoints(trace, parameters)
        ],
    }


def cpu_per_call(server: Server, call: Callable[[], Any], times: int = CALLS) -> float:
    """Seconds of CPU of a server for one call; the median of several series, because servers also do other things."""
    for _ in range(3):
        call()
    series = []
    for _ in range(3):
        before = server.cpu_s
        for _ in range(times):
            call()
        series.append((server.cpu_s - before) / times)
    return statistics.median(series)


def count_tables(client: AirportClient) -> None:
    """Count the rows of the table of tables, as DuckDB does."""
    assert client.count("skiway.tables") > 0


# -- sessions -----------------------------------------------------------------------------------------------------------


@contextmanager
def open_sessions(servers: list[Server], count: int) -> Iterator[None]:
    """Connections that have made the calls of ATTACH and are idle then. Each speaks HTTP/2 itself: a channel of grpcio has threads."""
    with ExitStack() as stack:
        for number in range(count):
            host, _, port = servers[number % len(servers)].airport.removeprefix("grpc://").rpartition(":")
            session = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            session.sendall(attaching(number))
            answer = b""
            while not has_ended(answer):
                received = session.recv(65536)
                assert received, "the server has closed a session"
                answer += received
        time.sleep(WAIT_S)
        yield


def has_ended(data: bytes) -> bool:
    """Whether frames of HTTP/2 end stream 1."""
    while len(data) >= 9:
        if data[3] == 1 and data[4] & 1 and data[8] == 1:
            return True
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return False


def attaching(number: int) -> bytes:
    """The bytes of a new connection with one call, the first of ATTACH."""
    action = flight.Action(type="catalog_version", body=encode(CatalogRequest("lake"))).SerializeToString()
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/arrow.flight.protocol.FlightService/DoAction",
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
        protocol.USER_AGENT: protocol.DUCKDB_USER_AGENT,
        protocol.SESSION_ID: f"00000000-0000-0000-0000-{number:012}",
        protocol.CATALOG: "lake",
        protocol.ACTION_NAME: "catalog_version",
    }
    block = b"".join(b"\0" + b"".join(bytes((len(text),)) + text.encode() for text in pair) for pair in headers.items())
    message = b"\0" + len(action).to_bytes(4, "big") + action
    return b"".join(
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", _frame(4, 0, 0), _frame(1, 4, 1, block), _frame(0, 1, 1, message))
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def active(servers: list[Server]) -> tuple[float, float]:
    """Statements per second of all servers, each called by two sessions, and seconds of CPU of the servers per statement."""
    until = time.monotonic() + ACTIVE_S
    before = sum(each.cpu_s for each in servers)
    addresses = [each.airport for each in servers] * 2
    with ProcessPoolExecutor(len(addresses), get_context("spawn")) as sessions:
        done = sum(sessions.map(statements, addresses, [until - time.monotonic()] * len(addresses)))
    return done / ACTIVE_S, (sum(each.cpu_s for each in servers) - before) / done


def statements(address: str, seconds: float) -> int:
    """Run the calls of a small statement for some time; returns how many."""
    with AirportClient(address, "lake") as client:
        calls = kinds(client)
        until, done = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            calls["create_transaction"]()
            calls["endpoints and DoGet"]()
            done += 1
        return done


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    report("scale" if not given else f"scale-{given[0]}", figures(*given))
