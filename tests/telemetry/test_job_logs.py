"""The logs of jobs are bounded, contain no secrets, and only what is logged for the job."""

from __future__ import annotations

import logging
from contextvars import copy_context
from threading import Thread

import pytest

from skiway.telemetry.logs import (
    MAX_BYTES,
    MAX_LINE_BYTES,
    CollectedLog,
    RecentLines,
    collecting,
    conceal,
    current_log,
    on_behalf_of,
)

log = logging.getLogger("skiway.test")


def in_a_thread(target: object, *args: object) -> None:
    thread = Thread(target=target, args=args)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def test_only_the_newest_lines_are_kept() -> None:
    lines = RecentLines(100, dropped=3)
    for number in range(40):
        lines.add(f"line {number:02}\nü")
    assert len(lines.text.encode()) <= 100
    kept = lines.text.splitlines()
    assert kept[-2:] == ["line 39", "ü"]
    assert lines.dropped == 3 + 80 - len(kept)


def test_long_line_is_cut_off() -> None:
    lines = RecentLines()
    lines.add("ü" * MAX_BYTES)
    assert len(lines.text.encode()) <= MAX_LINE_BYTES + 10
    assert lines.text.endswith("…\n")


def test_control_characters_are_escaped() -> None:
    lines = RecentLines()
    lines.add("\x1b[2J\ttab\r\x9b\udc80")
    assert lines.text == "\\u001b[2J\ttab\\u000d\\u009b\\udc80\n"


def test_log_has_what_its_own_threads_log() -> None:
    with collecting(CollectedLog()) as one:
        log.warning("of one")
        with on_behalf_of(None):
            log.warning("of nobody")
        in_a_thread(log.warning, "of another thread")
        in_a_thread(copy_context().run, log.warning, "of a helper")

        def other() -> None:
            with collecting(CollectedLog()) as two:
                log.error("of two")
            assert "of two" in two.text
            assert "of one" not in two.text

        in_a_thread(other)
    log.warning("afterwards")
    assert [line.rpartition("  ")[2] for line in one.text.splitlines()] == ["of one", "of a helper"]
    assert current_log() is None
    assert one not in logging.getLogger().handlers


def test_exception_is_in_the_log_with_its_stack() -> None:
    with collecting(CollectedLog()) as found:
        try:
            raise ValueError("broken")
        except ValueError:
            log.exception("it failed")
    assert "Traceback" in found.text
    assert "ValueError: broken" in found.text


def test_secrets_are_masked_before_and_after_they_are_known() -> None:
    with collecting(CollectedLog()) as found:
        log.warning("opening with hunter/2-x")
        found.write("password=by-its-name")
        conceal("hunter/2-x", "abc")
        log.warning("failed: abc, hunter/2-x, and https://host/?q=hunter%2F2-x")
        try:
            raise ValueError("hunter/2-x is wrong")
        except ValueError:
            log.exception("why")
    assert "hunter" not in found.text
    assert "by-its-name" not in found.text
    assert "failed: abc, ****, and https://host/?q=****" in found.text
    assert "ValueError: **** is wrong" in found.text


def test_secret_is_masked_before_a_line_is_cut_off() -> None:
    found = CollectedLog()
    found.conceal("hunter2-hunter2")
    found.write("x" * (MAX_LINE_BYTES - 7) + "hunter2-hunter2")
    assert "hunter" not in found.text


def test_concealing_without_a_job_does_nothing() -> None:
    conceal("hunter2")


def test_record_that_cannot_be_formatted_does_not_fail_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    with collecting(CollectedLog()) as found:
        found.emit(logging.makeLogRecord({"msg": "%d", "args": ("x",)}))
        log.warning("next")
    assert "next" in found.text
    assert "Logging error" in capsys.readouterr().err
