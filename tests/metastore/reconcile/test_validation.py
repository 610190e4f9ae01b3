"""Trying connectors: whatever is wrong is told in the answer, in time, and without a secret."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from metastore.resource_factory import ResourceFactory, behavior
from metastore.upstreams import SECRETS, connector, iceberg, parquet, run
from skiway.errors import NotFound, PreconditionFailed, SkiwayError, TimedOut, Unsupported
from skiway.metastore.reconcile.upstream import Upstream, upstream, validate, within
from skiway.model import v1
from skiway.storage import Stores, open_stores
from storage.homes import running_aws


@pytest.fixture
def stores() -> Iterator[Stores]:
    with open_stores("memory://") as opened:
        yield opened


@pytest.fixture(autouse=True)
def lake(factory: ResourceFactory) -> v1.Catalog:
    return factory.catalog()


def spec(uri: str, kind: Any = v1.CK_PARQUET, **more: Any) -> v1.ConnectorSpec:
    return v1.ConnectorSpec(display_name="tried", kind=kind, uri=uri, **more)


def tried(factory: ResourceFactory, asked: v1.ConnectorSpec | None = None, **more: Any) -> v1.ValidateConnectorResponse:
    pointers = list(factory.stores.pointers.scan(""))
    answer = validate(factory.home, v1.ValidateConnectorRequest(spec=asked, **more), secrets=SECRETS, patience_s=10)
    assert list(factory.stores.pointers.scan("")) == pointers
    return answer


def credentials(**which: Any) -> v1.ConnectorAuthSpec:
    return v1.ConnectorAuthSpec(scheme="oauth2", credentials=v1.ConnectorCredentials(**which))


@behavior(69)
def test_an_upstream_that_answers_is_fine(factory: ResourceFactory, tmp_path):
    parquet(tmp_path / "up", "people", id=[1])
    answer = tried(factory, spec(str(tmp_path / "up")))
    assert (answer.ok, answer.capabilities["namespaces"]) == (True, "1")
    iceberg(tmp_path / "ice").create_table("sales.orders", schema=_schema())
    named = spec(
        f"sqlite:///{tmp_path}/ice/catalog.db",
        v1.CK_ICEBERG,
        properties={"warehouse": f"file://{tmp_path}/ice/warehouse"},
        source=v1.ConnectorSource(namespace=v1.NamespacePath(segments=["sales"]), table="orders"),
    )
    answer = tried(factory, named)
    assert answer.ok, answer.summary
    assert "sales.orders is a table of 1 columns (iceberg)" in answer.summary
    named.source.table = "nope"
    assert not tried(factory, named).ok


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema({"id": pa.int64()})


@behavior(69)
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (spec("/nowhere/at/all"), "nowhere"),
        (
            spec("http://127.0.0.1:9/", v1.CK_ICEBERG, source=v1.ConnectorSource(namespace={"segments": ["a"]})),
            "127.0.0.1:9",
        ),
        (spec("/tmp", v1.CK_UNITY, source=v1.ConnectorSource(namespace={"segments": ["a"]})), "unity"),
        (spec("file:///a/../etc"), "'..'"),
        (spec(""), "uri"),
        (v1.ConnectorSpec(), "kind"),
        (spec("/tmp", auth=credentials(azure=v1.TokenExchange(endpoint="https://x"))), "azure"),
        (spec("/tmp", auth=credentials()), "auth.credentials"),
    ],
)
def test_whatever_is_wrong_is_told_in_the_answer(factory: ResourceFactory, asked, said):
    answer = tried(factory, asked)
    assert not answer.ok
    assert said in answer.summary


@pytest.fixture
def silence() -> Iterator[str]:
    """A server that takes calls and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@behavior(69)
def test_an_upstream_that_says_nothing_is_not_waited_for(factory: ResourceFactory, silence):
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["a"]))
    request = v1.ValidateConnectorRequest(spec=spec(f"http://{silence}/", v1.CK_ICEBERG, source=source))
    started = time.monotonic()
    answer = validate(factory.home, request, secrets=SECRETS, patience_s=0.5)
    assert (answer.ok, time.monotonic() - started < 5) == (False, True)
    assert "did not respond within 0.5 s" in answer.summary


def test_what_is_no_error_of_ours_is_told_by_its_kind_only():
    def fails() -> None:
        raise RuntimeError("token abc")

    with pytest.raises(SkiwayError) as raised:
        within(5, fails)
    assert "abc" not in str(raised.value)
    with pytest.raises(TimedOut):
        within(0.01, lambda: time.sleep(1))


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    with running_aws("lake") as endpoint:
        yield {"s3.endpoint": endpoint, "s3.region": "us-east-1"}


def test_credentials_reach_the_upstream_and_no_answer(factory: ResourceFactory, s3, tmp_path):
    secret = "very-secret-value"
    aws = credentials(aws=v1.AwsCredentials(access_key_id="AKIAEXAMPLE", secret_access_key=secret))
    missing = tried(factory, spec("s3://no-such-bucket/x", properties=s3, auth=aws))
    assert not missing.ok
    assert secret not in str(missing)
    assert "AKIAEXAMPLE" not in str(missing)
    made = connector(factory, "s3://no-such-bucket/x", properties=s3, auth=aws)
    with pytest.raises(SkiwayError) as raised:
        run(factory, made)
    assert secret not in str(raised.value)


@behavior(69)
def test_a_stored_connector_is_tried_with_its_own_credentials_only_where_they_belong(factory: ResourceFactory, silence):
    asked: list[dict[str, str]] = []
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["a"]))
    made = connector(
        factory,
        f"http://{silence}/",
        v1.CK_ICEBERG,
        source=source,
        auth=credentials(bearer=v1.BearerToken(token="abc")),
    )
    from skiway.metastore.reconcile import upstream as module

    def opened(self: Upstream, opener: Any = None) -> Any:
        asked.append(dict(self.credentials))
        raise PreconditionFailed("seen")

    original, Upstream.open = Upstream.open, opened  # type: ignore[method-assign]
    try:
        for change in (None, v1.ConnectorSpec(source=source), v1.ConnectorSpec(uri="http://elsewhere/")):
            request = v1.ValidateConnectorRequest(spec=change, connector_id=made.resource_id)
            assert not module.validate(factory.home, request, secrets=SECRETS).ok
    finally:
        Upstream.open = original  # type: ignore[method-assign]
    assert asked == [{"token": "abc"}, {"token": "abc"}, {}]


def test_a_connector_that_is_not_there_is_not_found(factory: ResourceFactory):
    with pytest.raises(NotFound):
        tried(factory, connector_id=v1.ResourceId(id="nope"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (v1.ConnectorCredentials(bearer=v1.BearerToken(token="t")), {"token": "t"}),
        (
            v1.ConnectorCredentials(
                client=v1.ClientCredentials(endpoint="https://e", client_id="i", client_secret="s")
            ),
            {"credential": "i:s", "oauth2-server-uri": "https://e"},
        ),
        (
            v1.ConnectorCredentials(aws=v1.AwsCredentials(access_key_id="k", secret_access_key="s")),
            {"s3.access-key-id": "k", "s3.secret-access-key": "s"},
        ),
        (v1.ConnectorCredentials(cli=v1.CliCredentials(provider="aws")), {"s3.ambient-credentials": "true"}),
        (
            v1.ConnectorCredentials(bearer=v1.BearerToken(token="t"), headers={"x-a": "b"}, properties={"scope": "c"}),
            {"token": "t", "header.x-a": "b", "scope": "c"},
        ),
    ],
)
def test_credentials_in_the_words_of_sources(given, expected):
    assert upstream(v1.Connector(kind=v1.CK_ICEBERG), given).credentials == expected


def test_other_credentials_are_refused():
    with pytest.raises(Unsupported, match=r"cli \(aws\)"):
        upstream(v1.Connector(), v1.ConnectorCredentials(cli=v1.CliCredentials(provider="databricks")))


def test_no_part_of_a_secret_is_told():
    asked = Upstream("iceberg", "http://x", {}, {"credential": "client:hunter22", "token": "abcdef"})
    said = asked.describe(NotFound("http://x refused client:hunter22, hunter22 and abcdef"))
    assert "hunter22" not in said
    assert "abcdef" not in said
    assert "abcdef" not in repr(asked)
    assert "RuntimeError" in asked.describe(RuntimeError("abcdef"))
    assert "abcdef" not in asked.describe(RuntimeError("abcdef"))
