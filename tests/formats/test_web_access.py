"""Network access rules for sources: no request is sent to a forbidden address, whatever points to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any

import pyarrow as pa
import pytest
from urllib3.util import connection

from metastore.upstreams import iceberg
from skiway.errors import PermissionDenied, Unavailable
from skiway.formats import open_source, web_access
from skiway.formats.web_access import Addresses, check_endpoint, check_named, permit

METADATA = "http://169.254.169.254/latest/meta-data"


@pytest.fixture(autouse=True)
def restore_web_access() -> Iterator[None]:
    yield
    permit(Addresses.PRIVATE)


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch) -> None:
    """Allow connections to this machine only, even if the code under test is broken."""
    connect = connection.create_connection

    def connected(address: tuple[str, int], *how: Any, **more: Any) -> Any:
        assert address[0] in ("127.0.0.1", "localhost"), f"connected to {address[0]}"
        return connect(address, *how, **more)

    monkeypatch.setattr(connection, "create_connection", connected)


class Upstream(ThreadingHTTPServer):
    """A catalog with configurable answers by path that records the requested paths."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.answers: dict[str, tuple[int, dict[str, str], Any]] = {}
        self.requested: list[str] = []
        self.silent = threading.Event()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Upstream

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requested.append(path)
        self.rfile.read(int(self.headers.get("content-length") or 0))
        if path not in self.server.answers:
            self.server.silent.wait(30)
        status, headers, body = self.server.answers.get(path, (404, {}, {}))
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-length": str(len(data)), "content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = _answer  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    server = Upstream()
    server.answers["/v1/config"] = (200, {}, {"defaults": {}, "overrides": {}})
    server.answers["/v1/namespaces"] = (200, {}, {"namespaces": [["sales"]]})
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.silent.set()
    server.shutdown()
    thread.join()
    server.server_close()


def namespaces(uri: str, **how: Any) -> list[tuple[str, ...]]:
    with open_source("iceberg", uri, **how) as source:
        return source.namespaces()


def refused() -> Any:
    return pytest.raises(PermissionDenied, check=lambda error: error.key == "address.refused")


@pytest.mark.parametrize(
    ("host", "minimum"),
    [
        ("8.8.8.8", Addresses.PUBLIC),
        ("[2606:4700::1]", Addresses.PUBLIC),
        ("127.0.0.1", Addresses.PRIVATE),
        ("localhost", Addresses.PRIVATE),
        ("[::1]", Addresses.PRIVATE),
        ("10.1.2.3", Addresses.PRIVATE),
        ("192.168.0.1", Addresses.PRIVATE),
        ("100.64.0.1", Addresses.PRIVATE),
        ("[fd12::1]", Addresses.PRIVATE),
        ("[::ffff:10.1.2.3]", Addresses.PRIVATE),
        ("169.254.169.254", Addresses.ANY),
        ("[fe80::1]", Addresses.ANY),
        ("[fd00:ec2::254]", Addresses.ANY),
        ("100.100.100.200", Addresses.ANY),
        ("[::ffff:169.254.169.254]", Addresses.ANY),
        ("[64:ff9b::a9fe:a9fe]", Addresses.ANY),
        ("[2002:a9fe:a9fe::1]", Addresses.ANY),
        ("0.0.0.0", Addresses.ANY),
        ("224.0.0.1", Addresses.ANY),
    ],
)
def test_address_is_permitted_only_by_the_matching_settings(host, minimum):
    for level in Addresses:
        permit(level)
        url = f"https://{host}:8181/v1"
        if list(Addresses).index(level) >= list(Addresses).index(minimum):
            assert check_endpoint(url) == check_named(url) == url
            continue
        for check in (check_endpoint, check_named):
            with refused():
                check(url)


def test_local_catalog_is_called_unless_forbidden(upstream):
    assert namespaces(upstream.uri) == [("sales",)]
    permit(Addresses.PUBLIC)
    upstream.requested.clear()
    with refused():
        namespaces(upstream.uri)
    assert upstream.requested == []


@pytest.mark.parametrize("where", ["options", "credentials"])
def test_token_is_not_requested_from_a_forbidden_address(upstream, where):
    credentials = {"credential": "id:secret"}
    named = {"oauth2-server-uri": METADATA}
    how = {
        "options": named if where == "options" else {},
        "credentials": credentials | (named if where != "options" else {}),
    }
    with refused():
        namespaces(upstream.uri, **how)


@pytest.mark.parametrize("path", ["/v1/config", "/v1/namespaces"])
def test_redirect_to_a_forbidden_address_is_not_followed(upstream, path):
    upstream.answers[path] = (302, {"location": METADATA}, {})
    with refused():
        namespaces(upstream.uri)


def test_redirect_of_the_token_endpoint_is_not_followed(upstream):
    upstream.answers["/token"] = (307, {"location": METADATA}, {})
    with refused():
        namespaces(upstream.uri, credentials={"credential": "id:secret", "oauth2-server-uri": f"{upstream.uri}/token"})
    assert upstream.requested == ["/token"]


@pytest.mark.parametrize("overrides", [{"uri": METADATA}, {"oauth2-server-uri": METADATA, "credential": "id:secret"}])
def test_catalog_cannot_send_its_client_to_a_forbidden_address(upstream, overrides):
    upstream.answers["/v1/config"] = (200, {}, {"defaults": {}, "overrides": overrides})
    with refused():
        namespaces(upstream.uri)


def test_name_that_resolves_to_another_address_on_connect_is_rejected(upstream, monkeypatch):
    permit(Addresses.PUBLIC)
    monkeypatch.setattr(web_access, "_resolved", lambda *_: iter([ip_address("8.8.8.8")]))
    with refused():
        namespaces(upstream.uri)
    assert upstream.requested == []


@pytest.mark.parametrize("endpoint", ["http://169.254.169.254", "169.254.169.254:9000"])
def test_object_store_at_a_forbidden_address_is_not_opened(endpoint):
    with refused():
        open_source("parquet", "s3://bucket/data", options={"s3.endpoint": endpoint})


def test_behind_a_proxy_ip_addresses_are_checked_and_host_names_are_not(upstream, monkeypatch):
    monkeypatch.setenv("http_proxy", upstream.uri)
    upstream.answers["http://nowhere.invalid/v1/config"] = (200, {}, {"defaults": {}, "overrides": {}})
    upstream.answers["http://nowhere.invalid/v1/namespaces"] = (200, {}, {"namespaces": [["sales"]]})
    assert namespaces("http://nowhere.invalid") == [("sales",)]
    with refused():
        namespaces("http://169.254.169.254")


def test_unresolvable_name_is_unavailable():
    with pytest.raises(Unavailable, match="host 'nowhere"):
        namespaces("http://nowhere.invalid:1")


def test_unresponsive_catalog_times_out(upstream, monkeypatch):
    del upstream.answers["/v1/config"]
    monkeypatch.setattr(web_access, "ANSWER_S", 0.3)
    with pytest.raises(Unavailable, match="does not respond"):
        namespaces(upstream.uri)


def test_catalog_cannot_choose_the_class_that_is_loaded(upstream, tmp_path):
    table = iceberg(tmp_path).create_table("sales.orders", schema=pa.schema({"id": pa.int64()}))
    upstream.answers["/v1/namespaces/sales/tables/orders"] = (
        200,
        {},
        {
            "metadata-location": table.metadata_location,
            "metadata": json.loads(table.metadata.model_dump_json()),
            "config": {"py-io-impl": "nowhere.Evil"},
        },
    )
    upstream.answers["/v1/config"] = (200, {}, {"defaults": {}, "overrides": {"py-io-impl": "nowhere.Evil"}})
    with open_source("iceberg", upstream.uri, options={"allowed-locations": str(tmp_path)}) as source:
        assert source.load(("sales",), "orders").schema.arrow.names == ["id"]
