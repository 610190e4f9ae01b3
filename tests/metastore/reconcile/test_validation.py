"""Validation of connectors: every problem is reported in the response, in time, and without secrets."""

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
def catalog(factory: ResourceFactory) -> v1.Catalog:
    return factory.catalog()


def spec(uri: str, kind: Any = v1.CK_PARQUET, **more: Any) -> v1.ConnectorSpec:
    return v1.ConnectorSpec(display_name="tried", kind=kind, uri=uri, **more)


def validated(
    factory: ResourceFactory, tested_spec: v1.ConnectorSpec | None = None, **more: Any
) -> v1.ValidateConnectorResponse:
    pointers = list(factory.stores.pointers.scan(""))
    answer = validate(
        factory.home, v1.ValidateConnectorRequest(spec=tested_spec, **more), secrets=SECRETS, patience_s=10
    )
    assert list(factory.stores.pointers.scan("")) == pointers
    return answer


def credentials(**which: Any) -> v1.ConnectorAuthSpec:
    return v1.ConnectorAuthSpec(scheme="oauth2", credentials=v1.ConnectorCredentials(**which))


@behavior(69)
def test_reachable_upstream_is_valid(factory: ResourceFactory, tmp_path):
    parquet(tmp_path / "up", "people", id=[1])
    answer = validated(factory, spec(str(tmp_path / "up")))
    assert (answer.ok, answer.capabilities["namespaces"]) == (True, "1")
    iceberg(tmp_path / "ice").create_table("sales.orders", schema=_schema())
    named = spec(
        f"sqlite:///{tmp_path}/ice/catalog.db",
        v1.CK_ICEBERG,
        properties={"warehouse": f"file://{tmp_path}/ice/warehouse"},
        source=v1.ConnectorSource(namespace=v1.NamespacePath(segments=["sales"]), table="orders"),
    )
    answer = validated(factory, named)
    assert answer.ok, answer.summary
    assert "sales.orders is a table of 1 columns (iceberg)" in answer.summary
    named.source.table = "nope"
    assert not validated(factory, named).ok


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema({"id": pa.int64()})


@behavior(69)
@pytest.mark.parametrize(
    ("tested_spec", "expected"),
    [
        (spec("/nowhere/at/all"), "nowhere"),
        (
            spec("http://127.0.0.1:9/", v1.CK_ICEBERG, source=v1.ConnectorSource(namespace={"segments": ["a"]})),
            "127.0.0.1:9",
        ),
        (spec("/tmp", v1.CK_UNITY, source=v1.ConnectorSource(namespace={"segments": ["a"]})), "begins with http"),
        (spec("file:///a/../etc"), "'..'"),
        (spec(""), "uri"),
        (v1.ConnectorSpec(), "kind"),
        (spec("/tmp", auth=credentials(azure=v1.TokenExchange(endpoint="https://x"))), "azure"),
        (spec("/tmp", auth=credentials()), "auth.credentials"),
    ],
)
def test_every_problem_is_reported_in_the_response(factory: ResourceFactory, tested_spec, expected):
    answer = validated(factory, tested_spec)
    assert not answer.ok
    assert expected in answer.summary


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@behavior(69)
def test_silent_upstream_times_out(factory: ResourceFactory, silent_server):
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["a"]))
    request = v1.ValidateConnectorRequest(spec=spec(f"http://{silent_server}/", v1.CK_ICEBERG, source=source))
    started = time.monotonic()
    answer = validate(factory.home, request, secrets=SECRETS, patience_s=0.5)
    assert (answer.ok, time.monotonic() - started < 5) == (False, True)
    assert "did not respond within 0.5 s" in answer.summary


def test_text_of_a_foreign_exception_is_not_reported():
    def fail() -> None:
        raise RuntimeError("token abc")

    with pytest.raises(SkiwayError) as raised:
        within(5, fail)
    assert "abc" not in str(raised.value)
    with pytest.raises(TimedOut):
        within(0.01, lambda: time.sleep(1))


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    with running_aws("lake") as endpoint:
        yield {"s3.endpoint": endpoint, "s3.region": "us-east-1"}


def test_credentials_reach_the_upstream_but_no_response(factory: ResourceFactory, s3, tmp_path):
    secret = "very-secret-value"
    aws = credentials(aws=v1.AwsCredentials(access_key_id="AKIAEXAMPLE", secret_access_key=secret))
    missing = validated(factory, spec("s3://no-such-bucket/x", properties=s3, auth=aws))
    assert not missing.ok
    assert secret not in str(missing)
    assert "AKIAEXAMPLE" not in str(missing)
    created = connector(factory, "s3://no-such-bucket/x", properties=s3, auth=aws)
    with pytest.raises(SkiwayError) as raised:
        run(factory, created)
    assert secret not in str(raised.value)


@behavior(69)
def test_stored_credentials_are_used_only_for_their_own_upstream(factory: ResourceFactory, silent_server):
    used_credentials: list[dict[str, str]] = []
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["a"]))
    created = connector(
        factory,
        f"http://{silent_server}/",
        v1.CK_ICEBERG,
        source=source,
        auth=credentials(bearer=v1.BearerToken(token="abc")),
    )
    from skiway.metastore.reconcile import upstream as module

    def opened(self: Upstream, opener: Any = None) -> Any:
        used_credentials.append(dict(self.credentials))
        raise PreconditionFailed("seen")

    original, Upstream.open = Upstream.open, opened  # type: ignore[method-assign]
    try:
        for change in (None, v1.ConnectorSpec(source=source), v1.ConnectorSpec(uri="http://elsewhere/")):
            request = v1.ValidateConnectorRequest(spec=change, connector_id=created.resource_id)
            assert not module.validate(factory.home, request, secrets=SECRETS).ok
    finally:
        Upstream.open = original  # type: ignore[method-assign]
    assert used_credentials == [{"token": "abc"}, {"token": "abc"}, {}]


def test_missing_connector_is_not_found(factory: ResourceFactory):
    with pytest.raises(NotFound):
        validated(factory, connector_id=v1.ResourceId(id="nope"))


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
def test_credentials_are_translated_into_source_options(given, expected):
    assert upstream(v1.Connector(kind=v1.CK_ICEBERG), given).credentials == expected


def test_old_property_for_ambient_credentials_works_with_a_warning(caplog):
    connector = v1.Connector(display_name="old", properties={"s3.ambient-credentials": "true"})
    assert upstream(connector, None).options == {"s3.ambient-credentials": "true"}
    assert "replaced by credentials of kind cli" in caplog.text


def test_other_credentials_are_rejected():
    with pytest.raises(Unsupported, match=r"cli \(aws\)"):
        upstream(v1.Connector(), v1.ConnectorCredentials(cli=v1.CliCredentials(provider="databricks")))


def test_no_part_of_a_secret_is_reported():
    tested = Upstream("iceberg", "http://x", {}, {"credential": "client:hunter22", "token": "abcdef"})
    description = tested.describe(NotFound("http://x refused client:hunter22, hunter22 and abcdef"))
    assert "hunter22" not in description
    assert "abcdef" not in description
    assert "abcdef" not in repr(tested)
    assert "RuntimeError" in tested.describe(RuntimeError("abcdef"))
    assert "abcdef" not in tested.describe(RuntimeError("abcdef"))
