"""Every log line identifies its call, parses as JSON, and contains no secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from skiway.config.fields import Secret
from skiway.config.telemetry import Log, Rotation, Telemetry
from skiway.config.telemetry import Traces as TracesSettings
from skiway.telemetry import logs
from skiway.telemetry.context import CallContext, serving
from skiway.telemetry.traces import Traces

log = logging.getLogger("skiway.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def logging_to(stream: io.StringIO, **settings: Any) -> Iterator[io.StringIO]:
    undo = logs.configure(Log(**settings), stream=stream)
    try:
        yield stream
    finally:
        undo()


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def one_line(stream: io.StringIO) -> dict[str, Any]:
    (line,) = lines_of(stream)
    return line


def test_line_has_the_facts_of_its_call():
    call = CallContext(
        "c-1",
        query_id="q-1",
        engine_kind="duckdb",
        engine_version="1.5",
        account_id="acme",
        subject="ada",
        operation="TableService/GetTable",
        authorization={"authorization": "Bearer hunter2"},
    )
    with logging_to(io.StringIO()) as out, serving(call):
        log.info("read %d tables", 3, extra={"rows": 7})
    line = one_line(out)
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {
        "level": "INFO",
        "logger": "skiway.test",
        "message": "read 3 tables",
        "rows": 7,
        "correlation_id": "c-1",
        "query_id": "q-1",
        "account_id": "acme",
        "subject": "ada",
        "engine_kind": "duckdb",
        "engine_version": "1.5",
        "operation": "TableService/GetTable",
    }


def test_line_outside_of_a_call_has_no_call_facts():
    with logging_to(io.StringIO()) as out:
        log.warning("hello")
    assert set(one_line(out)) == {"time", "level", "logger", "message"}


def test_time_is_utc_with_milliseconds():
    with logging_to(io.StringIO()) as out:
        record = logging.makeLogRecord({"name": "skiway.test", "levelno": logging.INFO, "created": 1_767_323_045.25})
        logging.getLogger().handle(record)
    assert one_line(out)["time"] == "2026-01-02T03:04:05.250Z"


def test_exception_is_part_of_the_line():
    with logging_to(io.StringIO()) as out:
        try:
            raise KeyError("password=hunter2")
        except KeyError:
            log.exception("failed\nbadly")
    line = one_line(out)
    assert line["message"] == "failed\nbadly"
    assert line["exception"]["type"] == "KeyError"
    assert "test_logs.py" in line["exception"]["stack"]
    assert "hunter2" not in out.getvalue()


def test_line_has_the_ids_of_its_trace():
    traces = Traces.start(Telemetry(traces=TracesSettings(enabled=True)))
    with logging_to(io.StringIO()) as out, traces.span("rpc", "GetTable"):
        log.info("inside")
    traces.close()
    line = one_line(out)
    assert len(line["trace_id"]) == 32
    assert len(line["span_id"]) == 16


def test_secrets_do_not_appear_in_any_format():
    wrapped = Secret("hunter2")
    for form in ("json", "text"):
        with logging_to(io.StringIO(), format=form) as out:
            log.info("password=%s", "hunter2")
            log.info("%(user)s with %(password)s", {"user": "ada", "password": "hunter2"})
            log.info("wrapped %s", wrapped, extra={"wrapped": wrapped, "deep": {"more": [wrapped]}})
            log.info("extra", extra={"client_secret": "hunter2", "headers": {"authorization": "Bearer hunter2"}})
            log.info("to postgresql://ada:hunter2@db/lake")
        assert "hunter2" not in out.getvalue()
        assert "ada" in out.getvalue()
        assert "****" in out.getvalue()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"\xff", object(), {1: {2, 3}}, "\u2028\x00é", [1.5]])
def test_any_extra_value_is_logged_as_valid_json(value: object):
    def fail(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    with logging_to(io.StringIO()) as out:
        log.info("odd", extra={"value": value})
    (line,) = out.getvalue().removesuffix("\n").split("\n")
    assert "value" in json.loads(line, parse_constant=fail)


def test_message_that_does_not_match_its_arguments_does_not_raise(capsys: pytest.CaptureFixture[str]):
    with logging_to(io.StringIO()) as out:
        ours = logging.getLogger().handlers[-1]  # only our handler, because that of pytest would raise
        ours.handle(log.makeRecord("skiway.test", logging.INFO, __file__, 1, "%d tables", ("three",), None))
        log.info("next")
    assert one_line(out)["message"] == "next"
    assert "--- Logging error ---" in capsys.readouterr().err


def test_terminal_gets_text_and_pipe_gets_json():
    with logging_to(Terminal()) as out, serving(CallContext("c-1", account_id="acme")):
        log.warning("careful")
    assert out.getvalue().endswith("WARNING skiway.test  careful  [correlation_id=c-1 account_id=acme]\n")
    with logging_to(Terminal(), format="json") as out:
        log.warning("careful")
    assert one_line(out)["message"] == "careful"


def test_text_format_shows_the_stack_trace_below():
    with logging_to(io.StringIO(), format="text") as out:
        try:
            raise ValueError("no")
        except ValueError:
            log.exception("failed")
    assert out.getvalue().splitlines()[-1] == "ValueError: no"


def test_level_applies_to_skiway_and_other_libraries_log_only_warnings():
    with logging_to(io.StringIO(), level="DEBUG") as out:
        log.debug("ours")
        logging.getLogger("elsewhere").info("chatter")
        logging.getLogger("elsewhere").warning("trouble")
    assert [line["message"] for line in lines_of(out)] == ["ours", "trouble"]
    with logging_to(io.StringIO(), level="ERROR") as out:
        log.warning("ours")
        logging.getLogger("elsewhere").warning("trouble")
    assert out.getvalue() == ""


def test_undo_restores_the_logging_configuration():
    root, ours = logging.getLogger(), logging.getLogger("skiway")
    before = (list(root.handlers), root.level, ours.level)
    with logging_to(io.StringIO(), level="DEBUG"):
        assert (list(root.handlers), root.level, ours.level) != before
    assert (list(root.handlers), root.level, ours.level) == before


def test_file_gets_every_line_of_concurrent_threads_during_rotation(tmp_path: Path):
    file = tmp_path / "logs" / "skiway.log"

    def write(writer: int) -> None:
        with serving(CallContext(f"call-{writer}")):
            for number in range(100):
                log.info("line", extra={"writer": writer, "number": number})

    rotation = Rotation(max_bytes=3_000, keep=100)
    with logging_to(io.StringIO(), file=file, rotation=rotation) as out, ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    files = [each for each in file.parent.iterdir() if each.suffix != ".lock"]
    assert len(files) > 20
    found = [json.loads(line) for each in files for line in each.read_text().splitlines()]
    assert len(found) == len(lines_of(out)) == 800
    assert {(line["writer"], line["number"]) for line in found} == {(w, n) for w in range(8) for n in range(100)}
    assert all(line["correlation_id"] == f"call-{line['writer']}" for line in found)


def test_unwritable_file_does_not_raise(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("in the way")
    with logging_to(io.StringIO(), file=tmp_path / "file" / "skiway.log") as out:
        log.info("hello")
    assert one_line(out)["message"] == "hello"
    assert "--- Logging error ---" in capsys.readouterr().err
