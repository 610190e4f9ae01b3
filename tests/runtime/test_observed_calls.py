"""Every kind of Airport call on `skiway serve` leaves an audit record, a metric and a span, with its caller.

The kinds come from the declarations of the server, so a new action or exchange is tested as soon as it exists.
"""

from __future__ import annotations

import contextlib
import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from airport.raw import Raw, descriptor
from runtime.servers import started
from skiway.airport.server.actions import ACTIONS
from skiway.airport.server.call_handlers import METHODS
from skiway.airport.server.exchange import EXCHANGES
from skiway.airport.wire.frames import FrameWriter
from skiway.client import AirportClient
from skiway.flightsql.protocol import encode
from skiway.model import flight_pb2 as flight
from skiway.model.flight_sql_pb2 import CommandStatementQuery
from telemetry.otlp_receiver import Receiver

SCHEMA = pa.schema({"id": pa.int64()})
OTHER_METHODS = {
    name: operation for name, operation in METHODS.items() if name not in ("DoAction", "DoExchange", "DoGet", "DoPut")
}
OPERATIONS = sorted({*ACTIONS, *EXCHANGES, *OTHER_METHODS.values(), "scan", "put"})


@dataclass
class Observed:
    """The records that a server wrote about calls, by correlation id."""

    audited: dict[str, dict[str, Any]]
    spans: dict[str, dict[str, Any]]
    metrics: str


def send(raw: Raw, operation: str) -> None:
    """Call the operation once; it may fail, since errors are recorded too."""
    header = ("x-correlation-id", f"c-{operation}")
    with contextlib.suppress(grpc.RpcError):
        if operation in ACTIONS and operation != "delete":
            raw.action(operation, b"", header)
        elif operation in EXCHANGES:
            writer = FrameWriter(SCHEMA)
            messages = [writer.begin(descriptor=descriptor("lake", "s", "t"))]
            list(raw.exchange(messages, header, ("airport-operation", operation)))
        elif operation == "scan":
            (endpoint,) = raw.endpoints("lake", "s", "t")
            list(raw.get(endpoint.ticket.ticket, header))
        elif operation == "put":
            list(raw.exchange([b""], header, method="DoPut"))
        elif operation == "handshake":
            list(raw.exchange([b""], header, method="Handshake"))
        else:
            method = next(name for name, known in OTHER_METHODS.items() if known == operation)
            call = raw.unary if method in ("GetFlightInfo", "GetSchema") else raw.stream
            list(call(method, descriptor("lake", "s", "t") if call == raw.unary else b"", header))


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    home = tmp_path_factory.mktemp("observed") / "home"
    receiver = Receiver()
    settings = {
        "telemetry.traces.enabled": "true",
        "telemetry.otlp.endpoint": receiver.endpoint,
        "audit.directory": str(home.parent / "audit"),
    }
    try:
        with started(home, *(part for pair in settings.items() for part in ("--set", "=".join(pair)))) as server:
            with AirportClient(server.addresses["airport"], "lake") as lake:
                lake.create_schema("s")
                lake.create_table("s.t", SCHEMA)
                lake.insert("s.t", pa.table({"id": [1, 2, 3]}))
            with Raw(server.addresses["airport"], (("airport-user-agent", "test"), ("airport-catalog", "lake"))) as raw:
                for operation in OPERATIONS:
                    send(raw, operation)
                command = encode(CommandStatementQuery(query="SELECT id FROM s.t"))
                wanted = flight.FlightDescriptor(type=flight.FlightDescriptor.CMD, cmd=command).SerializeToString()
                info = raw.unary("GetFlightInfo", wanted, ("x-correlation-id", "c-planned"))
                (endpoint,) = flight.FlightInfo.FromString(info).endpoint
                list(raw.get(endpoint.ticket.ticket, ("x-correlation-id", "c-read")))
            with urllib.request.urlopen(f"{server.addresses['http']}/metrics") as answer:
                metrics = answer.read().decode()
            assert server.stop() == 0
        yield Observed(audit_records(home.parent / "audit"), spans_of(receiver), metrics)
    finally:
        receiver.close()


def audit_records(folder: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for file in folder.glob("*.log") for line in file.read_text().splitlines()]
    return {line["correlation_id"]: line for line in lines}


def spans_of(receiver: Receiver) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    while not receiver.received.empty():
        path, _, body = receiver.received.get()
        if path.endswith("/v1/traces"):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        facts = {each.key: each.value.string_value for each in span.attributes}
                        if facts.get("component") == "Airport":
                            found[facts["correlation_id"]] = {"name": span.name, **facts}
    return found


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_kind_of_call_is_audited_metered_and_traced(observed: Observed, operation: str) -> None:
    name = "put" if operation == "put" else operation
    record, span = observed.audited[f"c-{operation}"], observed.spans[f"c-{operation}"]
    assert record["operation"] == span["name"] == f"Airport/{name}"
    assert (record["subject"], record["account_id"]) == ("dev-user", "default")
    assert (span["subject"], span["account_id"]) == ("dev-user", "default")
    assert record["statement"] == name
    assert f'component="Airport",operation="{name}"' in observed.metrics


def test_audit_record_has_table_rows_and_bytes(observed: Observed) -> None:
    record = observed.audited["c-scan"]
    assert (record["catalog"], record["schema"], record["table"], record["rows_out"]) == ("lake", "s", "t", 3)
    assert record["bytes_out"] > 0
    labels = r'account="default",component="Airport",direction="in",operation="insert"'
    assert re.search(rf"skiway_core_rpc_rows\w*\{{{labels}\}} 3", observed.metrics)


def test_calls_of_flight_sql_are_audited_and_metered(observed: Observed) -> None:
    planned, read = observed.audited["c-planned"], observed.audited["c-read"]
    assert (planned["operation"], read["operation"]) == ("FlightSql/StatementQuery", "FlightSql/ReadStatement")
    assert (read["subject"], read["account_id"], read["rows_out"]) == ("dev-user", "default", 3)
    assert 'component="FlightSql",operation="ReadStatement"' in observed.metrics


def test_every_operation_is_declared() -> None:
    """These tests cover all actions, exchanges and Flight methods."""
    assert set(METHODS) == {"DoAction", "DoExchange", "DoGet", "DoPut", *OTHER_METHODS}
