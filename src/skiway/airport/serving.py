"""Running a server until it is told to end, in one process or in several on one port."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import queue
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import wait
from typing import Any, Final

from skiway.airport.catalog import Catalog
from skiway.airport.registry import CatalogResolver, Catalogs
from skiway.airport.server import Server, parse_location
from skiway.errors import InvalidArgument, Unsupported

__all__ = ["serve"]

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
    if server.service.auth is not None:
        server.log.info("in DuckDB: CREATE SECRET (TYPE airport, auth_token '…', SCOPE '%s');", server.location)
    with contextlib.suppress(Unsupported):  # a catalog finder cannot list its names
        for name in server.service.catalogs.names():
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
