"""The metastore: lookups, commits and listings among 100,000 tables, in process and over gRPC, in memory and on disk.

The peer on disk is PyIceberg's SqlCatalog on the same kind of file, the catalog that Iceberg users know. It stores no
schema, so its commits write one file less and its lookups read one file more. Over gRPC the peer is an echo with bare
grpcio, the minimum cost of a call.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from bench.disk import scratch
from bench.metastore_server import Remote, served
from bench.report import Figure, Latency
from bench.turns import taken_in_turns
from skiway.metastore import Realm
from skiway.metastore.resources import directory, namespaces, tables
from skiway.metastore.seeding import seed_home
from skiway.model import v1
from skiway.storage import CallCounter, Stores, open_stores
from skiway.storage.blobs.cache import with_blob_cache

TABLES = 100_000
SMALL = 1_000
SCHEMA = '{"type": "struct", "fields": [{"id": 1, "name": "id", "required": true, "type": "long"}]}'
Call = Callable[[int], object]


@dataclass(frozen=True)
class Shop:
    """A namespace with many tables, and requests for them."""

    realm: Realm
    namespace: v1.Namespace
    ids: list[v1.ResourceId]

    def spec(self, name: str) -> v1.CreateTableRequest:
        spec = v1.TableSpec(
            display_name=name,
            catalog_id=self.namespace.catalog_id,
            namespace_id=self.namespace.resource_id,
            schema_json=SCHEMA,
        )
        return v1.CreateTableRequest(spec=spec)

    def requests(self, made: Iterator[int]) -> dict[str, Callable[[int], Any]]:
        """For each kind of call, a function from a number to a request."""
        size = len(self.ids)

        def resolve(number: int) -> v1.ResolveTableRequest:
            name = f"table_{number * 7919 % size:06d}"
            return v1.ResolveTableRequest(ref=v1.NameRef(catalog="lake", path=["shop"], name=name))

        def page(number: int) -> v1.ListTablesRequest:
            return v1.ListTablesRequest(namespace_id=self.namespace.resource_id, page=v1.PageRequest(page_size=1000))

        return {
            "get by id": lambda number: v1.GetTableRequest(table_id=self.ids[number * 7919 % size]),
            "resolve by name": resolve,
            "create table": lambda number: self.spec(f"new_{next(made):09d}"),
            "list 1,000": page,
        }


ACTS: dict[str, tuple[Any, str, type[Any]]] = {
    "get by id": (tables.get, "TableService/GetTable", v1.GetTableResponse),
    "resolve by name": (directory.resolve_table, "DirectoryService/ResolveTable", v1.ResolveTableResponse),
    "create table": (tables.create, "TableService/CreateTable", v1.CreateTableResponse),
    "list 1,000": (tables.list_, "TableService/ListTables", v1.ListTablesResponse),
}
TIMES = {"get by id": 4000, "resolve by name": 4000, "create table": 400, "list 1,000": 24}
READS = 1000
AIM_ECHOES = 3.0  # at most this many times as long as a bare echo
AIMS_MS = {"get by id": 1.0, "resolve by name": 1.0, "create table": 5.0}


def filled(stores: Stores, size: int) -> Shop:
    """Create `size` tables with the metastore's own calls."""
    seed_home(stores)
    realm = Realm(stores, "default")
    found = directory.resolve_catalog(realm, v1.ResolveCatalogRequest(ref=v1.NameRef(catalog="lake")))
    spec = v1.NamespaceSpec(display_name="shop", catalog_id=found.resource_id)
    shop = Shop(realm, namespaces.create(realm, v1.CreateNamespaceRequest(spec=spec)).namespace, [])
    for number in range(size):
        shop.ids.append(tables.create(realm, shop.spec(f"table_{number:06d}")).table.resource_id)
    return shop


@contextmanager
def on_disk(size: int) -> Iterator[tuple[Path, list[v1.ResourceId]]]:
    """A home directory with `size` tables. It is created in memory, which is faster, and then copied to disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as quick, scratch() as home:
        with open_stores(f"sqlite:///{quick}/pointers.db", Path(quick, "blobs").as_uri()) as stores:
            ids = filled(stores, size).ids
        shutil.copytree(quick, home, dirs_exist_ok=True)
        yield home, ids


def opened(home: Path) -> Stores:
    return with_blob_cache(open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()))


def found(stores: Stores, ids: list[v1.ResourceId]) -> Shop:
    realm = Realm(stores, "default")
    ref = v1.NameRef(catalog="lake", name="shop")
    namespace_id = directory.resolve_namespace(realm, v1.ResolveNamespaceRequest(ref=ref)).resource_id
    request = v1.GetNamespaceRequest(namespace_id=namespace_id)
    return Shop(realm, namespaces.get(realm, request).namespace, ids)


def measured(call: Call, times: int, clients: int) -> tuple[float, float, float]:
    """p50 and p99 in milliseconds, and calls per second of all clients together."""
    each = max(1, times // clients)

    def work(client: int) -> list[float]:
        taken = []
        for number in range(each):
            started = time.perf_counter()
            call(client * each + number)
            taken.append((time.perf_counter() - started) * 1000)
        return taken

    with ThreadPoolExecutor(clients) as pool:
        started = time.perf_counter()
        taken = [each for part in pool.map(work, range(clients)) for each in part]
        seconds = time.perf_counter() - started
    hundredths = statistics.quantiles(taken, n=100, method="inclusive")
    return statistics.median(taken), hundredths[98], len(taken) / seconds


def operations(calls: CallCounter, call: Call) -> int:
    """The number of store operations of one call, with warm caches."""
    call(1)
    before = calls.total
    call(1)
    return calls.total - before


def in_process(name: str, shop: Shop, calls: CallCounter, made: Iterator[int]) -> Iterator[Latency]:
    for kind, request in shop.requests(made).items():
        act = ACTS[kind][0]

        def call(number: int, act: Any = act, request: Any = request) -> object:
            return act(shop.realm, request(number))

        cost = operations(calls, call)
        for clients in (1, 8):
            p50, p99, rate = measured(call, TIMES[kind], clients)
            aim = AIMS_MS.get(kind) if clients == 1 else None
            yield Latency(f"{name}: {kind}", clients, p50, p99, rate, store_operations=cost, aim_p50_ms=aim)


def over_grpc(name: str, remote: Remote, shop: Shop, made: Iterator[int]) -> Iterator[Latency]:
    for kind, request in shop.requests(made).items():
        _, method, answer = ACTS[kind]
        stub = remote.stub(f"/skiway.v1.{method}", answer)
        for clients in (1, 8):
            call = lambda number, stub=stub, request=request: stub(request(number))  # noqa: E731
            call(0)
            p50, p99, rate = measured(call, TIMES[kind] // 4, clients)
            yield Latency(f"{name}: {kind}", clients, p50, p99, rate)


def bare(echo: Remote) -> Iterator[Latency]:
    stub = echo.stub("/echo/Echo", v1.GetTableResponse)
    for clients in (1, 8):
        p50, p99, rate = measured(lambda _: stub(v1.GetTableRequest()), 1000, clients)
        yield Latency("bare grpcio echo", clients, p50, p99, rate)


def beside_echo(name: str, remote: Remote, echo: Remote, shop: Shop) -> Iterator[Figure]:
    """Alternate between reads and echoes."""
    peer = echo.stub("/echo/Echo", v1.GetTableResponse)
    for kind in ("get by id", "resolve by name"):
        _, method, answer = ACTS[kind]
        ours, request, number = remote.stub(f"/skiway.v1.{method}", answer), shop.requests(count())[kind], count()
        times = taken_in_turns(
            lambda ours=ours, request=request, number=number: ours(request(next(number))),  # type: ignore[misc]
            lambda: peer(v1.GetTableRequest()),
            READS,
        )
        yield Figure(
            f"{name}: {kind}, beside an echo",
            "ms",
            times.ours * 1000,
            times.peer * 1000,
            times.ratio,
            aim_at_most=AIM_ECHOES,
            peer_is="bare grpcio echo",
        )


def peer_on_disk() -> Iterator[Latency]:
    """PyIceberg's SqlCatalog with as many tables, whose rows are inserted directly into its database."""
    from bench.metastore_peer import iceberg_catalog

    with iceberg_catalog(TABLES) as catalog:
        for kind, call in catalog.items():
            p50, p99, rate = measured(call, max(8, TIMES[kind] // 8), 1)
            yield Latency(f"PyIceberg SqlCatalog: {kind}", 1, p50, p99, rate)


def figures() -> Iterator[Figure | Latency]:
    """Yield the figures of this part."""
    made = count()
    for size in (SMALL, TABLES):
        calls = CallCounter()
        with open_stores("memory://", on_call=calls) as stores:
            started = time.perf_counter()
            shop = filled(with_blob_cache(stores), size)
            took = time.perf_counter() - started
            print(f"{size:,} tables made in memory in {took:.0f} s ({size / took:,.0f} per s)", flush=True)
            yield from in_process(f"memory, {size:,} tables", shop, calls, made)
    with on_disk(TABLES) as (home, ids):
        calls = CallCounter()
        urls = f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()
        with open_stores(*urls, on_call=calls) as stores:
            shop = found(with_blob_cache(stores), ids)
            yield from in_process("SQLite", shop, calls, made)
            with served(home) as remote, served(None) as echo:
                yield from over_grpc("gRPC on SQLite", remote, shop, made)
                yield from bare(echo)
                yield from beside_echo("gRPC on SQLite", remote, echo, shop)
    yield from peer_on_disk()
