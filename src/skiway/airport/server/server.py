"""`Server`, which serves catalogs on one address, and `serve`, which runs it until a signal."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import multiprocessing
import queue
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import pyarrow as pa

from skiway.airport.catalog import Catalog, TransactionManager
from skiway.airport.checks import Mistake
from skiway.airport.request import Authenticator, Observer
from skiway.airport.server.call_handlers import Disclosure, Limits
from skiway.airport.server.host import CatalogResolver, Catalogs, CatalogSet
from skiway.airport.server.service import AirportService, RawAction
from skiway.airport.server.tickets import TicketOffice
from skiway.airport.tables import instead_of
from skiway.airport.wire import protocol
from skiway.airport.wire.duckdb_sql import FILE_READERS, attach_statement, secret_statement
from skiway.errors import InvalidArgument, Unsupported
from skiway.foundation import transport as transports
from skiway.foundation.native import new_server

MIB: Final = 1024 * 1024
_CANCEL_S: Final = 5  # what a cancelled call has to notice it


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate and key of the server, as PEM files. With `client_ca`, clients need a certificate signed by it."""

    certificate: Path | str
    key: Path | str
    client_ca: Path | str | None = None

    def read(self) -> transports.Certificate:
        """The contents of the files."""
        key, chain = _pem(self.key, "key"), _pem(self.certificate, "certificate")
        ca = _pem(self.client_ca, "client_ca") if self.client_ca is not None else None
        return transports.Certificate(chain, key, ca)


def _pem(path: Path | str, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read the {what} of Tls at {path}: {error.strerror}") from error


class Server:
    """Serves catalogs on one address, from `start` (or `with`) on.

    `catalogs` is one catalog, several, or a function from a name to a catalog, which is called for every request. A
    `Catalogs` can also list the names. `auth` authenticates callers; None admits everybody. `actions` are functions by
    name, which clients can call.

    `port=0` picks a free port; `location` has the result. The `host` `unix:/path` is a socket. A port in use is an error,
    unless `share_port` lets several processes listen on it; these need the same `ticket_key`, which signs tickets.
    Addresses other than loopback need `tls` or `insecure=True`.

    `public_location` is the address in endpoints, for clients that reach the data under another address; by default
    clients reuse their connection. A scan can be started for `ticket_ttl_s` after it was planned. Clients run only
    `allowed_functions` for table references, by default those that read files.

    `limits` is the number of concurrent calls, scans and exchanges, and `max_message_bytes` the size of a received message.
    Memory comes from `memory_pool`, by default that of Arrow. `stop` waits for `drain_s` for running calls.

    `transactions` are those of all catalogs that have none of their own. With `auto_commit` and `auto_rollback`, a writing
    statement ends its transaction.

    `lane_of` is a function from the headers of a call to its lane: callers in different lanes take turns, and none gets all
    threads. Without it, calls are served in the order in which they arrive.

    `transport` serves gRPC: `native` is faster and needs the distribution `skiway-native`, and `auto` is the native one if it is installed.

    Each of `observers` is called with every call, and returns a context manager that is entered around it: see
    `ServedCall`. Callers never see the text of exceptions other than those of `skiway.errors`, unless `debug` is set. The
    `logger` has them, at `log_level`; it is `skiway.airport` by default.
    """

    def __init__(
        self,
        catalogs: Catalog | Iterable[Catalog] | CatalogResolver | Catalogs = (),
        *,
        host: str = "127.0.0.1",
        port: int = 50051,
        public_location: str | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
        share_port: bool = False,
        auth: Authenticator | None = None,
        actions: Mapping[str, RawAction] | None = None,
        allowed_functions: Iterable[str] = FILE_READERS,
        limits: Limits | None = None,
        max_message_bytes: int = 64 * MIB,
        ticket_key: bytes | None = None,
        ticket_ttl_s: float = 3600,
        auto_commit: bool = True,
        auto_rollback: bool = True,
        transactions: TransactionManager | None = None,
        drain_s: float = 10,
        memory_pool: pa.MemoryPool | None = None,
        observers: Sequence[Observer] = (),
        lane_of: transports.LaneOf | None = None,
        transport: transports.Choice = "auto",
        debug: bool = False,
        logger: logging.Logger | None = None,
        log_level: int | str | None = None,
    ) -> None:
        if tls is None and not insecure and not is_loopback(host):
            raise InvalidArgument(
                f"{host} is reachable from other machines: set tls=Tls(…), or insecure=True to serve without encryption"
            )
        self.log = logger or logging.getLogger("skiway.airport")
        if log_level is not None:
            self.log.setLevel(log_level)
        self.service = AirportService(
            catalogs,
            auth=auth,
            actions=actions,
            tickets=TicketOffice(ticket_key, ttl_s=ticket_ttl_s),
            endpoint_location=public_location or protocol.REUSE_CONNECTION,
            allowed_functions=allowed_functions,
            limits=limits,
            auto_commit=auto_commit,
            auto_rollback=auto_rollback,
            transactions=transactions,
            memory_pool=memory_pool,
            observers=observers,
            lane_of=lane_of,
            disclosure=Disclosure(debug=debug),
            logger=self.log,
        )
        self._host, self._port, self._tls = host, port, tls
        self._drain_s = drain_s
        self._stopped = threading.Event()
        self._server: transports.Transport | None = None
        # Clients of sockets send names of servers that only grpcio accepts.
        self._transport = "grpcio" if transport == "auto" and host.startswith("unix:") else transport
        self._options = transports.Options(
            max_message_bytes=max_message_bytes, share_port=share_port, opening_s=self.service.limits.opening_s
        )

    @property
    def port(self) -> int:
        """The port."""
        return self._port

    @property
    def location(self) -> str:
        """The LOCATION for DuckDB's ATTACH."""
        if self._host.startswith("unix:"):
            return "grpc+unix://" + self._host.removeprefix("unix:")
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"grpc{'+tls' if self._tls else ''}://{host}:{self._port}"

    def start(self) -> Self:
        """Start listening."""
        if self._server is not None:
            raise InvalidArgument(f"the server at {self.location} was already started; create a new one")
        server = new_server(self._options, self._transport)
        self.service.add_to(server)
        self._port = self._listen(server)
        server.start()
        self._server = server
        self.log.info("serving Airport at %s, with the transport %s", self.location, server.name)
        return self

    def _listen(self, server: transports.Transport) -> int:
        is_socket = self._host.startswith("unix:")
        address = self._host if is_socket else self.location.partition("://")[2]
        try:
            port = server.listen(address, self._tls.read() if self._tls else None)
        except OSError as error:
            raise OSError(
                f"cannot listen on {address}: is the port in use? Choose another one, or 0 for a free one"
            ) from error
        return 0 if is_socket else port

    def stop(self, drain_s: float | None = None) -> None:
        """Reject new calls, let running ones finish for `drain_s` seconds, then cancel them."""
        if self._server is not None:
            grace = self._drain_s if drain_s is None else drain_s
            if not self._server.stop(grace).wait(grace + _CANCEL_S):
                self.log.warning("calls did not end within %s s of being cancelled; abandoning them", _CANCEL_S)
        self.service.close()
        self._stopped.set()

    def wait(self) -> None:
        """Wait until the server is stopped."""
        self._stopped.wait()

    def add_catalog(self, catalog: Catalog) -> None:
        """Serve one more catalog."""
        self._catalog_set().add(catalog)

    def remove_catalog(self, name: str) -> None:
        """Stop serving a catalog: running calls finish, new ones fail with NOT_FOUND."""
        self._catalog_set().remove(name)

    def _catalog_set(self) -> CatalogSet:
        if not isinstance(self.service.host.catalogs, CatalogSet):
            raise Unsupported("this server gets its catalogs from a function: change what the function returns instead")
        return self.service.host.catalogs

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def is_loopback(host: str) -> bool:
    """Whether `host` is reachable only from this machine."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_location(location: str) -> tuple[str, int, bool]:
    """Parse `grpc://host:port`, `grpc+tls://…` or `grpc+unix:///path` into host, port, and whether it uses TLS."""
    parts = urlsplit(location)
    if parts.scheme == "grpc+unix":
        return f"unix:{parts.path}", 0, False
    if parts.scheme not in ("grpc", "grpc+tcp", "grpc+tls") or not parts.hostname or parts.port is None:
        raise InvalidArgument(
            f"{location!r} is not a location: write grpc://host:port, grpc+tls://host:port or grpc+unix:///path"
        )
    return parts.hostname, parts.port, parts.scheme == "grpc+tls"


# -- serving until a signal -------------------------------------------------------------------------------------------

DEFAULT_LOCATION: Final = "grpc://127.0.0.1:50051"


def serve(
    catalogs: Catalog | Iterable[Catalog] | CatalogResolver | Catalogs,
    location: str = DEFAULT_LOCATION,
    *,
    processes: int = 1,
    **options: Any,
) -> None:
    """Serve until SIGINT or SIGTERM; `options` are those of `Server`.

    With `processes`, several processes share the port; the state of the catalog must then be outside of them.
    """
    address: object = location
    if not isinstance(address, str):
        raise Mistake(f"the location is {instead_of(address)}, not a str: write serve(catalog, {DEFAULT_LOCATION!r})")
    host, port, is_tls = parse_location(location)
    if is_tls and "tls" not in options:
        raise InvalidArgument(f"{location} requires TLS: set tls=Tls(certificate, key)")
    if threading.current_thread() is not threading.main_thread():
        raise InvalidArgument("serve() handles signals and needs the main thread; use Server(…) in other threads")
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        if processes == 1:
            _run(Server(catalogs, host=host, port=port, **options), announce=True)
            return
        options = {"ticket_key": secrets.token_bytes(32), **options, "share_port": True}
        with _reserved(host, port) as reserved:
            _run_together(
                lambda number: _run(Server(catalogs, host=host, port=reserved, **options), announce=number == 0),
                processes,
            )
    except OSError as error:  # usually a port in use: show a message, not a traceback
        logging.getLogger("skiway.airport").error("%s", error)
        raise SystemExit(1) from error


def _run(server: Server, *, announce: bool) -> None:
    """Serve until a signal; a second one exits at once."""
    received: queue.SimpleQueue[int] = queue.SimpleQueue()  # not an Event: its lock may be held when the handler runs
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: received.put(number))
    with server:
        if announce:
            _log_duckdb_commands(server)
        while received.empty():  # in steps: a signal that another thread receives does not wake this one
            with contextlib.suppress(queue.Empty):
                received.get(timeout=0.5)
                break
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)


def _log_duckdb_commands(server: Server) -> None:
    if server.service.host.auth is not None:
        server.log.info("in DuckDB: %s", secret_statement(server.location))
    with contextlib.suppress(Unsupported):  # a function from names to catalogs cannot list them
        for name in server.service.host.catalogs.names():
            server.log.info("in DuckDB: %s", attach_statement(name, server.location))


@contextlib.contextmanager
def _reserved(host: str, port: int) -> Iterator[int]:
    """Reserve a port to share, with a socket that never listens, so that no other program can take it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        if port:  # a port that is in use must be an error, although sharing would allow it
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((host, port))
                except OSError as error:
                    raise OSError(f"cannot listen on {host}:{port}: the port is in use; choose another one") from error
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((host, port))
        yield holder.getsockname()[1]


def _run_together(run: Callable[[int], None], processes: int) -> None:
    """Run the same function in several processes until a signal, or until one of them ends."""
    # forked before any gRPC object exists, so that the children start clean and the catalog is not pickled
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=run, args=(number,), name=f"airport-{number}") for number in range(processes)]
    for child in children:
        child.start()

    ended: list[bool] = []

    def end_all(*_: object) -> None:
        if not ended:  # once: a second signal would make the children exit at once
            ended.append(True)
            for child in children:
                if child.is_alive():
                    child.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_all)
    while not wait([child.sentinel for child in children], timeout=0.5):
        pass  # in steps, so that a signal is heard whichever thread takes it
    end_all()  # with fewer processes than configured, the server would be slow for no visible reason
    for child in children:
        child.join()
    failed = next((child for child in children if child.exitcode), None)
    if failed is not None:
        logging.getLogger("skiway.airport").error(
            "%s ended with code %s, and so did the others", failed.name, failed.exitcode
        )
        raise SystemExit(1)
