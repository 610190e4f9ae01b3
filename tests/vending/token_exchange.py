"""A stand-in for Google's token exchange on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote


@dataclass
class TokenExchange:
    """Where it listens, the requests it got with decoded options, and its answer. Tokens are numbered.

    Service accounts get the token `own-token` at `own_tokens`.
    """

    endpoint: str
    own_tokens: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200
    answer: Any = field(default_factory=lambda: {"access_token": "limited-{}", "token_type": "Bearer"})


@contextmanager
def token_exchange() -> Iterator[TokenExchange]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            given: dict[str, Any] = dict(parse_qsl(self.rfile.read(int(self.headers["content-length"])).decode()))
            if found.own_tokens.endswith(self.path):
                self._send(200, {"access_token": "own-token", "expires_in": 3600})
                return
            given["options"] = json.loads(unquote(given["options"]))
            found.requests.append(given)
            self._send(found.status, found.answer)

        def _send(self, status: int, answer: Any) -> None:
            body = json.dumps(answer).replace("limited-{}", f"limited-{len(found.requests)}").encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        found = TokenExchange(f"{address}/v1/token", f"{address}/own")
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield found
        server.shutdown()
