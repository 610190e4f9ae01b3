"""Copies of tables of other Airport servers, which are not trusted. No Spark is needed."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from client.recorder import Refusal, Scripted, endpoints, frames, ordinary, result, root, table_info
from lake.lakes import opened_lake
from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory, expect_error
from metastore.upstreams import SECRETS, connector, mirrored
from skiway.airport.wire.protocol import Contents, FunctionCallUri, encode, seal
from skiway.config.source_access import AddressRule
from skiway.errors import InvalidArgument, PermissionDenied, Unauthorized
from skiway.metastore import connectors
from skiway.metastore.reconcile.outcomes import Outcome
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1
from skiway.security.source_access import SourceAccess
from skiway.security.source_access.connections import airport_address
from skiway.spark_jobs.worker import SparkCopies

TABLE = pa.table({"id": [1, 2, 3], "name": ["a", None, "ö"]})
TOKEN = "planted-token-of-airport"
REPLACE = v1.CopySettings(mode=v1.COM_REPLACE)


@pytest.fixture
def server() -> Scripted:
    return Scripted(ordinary(TABLE))


@pytest.fixture
def location(server: Scripted) -> Iterator[str]:
    with server.serving() as found:
        yield found


def no_spark() -> Any:
    raise AssertionError("Spark is not needed")


def copied(
    lake: ManagedTableFactory, uri: str, schema: str = "s", *, token: str = TOKEN, access: SourceAccess | None = None
) -> Outcome:
    """Copy a schema into a catalog, with a connector that stays."""
    if not connectors.list_(lake.home, v1.ListConnectorsRequest()).connectors:
        lake.factory.catalog()
        source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=[schema]))
        given = v1.ConnectorCredentials(bearer=v1.BearerToken(token=token))
        auth = v1.ConnectorAuthSpec(credentials=given)
        connector(lake.factory, uri, v1.CK_AIRPORT, source=source, copy=REPLACE, auth=auth)
    (made,) = connectors.list_(lake.home, v1.ListConnectorsRequest()).connectors
    reconciler = Reconciler(SECRETS, warehouse=lake.warehouse, access=access, copies=SparkCopies(no_spark))
    return reconciler.run(lake.home, made.resource_id, mode=v1.CAP_METADATA_ONLY_CORE)


def rows(lake: ManagedTableFactory, name: str = "s.t") -> list[dict[str, Any]]:
    from pyiceberg.table import StaticTable

    found: list[dict[str, Any]] = (
        StaticTable.from_metadata(mirrored(lake.factory)[name].metadata_location).scan().to_arrow().to_pylist()
    )
    return found


def test_rows_are_replaced_at_every_sync(lake: ManagedTableFactory, server: Scripted, location: str) -> None:
    assert copied(lake, f"{location}/c").failures == {}
    assert rows(lake) == TABLE.to_pylist()
    assert {call.header("authorization") for call in server.recorder.calls} == {f"Bearer {TOKEN}"}
    other = pa.table({"id": [4], "name": ["z"]})
    server.answers |= ordinary(other)
    assert copied(lake, "").failures == {}
    assert rows(lake) == other.to_pylist()


def test_tables_of_another_lake_are_copied(lake: ManagedTableFactory, tmp_path: Path) -> None:
    types = pa.table(
        {
            "id": pa.array([1, None], pa.int32()),
            "price": pa.array([1, None], pa.decimal128(9, 2)),
            "at": pa.array([1, None], pa.timestamp("us", "UTC")),
            "tags": pa.array([["x"], None], pa.list_(pa.string())),
            "flag": pa.array([True, None]),
            "data": pa.array([b"\0", None], pa.binary()),
        }
    )
    with opened_lake(tmp_path / "other") as other:
        with other.client() as db:
            db.create_schema("sales")
            db.create_table_as("sales.orders", types)
        assert copied(lake, f"{other.location}/managed", "sales", token="reader").failures == {}
        assert rows(lake, "sales.orders") == types.to_pylist()


# --- servers that are not trusted -------------------------------------------------------------------------------------


def test_other_servers_are_refused(lake: ManagedTableFactory, server: Scripted, location: str) -> None:
    other = Scripted({"DoGet": frames(TABLE)})
    with other.serving() as elsewhere:
        server.answers["endpoints"] = endpoints(elsewhere)
        assert "refers to another server, which is refused" in copied(lake, f"{location}/c").failures["s.t"]
    assert other.recorder.calls == []
    assert rows(lake) == []


def test_function_calls_are_refused(lake: ManagedTableFactory, server: Scripted, location: str) -> None:
    arguments = pa.table({"arg_0": ["/etc/passwd"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arguments.schema) as writer:
        writer.write_table(arguments)
    packed = encode(FunctionCallUri("read_csv", sink.getvalue().to_pybytes()))
    uri = f"data:application/x-msgpack-duckdb-function-call;base64,{base64.b64encode(packed).decode()}"
    server.answers["endpoints"] = endpoints(uri)
    assert "files that read_csv() reads, which is refused" in copied(lake, f"{location}/c").failures["s.t"]


def test_web_addresses_are_refused(lake: ManagedTableFactory, server: Scripted, location: str) -> None:
    sealed = seal([table_info(TABLE.schema)])
    contents = Contents(sha256=hashlib.sha256(sealed).hexdigest(), url="http://127.0.0.1:9/s")
    server.answers["list_schemas"] = [result(root(contents=contents))]
    with expect_error(PermissionDenied, "airport.elsewhere"):
        copied(lake, f"{location}/c")


def test_invalid_data_is_refused(lake: ManagedTableFactory, server: Scripted, location: str) -> None:
    """A text is not UTF-8."""
    broken = pa.array([b"\xff", b"a", b"b"]).view(pa.string())
    server.answers["DoGet"] = frames(pa.table({"id": [1, 2, 3], "name": broken}))
    outcome = copied(lake, f"{location}/c")
    assert list(outcome.failures) == ["s.t"]
    assert rows(lake) == []


def test_wrong_token_is_reported_without_it(
    lake: ManagedTableFactory, server: Scripted, location: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers["list_schemas"] = Refusal(grpc.StatusCode.UNAUTHENTICATED, "who are you?")
    with caplog.at_level(logging.DEBUG), expect_error(Unauthorized, "source.credentials") as raised:
        copied(lake, f"{location}/c")
    assert TOKEN not in f"{raised.value!r}{caplog.text}"


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "permitted"), [("grpc://loopback", True), ("grpc+tls://loopback", False), ("public", False)]
)
def test_address_is_checked(lake: ManagedTableFactory, location: str, rule: str, permitted: bool) -> None:
    access = SourceAccess(addresses=(AddressRule.parsed(rule),))
    if permitted:
        assert copied(lake, f"{location}/c", access=access).failures == {}
    else:
        with expect_error(PermissionDenied, "address.refused"):
            copied(lake, f"{location}/c", access=access)


def test_connector_is_checked_when_it_is_created(factory: ResourceFactory) -> None:
    catalog = factory.catalog()
    closed = SourceAccess(addresses=(AddressRule.parsed("public"),), for_callers=True)
    spec = v1.ConnectorSpec(
        display_name="closed",
        kind=v1.CK_AIRPORT,
        uri="grpc://10.1.2.3:50051/lake",
        copy=REPLACE,
        source=v1.ConnectorSource(namespace=v1.NamespacePath(segments=["s"])),
        destination=v1.ConnectorDestination(catalog_id=catalog.resource_id),
    )
    with expect_error(PermissionDenied, "address.refused"):
        connectors.create(factory.home, v1.CreateConnectorRequest(spec=spec), secrets=SECRETS, access=closed)


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("http://host:1/c", "its scheme is not one of"),
        ("grpc+unix:///socket", "its scheme is not one of"),
        ("grpc://host/c", "no host or no port"),
        ("grpc://host:1", "does not name a catalog"),
        ("grpc://host:1/c?auth_token=planted", "contains a token"),
        ("grpc://me:planted@host:1/c", "contains a token"),
        ("grpc://host:abc/c", "cannot be parsed"),
    ],
)
def test_other_addresses_are_refused_without_their_secrets(uri: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason) as raised:
        airport_address(uri)
    assert "planted" not in raised.value.message


def test_host_is_replaced_by_the_checked_address() -> None:
    found = airport_address("grpc+tls://localhost:7/a%20b").checked(SourceAccess())
    assert (found.url, found.catalog) in (("grpc+tls://127.0.0.1:7", "a b"), ("grpc+tls://[::1]:7", "a b"))
