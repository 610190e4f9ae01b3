"""Metrics, spans, audit records and logs of calls."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rpc.requests import REQUESTS, column_stats, lake
from rpc.rpc_server import RpcServer, behavior, opened, raising, serving
from skiway.config.telemetry import Audit, Telemetry
from skiway.config.telemetry import Traces as TraceSettings
from skiway.errors import Contention, Internal
from skiway.metastore.resources import catalogs
from skiway.model import v1
from skiway.telemetry import definitions
from skiway.telemetry.audit import AuditLog
from skiway.telemetry.context import current_call
from skiway.telemetry.metrics import Metrics
from skiway.telemetry.traces import Traces, current_span_ids

CODE = grpc.StatusCode
LIST = "CatalogService/ListCatalogs"
GET = "CatalogService/GetCatalog"
CREATE = "CatalogService/CreateCatalog"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(strict=True)


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[AuditLog]:
    trail = AuditLog(tmp_path)
    yield trail
    trail.close()


def records(folder: Path, category: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{category}.log").read_text().splitlines()]


def readings(metrics: Metrics, metric: definitions.Metric) -> dict[tuple[str, ...], Any]:
    return {
        point.tags: point.value for family in metrics.collect() if family.metric is metric for point in family.points
    }


# -- metrics ------------------------------------------------------------------------------------------------------


def test_calls_are_counted_and_timed_by_account_method_and_outcome(stores, metrics):
    with opened(stores, metrics=metrics) as rpc_server:
        for _ in range(3):
            rpc_server.client(LIST)
        rpc_server.client(GET)
        rpc_server.client.as_("")(LIST)
    expected = {
        ("a1", "CatalogService", "ListCatalogs", "OK"): 3,
        ("a1", "CatalogService", "GetCatalog", "INVALID_ARGUMENT"): 1,
        ("", "CatalogService", "ListCatalogs", "UNAUTHENTICATED"): 1,
    }
    assert readings(metrics, definitions.RPC_REQUESTS) == expected
    assert {tags: found.count for tags, found in readings(metrics, definitions.RPC_LATENCY).items()} == expected
    assert readings(metrics, definitions.RPC_ERRORS) == {tags: n for tags, n in expected.items() if tags[3] != "OK"}
    assert set(readings(metrics, definitions.RPC_ACTIVE).values()) == {0}
    assert 'operation="ListCatalogs"' in metrics.prometheus_text()


def test_running_call_is_counted_as_active(stores, metrics):
    seen = []

    def act(realm, request):
        seen.append(readings(metrics, definitions.RPC_ACTIVE))
        return v1.ListCatalogsResponse()

    with opened(stores, services=serving(LIST, act), metrics=metrics) as rpc_server:
        rpc_server.client(LIST)
    assert seen == [{("CatalogService", "ListCatalogs"): 1}]


def test_internal_errors_and_attempts_are_counted(stores, metrics):
    errors = iter([Contention("lost"), Contention("lost"), RuntimeError("broken")])

    def act(realm, request):
        raise next(errors)

    with opened(stores, services=serving(CREATE, act), metrics=metrics) as rpc_server:
        rpc_server.client(CREATE)
    assert readings(metrics, definitions.RPC_RETRIES) == {("CatalogService", "CreateCatalog"): 2}
    assert readings(metrics, definitions.RPC_ERRORS) == {("a1", "CatalogService", "CreateCatalog", "INTERNAL"): 1}


# -- audit --------------------------------------------------------------------------------------------------------


def test_every_call_is_audited_with_caller_operation_and_outcome(stores, audit, tmp_path):
    with opened(stores, audit=audit) as rpc_server:
        created_catalog = rpc_server.client(
            CREATE, v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="lake")), x_correlation_id="c-1"
        )
        rpc_server.client(GET, v1.GetCatalogRequest(catalog_id=v1.ResourceId(id="nope")), x_query_id="q-1")
        rpc_server.client.as_("")(LIST)
    created, missed, unknown = records(tmp_path, "catalog")
    assert (created["operation"], created["outcome"], created["correlation_id"]) == (CREATE, "OK", "c-1")
    assert (created["account_id"], created["subject"]) == ("a1", "everybody")
    assert created["resources"] == {"catalog": created_catalog.message.catalog.resource_id.id}
    assert created["duration_ms"] > 0
    assert (missed["outcome"], missed["query_id"], missed["resources"]) == ("MC_NOT_FOUND", "q-1", {"catalog": "nope"})
    assert unknown["outcome"] == "MC_UNAUTHENTICATED"
    assert not unknown.get("subject")
    assert "Bearer" not in (tmp_path / "catalog.log").read_text()


@pytest.mark.parametrize(
    ("operation", "category", "resources"),
    [
        ("TableService/UpdateTable", "table", {"table", "catalog", "namespace"}),
        ("SnapshotService/CreateSnapshot", "snapshot", {"table"}),
        ("TableStatisticsService/PutColumnStats", "statistics", {"table"}),
        ("DirectoryService/ResolveTable", "directory", {"table"}),
        ("ViewService/DeleteView", "view", {"view"}),
        ("NamespaceService/GetNamespace", "namespace", {"namespace", "catalog"}),
        ("AccountService/GetAccount", "account", {"account"}),
        ("SystemObjectsService/GetSystemObjects", "system", set()),
    ],
)
def test_services_have_their_own_audit_categories(operation, category, resources, stores, audit, tmp_path):
    with opened(stores, audit=audit) as rpc_server:
        rpc_server.client(operation, REQUESTS[operation](lake(rpc_server.factory)))
    (record,) = records(tmp_path, category)
    assert (record["operation"], record["resources"].keys()) == (operation, resources)


def test_call_is_audited_before_its_answer_is_sent(stores, audit, tmp_path):
    with opened(stores, audit=audit) as rpc_server:
        for number in range(20):
            rpc_server.client(LIST)
            assert len(records(tmp_path, "catalog")) == number + 1


def test_call_that_cannot_be_audited_fails_if_auditing_is_required(stores, tmp_path):
    (tmp_path / "catalog.log").mkdir()
    audit = AuditLog(tmp_path, Audit(required=True))
    with opened(stores, audit=audit) as rpc_server:
        answer = rpc_server.client(LIST)
    assert (answer.code, answer.error.message_key) == (CODE.UNAVAILABLE, "audit.unwritable")


def test_ids_of_any_kind_and_length_are_audited(stores, audit, tmp_path):
    with opened(stores, audit=audit) as rpc_server:
        rpc_server.client(GET, v1.GetCatalogRequest(catalog_id=v1.ResourceId(id="x" * 5000, kind=99)))  # type: ignore[arg-type]
    (record,) = records(tmp_path, "catalog")
    assert record["resources"] == {"catalog": "x" * 100}


# -- spans and logs -----------------------------------------------------------------------------------------------


@behavior(80)
def test_span_belongs_to_the_trace_of_the_caller(stores):
    spans, trace, inside = InMemorySpanExporter(), "0af7651916cd43dd8448eb211c80319c", []

    def act(realm, request):
        inside.append(current_span_ids())
        return v1.ListCatalogsResponse()

    traces = Traces.start(Telemetry(traces=TraceSettings(enabled=True)), processor=SimpleSpanProcessor(spans))
    with opened(stores, services=serving(LIST, act), traces=traces) as rpc_server:
        rpc_server.client(LIST, traceparent=f"00-{trace}-b7ad6b7169203331-01", x_correlation_id="c-1")
        rpc_server.client(GET)
    traces.close()
    listed, got = spans.get_finished_spans()
    assert (listed.name, listed.attributes["correlation_id"]) == (LIST, "c-1")
    assert f"{listed.context.trace_id:032x}" == trace == inside[0][0]
    assert (got.name, got.status.is_ok, got.attributes["error.type"]) == (GET, False, "InvalidArgument")
    assert "Bearer" not in str(listed.attributes)


def test_internal_error_is_logged_with_its_call(stores, caplog):
    logged_calls = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged_calls.append(current_call())

    logger, handler = logging.getLogger("skiway.rpc"), Listening()
    logger.addHandler(handler)
    try:
        with opened(stores, services=raising(Internal("broken"))) as rpc_server:
            rpc_server.client(LIST, x_correlation_id="c-1")
    finally:
        logger.removeHandler(handler)
    assert [(call.correlation_id, call.subject, call.operation) for call in logged_calls] == [
        ("c-1", "everybody", LIST)
    ]


def test_calls_are_served_without_telemetry(rpc_server: RpcServer):
    created_catalog = lake(rpc_server.factory)
    assert (
        rpc_server.client("TableStatisticsService/PutColumnStats", [column_stats(created_catalog, 1)]).code is CODE.OK
    )
    assert len(catalogs.list_(rpc_server.factory.home, v1.ListCatalogsRequest()).catalogs) == 1
