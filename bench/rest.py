"""Iceberg REST: loading a table and committing to it, over loopback, on a SQLite file and a warehouse on disk.

The peer is the least that such a call can cost: an answer of the same size by bare Starlette and uvicorn.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from bench.metastore import measured
from bench.report import Latency

TABLES = "/v1/lake/namespaces/bench/tables"
SCHEMA = {
    "type": "struct",
    "fields": [
        {"id": number, "name": f"column_{number}", "required": False, "type": "long"} for number in range(1, 11)
    ],
}


@contextmanager
def served(home: str) -> Iterator[str]:
    """The address of a server in a process of its own; without a home, of the peer."""
    command = [sys.executable, "-m", "bench.rest", home]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def serve(home: str) -> None:
    """Run such a server, and print its address."""
    import socket

    import uvicorn

    # asyncio sends at once what it is given only on sockets that say that they are TCP; else answers wait for 40 ms.
    door = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    door.bind(("127.0.0.1", 0))
    door.listen()
    print(f"http://127.0.0.1:{door.getsockname()[1]}", flush=True)
    config = uvicorn.Config(our_app(Path(home)) if home else peer_app(), log_level="warning")
    uvicorn.Server(config).run(sockets=[door])


def our_app(home: Path) -> Any:
    from skiway.formats.iceberg_warehouse import Warehouse
    from skiway.metastore import Realm
    from skiway.metastore.graph import remembering
    from skiway.metastore.seeding import seed_home
    from skiway.rest import rest_app
    from skiway.security import DevAuthenticator, PermissionAuthorizer
    from skiway.storage import open_stores

    class OneAccount:
        def find(self, id_or_name: str) -> str:
            return "default"

        def first(self) -> str:
            return "default"

    stores = remembering(open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()))
    seed_home(stores)
    return rest_app(
        lambda caller: Realm(stores, caller.account_id),
        DevAuthenticator(OneAccount()),
        PermissionAuthorizer(),
        warehouse=Warehouse.at(str(home / "warehouse")),
    )


def peer_app() -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def answer(request: Request) -> Response:
        await request.body()
        return Response(b" " * int(request.query_params["size"]), media_type="application/json")

    return Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])


def sent(client: httpx.Client, method: str, path: str, body: Any = None) -> httpx.Response:
    answer = client.request(method, path, json=body)
    assert answer.status_code < 300, answer.text
    return answer


def prepared(client: httpx.Client) -> int:
    """Make the tables, one of which has a history; the size of a load of that one."""
    sent(client, "POST", "/v1/lake/namespaces", {"namespace": ["bench"]})
    for name in ("history", *(f"writer_{number}" for number in range(8))):
        sent(client, "POST", TABLES, {"name": name, "schema": SCHEMA})
    for number in range(50):
        sent(client, "POST", f"{TABLES}/history", change(number))
    return len(sent(client, "GET", f"{TABLES}/history").content)


def change(number: int) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": {"number": str(number)}}]}


def figures() -> Iterator[Latency]:
    """All figures of this part."""
    with (
        tempfile.TemporaryDirectory(dir=".") as home,
        served(str(Path(home).absolute())) as address,
        served("") as peer,
        httpx.Client(base_url=address, timeout=60) as client,
        httpx.Client(base_url=peer, timeout=60) as bare,
    ):
        size = prepared(client)
        etag = sent(client, "GET", f"{TABLES}/history").headers["etag"]
        known = {"if-none-match": etag}
        calls = {
            "load": (400, lambda number: sent(client, "GET", f"{TABLES}/history")),
            "load, not changed": (400, lambda _: client.get(f"{TABLES}/history", headers=known)),
            "commit": (160, lambda number: sent(client, "POST", f"{TABLES}/writer_{number % 8}", change(number))),
            "commit, all to one table": (
                80,
                lambda number: sent(client, "POST", f"{TABLES}/history", change(number)),
            ),
        }
        for name, (times, call) in calls.items():
            for clients in (1, 8):
                p50, p99, rate = measured(call, times, clients)
                yield Latency(f"REST on SQLite: {name}", clients, p50, p99, rate)
        for clients in (1, 8):
            p50, p99, rate = measured(lambda _: sent(bare, "GET", f"/?size={size}"), 400, clients)
            yield Latency("bare Starlette, as many bytes", clients, p50, p99, rate)


if __name__ == "__main__":
    serve(sys.argv[1])
