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
from requests import Request, Session
from urllib3.util import connection

from metastore.upstreams import iceberg
from skiway.config.source_access import AddressRule
from skiway.errors import PermissionDenied, Unavailable
from skiway.formats import open_source
from skiway.security.source_access import SourceAccess, connections
from skiway.security.source_access import access as decisions
from skiway.security.source_access.connections import guard_session

METADATA = "http://169.254.169.254/latest/meta-data"


def access(*rules: str, **more: Any) -> SourceAccess:
    return SourceAccess(addresses=tuple(map(AddressRule.parsed, rules)), **more)


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
        self.headers: list[str] = []
        self.silent = threading.Event()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Upstream

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requested.append(path)
        self.server.headers.append(str(self.headers))
        self.rfile.read(int(self.headers.get("content-length") or 0))
        if path not in self.server.answers:
            self.server.silent.wait(200)
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
    ("host", "word"),
    [
        ("8.8.8.8", "public"),
        ("[2606:4700::1]", "public"),
        ("127.0.0.1", "loopback"),
        ("localhost", "loopback"),
        ("[::1]", "loopback"),
        ("10.1.2.3", "private"),
        ("192.168.0.1", "private"),
        ("100.64.0.1", "private"),
        ("[fd12::1]", "private"),
        ("[::ffff:10.1.2.3]", "private"),
        ("169.254.169.254", "never"),
        ("[fe80::1]", "never"),
        ("[fec0::1]", "private"),
        ("[fd00:ec2::254]", "never"),
        ("[fd00:ec2::23]", "never"),  # gives credentials to pods
        ("[fd20:ce::254]", "never"),
        ("[fd00:42::42]", "never"),
        ("192.0.0.192", "never"),
        ("100.100.100.200", "never"),
        ("168.63.129.16", "never"),
        ("[::ffff:169.254.169.254]", "never"),
        ("[::ffff:a9fe:a9fe]", "never"),
        ("[64:ff9b::a9fe:a9fe]", "never"),
        ("[2002:a9fe:a9fe::1]", "never"),
        ("0.0.0.0", "never"),
        ("224.0.0.1", "never"),
        ("2852039166", "never"),  # 169.254.169.254 as a number, which resolvers accept
    ],
)
def test_address_is_permitted_only_by_the_matching_word(host, word):
    url = f"https://{host}:8181/v1"
    for each in ("public", "private", "loopback"):
        if each == word:
            assert access(each).check_url(url) == access(each).check_named(url) == url
        else:
            with refused():
                access(each).check_url(url)


@pytest.mark.parametrize(
    ("rule", "permitted", "forbidden"),
    [
        ("127.0.0.1", ["http://127.0.0.1", "https://localhost:1"], ["http://127.0.0.2", "http://[::1]"]),
        ("127.0.0.0/8", ["http://127.0.0.9"], ["http://10.0.0.1"]),
        ("[::1]:443", ["https://[::1]"], ["http://[::1]", "https://127.0.0.1"]),
        ("::1", ["https://[::1]"], ["https://127.0.0.1"]),
        ("localhost", ["http://localhost", "http://LOCALHOST.:80"], ["http://127.0.0.1"]),
        ("*.localhost", ["http://a.localhost"], ["http://localhost"]),
        ("http://loopback", ["http://127.0.0.1:5"], ["https://127.0.0.1:5"]),
        ("loopback:8181", ["http://127.0.0.1:8181"], ["http://127.0.0.1:8182", "http://127.0.0.1"]),
        ("https://localhost:8443", ["https://localhost:8443"], ["https://localhost", "http://localhost:8443"]),
        ("unix:/run/db", [], ["http://localhost"]),
    ],
)
def test_rules_name_hosts_ports_and_schemes(rule, permitted, forbidden, monkeypatch):
    resolve = decisions.resolved
    monkeypatch.setattr(decisions, "resolved", lambda host, port: resolve(host.removeprefix("a."), port))
    for url in permitted:
        assert access(rule).check_url(url) == url
    for url in forbidden:
        with refused():
            access(rule).check_url(url)


@pytest.mark.parametrize(
    "name", ["169.254.169.254", "[fe80::1]", "ftp://host", "host:port", "10.0.0.1/8", "unix:x", "a b", "1.2.3", "*"]
)
def test_invalid_rules_are_rejected(name):
    with pytest.raises(ValueError, match=r".+"):
        AddressRule.parsed(name)


def test_a_named_host_at_a_link_local_address_is_refused(monkeypatch):
    monkeypatch.setattr(decisions, "resolved", lambda *_: iter([ip_address("169.254.169.254")]))
    with refused():
        access("metadata.google.internal", "public").check_url("http://metadata.google.internal")


def test_every_address_of_a_host_must_be_permitted(monkeypatch):
    monkeypatch.setattr(decisions, "resolved", lambda *_: iter([ip_address("8.8.8.8"), ip_address("10.0.0.1")]))
    with refused():
        access("public").check_url("https://mixed.example.com")


def test_local_catalog_is_called_unless_forbidden(upstream):
    assert namespaces(upstream.uri) == [("sales",)]
    upstream.requested.clear()
    with refused():
        namespaces(upstream.uri, access=access("public"))
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


def test_credentials_in_a_netrc_file_are_not_sent_after_a_redirect(upstream, monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ada password planted\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    upstream.answers["/v1/namespaces"] = (302, {"location": f"{upstream.uri}/elsewhere"}, {})
    upstream.answers["/elsewhere"] = (200, {}, {"namespaces": [["sales"]]})
    assert namespaces(upstream.uri) == [("sales",)]
    assert "/elsewhere" in upstream.requested
    assert not [headers for headers in upstream.headers if "Basic" in headers]


SIGNED = {"rest.sigv4-enabled": "true", "rest.signing-region": "eu", "rest.signing-name": "glue"}
SIGNING_KEYS = {"client.access-key-id": "own", "client.secret-access-key": "own"}


@pytest.mark.parametrize("keys", [{}, {"client.access-key-id": "own"}, {**SIGNING_KEYS, "client.profile-name": "prod"}])
def test_requests_are_not_signed_with_credentials_of_the_server(upstream, monkeypatch, keys):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "planted")
    own_only = access("loopback", ambient_credentials=False)
    with pytest.raises(PermissionDenied, check=lambda error: error.key == "credentials.ambient"):
        namespaces(upstream.uri, options=SIGNED, credentials=keys, access=own_only)
    assert upstream.requested == []


def test_signed_requests_are_checked_too(upstream):
    own_only = access("loopback", ambient_credentials=False)
    assert namespaces(upstream.uri, options=SIGNED, credentials=SIGNING_KEYS, access=own_only) == [("sales",)]
    assert all("Credential=own/" in headers for headers in upstream.headers)
    upstream.answers["/v1/namespaces"] = (302, {"location": METADATA}, {})
    with refused():
        namespaces(upstream.uri, options=SIGNED, credentials=SIGNING_KEYS, access=own_only)
    with refused():
        namespaces(upstream.uri, options=SIGNED, credentials=SIGNING_KEYS, access=access("public"))


@pytest.mark.parametrize(
    ("url", "is_signed"),
    [
        ("https://catalog.example.com", True),
        ("https://catalog.example.com/v1/config?warehouse=x", True),
        ("https://catalog.example.com.evil.example.com/v1", False),
        ("https://catalog.example.com:444/v1", False),
        ("https://catalog.example.com@evil.example.com/v1", False),
        ("http://catalog.example.com/v1", False),
    ],
)
@pytest.mark.parametrize("end", ["", "/"])
def test_only_requests_to_the_catalog_are_signed(url, is_signed, end):
    class Signer:
        signed = False

        def add_headers(self, request, **_):
            self.signed = True

    session, signer = Session(), Signer()
    guard_session(session, access("public"), signer=signer, signed=f"https://catalog.example.com{end}")
    adapter: Any = session.get_adapter(url)
    adapter.add_headers(Request("GET", url))
    assert signer.signed == is_signed


@pytest.mark.parametrize("overrides", [{"uri": METADATA}, {"oauth2-server-uri": METADATA, "credential": "id:secret"}])
def test_catalog_cannot_send_its_client_to_a_forbidden_address(upstream, overrides):
    upstream.answers["/v1/config"] = (200, {}, {"defaults": {}, "overrides": overrides})
    with refused():
        namespaces(upstream.uri)


def test_catalog_cannot_name_metadata_outside_of_the_source(upstream, tmp_path):
    """It is checked although the catalog sends the content as well: others open the location later."""
    own = iceberg(tmp_path / "own").create_table("sales.orders", schema=pa.schema({"id": pa.int64()}))
    content = json.loads(own.metadata.model_dump_json())
    answer = {"metadata": content, "config": {}}
    options = {"allowed-locations": str(tmp_path / "own")}
    with open_source("iceberg", upstream.uri, options=options) as source:
        upstream.answers["/v1/namespaces/sales/tables/orders"] = (
            200,
            {},
            {**answer, "metadata-location": own.metadata_location},
        )
        assert source.load(("sales",), "orders").name.name == "orders"
        upstream.answers["/v1/namespaces/sales/tables/orders"] = (
            200,
            {},
            {**answer, "metadata-location": f"file://{tmp_path}/another/v1.metadata.json"},
        )
        with pytest.raises(PermissionDenied, check=lambda error: error.key == "location.outside"):
            source.load(("sales",), "orders")


def test_name_that_resolves_to_another_address_on_connect_is_rejected(upstream, monkeypatch):
    monkeypatch.setattr(decisions, "resolved", lambda *_: iter([ip_address("8.8.8.8")]))
    with refused():
        namespaces(upstream.uri, access=access("public"))
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
    # The proxy would accept all spellings of an address.
    for host in ("169.254.169.254", "2852039166", "0xa9fea9fe", "169.254.43518", "0251.0376.0251.0376"):
        with refused():
            namespaces(f"http://{host}")


def test_unresolvable_name_is_unavailable():
    with pytest.raises(Unavailable, match="host 'nowhere"):
        namespaces("http://nowhere.invalid:1")


def test_unresponsive_catalog_times_out(upstream, monkeypatch):
    del upstream.answers["/v1/config"]
    monkeypatch.setattr(connections, "ANSWER_S", 0.3)
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
