"""The request pipeline, without a door: who is admitted, and what is recorded about a call."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from skiway.config.telemetry import Audit, Telemetry
from skiway.config.telemetry import Traces as TraceSettings
from skiway.errors import Conflict, InvalidArgument, NotFound, PermissionDenied, Unauthorized, Unavailable
from skiway.foundation.doors import outcome_of
from skiway.metastore import Realm
from skiway.request_path import Access, Call, Observers, Operation, Pipeline
from skiway.security import PermissionAuthorizer, Principal
from skiway.storage import Stores, open_stores
from skiway.telemetry import definitions
from skiway.telemetry.audit import AuditLog
from skiway.telemetry.context import CallContext, current_call
from skiway.telemetry.metrics import Metrics
from skiway.telemetry.traces import Traces

READ = Operation("Tables", "get", "table", ("table.read",))


class Tokens:
    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        match headers.get("authorization"):
            case "ada":
                return Principal("ada", "a1", frozenset(), frozenset({"table.read"}))
            case "grace":
                return Principal("grace", "a2", frozenset(), frozenset())
            case "root":
                return Principal("root", "", frozenset(), frozenset({"table.read"}))
        raise Unauthorized("send a token")


class Recorded:
    """A pipeline and everything that it records."""

    def __init__(self, folder: Path, stores: Stores) -> None:
        self.spans = InMemorySpanExporter()
        self.metrics = Metrics(strict=True)
        self.folder = folder
        settings = Telemetry(traces=TraceSettings(enabled=True))
        traces = Traces.start(settings, processor=SimpleSpanProcessor(self.spans))
        self.pipeline = Pipeline(
            Access(lambda who: Realm(stores, who.account_id), Tokens(), PermissionAuthorizer()),
            Observers(self.metrics, traces, AuditLog(folder)),
            log=logging.getLogger("test.requests"),
            status_of=lambda error: type(error).__name__,
        )

    def audited(self, category: str = "table") -> dict[str, Any]:
        (line,) = (self.folder / f"{category}.log").read_text().splitlines()
        record: dict[str, Any] = json.loads(line)
        return record

    def counted(self) -> list[tuple[str, ...]]:
        families = [each for each in self.metrics.collect() if each.metric is definitions.RPC_REQUESTS]
        return [point.tags for family in families for point in family.points]


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    with open_stores("memory://") as stores:
        yield Recorded(tmp_path, stores)


def call(token: str = "ada", operation: Operation = READ, **facts: Any) -> Call:
    return Call(operation, {"authorization": token}, CallContext("c-1", operation=operation.full_name), **facts)


def test_a_call_is_recorded_with_its_caller(recorded: Recorded) -> None:
    served = call()
    with recorded.pipeline.observe(served):
        recorded.pipeline.admit(served)
        current = current_call()
        assert current is not None
        assert (current.subject, current.account_id, current.correlation_id) == ("ada", "a1", "c-1")
        served.details["rows_out"] = 7
    assert current_call() is None
    record = recorded.audited()
    facts = ("subject", "account_id", "correlation_id", "operation", "outcome", "rows_out")
    assert [record[name] for name in facts] == ["ada", "a1", "c-1", "Tables/get", "OK", 7]
    assert recorded.counted() == [("a1", "Tables", "get", "OK")]
    (span,) = recorded.spans.get_finished_spans()
    assert span.name == "Tables/get"
    assert span.attributes is not None
    assert {name: span.attributes[name] for name in ("subject", "account_id", "correlation_id", "rows_out")} == {
        "subject": "ada",
        "account_id": "a1",
        "correlation_id": "c-1",
        "rows_out": 7,
    }


@pytest.mark.parametrize(
    ("token", "error", "subject", "account"),
    [
        ("grace", PermissionDenied, "grace", "a2"),  # without the permission
        ("root", PermissionDenied, "root", None),  # without an account
        ("nobody", Unauthorized, None, None),
    ],
)
def test_a_rejected_call_is_recorded_with_its_caller(
    recorded: Recorded, token: str, error: type[Exception], subject: str | None, account: str | None
) -> None:
    served = call(token)
    with pytest.raises(error), recorded.pipeline.observe(served):
        recorded.pipeline.admit(served)
    record = recorded.audited()
    assert (record.get("subject"), record.get("account_id")) == (subject, account)
    assert record["outcome"] == error.code  # type: ignore[attr-defined]
    assert recorded.counted() == [(account or "", "Tables", "get", error.__name__)]


def test_a_call_has_one_realm_that_follows_what_is_decided_about_it(recorded: Recorded) -> None:
    served, pipeline = call(), recorded.pipeline
    with pipeline.observe(served):
        assert pipeline.realm(served).caller == pipeline.realm(served).account_id == ""
        pipeline.authenticate(served)
        realm = pipeline.realm(served)
        assert pipeline.realm(served) is realm
        assert (realm.caller, realm.account_id, realm.access) == ("ada", "a1", None)
        assert served.decision is not None
        assert realm.policies is served.decision.policies
        served.is_narrowed = True
        assert pipeline.realm(served).access is served.decision
        served.is_narrowed = False
        assert pipeline.realm(served).access is None


def test_a_call_with_an_invalid_header_is_rejected_before_anybody_is_authenticated(recorded: Recorded) -> None:
    served = call(invalid=InvalidArgument("header x is too long"))
    with pytest.raises(InvalidArgument), recorded.pipeline.observe(served):
        recorded.pipeline.admit(served)
    assert served.principal is None


def test_an_operation_without_need_of_an_account_is_open_to_the_platform(recorded: Recorded) -> None:
    served = call("root", Operation("Accounts", "list", "account", ("table.read",), needs_account=False))
    with recorded.pipeline.observe(served):
        assert recorded.pipeline.admit(served).subject == "root"


def test_only_faults_of_the_server_are_logged(recorded: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(NotFound), recorded.pipeline.observe(call()):
        raise NotFound("no such table")
    assert caplog.records == []
    with pytest.raises(ZeroDivisionError), recorded.pipeline.observe(call()):
        raise ZeroDivisionError
    (record,) = caplog.records
    assert record.getMessage() == "Tables/get failed"
    assert record.exc_info is not None


def test_a_door_that_answers_an_error_itself_records_it(recorded: Recorded) -> None:
    served = call()
    with recorded.pipeline.observe(served):
        recorded.pipeline.admit(served)
        served.outcome, served.status = Conflict.code, "409"
    assert recorded.audited()["outcome"] == "MC_CONFLICT"
    assert recorded.counted() == [("a1", "Tables", "get", "409")]


def test_a_required_audit_record_that_cannot_be_written_fails_the_call(recorded: Recorded, tmp_path: Path) -> None:
    trail = AuditLog(tmp_path / "missing", Audit(required=True))
    (tmp_path / "missing").write_text("a file where the folder should be")
    pipeline = Pipeline(
        recorded.pipeline.access,
        Observers(recorded.metrics, Traces(), trail),
        log=logging.getLogger("test.requests"),
        status_of=lambda error: type(error).__name__,
    )
    with pytest.raises(Unavailable), pipeline.observe(call()):
        pass
    assert recorded.counted() == [("", "Tables", "get", "Unavailable")]


def test_a_stream_that_its_client_abandoned_counts_as_cancelled(recorded: Recorded) -> None:
    def stream() -> Any:
        with recorded.pipeline.observe(call()):
            yield 1
            yield 2

    frames = stream()
    next(frames)
    frames.close()
    assert recorded.audited()["outcome"] == "MC_CANCELLED"
    assert outcome_of(GeneratorExit()) == "MC_CANCELLED"


def test_details_for_operators_are_logged(recorded: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    error = Unavailable("the store is unavailable: try again later", detail="connection to db.internal:5432 refused")
    with pytest.raises(Unavailable), recorded.pipeline.observe(call()):
        raise error
    (record,) = caplog.records
    assert "db.internal:5432" in record.getMessage()
    assert "db.internal" not in error.message


class Deciding(PermissionAuthorizer):
    """An authorizer of an operator's own."""


@pytest.mark.parametrize("permissions", [(), ("table.read",), ("table.read", "grant.manage")])
@pytest.mark.parametrize("nobody", [False, True])
def test_permissions_are_decided_as_by_an_authorizer_that_is_asked(permissions: tuple[str, ...], nobody: bool) -> None:
    principal = Principal("" if nobody else "ada", "" if nobody else "a1", frozenset(), frozenset(permissions))
    with open_stores("memory://") as stores:
        one, other = (
            Access(lambda who: Realm(stores, who.account_id), Tokens(), authorizer).decide(principal)
            for authorizer in (PermissionAuthorizer(), Deciding())
        )
        wanted = ("table.read", "table.write", "grant.manage", "")
        assert [one.everywhere(each) for each in wanted] == [other.everywhere(each) for each in wanted]
