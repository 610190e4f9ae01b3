"""The read-only half of an Iceberg REST catalog in front of any PyIceberg catalog; requires a token."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

TOKEN = "let me in"


@contextmanager
def serving(catalog: Catalog) -> Iterator[str]:
    """Serve the catalog on loopback and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.reply(401, {"error": {"message": "who are you?", "type": "NotAuthorized", "code": 401}})
            try:
                self.reply(200, answer(catalog, self.path))
            except (NoSuchTableError, NoSuchNamespaceError) as error:
                self.reply(404, {"error": {"message": str(error), "type": "NoSuchTableException", "code": 404}})

        def reply(self, code: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answer(catalog: Catalog, path: str) -> Any:
    parts = urlsplit(path)
    match [unquote(each) for each in parts.path.strip("/").split("/")]:
        case ["v1", "config"]:
            return {"defaults": {}, "overrides": {}}
        case ["v1", "namespaces"]:
            parent = tuple(parse_qs(parts.query).get("parent", [""])[0].split("\x1f"))
            return {"namespaces": [list(each) for each in catalog.list_namespaces(parent if parent[0] else ())]}
        case ["v1", "namespaces", namespace, "tables"]:
            found = catalog.list_tables(tuple(namespace.split("\x1f")))
            return {"identifiers": [{"namespace": list(each[:-1]), "name": each[-1]} for each in found]}
        case ["v1", "namespaces", namespace, "tables", table]:
            loaded = catalog.load_table((*namespace.split("\x1f"), table))
            metadata = json.loads(loaded.metadata.model_dump_json(exclude_none=True))
            return {"metadata-location": loaded.metadata_location, "metadata": metadata, "config": {}}
        case _:
            raise NoSuchTableError(path)
