"""Proxies on loopback that disturb connections: one for TCP, one for HTTP."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class TcpProxy:
    """Forwards connections to `address`. While it is frozen, it forwards nothing and closes nothing: half-open connections.

    `watch` gets the bytes that the server sends.
    """

    def __init__(self, address: str, *, watch: Callable[[bytes], object] = lambda _: None) -> None:
        self._watch = watch
        host, _, port = address.rpartition(":")
        self._to = (host, int(port))
        self._flowing = threading.Event()
        self._flowing.set()
        self._sockets: list[socket.socket] = []
        proxy = self

        class Forward(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                proxy._forward(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forward)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def freeze(self) -> None:
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def _forward(self, client: socket.socket) -> None:
        with socket.create_connection(self._to) as server:
            self._sockets += [client, server]
            back = threading.Thread(target=self._copy, args=(server, client, self._watch), daemon=True)
            back.start()
            self._copy(client, server)
            back.join()

    def _copy(
        self, source: socket.socket, target: socket.socket, watch: Callable[[bytes], object] = lambda _: None
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                watch(data)
                self._flowing.wait()
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    @contextmanager
    def serving(self) -> Iterator[TcpProxy]:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self.thaw()
            self._server.shutdown()
            self._server.server_close()
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)


class S3Proxy:
    """Forwards requests to S3 at `endpoint`. `disturbance` makes it answer with an error, or not at all.

    - `None`: forward
    - `"error"`: 500 InternalError
    - `"throttle"`: 503 SlowDown
    - `"hang"`: accept requests and never answer
    - `"lost answer"`: forward requests, and close the connection instead of answering
    """

    def __init__(self, endpoint: str) -> None:
        self.disturbance: str | None = None
        self.disturbed = 0
        self._to = urlsplit(endpoint)
        self._ended = threading.Event()
        proxy = self

        class Forward(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with suppress(ConnectionError):
                    super().handle_one_request()

            def do_GET(self) -> None:
                proxy._serve(self)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Forward)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        body = _body_of(request)
        what = self.disturbance
        if what is not None:
            self.disturbed += 1
        if what in ("error", "throttle"):
            status, code = (500, "InternalError") if what == "error" else (503, "SlowDown")
            self._answer(request, status, f"<Error><Code>{code}</Code><Message>try again</Message></Error>".encode())
        elif what == "hang":
            self._ended.wait(120)
            request.close_connection = True
        else:
            self._pass_on(request, body, answer=what is None)

    def _pass_on(self, request: BaseHTTPRequestHandler, body: bytes, *, answer: bool) -> None:
        connection = HTTPConnection(self._to.hostname or "", self._to.port, timeout=60)
        headers = {name: value for name, value in request.headers.items() if name.lower() != "transfer-encoding"}
        connection.request(request.command, request.path, body, headers)
        received = connection.getresponse()
        data = received.read()
        connection.close()
        if answer:
            self._answer(request, received.status, data, received.getheaders())
        else:
            request.close_connection = True

    def _answer(
        self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: list[tuple[str, str]] | None = None
    ) -> None:
        request.send_response_only(status)
        length = str(len(body))
        for name, value in headers or [("content-type", "application/xml")]:
            if name.lower() == "content-length":
                length = value if request.command == "HEAD" else length
            elif name.lower() not in ("connection", "transfer-encoding"):
                request.send_header(name, value)
        request.send_header("content-length", length)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)

    @contextmanager
    def serving(self) -> Iterator[S3Proxy]:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self._ended.set()
            self._server.shutdown()
            self._server.server_close()


def _body_of(request: BaseHTTPRequestHandler) -> bytes:
    """The body of a request, whose size is known or which arrives in chunks."""
    if "chunked" not in request.headers.get("transfer-encoding", ""):
        return request.rfile.read(int(request.headers.get("content-length") or 0))
    chunks = []
    while size := int(request.rfile.readline().split(b";")[0], 16):
        chunks.append(request.rfile.read(size))
        request.rfile.readline()
    while request.rfile.readline().strip():
        pass
    return b"".join(chunks)
