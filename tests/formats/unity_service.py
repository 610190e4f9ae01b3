"""A server that follows the REST API of Unity Catalog, as far as sources use it. It requires a token and returns short pages."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

TOKEN = "planted-token-of-unity"
API = "/api/2.1/unity-catalog"
_PAGE = 2


@dataclass
class UnityService:
    """The tables of a server, by full name, and the requests that it got.

    `keys` are the temporary keys that it gives for files in S3. `answers` replaces the answers to some paths, as status and body.
    """

    address: str = ""
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)

    def add(self, full_name: str, place: str, kind: str = "DELTA", table_type: str = "EXTERNAL") -> None:
        catalog, schema, name = full_name.split(".")
        self.tables[full_name] = {
            "name": name,
            "catalog_name": catalog,
            "schema_name": schema,
            "table_id": f"id-of-{full_name}",
            "table_type": table_type,
            "data_source_format": kind,
            "storage_location": place,
            "columns": [],
        }

    def answer(self, method: str, path: str, given: Mapping[str, Any]) -> tuple[int, Any]:
        """The status and the answer to a request with these parameters, or with this body."""
        match method, path.removeprefix(API).strip("/").split("/"):
            case "GET", ["catalogs"]:
                return 200, self._page("catalogs", {name.split(".")[0] for name in self.tables}, given)
            case "GET", ["schemas"]:
                names = [name.split(".") for name in self.tables]
                return 200, self._page(
                    "schemas", {each[1] for each in names if each[0] == given["catalog_name"]}, given
                )
            case "GET", ["tables"]:
                prefix = f"{given['catalog_name']}.{given['schema_name']}."
                names = {name.removeprefix(prefix) for name in self.tables if name.startswith(prefix)}
                page = self._page("tables", names, given)
                page["tables"] = [self.tables[prefix + each["name"]] for each in page["tables"]]
                return (200, page) if names else (404, {"error_code": "SCHEMA_NOT_FOUND"})
            case "GET", ["tables", name] if name in self.tables:
                return 200, self.tables[name]
            case "POST", ["temporary-table-credentials"] if self.keys and given["operation"] == "READ":
                return 200, {"aws_temp_credentials": self.keys, "expiration_time": 1}
            case _:
                return 404, {"error_code": "NOT_FOUND"}

    def _page(self, kind: str, names: set[str], given: Mapping[str, Any]) -> dict[str, Any]:
        start = int(given.get("page_token", "0"))
        some = sorted(names)[start : start + _PAGE]
        more = {"next_page_token": str(start + _PAGE)} if start + _PAGE < len(names) else {}
        return {kind: [{"name": each} for each in some], **more}


@contextmanager
def running_unity() -> Iterator[UnityService]:
    """Serve on loopback."""
    service = UnityService()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.serve(dict(parse_qsl(urlsplit(self.path).query)))

        def do_POST(self) -> None:
            self.serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def serve(self, given: dict[str, Any]) -> None:
            path = unquote(urlsplit(self.path).path)
            service.requests.append((self.command, path.removeprefix(API), given))
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.reply(401, b"{}")
            if path.removeprefix(API) in service.answers:
                return self.reply(*service.answers[path.removeprefix(API)])
            status, body = service.answer(self.command, path, given)
            return self.reply(status, json.dumps(body).encode())

        def reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", body.decode())
                body = b""
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    service.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
