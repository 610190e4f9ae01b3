"""The audit log has a record of every call, and failures to write one are reported."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from skiway.config import load
from skiway.config.telemetry import Audit, Rotation
from skiway.errors import Internal, Unavailable
from skiway.telemetry.audit import CATEGORIES, AuditEntry, AuditLog
from skiway.telemetry.context import CallContext, serving
from skiway.telemetry.metrics import Metrics

NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
ENTRY = AuditEntry("TableService/CreateTable", "OK", 0.0125, {"table": "t-1", "catalog": "c-1"})


def records(directory: Path, category: str) -> list[dict[str, Any]]:
    files = [each for each in directory.glob(f"{category}.log*") if each.suffix != ".lock"]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_record_has_caller_operation_and_outcome(tmp_path: Path):
    call = CallContext(
        "c-9", query_id="q-1", account_id="acme", subject="ada", authorization={"authorization": "Bearer hunter2"}
    )
    clock = lambda: NOW.astimezone(timezone(timedelta(hours=2)))  # noqa: E731
    with serving(call):
        AuditLog(tmp_path, clock=clock).record("table", ENTRY)
    assert records(tmp_path, "table") == [
        {
            "time": "2026-01-02T03:04:05.678Z",
            "correlation_id": "c-9",
            "query_id": "q-1",
            "account_id": "acme",
            "subject": "ada",
            "operation": "TableService/CreateTable",
            "resources": {"table": "t-1", "catalog": "c-1"},
            "outcome": "OK",
            "duration_ms": 12.5,
        }
    ]
    assert "hunter2" not in (tmp_path / "table.log").read_text()


@pytest.mark.parametrize("category", CATEGORIES)
def test_every_category_has_its_own_file(tmp_path: Path, category: str):
    AuditLog(tmp_path).record(category, ENTRY)
    assert [file.name for file in sorted(tmp_path.iterdir())] == [f"{category}.log", f"{category}.log.lock"]


def test_unknown_category_is_an_internal_error(tmp_path: Path):
    with pytest.raises(Internal, match=r"^unknown audit category zebra: it must be one of account, catalog, "):
        AuditLog(tmp_path).record("zebra", ENTRY)


def test_record_is_written_before_the_call_returns(tmp_path: Path):
    audit = AuditLog(tmp_path)
    for number in range(1, 4):
        audit.record("table", ENTRY)
        assert len(records(tmp_path, "table")) == number


def test_concurrent_records_are_not_lost_or_mixed_during_rotation(tmp_path: Path):
    audit = AuditLog(tmp_path, Audit(rotation=Rotation(max_bytes=2_000, keep=200)))

    def call(caller: int) -> None:
        for number in range(100):
            with serving(CallContext(f"{caller}", subject=f"user-{caller}")):
                audit.record("table", AuditEntry("Get", "OK", 0.001, {"number": str(number), "caller": str(caller)}))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, range(8)))
    found = records(tmp_path, "table")
    assert len(list(tmp_path.glob("table.log.[0-9]*"))) > 20
    assert len(found) == 800
    assert {(each["resources"]["caller"], each["resources"]["number"]) for each in found} == {
        (str(caller), str(number)) for caller in range(8) for number in range(100)
    }
    assert all(each["subject"] == f"user-{each['resources']['caller']}" for each in found)


def test_write_failure_is_logged_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "file").write_text("in the way")
    metrics = Metrics(strict=True)
    AuditLog(tmp_path / "file", metrics=metrics).record("table", ENTRY)
    assert caplog.messages[0].startswith("the audit record of TableService/CreateTable could not be written: ")
    assert 'skiway_core_audit_errors_total{category="table"} 1.0' in metrics.prometheus_text()


def test_write_failure_fails_the_call_if_auditing_is_required(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable, match="could not be recorded in the audit log") as caught:
        AuditLog(tmp_path / "file", Audit(required=True)).record("table", ENTRY)
    assert caught.value.key == "audit.unwritable"


def test_settings_configure_location_rotation_and_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    flags = {"audit.fsync": "true", "audit.rotation.max_bytes": "1000", "audit.rotation.keep": "2"}
    audit = AuditLog.open(load(tmp_path, flags=flags).audit)
    assert audit is not None
    for _ in range(50):
        audit.record("view", ENTRY)
    audit.close()
    assert len(synced) == 50
    names = sorted(file.name for file in (tmp_path / "audit").iterdir())
    assert names == ["view.log", "view.log.1", "view.log.2", "view.log.lock"]


def test_disabled_audit_log_is_not_opened(tmp_path: Path):
    assert AuditLog.open(load(tmp_path, flags={"audit.enabled": "false"}).audit) is None
    assert AuditLog.open(load().audit) is None


def test_record_is_written_as_the_standard_library_would_encode_it(tmp_path: Path) -> None:
    details: dict[str, str | int] = {
        "table": 'quoted "ö"\n\t\\ \x00 \u2028',
        "rows": 2**60,
        "half": "\ud800 of a character",
    }
    for names in (details.keys(), details.keys() - {"half"}):
        AuditLog(tmp_path).record(
            "table", AuditEntry("T/get", "OK", 0.0123456, {}, {name: details[name] for name in names})
        )
    for line in (tmp_path / "table.log").read_bytes().splitlines():
        assert json.loads(line)["duration_ms"] == 12.346
        assert json.loads(line)["table"] == details["table"]
        assert b'quoted \\"\xc3\xb6\\"' in line
    assert (tmp_path / "table.log").read_text().count("\\ud800") == 1
