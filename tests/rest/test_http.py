"""The HTTP level: error responses, headers, paths and bodies."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitStateUnknownException, RESTError

from authorization.callers import add_policies
from rest.rest_server import JSON, RestServer, listening, opened
from runtime.servers import eventually
from skiway import errors
from skiway.airport.server import call_handlers as airport_status
from skiway.airport.wire import protocol
from skiway.config.server import Http
from skiway.formats.iceberg.warehouse import Warehouse, uri_of
from skiway.foundation.doors import disclosed, exhausted, outcome_of
from skiway.metastore import Realm
from skiway.metastore.gc import sweep_warehouse
from skiway.model import v1
from skiway.request_path import Access
from skiway.rest import RestApp, RestOptions, app
from skiway.rest.app import ROUTES
from skiway.rest.calls import RestCall, RestResponse, once
from skiway.rest.errors import BY_CLASS, BY_KEY, failed, status_of
from skiway.rest.handlers import commits, scan_planning
from skiway.rpc import door as rpc_status
from skiway.runtime.http.door import HttpDoor
from skiway.security import PermissionAuthorizer
from skiway.storage import Delete, Stores, open_stores, utc_now
from skiway.telemetry.audit import AuditLog
from skiway.telemetry.context import CallContext, require_active
from skiway.telemetry.definitions import RPC_REQUESTS
from skiway.telemetry.metrics import Metrics
from storage.homes import Clock

SCHEMA: dict[str, Any] = {"type": "struct", "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
PEOPLE = {"name": "people", "schema": SCHEMA}
HERE = "/v1/lake/namespaces/sales/tables"


@pytest.fixture
def shop(rest_server: RestServer) -> RestServer:
    """A server with a namespace and a table."""
    return stocked(rest_server)


@pytest.fixture(scope="module")
def shared_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    """The same for all tests of requests that are rejected and change nothing."""
    with open_stores("memory://") as stores, opened(stores, tmp_path_factory.mktemp("shop")) as rest_server:
        yield stocked(rest_server)


def stocked(rest_server: RestServer) -> RestServer:
    assert rest_server.call("POST", "/v1/lake/namespaces", {"namespace": ["sales"]}).status_code == 200
    assert rest_server.call("POST", HERE, PEOPLE).status_code == 200
    return rest_server


def error(response: httpx.Response) -> tuple[int, str]:
    """The status and the error type of a response, whose format is checked against the specification."""
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "code"}
    assert body["error"]["code"] == response.status_code
    assert response.headers["content-type"] == "application/json"
    return response.status_code, body["error"]["type"]


def set_property(**properties: str) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": properties}]}


# --- configuration ----------------------------------------------------------------------------------------------------


def path_of(route: Any) -> str:
    names = {"prefix": "lake", "namespace": "sales", "table": "people", "view": "adults", "plan-id": "unknown"}
    names["generic-table"] = "people"
    return str(route.path.format(**names))


MISSING, ABSENT = (404,), ("{plan-id}", "{generic-table}")
"""What `path_of` names and does not exist."""

NOT_CONFIGURED = {"LoadCredentials", "SignRequest"}
"""Routes that this server does not offer."""


def test_config_returns_the_prefix_and_exactly_the_served_endpoints(rest_server: RestServer) -> None:
    rest_server.factory.catalog("my lake")
    found = rest_server.call("GET", "/v1/config?warehouse=my%20lake").json()
    assert found["overrides"] == {"prefix": "my%20lake"}
    assert set(found["endpoints"]) == {
        route.endpoint for route in ROUTES if "{prefix}" in route.path and route.name not in NOT_CONFIGURED
    }
    assert found["idempotency-key-lifetime"] == "PT900S"


def test_missing_warehouse_selects_the_only_catalog(rest_server: RestServer) -> None:
    assert rest_server.call("GET", "/v1/config").json()["overrides"] == {"prefix": "lake"}
    rest_server.factory.catalog("other")
    response = rest_server.call("GET", "/v1/config")
    assert error(response) == (400, "BadRequestException")
    assert "lake, other" in response.text


def test_damaged_tables_and_namespaces_are_listed_and_marked(shop: RestServer) -> None:
    stores = shop.factory.stores
    assert shop.call("POST", HERE, {**PEOPLE, "name": "lost"}).status_code == 200
    assert shop.call("POST", "/v1/lake/namespaces", {"namespace": ["gone"]}).status_code == 200
    for pointer in list(stores.pointers.scan("/accounts/a1/")):
        if pointer.key.endswith(("/tables/by-name/lost", "/namespaces/by-path/gone")):
            stores.blobs.delete(pointer.blob_uri)
    lost = "its record is missing in the blob store"
    listed = shop.call("GET", HERE).json()
    assert [each["name"] for each in listed["identifiers"]] == ["lost", "people"]
    assert listed["damaged"] == [{"identifier": {"namespace": ["sales"], "name": "lost"}, "damage": lost}]
    assert [name for _, name in shop.pyiceberg().list_tables("sales")] == ["lost", "people"]
    spaces = shop.call("GET", "/v1/lake/namespaces").json()
    assert spaces["namespaces"] == [["gone"], ["sales"]]
    assert spaces["damaged"] == [{"identifier": ["gone"], "damage": lost}]
    assert shop.call("GET", "/v1/lake/namespaces/gone/tables").json()["identifiers"] == []


@pytest.mark.parametrize("route", [route for route in ROUTES if "{prefix}" in route.path], ids=lambda each: each.name)
def test_every_declared_endpoint_is_served(shop: RestServer, route: Any) -> None:
    shop.factory.view("adults", output_columns=[v1.SchemaColumn(name="id", logical_type="BIGINT")])
    path = path_of(route)
    answer = shop.call(route.method, path, {} if route.method == "POST" else None)
    served = (
        (406,) if route.name in NOT_CONFIGURED else MISSING if route.path.endswith(ABSENT) else (200, 204, 400, 409)
    )
    assert answer.status_code in served, answer.text


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/v1/config?warehouse=nowhere", None, (404, "NoSuchWarehouseException")),
        ("GET", "/v1/nowhere/namespaces", None, (404, "NoSuchWarehouseException")),
        ("GET", "/v1/lake/namespaces/nowhere", None, (404, "NoSuchNamespaceException")),
        ("GET", "/v1/lake/namespaces?parent=nowhere", None, (404, "NoSuchNamespaceException")),
        ("GET", f"{HERE}/nothing", None, (404, "NoSuchTableException")),
        ("DELETE", f"{HERE}/nothing", None, (404, "NoSuchTableException")),
        ("POST", f"{HERE}/nothing", set_property(a="b"), (404, "NoSuchTableException")),
        ("GET", "/v1/lake/namespaces/sales%1Fpeople/tables/branch_a", None, (404, "NoSuchTableException")),
        ("POST", "/v1/lake/namespaces/nowhere/tables", PEOPLE, (404, "NoSuchNamespaceException")),
        ("POST", "/v1/lake/namespaces", {"namespace": ["sales"]}, (409, "AlreadyExistsException")),
        ("POST", HERE, PEOPLE, (409, "AlreadyExistsException")),
        ("DELETE", "/v1/lake/namespaces/sales", None, (409, "NamespaceNotEmptyException")),
        ("POST", "/v1/lake/namespaces", {"namespace": []}, (400, "BadRequestException")),
        ("POST", "/v1/lake/namespaces", {"namespace": ["a", " "]}, (400, "BadRequestException")),
        ("POST", "/v1/lake/namespaces", {"namespace": ["x" * 300]}, (400, "BadRequestException")),
        ("POST", "/v1/lake/namespaces", {"namespace": [".."]}, (400, "BadRequestException")),
        ("GET", f"{HERE}?pageSize=none", None, (400, "BadRequestException")),
        ("GET", f"{HERE}?pageToken=forged", None, (400, "BadRequestException")),
        ("GET", f"{HERE}/people?snapshots=some", None, (400, "BadRequestException")),
        ("DELETE", f"{HERE}/people?purgeRequested=perhaps", None, (400, "BadRequestException")),
        ("GET", "/v1/lake/namespaces/%ff", None, (400, "BadRequestException")),
        ("GET", "/v1/elsewhere", None, (404, "NotFoundException")),
        ("GET", "/v1/namespaces", None, (404, "NotFoundException")),
        ("PUT", HERE, {}, (405, "MethodNotAllowedException")),
        (
            "POST",
            "/v1/lake/namespaces/sales/properties",
            {"removals": ["a"], "updates": {"a": "b"}},
            (422, "UnprocessableEntityException"),
        ),
        (
            "POST",
            f"{HERE}/people",
            {"requirements": [{"type": "assert-create"}], "updates": []},
            (409, "AlreadyExistsException"),
        ),
        (
            "POST",
            f"{HERE}/people",
            {"requirements": [{"type": "assert-current-schema-id", "current-schema-id": 7}], "updates": []},
            (409, "CommitFailedException"),
        ),
        (
            "POST",
            "/v1/lake/tables/rename",
            {"source": {"namespace": ["sales"], "name": "x"}, "destination": {"namespace": ["sales"], "name": "y"}},
            (404, "NoSuchTableException"),
        ),
    ],
)
def test_errors_have_the_status_and_type_of_the_specification(
    shared_shop: RestServer, method: str, path: str, body: Any, expected: tuple[int, str]
) -> None:
    assert error(shared_shop.call(method, path, body)) == expected


@pytest.mark.parametrize(
    ("method", "path", "body", "prefix"),
    [
        ("POST", "/v1/lake/namespaces", {"namespace": ["sales"]}, "Namespace already exists: sales"),
        ("DELETE", "/v1/lake/namespaces/sales", None, "Namespace sales is not empty: it contains 1 table"),
        ("GET", f"{HERE}/nothing", None, "Table does not exist: sales.nothing"),
        ("POST", HERE, PEOPLE, "Table already exists: sales.people"),
        (
            "POST",
            f"{HERE}/people",
            {"requirements": [{"type": "assert-create"}], "updates": []},
            "Requirement failed: table already exists: sales.people",
        ),
        (
            "POST",
            f"{HERE}/people",
            {"requirements": [{"type": "assert-default-spec-id", "default-spec-id": 7}], "updates": []},
            "Requirement failed: default partition spec changed: expected 7, found 0",
        ),
    ],
)
def test_messages_start_as_iceberg_clients_expect(
    shared_shop: RestServer, method: str, path: str, body: Any, prefix: str
) -> None:
    message = shared_shop.call(method, path, body).json()["error"]["message"]
    assert message.startswith(prefix), message
    assert "; " in message.removeprefix(prefix)  # followed by a remedy


def test_message_about_a_missing_namespace_is_exactly_that_of_iceberg(shared_shop: RestServer) -> None:
    for method, path, body in (("GET", "", None), ("POST", "/tables", PEOPLE), ("GET", "/views", None)):
        answer = shared_shop.call(method, f"/v1/lake/namespaces/nowhere{path}", body)
        assert answer.json()["error"]["message"] == "Namespace does not exist: nowhere"


@pytest.mark.parametrize(
    ("raised", "status", "kind"),
    [
        (errors.Unauthorized("x"), 401, "NotAuthorizedException"),
        (errors.PermissionDenied("x"), 403, "ForbiddenException"),
        (errors.NotFound("x"), 404, "NotFoundException"),
        (errors.NotFound("x", key="catalog.missing"), 404, "NoSuchWarehouseException"),
        (errors.NotFound("x", key="namespace.missing"), 404, "NoSuchNamespaceException"),
        (errors.NotFound("x", key="table.missing"), 404, "NoSuchTableException"),
        (errors.NotFound("x", key="view.missing"), 404, "NoSuchViewException"),
        (errors.InvalidArgument("x"), 400, "BadRequestException"),
        (errors.NullRowId("x"), 400, "BadRequestException"),
        (errors.InvalidArgument("x", key="body.too_large"), 413, "PayloadTooLargeException"),
        (errors.InvalidArgument("x", key="body.media"), 415, "UnsupportedMediaTypeException"),
        (errors.InvalidArgument("x", key="method.unknown"), 405, "MethodNotAllowedException"),
        (errors.InvalidArgument("x", key="properties.contradict"), 422, "UnprocessableEntityException"),
        (errors.InvalidArgument("x", key="idempotency.mismatch"), 422, "UnprocessableEntityException"),
        (errors.PreconditionFailed("x"), 409, "CommitFailedException"),
        (errors.ConstraintViolation("x"), 409, "CommitFailedException"),
        (
            errors.SchemaNotEmpty("x", key="namespace.not_empty", display_name="s", found="1 table"),
            *(409, "NamespaceNotEmptyException"),
        ),
        (errors.Conflict("x"), 409, "CommitFailedException"),
        (errors.AlreadyExists("x"), 409, "AlreadyExistsException"),
        (errors.Contention("x"), 503, "ServiceUnavailableException"),
        (errors.Busy("x"), 503, "ServiceUnavailableException"),
        (errors.Unsupported("x"), 406, "UnsupportedOperationException"),
        (errors.LimitExceeded("x"), 400, "BadRequestException"),
        (errors.Unavailable("x"), 503, "ServiceUnavailableException"),
        (errors.TimedOut("x"), 503, "ServiceUnavailableException"),
        (errors.Cancelled("x"), 503, "ServiceUnavailableException"),
        (errors.Internal("x"), 500, "InternalServerError"),
        (errors.SkiwayError("x"), 500, "InternalServerError"),
        (ValueError("x"), 500, "InternalServerError"),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'key', '')}" if isinstance(value, Exception) else None,
)
def test_every_error_has_its_own_status_and_type(raised: Exception, status: int, kind: str) -> None:
    """Written out here, because a table that is compared with itself is always right."""
    response = failed(raised, "c")
    shown = json.loads(response.body)["error"]
    assert (response.status, shown["code"], shown["type"]) == (status, status, kind)
    assert status_of(raised) == str(status)
    assert response.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)
    assert response.headers.get("retry-after") == ("1" if status == 503 else None)


def test_every_error_class_has_a_status() -> None:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.SkiwayError):
            response = failed(kind("said"), "c")
            body = json.loads(response.body)["error"]
            assert (response.status == 500) == (kind in (errors.SkiwayError, errors.Internal)), kind
            assert body["message"] == "said" or response.status == 500
    assert {status for status, _ in (*BY_CLASS.values(), *BY_KEY.values())} == {
        *(400, 401, 403, 404, 405, 406, 408, 409, 413, 415, 422, 429, 500, 503)
    }


def test_internal_error_is_returned_without_details(stores: Stores, tmp_path: Path, caplog: Any) -> None:
    def realm_of(caller: object) -> Realm:
        raise RuntimeError("the secret is 42")

    with opened(stores, tmp_path, realm_of=realm_of) as rest_server:
        answer = rest_server.call("GET", "/v1/config", x_correlation_id="look-here")
    assert error(answer) == (500, "InternalServerError")
    assert "look-here" in answer.text
    assert "42" not in answer.text
    assert "the secret is 42" in caplog.text


def test_unavailable_store_is_reported_as_retryable(stores: Stores, tmp_path: Path) -> None:
    def realm_of(caller: object) -> Realm:
        raise errors.Unavailable("the store does not answer")

    with opened(stores, tmp_path, realm_of=realm_of) as rest_server:
        answer = rest_server.call("GET", "/v1/config")
    assert error(answer) == (503, "ServiceUnavailableException")
    assert answer.headers["retry-after"] == "1"


# --- permissions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", [route for route in ROUTES if route.permissions], ids=lambda each: each.name)
def test_unauthorized_callers_are_rejected(shared_shop: RestServer, route: Any) -> None:
    path = path_of(route)
    body = {} if route.method == "POST" else None
    for caller, status in (("forger", 401), ("nobody", 403), ("platform", 403)):
        answer = shared_shop.call(route.method, path, body, authorization=f"Bearer {caller}")
        assert answer.status_code == status
        if route.method != "HEAD":
            assert error(answer)[1] == {401: "NotAuthorizedException", 403: "ForbiddenException"}[status]
    if route.permissions[0].endswith(".write"):
        assert shared_shop.call(route.method, path, body, authorization="Bearer reader").status_code == 403
    assert shared_shop.call("GET", f"{HERE}/people").status_code == 200


def test_accounts_are_isolated(shop: RestServer) -> None:
    shop.factory.account("a2")
    answer = shop.call("GET", f"{HERE}/people", authorization="Bearer stranger")
    assert error(answer) == (404, "NoSuchWarehouseException")


def test_server_issues_no_tokens(rest_server: RestServer) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = httpx.post(f"{rest_server.uri}/v1/oauth/tokens", content=b"grant_type=client_credentials", headers=form)
    assert (answer.status_code, answer.json()["error"]) == (400, "unsupported_grant_type")


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected_message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "send an object"),
        (b"\xff", "not JSON"),
        (b'{"namespace": ["a"], "namespace": ["b"]}', "'namespace' appears twice"),
        (b'{"namespace": null, "namespace": ["b"]}', "'namespace' appears twice"),
        (b'{"namespace": ["a"], "namespace": {}}', "'namespace' appears twice"),
        (b'{"namespace": ["a"], "properties": {"n": NaN}}', "NaN"),
        (b'{"namespace": ["a"], "x": 123456789012345678901234567890}', "64 bits"),
        (b'{"namespace": ["\\ud800"]}', "not JSON"),
        (b'{"namespace": "a"}', 'namespace is "a": send a list'),
        (b'{"namespace": ["a"], "properties": {"n": 1}}', "properties.n is 1: "),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_invalid_body_is_rejected_with_the_reason(shared_shop: RestServer, body: bytes, expected_message: str) -> None:
    answer = shared_shop.call("POST", "/v1/lake/namespaces", body)
    assert error(answer) == (400, "BadRequestException")
    assert expected_message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "expected_message"),
    [
        ({"requirements": []}, "updates is missing: add it"),
        ({"requirements": [], "updates": [{"action": "explode"}]}, "updates.0"),
        ({"requirements": [{"type": "assert-luck"}], "updates": []}, "requirements.0"),
        (
            {"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": {}}]},
            "updates.0.snapshot.snapshot-id is missing",
        ),
        ({"requirements": [], "updates": [{"action": "set-default-spec", "spec-id": 77}]}, "77"),
        ({**set_property(a="b"), "identifier": {"namespace": ["sales"], "name": "other"}}, "sales.other"),
        ({"requirements": [], "updates": [{"action": "set-location", "location": "file:///etc"}]}, "not approved"),
        (set_property(**{"write.data.path": "s3://other/place"}), "folder"),
    ],
)
def test_invalid_commit_is_rejected_with_the_field(shared_shop: RestServer, body: Any, expected_message: str) -> None:
    answer = shared_shop.call("POST", f"{HERE}/people", body)
    assert error(answer) == (400, "BadRequestException")
    assert expected_message in answer.json()["error"]["message"]


def test_staged_table_requires_all_its_parts(shop: RestServer) -> None:
    body = {"requirements": [{"type": "assert-create"}], "updates": []}
    answer = shop.call("POST", f"{HERE}/new", body)
    assert error(answer) == (400, "BadRequestException")
    assert "are inconsistent" in answer.text
    assert shop.call("HEAD", f"{HERE}/new").status_code == 404


@pytest.fixture
def small_body_server(stores: Stores, tmp_path: Path) -> Iterator[RestServer]:
    with opened(stores, tmp_path, options=RestOptions(max_body_bytes=1000, body_s=0.3)) as rest_server:
        yield rest_server


def test_too_large_body_is_rejected_with_and_without_content_length(small_body_server: RestServer) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(50):
            yield b" " * 100

    announced = small_body_server.call("POST", "/v1/lake/namespaces", b" " * 1001)
    assert error(announced) == (413, "PayloadTooLargeException")
    streamed = httpx.post(f"{small_body_server.uri}/v1/lake/namespaces", content=parts(), headers=JSON)
    assert error(streamed) == (413, "PayloadTooLargeException")


def test_bodies_can_be_compressed(small_body_server: RestServer) -> None:
    plain = json.dumps({"namespace": ["packed"], "properties": {"a": "b"}}).encode()
    send = partial(small_body_server.call, "POST", "/v1/lake/namespaces")
    assert send(gzip.compress(plain), content_encoding="gzip").json()["properties"]["a"] == "b"
    bomb = gzip.compress(b" " * 100_000)
    assert len(bomb) < 1000
    assert error(send(bomb, content_encoding="gzip")) == (413, "PayloadTooLargeException")
    for body, encoding, expected in (
        (gzip.compress(plain)[:-9], "gzip", "the body is not complete gzip data"),
        (plain, "gzip", "the body is not complete gzip data"),
        (plain, "br", "the body has the content-encoding 'br': compress it with gzip, or not at all"),
    ):
        answer = send(body, content_encoding=encoding)
        assert (answer.status_code, expected in answer.json()["error"]["message"]) == (400, True)


def test_fields_that_are_null_are_missing(shop: RestServer) -> None:
    nulls = {"location": None, "properties": None, "stage-create": None, "partition-spec": None, "write-order": None}
    assert shop.call("POST", HERE, {"name": "nulls", "schema": SCHEMA, **nulls}).status_code == 200
    assert shop.call("POST", "/v1/lake/namespaces", {"namespace": ["n"], "properties": None}).status_code == 200
    answer = shop.call("POST", HERE, {"name": None, "schema": SCHEMA})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "name is missing: add it")


def test_body_that_does_not_arrive_in_time_is_rejected(small_body_server: RestServer) -> None:
    address = urlsplit(small_body_server.uri)
    head = b"POST /iceberg/v1/lake/namespaces HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=200) as client:
        client.sendall(head + b"{")
        assert client.recv(4096).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("size", [2000, 100_000])
def test_errors_of_bodies_are_only_for_callers_who_are_admitted(small_body_server: RestServer, size: int) -> None:
    answer = small_body_server.call("POST", "/v1/lake/namespaces", b" " * size, authorization="Bearer forger")
    assert error(answer) == (401, "NotAuthorizedException")


@pytest.mark.parametrize(("waiting_s", "threads"), [(30.0, 1), (0.0, 2)])
@pytest.mark.parametrize("parts", [(b"", b'{"namespace": ["new"]}'), (b'{"name', b'space": ["new"]}')])
def test_body_may_arrive_after_the_headers(
    rest_server: RestServer,
    monkeypatch: pytest.MonkeyPatch,
    parts: tuple[bytes, bytes],
    waiting_s: float,
    threads: int,
) -> None:
    """The call changes threads twice only if the body does not arrive soon: then the caller is admitted first."""
    monkeypatch.setattr("skiway.rest.bodies.SOON_S", waiting_s)
    submitted, submit = list[str](), rest_server.app._threads.submit
    monkeypatch.setattr(rest_server.app._threads, "submit", lambda *of: submitted.append(of[0]) or submit(*of))
    address, (first, second) = urlsplit(rest_server.uri), parts
    head = b"POST /iceberg/v1/lake/namespaces HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += b"authorization: Bearer anybody\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=200) as client:
        client.sendall(head + b"content-length: %d\r\n\r\n" % len(first + second) + first)
        while not (rest_server.app._running.total() if waiting_s else submitted):
            time.sleep(0)
        client.sendall(second)
        assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
    assert len(submitted) == threads
    assert rest_server.call("HEAD", "/v1/lake/namespaces/new").status_code == 204


@pytest.mark.parametrize("announced", [b"content-length: 100000", b"transfer-encoding: chunked"])
def test_large_bodies_of_strangers_are_not_awaited(rest_server: RestServer, announced: bytes) -> None:
    address = urlsplit(rest_server.uri)
    head = b"POST /iceberg/v1/lake/namespaces HTTP/1.1\r\nhost: x\r\nauthorization: Bearer forger\r\n" + announced
    with socket.create_connection((address.hostname, address.port), timeout=200) as client:
        client.sendall(head + b"\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_content_types_of_cross_site_browser_requests_are_rejected(shared_shop: RestServer, content_type: str) -> None:
    answer = shared_shop.call("POST", "/v1/lake/namespaces", b'{"namespace": ["a"]}', content_type=content_type)
    assert error(answer) == (415, "UnsupportedMediaTypeException")
    assert shared_shop.call("HEAD", "/v1/lake/namespaces/a").status_code == 404


def test_disconnected_client_changes_nothing(rest_server: RestServer) -> None:
    address = urlsplit(rest_server.uri)
    head = b"POST /iceberg/v1/lake/namespaces HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with socket.create_connection((address.hostname or "", address.port or 0)) as client:
        client.sendall(head + b'content-length: 1000\r\n\r\n{"namespace": ["a"]}')
    assert rest_server.call("GET", "/v1/lake/namespaces").json()["namespaces"] == []


# --- paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/v1/lake/namespaces/..", "/v1/lake/namespaces/%2e%2e", "/v1/lake/namespaces/%2e%2e%2f.."]
)
def test_dot_segments_are_not_resolved(shared_shop: RestServer, path: str) -> None:
    assert error(shared_shop.get_untouched(path)) == (404, "NoSuchNamespaceException")
    assert error(shared_shop.get_untouched(f"{HERE}/{path.rpartition('/')[2]}")) == (404, "NoSuchTableException")


def test_names_are_decoded_once(rest_server: RestServer) -> None:
    rest_server.call("POST", "/v1/lake/namespaces", {"namespace": ["a%2Fb", "c d"]})
    assert rest_server.call("GET", "/v1/lake/namespaces/a%252Fb%1Fc%20d").json()["namespace"] == ["a%2Fb", "c d"]
    assert rest_server.call("GET", "/v1/lake/namespaces/a%252Fb%1Fc+d").json()["namespace"] == ["a%2Fb", "c d"]
    assert rest_server.call("HEAD", "/v1/lake/namespaces/a%2Fb%1Fc%20d").status_code == 404


# --- loading ----------------------------------------------------------------------------------------------------------


def test_creations_commits_and_registrations_have_the_etag_of_a_load(shop: RestServer) -> None:
    answers = [
        shop.call("POST", HERE, {"name": "new", "schema": SCHEMA}),
        shop.call("POST", f"{HERE}/new", set_property(a="b")),
    ]
    assert answers[0].headers["etag"] != answers[1].headers["etag"]
    assert shop.call("GET", f"{HERE}/new", if_none_match=answers[0].headers["etag"]).status_code == 200
    assert shop.call("GET", f"{HERE}/new", if_none_match=answers[1].headers["etag"]).status_code == 304


def test_current_etag_returns_not_modified(shop: RestServer) -> None:
    first = shop.call("GET", f"{HERE}/people")
    etag = first.headers["etag"]
    again = shop.call("GET", f"{HERE}/people", if_none_match=f'"other", W/{etag}')
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert shop.call("GET", f"{HERE}/people?snapshots=refs", if_none_match=etag).status_code == 200
    shop.call("POST", f"{HERE}/people", set_property(a="b"))
    changed = shop.call("GET", f"{HERE}/people", if_none_match=etag)
    assert changed.status_code == 200
    assert changed.json()["metadata"]["properties"]["a"] == "b"


def test_staged_table_does_not_exist_until_it_is_committed(shop: RestServer) -> None:
    staged = shop.call("POST", HERE, {**PEOPLE, "name": "new", "stage-create": True}).json()
    assert "metadata-location" not in staged
    assert shop.call("HEAD", f"{HERE}/new").status_code == 404
    assert staged["metadata"]["location"].startswith(shop.warehouse.folder())


def test_folder_of_a_staged_table_exists_and_is_empty(shop: RestServer) -> None:
    """Some clients create no folders on a local disk, and Trino creates no table where there are files."""
    staged = shop.call("POST", HERE, {**PEOPLE, "name": "new", "stage-create": True}).json()
    folder = Path(urlsplit(staged["metadata"]["location"]).path)
    assert [each.relative_to(folder).as_posix() for each in folder.rglob("*")] == ["metadata"]
    sweep_warehouse(shop.factory.stores, shop.warehouse, clock=lambda: utc_now() + timedelta(days=9), dry_run=False)
    assert not folder.exists()


def test_location_of_a_namespace_is_hidden_only_from_restricted_callers_who_create_no_tables(shop: RestServer) -> None:
    """Trino does not stage tables in a namespace without a location, and fails after it has created one."""
    schema = {**SCHEMA, "fields": [{"id": 1, "name": "name", "required": False, "type": "string"}]}
    made = shop.call("POST", HERE, {"name": "named", "schema": schema}).json()
    table_id = made["metadata"]["location"].rpartition("/")[2]
    add_policies(Realm(shop.factory.stores, "a1"), v1.ResourceId(id=table_id, kind=v1.RK_TABLE))
    for role, is_shown in (("reader", False), ("anybody", True)):
        shop.callers.known["restricted"] = replace(shop.callers.known[role], subject="restricted")
        found = shop.call("GET", HERE.removesuffix("/tables"), authorization="Bearer restricted")
        assert ("location" in found.json()["properties"]) == is_shown


def test_commit_and_load_return_the_same_response(shop: RestServer) -> None:
    committed = shop.call("POST", f"{HERE}/people", set_property(a="b")).json()
    assert committed == shop.call("GET", f"{HERE}/people").json()
    assert Path(urlsplit(committed["metadata-location"]).path).is_file()


def test_warehouse_credentials_are_not_returned(shop: RestServer) -> None:
    shop.warehouse.properties.update({"s3.secret-access-key": "hush", "s3.region": "north"})  # type: ignore[attr-defined]
    assert shop.call("GET", f"{HERE}/people").json()["config"] == {"s3.region": "north"}


def test_metrics_reports_are_accepted(shop: RestServer) -> None:
    assert shop.call("POST", f"{HERE}/people/metrics", {"report-type": "scan-report", "x": 1}).status_code == 204
    assert error(shop.call("POST", f"{HERE}/people/metrics", {})) == (400, "BadRequestException")


# --- idempotency keys -------------------------------------------------------------------------------------------------


def test_call_with_an_idempotency_key_runs_once(shop: RestServer) -> None:
    body = {"requirements": [{"type": "assert-last-assigned-field-id", "last-assigned-field-id": 1}], "updates": []}
    body["updates"] = [{"action": "set-properties", "updates": {"a": "b"}}]
    first = shop.call("POST", f"{HERE}/people", body, idempotency_key="k1")
    again = shop.call("POST", f"{HERE}/people", body, idempotency_key="k1")
    assert (first.status_code, first.content) == (again.status_code, again.content) == (200, first.content)
    created = [shop.call("POST", HERE, {**PEOPLE, "name": "twice"}, idempotency_key="k2") for _ in range(2)]
    assert [each.status_code for each in created] == [200, 200]
    assert created[0].json() == created[1].json()
    dropped = [shop.call("DELETE", f"{HERE}/twice", idempotency_key="k3").status_code for _ in range(2)]
    assert dropped == [204, 204]
    assert shop.call("DELETE", f"{HERE}/twice", idempotency_key="k4").status_code == 404


def test_idempotency_key_does_not_replay_responses_past_rights_and_policies(shop: RestServer) -> None:
    fields = [*SCHEMA["fields"], {"id": 2, "name": "name", "required": False, "type": "string"}]
    assert shop.call("POST", HERE, {"name": "named", "schema": {**SCHEMA, "fields": fields}}).status_code == 200
    body, path = set_property(planted="secret"), f"{HERE}/named"
    known = shop.callers.known
    known["restricted"] = replace(known["anybody"], subject="restricted")
    known["other"] = replace(known["anybody"], subject="other")
    for caller in ("anybody", "restricted"):
        answer = shop.call("POST", path, body, idempotency_key="k", authorization=f"Bearer {caller}")
        assert (answer.status_code, "planted" in answer.text) == (200, True)
    table_id = answer.json()["metadata"]["location"].rpartition("/")[2]
    add_policies(Realm(shop.factory.stores, "a1"), v1.ResourceId(id=table_id, kind=v1.RK_TABLE))
    for caller in ("restricted", "reader", "nobody", "stranger", "platform"):
        answer = shop.call("POST", path, body, idempotency_key="k", authorization=f"Bearer {caller}")
        assert (answer.status_code >= 400, "planted" in answer.text) == (True, False), caller
    known["anybody"] = replace(known["anybody"], permissions=known["reader"].permissions)
    assert error(shop.call("POST", path, body, idempotency_key="k")) == (403, "ForbiddenException")
    changed = shop.call("POST", path, set_property(b="c"), idempotency_key="k", authorization="Bearer other")
    assert changed.json()["metadata"]["properties"]["b"] == "c"  # a key of another caller is not in the way


def test_client_errors_are_replayed(rest_server: RestServer) -> None:
    first_error = rest_server.call("POST", "/v1/lake/namespaces/sales/tables", PEOPLE, idempotency_key="k")
    rest_server.call("POST", "/v1/lake/namespaces", {"namespace": ["sales"]})
    assert rest_server.call("POST", HERE, PEOPLE, idempotency_key="k").content == first_error.content
    assert first_error.status_code == 404


def test_idempotency_key_cannot_be_reused_for_another_call(shop: RestServer) -> None:
    shop.call("POST", f"{HERE}/people", set_property(a="b"), idempotency_key="k")
    for other in (
        shop.call("POST", f"{HERE}/people", set_property(a="c"), idempotency_key="k"),
        shop.call("DELETE", f"{HERE}/people", idempotency_key="k"),
    ):
        assert error(other) == (422, "UnprocessableEntityException")
    assert shop.call("GET", f"{HERE}/people").json()["metadata"]["properties"]["a"] == "b"
    assert error(shop.call("DELETE", f"{HERE}/people", idempotency_key="k" * 200)) == (400, "BadRequestException")


def test_call_can_be_retried_after_a_server_error(shop: RestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from skiway.metastore.resources import namespaces

    def fail(*_: object) -> None:
        raise errors.Unavailable("not now")

    with monkeypatch.context() as broken:
        broken.setattr(namespaces, "create", fail)
        answer = shop.call("POST", "/v1/lake/namespaces", {"namespace": ["new"]}, idempotency_key="k")
        assert answer.status_code == 503
    again = shop.call("POST", "/v1/lake/namespaces", {"namespace": ["new"]}, idempotency_key="k")
    assert again.status_code == 200


def test_concurrent_identical_calls_run_once(shop: RestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from skiway.metastore.resources import namespaces

    inside, may_go, create = threading.Event(), threading.Event(), namespaces.create

    def slowly(*arguments: Any) -> Any:
        inside.set()
        assert may_go.wait(200)
        return create(*arguments)

    monkeypatch.setattr(namespaces, "create", slowly)
    body = {"namespace": ["new"]}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(shop.call, "POST", "/v1/lake/namespaces", body, idempotency_key="k")
        assert inside.wait(200)
        second = shop.call("POST", "/v1/lake/namespaces", body, idempotency_key="k")
        may_go.set()
        assert (second.status_code, first.result().status_code) == (503, 200)
    assert shop.call("POST", "/v1/lake/namespaces", body, idempotency_key="k").content == first.result().content


def test_call_of_a_dead_server_can_be_repeated_after_a_minute(tmp_path: Path) -> None:
    clock = Clock()
    with open_stores("memory://", clock=clock) as stores:

        def realm_of(caller: Any) -> Realm:
            return Realm(stores, caller.account_id, clock=clock)

        with opened(stores, tmp_path, realm_of=realm_of) as rest_server:
            path, body = "/v1/lake/namespaces", b'{"namespace": ["new"]}'
            route = next(each for each in ROUTES if each.name == "CreateNamespace")
            call = RestCall(
                route.operation,
                {"idempotency-key": "k"},
                CallContext("c"),
                route=route,
                names={},
                query={},
                target=f"/iceberg{path}?",
                body=body,
            )
            realm = realm_of(rest_server.callers.known["anybody"])
            with pytest.raises(Killed):
                once(
                    replace(realm, caller="anybody", stores=replace(stores, pointers=Abandoned(stores.pointers))),
                    call,
                    die,
                )
            assert rest_server.call("POST", path, body, idempotency_key="k").status_code == 503
            clock.advance(61)
            assert rest_server.call("POST", path, body, idempotency_key="k").status_code == 200


class Killed(BaseException):
    """Stands for the death of the process."""


def die() -> RestResponse:
    raise Killed


class Abandoned:
    """A store in which a dead process no longer cleans up."""

    def __init__(self, pointers: Any) -> None:
        self._pointers = pointers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pointers, name)

    def _apply(self, batch: Any) -> None:
        if not any(isinstance(operation, Delete) for operation in batch):
            self._pointers._apply(batch)


def test_empty_object_before_a_value_is_replaced_by_it(rest_server: RestServer) -> None:
    """DuckDB 1.4 sends the type of a list like that."""
    body = b'{"namespace": {}, "namespace": ["a"]}'
    assert rest_server.call("POST", "/v1/lake/namespaces", body).status_code == 200


# --- concurrency ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blocked:
    """A server whose calls of the account `a1`, or of all accounts, wait until they are `free`, and threads for calls."""

    server: RestServer
    pool: ThreadPoolExecutor
    free: threading.Event

    def config(self, token: str) -> httpx.Response:
        return self.server.call("GET", "/v1/config", authorization=f"Bearer {token}")


@contextmanager
def blocked(stores: Stores, folder: Path, options: RestOptions, *, account: str | None = None) -> Iterator[Blocked]:
    """A server that knows the accounts of the tokens. The calls end with the block, also if the test fails."""
    free = threading.Event()
    free.set()

    def realm_of(caller: Any) -> Realm:
        assert account not in (None, caller.account_id) or free.wait(200)
        return Realm(stores, caller.account_id)

    with opened(stores, folder, realm_of=realm_of, options=options) as server, ThreadPoolExecutor(6) as pool:
        found = Blocked(server, pool, free)
        # That of the stranger has no catalog.
        assert [found.config(token).status_code for token in ("anybody", "stranger")] == [200, 400]
        free.clear()
        try:
            yield found
        finally:
            free.set()


def test_calls_beyond_the_queue_limit_are_rejected_and_the_event_loop_keeps_running(
    stores: Stores, tmp_path: Path
) -> None:
    with blocked(stores, tmp_path, RestOptions(workers=1, waiting=1)) as each:
        served = [each.pool.submit(each.config, token) for token in ("anybody", "stranger")]
        while (
            response := each.server.call("GET", "/v1/nothing")
        ).status_code == 404 and each.server.app._running.total() < 2:
            time.sleep(0)
        assert response.status_code == 404  # answered by the event loop while all threads are busy
        assert error(each.config("anybody")) == (503, "ServiceUnavailableException")
        each.free.set()
        assert [call.result().status_code for call in served] == [200, 400]


def test_calls_of_one_account_leave_places_for_others(stores: Stores, tmp_path: Path) -> None:
    """Calls of one account that wait for a thread do not fill the places of all callers."""
    with blocked(stores, tmp_path, RestOptions(workers=4, waiting=4), account="a1") as each:
        waiting = [each.pool.submit(each.config, "anybody") for _ in range(6)]
        while each.server.app._running.total() < 6:
            time.sleep(0)
        assert error(each.config("anybody")) == (429, "TooManyRequestsException")
        assert each.config("stranger").status_code == 400
        each.free.set()
        assert [call.result().status_code for call in waiting] == [200] * 6


def test_calls_that_lost_a_race_are_retried(shop: RestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from skiway.metastore.resources import namespaces

    update, lost = namespaces.update, []

    def update_after_a_concurrent_one(realm: Realm, request: Any) -> Any:
        if not lost:
            lost.append(True)
            other = shop.call("POST", "/v1/lake/namespaces/sales/properties", {"updates": {"other": "1"}})
            assert other.status_code == 200
        return update(realm, request)

    monkeypatch.setattr(namespaces, "update", update_after_a_concurrent_one)
    answer = shop.call("POST", "/v1/lake/namespaces/sales/properties", {"updates": {"mine": "1"}})
    assert answer.json() == {"updated": ["mine"], "removed": [], "missing": []}
    found = shop.call("GET", "/v1/lake/namespaces/sales").json()["properties"]
    assert {name: value for name, value in found.items() if name != "location"} == {"mine": "1", "other": "1"}


# --- correlation ids, metrics and audit -------------------------------------------------------------------------------


def test_every_response_has_a_correlation_id(rest_server: RestServer) -> None:
    assert rest_server.call("GET", "/v1/config", x_correlation_id="mine").headers["x-correlation-id"] == "mine"
    made = rest_server.call("GET", "/v1/nothing", x_correlation_id="x" * 200).headers["x-correlation-id"]
    assert made
    assert made != "x" * 200


def test_calls_are_counted_and_audited(stores: Stores, tmp_path: Path) -> None:
    metrics = Metrics()
    with (
        closing(AuditLog(tmp_path / "audit")) as audit,
        opened(stores, tmp_path, metrics=metrics, audit=audit) as rest_server,
    ):
        rest_server.call("POST", "/v1/lake/namespaces", {"namespace": ["sales"]}, x_correlation_id="c1")
        rest_server.call("GET", "/v1/lake/namespaces/nothing", authorization="Bearer reader")
    lines = [json.loads(line) for line in (tmp_path / "audit" / "namespace.log").read_text().splitlines()]
    actual = [(each["operation"], each["outcome"], each["subject"]) for each in lines]
    assert actual == [
        ("IcebergRest/CreateNamespace", "OK", "anybody"),
        ("IcebergRest/LoadNamespace", "MC_NOT_FOUND", "reader"),
    ]
    assert lines[0]["correlation_id"] == "c1"
    families = [each for each in metrics.collect() if each.metric is RPC_REQUESTS]
    assert {point.tags for family in families for point in family.points} == {
        ("a1", "IcebergRest", "CreateNamespace", "OK"),
        ("a1", "IcebergRest", "LoadNamespace", "404"),
    }


def test_commit_of_one_server_is_loaded_by_another(shop: RestServer, stores: Stores) -> None:
    other = RestApp(
        Access(lambda caller: Realm(stores, caller.account_id), shop.callers, PermissionAuthorizer()),
        warehouse=shop.warehouse,
    )
    with closing(other), listening(other) as uri:
        before = httpx.get(f"{uri}{HERE}/people").json()
        table = shop.pyiceberg().load_table("sales.people")
        table.append(pa.table({"id": [1]}))
        after = httpx.get(f"{uri}{HERE}/people").json()
    assert before["metadata"].get("current-snapshot-id") is None
    assert after["metadata"]["current-snapshot-id"] == table.metadata.current_snapshot_id


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (
            "/plan",
            b'{"filter": {"type": "in", "term": "id", "values": [' + b"1," * 1_000_000 + b"1]}}",
            "1000002 commas",
        ),
        (
            "/plan",
            b'{"filter": {"type": "in", "term": "id", "values": [' + b"1," * 60_000 + b"1]}}",
            "the maximum is 100000",
        ),
        (
            "/plan",
            b'{"filter": {"type": "eq", "term": "id", "value": "' + b"x" * 8_000_000 + b'"}}',
            "the maximum is 100000",
        ),
        ("/plan", b'{"select": [' + b'"id",' * 400_000 + b'"id"]}', "400000 commas"),
        ("/plan", b'{"filter": ' + b"[" * 500_000 + b"]" * 500_000 + b"}", "nested too deep"),
        ("/plan", b"{" + b"".join(b'"%d": 1,' % n for n in range(100_000)) + b'"z": 1, "z": 1}', "'z' appears twice"),
        ("", b'{"updates": [], "requirements": [' + b"{}," * 20_000 + b"{}]}", "at most 10000 items"),
        ("transaction", b'{"table-changes": [' + b"{}," * 2_000 + b"{}]}", "at most 1000 items"),
    ],
)
def test_huge_input_is_rejected_before_work_begins(
    shared_shop: RestServer, path: str, body: bytes, reason: str
) -> None:
    target = "/v1/lake/transactions/commit" if path == "transaction" else f"{HERE}/people{path}"
    started = time.process_time()
    answer = shared_shop.call("POST", target, body)
    assert time.process_time() - started < 5  # most took minutes
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]


def test_filter_is_repeated_in_each_task_only_if_it_is_small(shop: RestServer) -> None:
    table = shop.pyiceberg().load_table("sales.people")
    table.append(pa.table({"id": [1, 2]}))

    def task(count: int) -> Any:
        values = {"type": "in", "term": "id", "values": list(range(count))}
        [found] = shop.call("POST", f"{HERE}/people/plan", {"filter": values}).json()["file-scan-tasks"]
        return found

    assert task(100)["residual-filter"]["values"] == list(range(100))
    assert "residual-filter" not in task(10_000)


def planning_for_ever(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, list[Exception]]:
    """Let plans run until they are cancelled. Returns an event for their start, and the errors that ended them."""
    began, ended = threading.Event(), []

    def run(*_: object) -> None:
        began.set()
        try:
            while True:
                require_active()
                time.sleep(0.01)
        except Exception as error:
            ended.append(error)
            raise

    monkeypatch.setattr(scan_planning, "_planned", run)
    return began, ended


def test_work_stops_when_the_client_disconnects(shop: RestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = planning_for_ever(monkeypatch)
    address = urlsplit(shop.uri)
    with socket.create_connection((address.hostname or "", address.port or 0)) as client:
        head = f"POST {address.path}{HERE}/people/plan HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        client.sendall(f"{head}content-length: 2\r\n\r\n{{}}".encode())
        assert began.wait(200)
        assert not ended
    eventually(lambda: bool(ended), within_s=200)
    assert isinstance(ended[0], errors.Cancelled)


def test_work_ends_within_the_drain_time(stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = planning_for_ever(monkeypatch)
    find = lambda caller: Realm(stores, caller.account_id)  # noqa: E731
    with opened(stores, tmp_path) as server:
        stocked(server)
        access = Access(find, server.callers, PermissionAuthorizer())
        rest = RestApp(access, warehouse=server.warehouse)
        door = HttpDoor(rest, Http(address="127.0.0.1:0"), drain_s=1.0)
        url = door.start()["http"]
        with ThreadPoolExecutor(1) as thread:
            calling = thread.submit(lambda: httpx.post(f"{url}{HERE}/people/plan", json={}, timeout=200))
            assert began.wait(200)
            started = time.monotonic()
            door.drain()
            door.close()
            rest.close()
            assert time.monotonic() - started < 1.0 + 4.0
            assert isinstance(ended[0], errors.Cancelled)
            calling.exception()


def test_calls_that_do_not_end_are_abandoned(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(app, "CANCEL_S", 0.2)
    go = threading.Event()
    with opened(stores, tmp_path) as server:
        server.app._threads.submit("lane", lambda: go.wait(200))
        started = time.monotonic()
        server.app.close()
        assert time.monotonic() - started < 5
        go.set()
    assert "abandoning them" in caplog.text


# -- honest answers ---------------------------------------------------------------------------------------------------

COMMIT = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}


@pytest.mark.parametrize(
    ("raised", "status", "kind"),
    [
        (errors.Unavailable("broke", key="store.outcome_unknown"), 500, "CommitStateUnknownException"),
        (errors.Unavailable("full", key="disk.full"), 503, "ServiceUnavailableException"),
        (errors.Internal("broken", key="store.failed"), 500, "CommitStateUnknownException"),
        (RuntimeError("a bug"), 500, "CommitStateUnknownException"),
        (errors.TimedOut("slow"), 503, "ServiceUnavailableException"),
    ],
)
def test_only_a_commit_of_unknown_outcome_looks_unknown(
    shop: RestServer, monkeypatch: pytest.MonkeyPatch, raised: Exception, status: int, kind: str
) -> None:
    """PyIceberg and Iceberg's Java library take 500 and 504 of a commit for an unknown outcome, but not 503."""
    store = shop.factory.stores.pointers
    table = shop.pyiceberg().load_table("sales.people")

    def fail(batch: object) -> None:
        raise raised

    monkeypatch.setattr(type(store), "_apply", lambda _, batch: fail(batch))
    answer = shop.call("POST", f"{HERE}/people", COMMIT)
    assert error(answer) == (status, kind)
    if status == 500:
        assert "retry-after" not in answer.headers
    with pytest.raises(CommitStateUnknownException if status == 500 else RESTError), table.transaction() as change:
        change.set_properties(a="b")


def test_commit_whose_response_cannot_be_made_is_not_taken_for_undone(
    shop: RestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(commits, "loaded", fail)
    assert error(shop.call("POST", f"{HERE}/people", COMMIT)) == (500, "CommitStateUnknownException")
    monkeypatch.undo()
    assert shop.pyiceberg().load_table("sales.people").properties["a"] == "b"


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b"\xff\x00", None], ids=str)
def test_damaged_metadata_is_named_and_no_conflict(shop: RestServer, content: bytes | None) -> None:
    shop.call("POST", f"{HERE}/people", COMMIT)
    location = str(shop.call("GET", f"{HERE}/people").json()["metadata-location"])
    place = Path(location.removeprefix("file://"))
    if content is None:
        place.unlink()
    else:
        place.write_bytes(content)
    with opened_again(shop) as server:
        for method, path, body, status in [
            ("GET", "", None, 500 if content is not None else 404),  # which Iceberg's own tests expect
            ("POST", "/plan", {}, 500),
            ("POST", "", COMMIT, 503),
        ]:
            answer = server.call(method, f"{HERE}/people{path}", body)
            assert answer.status_code == status
            assert "retry-after" not in answer.headers
            assert place.name in answer.json()["error"]["message"]
            assert "restore it" in answer.text or "synchronise" in answer.text


@contextmanager
def opened_again(server: RestServer) -> Iterator[RestServer]:
    """Another server over the same store, which has cached nothing."""
    access = Access(
        lambda caller: Realm(server.factory.stores, caller.account_id), server.callers, PermissionAuthorizer()
    )
    rest = RestApp(access, warehouse=Warehouse.at(uri_of(server.warehouse.root)))
    with listening(rest) as uri:
        yield replace(server, app=rest, uri=uri)
    rest.close()


def test_damaged_record_is_named(shop: RestServer) -> None:
    stores = shop.factory.stores
    [pointer] = [each for each in stores.pointers.scan() if each.key.endswith("/tables/by-name/people")]
    stores.blobs.delete(pointer.blob_uri)
    answer = shop.call("GET", f"{HERE}/people")
    assert error(answer) == (500, "DamagedTableException")
    assert "sales.people" in answer.text
    assert "record is missing" in answer.text


@pytest.mark.parametrize(
    "raised", [MemoryError(), pa.ArrowMemoryError("malloc failed"), RuntimeError("can't start new thread")], ids=repr
)
def test_exhausted_memory_and_threads_have_one_key(raised: Exception) -> None:
    for error_ in (disclosed(raised), exhausted(raised)):
        assert error_ is not None
        assert error_.key == "memory.exceeded"
    assert failed(raised, "c").status == 503
    assert status_of(raised) == "503"
    assert outcome_of(raised) == errors.LimitExceeded.code
    assert airport_status.code_of(raised) is rpc_status.code_of(raised) is grpc.StatusCode.RESOURCE_EXHAUSTED
    shown = airport_status.failure(raised, details="none", correlation_id="c", disclosure=airport_status.Disclosure())
    assert b"memory.exceeded" in dict(shown.trailers)[protocol.ERROR_FACTS]
    assert disclosed(RuntimeError("something else")) is None
