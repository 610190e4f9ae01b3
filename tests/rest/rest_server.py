"""An Iceberg REST server on loopback for tests, with callers that have tokens, and clients."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import uvicorn
from pyiceberg.catalog.rest import RestCatalog
from starlette.applications import Starlette
from starlette.routing import Mount

from metastore.resource_factory import ResourceFactory
from skiway.errors import Unauthorized
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import Realm
from skiway.request_path import Access, Observers
from skiway.rest import Mirrors, RestApp
from skiway.security import Authenticator, PermissionAuthorizer, Principal
from skiway.storage import Stores, utc_now

EVERYTHING = (
    *("catalog.read", "namespace.read", "namespace.write"),
    *("table.read", "table.write", "view.read", "view.write"),
)
JSON = {"content-type": "application/json"}


def principal(subject: str, *permissions: str, account_id: str = "a1") -> Principal:
    return Principal(subject, account_id, frozenset({"tester"}), frozenset(permissions))


class Callers:
    """An authenticator whose tokens are the names of callers; calls without a token come from `anybody`."""

    def __init__(self, *known: Principal) -> None:
        self.known = {each.subject: each for each in known}

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        name = headers.get("authorization", "Bearer anybody").removeprefix("Bearer ")
        if name not in self.known:
            raise Unauthorized("this token is not known here: ask for one", key="token.unknown")
        return self.known[name]


@dataclass
class RestServer:
    """A server, and the store behind it."""

    factory: ResourceFactory
    warehouse: Warehouse
    app: RestApp
    callers: Callers
    uri: str
    http: httpx.Client

    def pyiceberg(self, warehouse: str = "lake", **properties: str) -> RestCatalog:
        return RestCatalog("test", **{"uri": self.uri, "warehouse": warehouse, "token": "anybody", **properties})

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """Send one request; a body is sent as JSON, bytes unchanged."""
        encoded = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, bytes):
            return self.http.request(method, f"{self.uri}{path}", content=body, headers={**JSON, **encoded})
        return self.http.request(method, f"{self.uri}{path}", json=body, headers=encoded)

    def get_untouched(self, path: str) -> httpx.Response:
        """Request a path exactly as written; other clients normalize paths before they send them."""
        address = urlsplit(self.uri)
        with closing(HTTPConnection(address.hostname or "", address.port)) as connection:
            connection.request("GET", f"{address.path}{path}")
            answer = connection.getresponse()
            return httpx.Response(answer.status, headers=answer.getheaders(), content=answer.read())


@contextmanager
def opened(
    stores: Stores,
    folder: Path,
    *,
    mirrors: Mirrors | None = None,
    realm_of: Callable[[Principal], Realm] | None = None,
    approved: Path | None = None,
    properties: Mapping[str, str] | None = None,
    warehouse: Warehouse | None = None,
    authenticator: Authenticator | None = None,
    **arguments: Any,
) -> Iterator[RestServer]:
    """A server over `stores`, with an empty catalog `lake`, for which a folder may be approved."""
    factory = ResourceFactory(stores, utc_now)
    factory.catalog("lake", properties=properties or {})
    callers = Callers(
        principal("anybody", *EVERYTHING),
        principal("reader", "catalog.read", "namespace.read", "table.read"),
        principal("nobody"),
        principal("stranger", *EVERYTHING, account_id="a2"),
        principal("platform", *EVERYTHING, account_id=""),
    )
    places = [("a1/lake", str(approved))] if approved else []
    warehouse = warehouse or Warehouse.at(str(folder / "warehouse"), approved=places)
    find = realm_of or (lambda caller: Realm(stores, caller.account_id))
    observers = {name: arguments.pop(name) for name in ("metrics", "traces", "audit") if name in arguments}
    access = Access(find, authenticator or callers, PermissionAuthorizer())
    app = RestApp(access, Observers(**observers), warehouse=warehouse, mirrors=mirrors, **arguments)
    try:
        # Without TLS, because loading the certificates takes longer than most tests.
        with listening(app) as uri, httpx.Client(verify=False, timeout=200) as http:
            yield RestServer(factory, warehouse, app, callers, uri, http)
    finally:
        app.close()


@contextmanager
def listening(app: RestApp) -> Iterator[str]:
    """Serve the app, mounted as a real server mounts it, and yield its address."""
    mounted = Starlette(routes=[Mount("/iceberg", app)])
    server = uvicorn.Server(uvicorn.Config(mounted, log_level="warning", lifespan="off"))
    # asyncio sends data immediately only on sockets declared as TCP; otherwise responses are delayed by 40 ms.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # listen before the server starts, so that clients need not wait
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/iceberg"
        finally:
            server.should_exit = True
            thread.join()
