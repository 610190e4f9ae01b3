"""Request headers, and which of them are returned."""

from __future__ import annotations

import re

import grpc
import pytest
from google.rpc import error_details_pb2

from rpc.rpc_server import Client, RpcServer, behavior, opened, principal, serving
from skiway.model import v1
from skiway.request_path.pipeline import QUERY_ID, read_context
from skiway.telemetry.context import CallContext, current_call

CODE = grpc.StatusCode
LIST = "CatalogService/ListCatalogs"
GET = "CatalogService/GetCatalog"
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ALL = {"x_correlation_id": "c-1", "x_query_id": "q-1", "x_engine_kind": "duckdb", "x_engine_version": "1.5.5"}


def ours(metadata: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in metadata.items() if name.startswith("x-")}


@behavior(80)
@pytest.mark.parametrize(("operation", "code"), [(LIST, CODE.OK), (GET, CODE.INVALID_ARGUMENT)])
def test_headers_are_returned_as_initial_and_trailing_metadata_also_with_errors(operation, code, client: Client):
    answer = client(operation, **ALL)
    assert answer.code is code
    expected = {name.replace("_", "-"): value for name, value in ALL.items()}
    assert ours(answer.headers) == ours(answer.trailers) == expected


@behavior(80)
def test_headers_are_returned_to_unauthenticated_callers(client: Client):
    answer = client.as_("")(LIST, x_correlation_id="c-1")
    assert answer.code is CODE.UNAUTHENTICATED
    assert ours(answer.headers) == ours(answer.trailers) == {"x-correlation-id": "c-1"}
    assert answer.error.correlation_id == "c-1"


@behavior(80)
def test_missing_correlation_id_is_generated(client: Client):
    first, second = (client(GET, x_correlation_id=blank) for blank in ("", "  "))
    for answer in (first, second):
        generated = answer.headers["x-correlation-id"]
        assert UUID.fullmatch(generated)
        assert generated == answer.trailers["x-correlation-id"] == answer.error.correlation_id
        assert answer.detail(error_details_pb2.ErrorInfo).metadata["correlation_id"] == generated
    assert first.error.correlation_id != second.error.correlation_id


@behavior(80)
def test_too_long_header_is_rejected_and_not_returned(client: Client):
    answer = client(LIST, x_correlation_id="c" * 129)
    assert (answer.code, answer.error.message_key) == (CODE.INVALID_ARGUMENT, "header.invalid")
    assert answer.error.params == {"header": "x-correlation-id", "found": "129 characters", "limit": "128"}
    assert UUID.fullmatch(answer.error.correlation_id)
    (violation,) = answer.detail(error_details_pb2.BadRequest).field_violations
    assert violation.field == "x-correlation-id"
    assert client(LIST, x_correlation_id="c" * 128).code is CODE.OK


@pytest.mark.parametrize("value", ["a\x07b", "a\nb", "ä", "a\x00"])
def test_unprintable_header_is_rejected(value):
    context, refusal = read_context({QUERY_ID: value}, "S/M", ids=lambda: "made")
    assert refusal is not None
    assert (refusal.key, refusal.params["header"]) == ("header.invalid", "x-query-id")
    assert context == CallContext(correlation_id="made", operation="S/M")
    assert value not in refusal.message


@behavior(80)
@pytest.mark.parametrize(
    ("given", "kind", "version"),
    [
        ({"x_engine_kind": " DuckDB ", "x_engine_version": "1.5.5"}, "duckdb", "1.5.5"),
        ({"x_engine_kind": "spark"}, "spark", ""),
        ({"x_engine_version": "1.5.5"}, "", ""),
        ({"x_engine_kind": " ", "x_engine_version": "1.5.5"}, "", ""),
    ],
)
def test_engine_version_requires_an_engine_kind(given, kind, version, stores):
    seen = []

    def act(realm, request):
        seen.append(current_call())
        return v1.ListCatalogsResponse()

    with opened(stores, services=serving(LIST, act)) as rpc_server:
        answer = rpc_server.client(LIST, **given)
    assert [(call.engine_kind, call.engine_version) for call in seen] == [(kind, version)]
    assert (answer.headers.get("x-engine-kind", ""), answer.headers.get("x-engine-version", "")) == (kind, version)


@behavior(80)
def test_function_can_read_the_current_caller(stores):
    seen = []

    def act(realm, request):
        seen.append(current_call())
        return v1.ListCatalogsResponse()

    with opened(stores, services=serving(LIST, act), credentials=("authorization", "x-session")) as rpc_server:
        rpc_server.callers.add(principal("ada", "catalog.read"))
        rpc_server.client.as_("ada")(LIST, **ALL, x_session="s3cret")
    (call,) = seen
    assert (call.account_id, call.subject, call.operation, call.query_id) == ("a1", "ada", LIST, "q-1")
    assert call.authorization == {"authorization": "Bearer ada", "x-session": "s3cret"}
    assert "s3cret" not in repr(call)
    assert current_call() is None


def test_concurrent_calls_keep_their_own_correlation_ids(rpc_server: RpcServer):
    calls = {f"c-{number}": rpc_server.client.begin(GET, x_correlation_id=f"c-{number}") for number in range(50)}
    for wanted, call in calls.items():
        assert call.code() is CODE.INVALID_ARGUMENT
        assert dict(call.trailing_metadata())["x-correlation-id"] == wanted
