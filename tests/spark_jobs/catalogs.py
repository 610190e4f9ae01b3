"""A REST catalog with configurable failures."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class BadCatalog(ThreadingHTTPServer):
    """Has `tables` tables in the namespace `sales`, none of which can be loaded; loading one takes `pause_s`.

    With a `token`, requests without it are rejected.
    """

    daemon_threads = True

    def __init__(self, *, tables: int = 1, pause_s: float = 0.0, token: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.tables, self.pause_s, self.token = tables, pause_s, token
        self.loading = threading.Event()
        self.requested: list[str] = []

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: BadCatalog

    def do_GET(self) -> None:
        self.server.requested.append(self.path)
        if self.server.token and self.headers.get("authorization") != f"Bearer {self.server.token}":
            self._send(401, _error(401, "NotAuthorizedException", "who are you?"))
            return
        match self.path.partition("?")[0].split("/")[2:]:
            case ["config"]:
                self._send(200, {"defaults": {}, "overrides": {}})
            case ["namespaces"]:
                self._send(200, {"namespaces": [["sales"]] if "parent" not in self.path else []})
            case ["namespaces", _, "tables"]:
                names = [{"namespace": ["sales"], "name": f"t{number:03}"} for number in range(self.server.tables)]
                self._send(200, {"identifiers": names})
            case _:
                self.server.loading.set()
                time.sleep(self.server.pause_s)
                self._send(404, _error(404, "NoSuchTableException", "no such table"))

    def _send(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def _error(code: int, kind: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "type": kind, "message": message}}


@contextmanager
def bad_catalog(**how: Any) -> Iterator[BadCatalog]:
    with BadCatalog(**how) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
