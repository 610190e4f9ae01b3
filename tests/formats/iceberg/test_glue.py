"""Tables in AWS Glue (moto): what is listed and read, with which credentials, and at which addresses."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from formats.glue_service import KEYS, SERVER_KEY, GlueService, running_glue
from skiway.config.source_access import AddressRule
from skiway.errors import InvalidArgument, NotFound, PermissionDenied, PreconditionFailed, Unavailable, Unsupported
from skiway.formats import Source, open_source
from skiway.security.source_access import SourceAccess

OF_CALLERS = SourceAccess(
    addresses=(AddressRule.parsed("loopback"),), local_roots=(), for_callers=True, ambient_credentials=False
)


@pytest.fixture(scope="module")
def service() -> Iterator[GlueService]:
    """Glue with a database `sales`: the Iceberg table `orders`, and tables that cannot be read."""
    with running_glue() as running:
        writer = running.writer()
        writer.create_namespace("sales")
        writer.create_namespace("empty")
        rows = pa.table({"id": [1, 2]})
        writer.create_table("sales.orders", rows.schema).append(rows)
        for name, parameters in (
            ("hive_table", {}),
            ("without_metadata", {"table_type": "ICEBERG"}),
            ("outside", {"table_type": "ICEBERG", "metadata_location": "file:///etc/passwd"}),
        ):
            writer.glue.create_table(DatabaseName="sales", TableInput={"Name": name, "Parameters": parameters})
        yield running


@pytest.fixture(autouse=True)
def keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SERVER_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-the-machine")


def opened(service: GlueService, *, access: SourceAccess | None = None, **more: Any) -> Source:
    given = {"credentials": KEYS, "options": service.options, **more}
    return open_source("glue", service.endpoint, access=access, **given)


@pytest.mark.parametrize("access", [None, OF_CALLERS], ids=["program", "server"])
def test_iceberg_tables_are_listed_and_read(service: GlueService, access: SourceAccess | None) -> None:
    with opened(service, access=access) as source:
        assert source.namespaces() == [("empty",), ("sales",)]
        assert source.tables(("sales",)) == ["orders", "outside", "without_metadata"]
        assert source.tables(("empty",)) == []
        table = source.load(("sales",), "orders")
        assert table.read(table.snapshots()[-1]).read_all()["id"].to_pylist() == [1, 2]
        with pytest.raises(NotFound, match=r"no 'sales\.nothing'"):
            source.load(("sales",), "nothing")
        with pytest.raises(NotFound, match="no 'nowhere'"):
            source.tables(("nowhere",))


def test_other_tables_and_locations_are_refused(service: GlueService) -> None:
    with opened(service) as source:
        with pytest.raises(Unsupported, match=r"'sales\.hive_table' in AWS Glue is not an Iceberg table") as raised:
            source.load(("sales",), "hive_table")
        assert raised.value.key == "table.feature"
        with pytest.raises(PreconditionFailed, match=r"'sales\.without_metadata' has no metadata_location"):
            source.load(("sales",), "without_metadata")
        with pytest.raises(PermissionDenied) as refused:
            source.load(("sales",), "outside")
        assert refused.value.key == "location.outside"
    closed = SourceAccess(closed=("s3://skiway-test/tables",))
    with opened(service, access=closed) as source, pytest.raises(PermissionDenied) as refused:
        source.load(("sales",), "orders")
    assert refused.value.key == "location.refused"


def test_requests_are_signed_with_the_keys_of_the_source(service: GlueService) -> None:
    service.requests.clear()
    own = {"glue.access-key-id": "glue-reader", "glue.secret-access-key": "x", "glue.session-token": "own-token"}
    for credentials in (KEYS, {**KEYS, "s3.access-key-id": "for-s3-only", **own}):
        with opened(service, credentials=credentials) as source:
            source.namespaces()
    assert [request[:2] for request in service.requests] == [("glue-reader", ""), ("glue-reader", "own-token")]


def test_keys_of_the_machine_are_used_only_if_permitted(service: GlueService) -> None:
    service.requests.clear()
    with pytest.raises(InvalidArgument, match="store credentials of kind aws") as missing:
        opened(service, credentials={})
    assert missing.value.key == "source.credentials"
    ambient = {"s3.ambient-credentials": "true"}
    with pytest.raises(PermissionDenied) as refused:
        opened(service, credentials=ambient, access=OF_CALLERS)
    assert refused.value.key == "credentials.ambient"
    assert service.requests == []
    with opened(service, credentials=ambient) as source:
        source.namespaces()
    assert service.requests == [(SERVER_KEY, "token-of-the-machine", {})]


def test_profile_of_the_machine_is_not_used(service: GlueService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "missing")
    with opened(service) as source:
        assert source.tables(("empty",)) == []
    with (
        opened(service, credentials={"s3.ambient-credentials": "true"}) as source,
        pytest.raises(PreconditionFailed) as raised,
    ):
        source.tables(("empty",))
    assert raised.value.key == "source.credentials"


def test_another_catalog_of_glue_is_selected_by_its_id(service: GlueService) -> None:
    service.requests.clear()
    with opened(service, options={**service.options, "glue.id": "210987654321"}) as source:
        source.namespaces()
    assert [body for _, _, body in service.requests] == [{"CatalogId": "210987654321"}]


def test_wrong_credentials_and_unavailable_service_are_different_errors(service: GlueService) -> None:
    wrong = {"s3.access-key-id": "nobody", "s3.secret-access-key": "planted-secret"}
    with opened(service, credentials=wrong) as source:
        for call in (source.namespaces, lambda: source.tables(("sales",)), lambda: source.load(("sales",), "orders")):
            with pytest.raises(PreconditionFailed, match="rejected the credentials") as rejected:
                call()
            assert rejected.value.key == "source.credentials"
            assert "planted-secret" not in str(rejected.value) + str(rejected.value.__dict__)
    with (
        open_source("glue", "http://127.0.0.1:9", options=service.options, credentials=KEYS) as source,
        pytest.raises(Unavailable, match=r"'http://127\.0\.0\.1:9' does not respond"),
    ):
        source.namespaces()


@pytest.mark.parametrize(
    ("code", "error", "key", "message"),
    [
        (
            "InvalidInputException",
            PreconditionFailed,
            "source.rejected",
            r"rejected the request \(InvalidInputException\)",
        ),
        ("OperationTimeoutException", Unavailable, "source.unavailable", "does not respond"),
        ("AccessDeniedException", PreconditionFailed, "source.credentials", "rejected the credentials"),
    ],
)
def test_other_errors_of_glue_are_translated(
    service: GlueService, monkeypatch: pytest.MonkeyPatch, code: str, error: Any, key: str, message: str
) -> None:
    monkeypatch.setattr(service, "failure", code)
    with opened(service) as source, pytest.raises(error, match=message) as raised:
        source.tables(("sales",))
    assert raised.value.key == key


def test_address_is_checked_before_and_during_the_connection(
    service: GlueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = SourceAccess(addresses=(AddressRule.parsed("public"),), for_callers=True)
    with pytest.raises(PermissionDenied) as refused:
        opened(service, access=public, options={"glue.region": "us-east-1"})
    assert refused.value.key == "address.refused"

    service.requests.clear()
    answers = iter(["93.184.216.34"])  # later, the name resolves to loopback
    port = int(service.endpoint.rpartition(":")[2])
    resolve = socket.getaddrinfo

    def changing(host: Any, *arguments: Any, **named: Any) -> Any:
        return resolve(next(answers, "127.0.0.1") if host == "glue.test" else host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    options = {"glue.region": "us-east-1"}
    with (
        open_source("glue", f"http://glue.test:{port}", options=options, credentials=KEYS, access=public) as source,
        pytest.raises(PreconditionFailed),
    ):
        source.namespaces()
    assert next(answers, None) is None
    assert service.requests == []


@pytest.mark.parametrize(
    ("uri", "options", "credentials", "key", "message"),
    [
        ("http://127.0.0.1:9", {}, KEYS, "source.option", "set the property 'glue.region'"),
        ("http://127.0.0.1:9", {"glue.endpoint": "http://x"}, KEYS, "source.option", "remove the property"),
        ("s3://lake", {}, KEYS, "location.refused", "begins with http:// or https://"),
        (
            "http://127.0.0.1:9",
            {},
            {"glue.access-key-id": "a", "s3.region": "x"},
            "source.credentials",
            "both or neither",
        ),
    ],
)
def test_wrong_definitions_are_reported(
    uri: str, options: dict[str, str], credentials: dict[str, str], key: str, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message) as raised:
        open_source("glue", uri, options=options, credentials=credentials)
    assert raised.value.key == key


def test_region_is_that_of_the_address() -> None:
    from skiway.formats.catalogs.glue import _region
    from skiway.formats.opening import SourceRequest

    uri = "https://glue.eu-central-1.amazonaws.com"
    assert _region(SourceRequest("glue", uri), uri) == "eu-central-1"
    assert _region(SourceRequest("glue", uri, {"s3.region": "eu-west-1"}), uri) == "eu-central-1"
    assert _region(SourceRequest("glue", "http://x", {"s3.region": "eu-west-1"}), "http://x") == "eu-west-1"
    assert _region(SourceRequest("glue", uri, {"glue.region": "eu-west-1"}), uri) == "eu-west-1"


def test_files_are_in_the_same_region_unless_told(service: GlueService) -> None:
    options = {name: value for name, value in service.options.items() if name != "s3.region"}
    for more, region in (({}, "us-east-1"), ({"s3.region": "eu-west-1"}, "eu-west-1")):
        with opened(service, options={**options, **more}) as source:
            assert source.load(("sales",), "orders").file_access.properties["s3.region"] == region
