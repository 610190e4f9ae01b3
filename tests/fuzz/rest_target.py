"""Requests to the Iceberg REST catalog: valid bodies with changed members, paths, parameters, headers and methods."""

from __future__ import annotations

import json
from random import Random
from urllib.parse import quote

import httpx
import pyarrow as pa

from fuzz.flight_target import TIMEOUT_S
from fuzz.mutation import any_text, any_value, changed_bytes, changed_value
from fuzz.target import Case, Target, captured_errors, logged_fault
from rest.rest_server import opened
from rest.test_fuzz import BODIES, HERE, REQUIREMENTS, UPDATES
from skiway.rest.app import ROUTES
from skiway.storage import open_stores

HEADERS = (
    "x-iceberg-access-delegation",
    "if-none-match",
    "idempotency-key",
    "content-type",
    "x-correlation-id",
    "authorization",
)
PARAMETERS = ("pageToken", "pageSize", "parent", "snapshots", "purgeRequested", "warehouse", "referencedBy")


class RestTarget(Target):
    """The HTTP door of the Iceberg catalog."""

    name = "rest"

    def open(self) -> None:
        self.errors = self.stack.enter_context(captured_errors())
        stores = self.stack.enter_context(open_stores("memory://"))
        folder = self.folder / "rest"
        folder.mkdir(exist_ok=True)
        self.server = self.stack.enter_context(opened(stores, folder))
        catalog = self.server.pyiceberg()
        catalog.create_namespace("sales")
        catalog.create_table("sales.people", pa.schema({"id": pa.int64()})).append(pa.table({"id": [1]}))
        self.names = ["sales", "people", "lake", "new", "main", "id", "sales\x1fx", str(folder)]

    def case(self, chance: Random) -> Case:
        match chance.randrange(4):
            case 0:
                path, body = chance.choice(BODIES)
                method, sent = "POST", changed_value(body, chance, self.names)
            case 1 | 2:
                path, method = f"{HERE}/{chance.choice(('people', 'people', 'new'))}", "POST"
                sent = {
                    "requirements": chance.sample(REQUIREMENTS, chance.randrange(3)),
                    "updates": chance.sample(UPDATES, chance.randrange(1, 5)),
                }
                if chance.random() < 0.8:
                    sent = changed_value(sent, chance, self.names)
            case _:
                method, path = chance.choice(("GET", "POST", "DELETE", "HEAD", "PUT")), self._path(chance)
                sent = any_value(chance, self.names) if method == "POST" else None
        data = b"" if sent is None else json.dumps(sent).encode()
        if data and chance.random() < 0.1:
            data = changed_bytes(data, chance)
        headers = {chance.choice(HEADERS): any_text(chance, self.names)} if chance.random() < 0.15 else {}
        headers = {name: value for name, value in headers.items() if value.isascii() and value.isprintable()}
        return {"method": method, "path": path, "body": data, "headers": headers}

    def _path(self, chance: Random) -> str:
        """The path of a route with names that exist or not, and with parameters."""
        segments = chance.choice(ROUTES).path.split("/")
        filled = [any_text(chance, self.names) if each[:1] == "{" else each for each in segments]
        path = "/".join(quote(each, safe=chance.choice(("", "%", "%+/"))) for each in filled)
        given = chance.sample(PARAMETERS, chance.randrange(3))
        parameters = "&".join(f"{name}={quote(any_text(chance, [*self.names, '1', 'all', 'refs']))}" for name in given)
        return f"{path}?{parameters}" if parameters else path

    def run(self, case: Case) -> str:
        self.errors.take()
        try:
            answer = self.server.http.request(
                case["method"],
                f"{self.server.uri}{case['path']}",
                content=case["body"],
                headers={"content-type": "application/json", **case["headers"]},
                timeout=TIMEOUT_S,
            )
        except httpx.TimeoutException:
            raise TimeoutError(f"{case['method']} {case['path']} did not end within {TIMEOUT_S} seconds") from None
        except (httpx.InvalidURL, httpx.LocalProtocolError):
            return "not sent"
        if answer.status_code >= 500 and (fault := logged_fault(self.errors, str(answer.status_code), answer.text)):
            raise fault
        return str(answer.status_code)
