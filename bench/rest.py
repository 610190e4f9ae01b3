"""Iceberg REST: loading a table and committing to it, over loopback, on a SQLite file and a warehouse on disk.

There are two peers. PyIceberg calls its SqlCatalog on the same kind of disk, which does the same work in-process, and our server in
turns. A response of the same size from bare Starlette and uvicorn is the minimum cost of a call over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx

from bench.disk import scratch
from bench.http_peer import bare_starlette
from bench.metastore import measured
from bench.report import Figure, Latency
from bench.serving import skiway_serve
from bench.turns import taken_in_turns

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

PEER: Final = "PyIceberg's SqlCatalog"
COMMITS: Final = 50  # made before measuring
AIMS_MS: Final = {"load": 2.0, "commit": 5.0}
"""The longest acceptable median with one client."""

AIM_COMMITS: Final = 150
"""Commits per second of eight clients to one table."""
TABLES: Final = "/v1/lake/namespaces/bench/tables"
SCHEMA: Final = {
    "type": "struct",
    "fields": [
        {"id": number, "name": f"column_{number}", "required": False, "type": "long"} for number in range(1, 11)
    ],
}


def figures() -> Iterator[Figure | Latency]:
    """Yield the figures of this part."""
    with scratch() as home, skiway_serve(home / "home") as doors:
        address = f"{doors['http']}/iceberg"
        yield from over_http(address)
        yield from beside_sql(address, home)


# -- by PyIceberg -------------------------------------------------------------------------------------------------------


def beside_sql(address: str, home: Path) -> Iterator[Figure]:
    """Compare the same PyIceberg calls on both catalogs."""
    from pyiceberg.catalog.rest import RestCatalog

    (home / "peer").mkdir()
    with sql_catalog(home / "peer") as peer:
        ours = RestCatalog("lake", uri=address, warehouse="lake")
        for name, times in (("load", 60), ("commit of a property", 30), ("commit of an append", 20)):
            mine, theirs = calls(ours)[name], calls(peer)[name]
            taken = taken_in_turns(mine, theirs, times)
            yield Figure(f"PyIceberg: {name}", "ms", taken.ours * 1000, taken.peer * 1000, taken.ratio, peer_is=PEER)


@contextmanager
def sql_catalog(place: Path) -> Iterator[Catalog]:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("lake", uri=f"sqlite:///{place}/catalog.db", warehouse=(place / "warehouse").as_uri())
    yield catalog
    catalog.close()


def calls(catalog: Catalog) -> dict[str, Callable[[], object]]:
    """The calls to measure, on a table with some history."""
    import pyarrow as pa

    catalog.create_namespace_if_not_exists("by_pyiceberg")
    schema = pa.schema({f"column_{number}": pa.int64() for number in range(10)})
    table = catalog.create_table_if_not_exists("by_pyiceberg.history", schema)
    rows, number = pa.table({name: pa.array([1, 2, 3]) for name in schema.names}), count()

    def set_property() -> None:
        with table.transaction() as change:
            change.set_properties(number=str(next(number)))

    for _ in range(COMMITS // 10):
        set_property()
    return {
        "load": lambda: catalog.load_table("by_pyiceberg.history"),
        "commit of a property": set_property,
        "commit of an append": lambda: table.append(rows),
    }


# -- by bare HTTP -------------------------------------------------------------------------------------------------------


def over_http(address: str) -> Iterator[Figure | Latency]:
    """Measure the latency of single calls with one and with eight concurrent clients."""
    with (
        bare_starlette() as peer,
        httpx.Client(base_url=address, timeout=60) as client,
        httpx.Client(base_url=peer, timeout=60) as bare,
    ):
        size = prepared(client)
        known = {"if-none-match": sent(client, "GET", f"{TABLES}/history").headers["etag"]}
        asked: dict[str, tuple[int, Callable[[int], object]]] = {
            "load": (400, lambda number: sent(client, "GET", f"{TABLES}/history")),
            "load, not changed": (400, lambda _: client.get(f"{TABLES}/history", headers=known)),
            "commit": (160, lambda number: sent(client, "POST", f"{TABLES}/writer_{number % 8}", change(number))),
            "commit, all to one table": (
                80,
                lambda number: sent(client, "POST", f"{TABLES}/history", change(number)),
            ),
        }
        for name, (times, call) in asked.items():
            for clients in (1, 8):
                p50, p99, rate = measured(call, times, clients)
                aim = AIMS_MS.get(name) if clients == 1 else None
                yield Latency(f"REST on SQLite: {name}", clients, p50, p99, rate, aim_p50_ms=aim)
        yield Figure("REST on SQLite: commits of eight clients to one table", "1/s", rate, aim_above=AIM_COMMITS)
        for clients in (1, 8):
            p50, p99, rate = measured(lambda _: sent(bare, "GET", f"/?size={size}"), 400, clients)
            yield Latency("bare Starlette, as many bytes", clients, p50, p99, rate)


def sent(client: httpx.Client, method: str, path: str, body: Any = None) -> httpx.Response:
    """Send a request and return the response, which must be successful."""
    answer = client.request(method, path, json=body)
    assert answer.status_code < 300, answer.text
    return answer


def prepared(client: httpx.Client) -> int:
    """Create the tables, one of them with a history, and return the size of its load response."""
    sent(client, "POST", "/v1/lake/namespaces", {"namespace": ["bench"]})
    for name in ("history", *(f"writer_{number}" for number in range(8))):
        sent(client, "POST", TABLES, {"name": name, "schema": SCHEMA})
    for number in range(COMMITS):
        sent(client, "POST", f"{TABLES}/history", change(number))
    return len(sent(client, "GET", f"{TABLES}/history").content)


def change(number: int) -> dict[str, Any]:
    """The body of a commit that conflicts with no other."""
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": {"number": str(number)}}]}
