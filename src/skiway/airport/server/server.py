"""A server of one's own: a port, a Flight service on it, and a clean end."""

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
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import grpc
import pyarrow as pa

from skiway.airport.catalog import Catalog
from skiway.airport.request import Authenticator, Observer
from skiway.airport.server.lookup import CatalogResolver, Catalogs, CatalogSet
from skiway.airport.server.service import AirportService, Limits, RawAction
from skiway.airport.server.status import Disclosure
from skiway.airport.server.tickets import TicketOffice
from skiway.airport.table_refs import ALLOWED
from skiway.airport.wire import headers
from skiway.errors import InvalidArgument, Unsupported

__all__ = ["Server", "Tls", "serve"]

MIB: Final = 1024 * 1024
_CANCEL_S: Final = 5  # what a cancelled call has to notice it


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate and key of the server, as PEM files; with `client_ca`, clients must show a certificate signed by it."""

    certificate: Path | str
    key: Path | str
    client_ca: Path | str | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """What grpcio takes."""
        pair = (_pem(self.key, "key"), _pem(self.certificate, "certificate"))
        ca = _pem(self.client_ca, "client_ca") if self.client_ca is not None else None
        return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)


def _pem(path: Path | str, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read the {what} of Tls at {path}: {error.strerror}") from error


class Server:
    """Serves catalogs on one address; listens from `start` (or `with`) on.

    `catalogs` is one catalog, several, or a function from a name to a catalog that is asked on every request;
    a `Catalogs` can list the names too.
    `port=0` picks a free port; `location` tells which. A port in use is an error, unless `share_port` lets several
    processes listen on it together; these need the same `ticket_key`.

    `public_location` goes into endpoints, for clients that reach this server (or the one that holds the data) under
    another address; by default they reuse the connection that they have. Anything but loopback needs `tls`, or the
    word `insecure=True`.

    Each of `observers` is called with every call, and returns a context manager that is entered around it: see
    `ServedCall`. Callers never see the text of exceptions other than those of `skiway.errors`, unless `debug` is set.
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
        allowed_functions: Iterable[str] = ALLOWED,
        limits: Limits | None = None,
        max_message_bytes: int = 64 * MIB,
        ticket_key: bytes | None = None,
        ticket_ttl_s: float = 3600,
        auto_commit: bool = True,
        auto_rollback: bool = True,
        drain_s: float = 10,
        memory_pool: pa.MemoryPool | None = None,
        observers: Sequence[Observer] = (),
        debug: bool = False,
        logger: logging.Logger | None = None,
        log_level: int | str | None = None,
    ) -> None:
        if tls is None and not insecure and not is_loopback(host):
            raise InvalidArgument(
                f"{host} can be reached from other machines: give tls=Tls(…), or insecure=True to serve in the clear"
            )
        self.log = logger or logging.getLogger("skiway.airport")
        if log_level is not None:
            self.log.setLevel(log_level)
        self.service = AirportService(
            catalogs,
            auth=auth,
            actions=actions,
            tickets=TicketOffice(ticket_key, ttl_s=ticket_ttl_s),
            endpoint_location=public_location or headers.REUSE_CONNECTION,
            allowed_functions=allowed_functions,
            limits=limits,
            auto_commit=auto_commit,
            auto_rollback=auto_rollback,
            memory_pool=memory_pool,
            observers=observers,
            disclosure=Disclosure(debug=debug),
            logger=self.log,
        )
        self._host, self._port, self._tls = host, port, tls
        self._drain_s = drain_s
        self._stopped = threading.Event()
        self._grpc: grpc.Server | None = None
        self._options = [
            ("grpc.so_reuseport", int(share_port)),
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", 64 * 1024),  # filters of airport_flights() travel as a header
        ]

    @property
    def port(self) -> int:
        """The port listened on."""
        return self._port

    @property
    def location(self) -> str:
        """What to write after LOCATION in DuckDB's ATTACH."""
        if self._host.startswith("unix:"):
            return "grpc+unix://" + self._host.removeprefix("unix:")
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"grpc{'+tls' if self._tls else ''}://{host}:{self._port}"

    def start(self) -> Self:
        """Listen."""
        if self._grpc is not None:
            raise InvalidArgument(f"the server at {self.location} was started before; make a new one")
        server = grpc.server(self.service.calls, options=self._options)
        self.service.add_to(server)
        self._port = self._listen(server)
        server.start()
        self._grpc = server
        self.log.info("serving Airport at %s", self.location)
        return self

    def _listen(self, server: grpc.Server) -> int:
        is_socket = self._host.startswith("unix:")
        address = self._host if is_socket else self.location.partition("://")[2]
        try:
            port = (
                server.add_secure_port(address, self._tls.credentials())
                if self._tls
                else server.add_insecure_port(address)
            )
        except RuntimeError as error:
            raise OSError(
                f"cannot listen on {address}: is the port in use? Choose another one, or 0 for any free one"
            ) from error
        return 0 if is_socket else port

    def stop(self, drain_s: float | None = None) -> None:
        """Take no new calls, let those in flight finish for `drain_s` seconds, then cancel them."""
        if self._grpc is not None:
            grace = self._drain_s if drain_s is None else drain_s
            if not self._grpc.stop(grace).wait(grace + _CANCEL_S):
                self.log.warning("calls did not end %s s after they were cancelled; leaving them behind", _CANCEL_S)
        self.service.close()
        self._stopped.set()

    def wait(self) -> None:
        """Return once the server was stopped."""
        self._stopped.wait()

    def add_catalog(self, catalog: Catalog) -> None:
        """Serve one more catalog from now on."""
        self._catalog_set().add(catalog)

    def remove_catalog(self, name: str) -> None:
        """Serve a catalog no longer: calls in flight finish, new ones get NOT_FOUND."""
        self._catalog_set().remove(name)

    def _catalog_set(self) -> CatalogSet:
        if not isinstance(self.service.host.catalogs, CatalogSet):
            raise Unsupported(
                "this server finds its catalogs by a function: let that function change its answers instead"
            )
        return self.service.host.catalogs

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_location(location: str) -> tuple[str, int, bool]:
    """Host, port and whether it is TLS, of `grpc://host:port`, `grpc+tls://…` or `grpc+unix:///path`."""
    parts = urlsplit(location)
    if parts.scheme == "grpc+unix":
        return f"unix:{parts.path}", 0, False
    if parts.scheme not in ("grpc", "grpc+tcp", "grpc+tls") or not parts.hostname or parts.port is None:
        raise InvalidArgument(
            f"{location!r} is not a location: write grpc://host:port, grpc+tls://host:port or grpc+unix:///path"
        )
    return parts.hostname, parts.port, parts.scheme == "grpc+tls"


# --------------------
# Running a server until it is told to end, in one process or in several on one port.


DEFAULT_LOCATION: Final = "grpc://127.0.0.1:50051"


def serve(
    catalogs: Catalog | Iterable[Catalog] | CatalogResolver | Catalogs,
    location: str = DEFAULT_LOCATION,
    *,
    processes: int = 1,
    **options: Any,
) -> None:
    """Serve until SIGINT or SIGTERM; `options` are those of `Server`.

    With `processes`, that many processes share the port; the catalog's state must then live outside of them.
    """
    host, port, is_tls = parse_location(location)
    if is_tls and "tls" not in options:
        raise InvalidArgument(f"{location} promises TLS: give tls=Tls(certificate, key)")
    if threading.current_thread() is not threading.main_thread():
        raise InvalidArgument("serve() waits for signals and so needs the main thread; use Server(…) in others")
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
    except OSError as error:  # a port in use, mostly: people who start a server want a sentence, not a traceback
        logging.getLogger("skiway.airport").error("%s", error)
        raise SystemExit(1) from error


def _run(server: Server, *, announce: bool) -> None:
    """Serve until a signal comes; the second one ends at once."""
    told: queue.SimpleQueue[int] = queue.SimpleQueue()  # not an Event: its lock may be held when the handler runs
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: told.put(number))
    with server:
        if announce:
            _say_what_to_type(server)
        while told.empty():  # in steps, since a signal that another thread takes does not wake this one
            with contextlib.suppress(queue.Empty):
                told.get(timeout=0.5)
                break
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)


def _say_what_to_type(server: Server) -> None:
    if server.service.host.auth is not None:
        server.log.info("in DuckDB: CREATE SECRET (TYPE airport, auth_token '…', SCOPE '%s');", server.location)
    with contextlib.suppress(Unsupported):  # a catalog finder cannot list its names
        for name in server.service.host.catalogs.names():
            alias = "" if name.isidentifier() else "AS db "
            quoted = name.replace("'", "''")
            server.log.info("in DuckDB: ATTACH '%s' %s(TYPE airport, LOCATION '%s');", quoted, alias, server.location)


@contextlib.contextmanager
def _reserved(host: str, port: int) -> Iterator[int]:
    """A port that is ours to share: held by a socket that never listens, so that no one else can take it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        if port:  # a port that somebody listens on already must be an error, although sharing would let us in
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
    """Run the same in several processes until a signal comes or one of them ends."""
    # forked before any gRPC object exists, so the children start clean and the catalog needs no pickling
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=run, args=(number,), name=f"airport-{number}") for number in range(processes)]
    for child in children:
        child.start()

    told: list[bool] = []

    def end_all(*_: object) -> None:
        if not told:  # once: to a child that is ending already, another signal means "at once"
            told.append(True)
            for child in children:
                if child.is_alive():
                    child.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_all)
    while not wait([child.sentinel for child in children], timeout=0.5):
        pass  # in steps, so that a signal is heard whichever thread takes it
    end_all()  # fewer than asked for would be slower than expected, and nobody would know why
    for child in children:
        child.join()
    failed = next((child for child in children if child.exitcode), None)
    if failed is not None:
        logging.getLogger("skiway.airport").error(
            "%s ended with code %s, and so did the others", failed.name, failed.exitcode
        )
        raise SystemExit(1)
