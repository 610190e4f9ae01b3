"""A real metastore server on a loopback socket, with ways to watch it, inject faults and cut connections."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
from google.protobuf.message import Message

from skiway.client import Metastore
from skiway.metastore import PLATFORM, Realm
from skiway.metastore.resources import accounts
from skiway.model import v1
from skiway.request_path import Access, Retries
from skiway.rpc import Door, Service, all_services
from skiway.security import DevAuthenticator, PermissionAuthorizer
from skiway.storage import Stores, open_stores

Act = Callable[[Realm, Any], Message]


class KnownAccounts:
    """The accounts of a new home."""

    def find(self, id_or_name: str) -> str | None:
        return "default" if id_or_name == "default" else None

    def first(self) -> str | None:
        return "default"


@dataclass
class Seen:
    """A call as it arrived."""

    method: str
    headers: Mapping[str, str]


@dataclass
class Server:
    """A running server: its address, its stores, and the calls it has seen."""

    address: str
    stores: Stores
    seen: list[Seen] = field(default_factory=list)
    tls_address: str = ""
    disturbances: dict[str, Callable[[Act, Realm, Any], Message]] = field(default_factory=dict)

    def methods(self) -> list[str]:
        return [call.method for call in self.seen]

    def disturb(self, method: str, act: Callable[[Act, Realm, Any], Message]) -> None:
        """From now on, `act(original function, realm, request)` handles calls of `method`."""
        self.disturbances[method] = act

    def fail(self, method: str, *failures: Exception) -> None:
        """The next calls of `method` fail with these errors, one after the other, before they take effect."""
        left = list(failures)

        def act(truly: Act, realm: Realm, request: Any) -> Message:
            if left:
                raise left.pop(0)
            return truly(realm, request)

        self.disturb(method, act)


class _Watch(grpc.ServerInterceptor):
    def __init__(self, seen: list[Seen]) -> None:
        self._seen = seen

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        headers = {name: value for name, value in details.invocation_metadata if isinstance(value, str)}
        self._seen.append(Seen(details.method.rpartition("/")[2], headers))
        return continuation(details)


@contextmanager
def serving_metastore(
    *, namespaces: tuple[str, ...] = ("lake.sales",), tls: grpc.ServerCredentials | None = None
) -> Iterator[Server]:
    """A server with only account `default`, catalog `lake` and these namespaces.

    With credentials, it also serves TLS.
    """
    with ExitStack() as stack:
        stores = stack.enter_context(open_stores("memory://"))
        spec = v1.AccountSpec(display_name="default")
        request = v1.CreateAccountRequest(spec=spec, account_id=v1.ResourceId(id="default"))
        accounts.create(Realm(stores, PLATFORM), request)
        server = Server("", stores)
        door = Door(
            Access(
                lambda principal: Realm(stores, principal.account_id),
                DevAuthenticator(KnownAccounts()),
                PermissionAuthorizer(),
            ),
            services=[_disturbed(service, server) for service in all_services()],
            retries=Retries(limit=0),
        )
        serving = grpc.server(ThreadPoolExecutor(16), interceptors=[_Watch(server.seen)])
        door.add_to(serving)
        server.address = f"127.0.0.1:{serving.add_insecure_port('127.0.0.1:0')}"
        if tls is not None:
            server.tls_address = f"127.0.0.1:{serving.add_secure_port('127.0.0.1:0', tls)}"
        serving.start()
        stack.callback(lambda: serving.stop(0).wait())
        with Metastore(server.address) as lake:
            lake.catalogs.create("lake")
            for name in namespaces:
                lake.namespaces.create(name)
        server.seen.clear()
        yield server


def _disturbed(service: Service, server: Server) -> Service:
    def around(name: str, truly: Act) -> Act:
        def act(realm: Realm, request: Any) -> Message:
            disturbance = server.disturbances.get(name)
            return disturbance(truly, realm, request) if disturbance else truly(realm, request)

        return act

    rules = {name: replace(rule, act=around(name, rule.act)) for name, rule in service.rules.items()}
    return replace(service, rules=rules)


class Wire:
    """A connection to a server that can be cut: all data in transit is lost, and later calls can connect again."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self._lock = threading.Lock()
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self.cuts += 1
            for end in self._ends:
                # reset, so that no buffered data is still delivered
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                _shut(end)
                end.close()
            self._ends.clear()

    def close(self) -> None:
        _shut(self._listener)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            with self._lock:
                self._ends += [client, server]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    _shut(target)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@contextmanager
def wire_to(server: Server) -> Iterator[Wire]:
    wire = Wire(server.address)
    try:
        yield wire
    finally:
        wire.close()
