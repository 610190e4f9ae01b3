"""Object stores: redirects go only to permitted addresses, and the server's own credentials are sent to nobody."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from skiway.config.source_access import AddressRule
from skiway.errors import InvalidArgument, PermissionDenied, SkiwayError
from skiway.formats import open_source
from skiway.formats.files import Reach
from skiway.metastore.connectors.specs import check_access
from skiway.model import v1
from skiway.security.source_access import SourceAccess, location

LISTING = b"""<ListBucketResult><Name>bucket</Name><KeyCount>1</KeyCount><IsTruncated>false</IsTruncated><Contents>
<Key>x/_delta_log/00000000000000000000.json</Key><Size>1</Size><ETag>"e"</ETag>
<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>"""
KEYS = {"s3.access-key-id": "own", "s3.secret-access-key": "own"}


class Store(ThreadingHTTPServer):
    """An object store that redirects to another one, or has nothing."""

    daemon_threads = True

    def __init__(self, redirects_to: Store | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.redirects_to = redirects_to
        self.requests: list[tuple[str, dict[str, str]]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def _answer(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        if "list-type" in self.path:
            self.send_response(200)
            self.send_header("content-length", str(len(LISTING)))
            self.end_headers()
            self.wfile.write(LISTING)
            return
        self.send_response(404 if self.server.redirects_to is None else 307)
        if self.server.redirects_to is not None:
            self.send_header("location", f"{self.server.redirects_to.uri}{self.path}")
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_HEAD = _answer  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def inner() -> Iterator[Store]:
    store = Store()
    yield store
    store.shutdown()
    store.server_close()


@pytest.fixture(scope="module")
def outer(inner: Store) -> Iterator[Store]:
    store = Store(inner)
    yield store
    store.shutdown()
    store.server_close()


@pytest.fixture(autouse=True)
def forget(inner: Store, outer: Store) -> None:
    inner.requests.clear()
    outer.requests.clear()


def access(*rules: str, **more: Any) -> SourceAccess:
    rules_ = tuple(map(AddressRule.parsed, rules))
    return SourceAccess(addresses=rules_, for_callers=True, ambient_credentials=False, **more)


def try_to_read(kind: str, store: Store, allowed: SourceAccess, **options: str) -> SkiwayError:
    """Use the clients of each kind of source: obstore, PyArrow and delta-rs."""
    given = {"s3.endpoint": store.uri, "s3.region": "eu", **options}
    uri = {"parquet": "s3://bucket/x.parquet", "iceberg": "s3://bucket/x.metadata.json", "delta": "s3://bucket/x"}[kind]
    how = {"external.table-name": "t", "iceberg.source": "filesystem"}
    with pytest.raises(SkiwayError) as caught:
        open_source(kind, uri, options={**given, **how}, access=allowed).load((), "t")
    return caught.value


@pytest.mark.parametrize("kind", ["parquet", "iceberg", "delta"])
def test_redirect_to_a_forbidden_address_is_not_followed(kind: str, outer: Store, inner: Store) -> None:
    try_to_read(kind, outer, access(f"127.0.0.1:{outer.server_port}"))
    assert outer.requests
    assert not inner.requests


@pytest.mark.parametrize("kind", ["parquet", "iceberg", "delta"])
def test_redirect_to_a_permitted_address_is_followed(kind: str, outer: Store, inner: Store) -> None:
    try_to_read(kind, outer, access("loopback"))
    assert inner.requests


def test_forbidden_endpoint_is_not_contacted(inner: Store) -> None:
    for kind in ("parquet", "iceberg", "delta"):
        assert try_to_read(kind, inner, access("public")).key == "address.refused"
    assert not inner.requests


@pytest.mark.parametrize("kind", ["parquet", "iceberg", "delta"])
@pytest.mark.parametrize("keys", [{}, KEYS], ids=["anonymous", "keys"])
def test_credentials_of_the_environment_are_not_sent(
    kind: str, keys: dict[str, str], inner: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "planted")
    try_to_read(kind, inner, access("loopback"), **keys)
    assert inner.requests
    sent = [headers.get("authorization", headers.get("Authorization", "")) for _, headers in inner.requests]
    assert all(("Credential=own/" in each) == bool(keys) for each in sent)
    assert "planted" not in str(inner.requests)


@pytest.mark.parametrize("options", [{"s3.ambient-credentials": "true"}, {"s3.ambient-credentials": "TRUE"}])
def test_ambient_credentials_must_be_permitted(options: dict[str, str], inner: Store) -> None:
    for kind in ("parquet", "iceberg", "delta"):
        assert try_to_read(kind, inner, access("loopback"), **options).key == "credentials.ambient"
    assert not inner.requests


@pytest.mark.parametrize("rule", ["loopback", "http://public", "*.example.com", "s3.eu.amazonaws.com:80"])
def test_aws_must_be_permitted_too(rule: str) -> None:
    for kind, uri in (
        ("parquet", "s3://bucket/x.parquet"),
        ("delta", "s3://bucket/x"),
        ("iceberg", "s3://bucket/x.metadata.json"),
    ):
        options = {"s3.region": "eu", "iceberg.source": "filesystem", "external.table-name": "x"}
        with pytest.raises(PermissionDenied, check=lambda error: error.key == "address.refused"):
            open_source(kind, uri, options=options, access=access(rule)).load((), "x")
    for permitted in ("public", "https://*.amazonaws.com"):
        access(permitted).check_aws("eu")


def test_half_a_pair_of_keys_is_not_completed_from_the_environment(
    inner: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    with pytest.raises(InvalidArgument, match="belong together"):
        open_source("parquet", "s3://bucket/x", options={"s3.access-key-id": "own"}, access=access("loopback"))


def test_location_is_not_decoded_by_the_client(inner: Store) -> None:
    """delta-rs decodes URLs, so `%77` must not become another location than the one that was checked."""
    closed = access("loopback", closed=("s3://bucket/ware",))
    with pytest.raises(PermissionDenied, match="not open to sources"):
        open_source("delta", "s3://bucket/ware/x", options={"s3.endpoint": inner.uri}, access=closed)
    options = {"s3.endpoint": inner.uri, "s3.region": "eu", "external.table-name": "t"}
    source = open_source("delta", "s3://bucket/%77are/x", options=options, access=closed)
    with pytest.raises(SkiwayError):
        source.load((), "t")
    listed = [path for path, _ in inner.requests if "list-type" in path]
    assert len(listed) > 2
    assert all("%2577are" in path for path in listed)


ELSEWHERE = ("gs://lake/x", "abfss://lake@skiway.dfs.core.windows.net/x")


@pytest.mark.parametrize("uri", ELSEWHERE)
@pytest.mark.parametrize("allowed", [SourceAccess(), access("loopback", "public", local_roots=("/",))])
def test_sources_cannot_be_in_other_object_stores(uri: str, allowed: SourceAccess) -> None:
    place = location(uri)
    for check in (allowed.check, Reach((place,), allowed).check, Reach((place,), allowed, in_s3=False).check):
        with pytest.raises(PermissionDenied, match=f"only the warehouse can be in {place.scheme}:") as caught:
            check(place)
        assert caught.value.key == "location.refused"


@pytest.mark.parametrize("uri", ELSEWHERE)
@pytest.mark.parametrize("kind", ["parquet", "iceberg", "delta"])
def test_source_in_another_object_store_is_not_opened(kind: str, uri: str) -> None:
    name = {"parquet": "x.parquet", "iceberg": "x.metadata.json", "delta": "x"}[kind]
    options = {"external.table-name": "t", "iceberg.source": "filesystem"}
    with pytest.raises(PermissionDenied, match="only the warehouse can be in"):
        open_source(kind, f"{uri}/{name}", options=options, access=access("loopback", "public")).load((), "t")


@pytest.mark.parametrize("uri", ELSEWHERE)
@pytest.mark.parametrize("field", ["uri", "warehouse", "allowed-locations"])
def test_connector_to_another_object_store_is_rejected(field: str, uri: str) -> None:
    given = {field: uri} if field != "uri" else {}
    connector = v1.Connector(kind=v1.CK_ICEBERG, uri=uri if field == "uri" else "s3://lake/x", properties=given)
    with pytest.raises(PermissionDenied, match="only the warehouse can be in"):
        check_access(connector, access("public"))
