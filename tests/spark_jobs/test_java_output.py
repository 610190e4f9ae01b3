"""Java's output as log records: levels, loggers and stack traces, and nothing else on stderr."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import Any

import pytest

from runtime.servers import environment
from skiway.config.telemetry import Log
from skiway.spark_jobs import session as spark_session
from skiway.spark_jobs.java_output import JavaMessage, launch_java, log_output, parsed
from skiway.telemetry.logs import configure

TRACE = (
    "26/01/02 03:04:05 ERROR Executor: Exception in task 0.0\n"
    "java.io.IOException: No space left on device\n"
    "\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)\n"
    "Caused by: java.lang.IllegalStateException: why\n"
    "\t... 12 more\n"
    "26/01/02 03:04:06 WARN TaskSetManager: Lost task\n"
)


@pytest.mark.parametrize(
    ("line", "level", "logger", "text"),
    [
        (
            "26/01/02 03:04:05 WARN NativeCodeLoader: Unable to load: x",
            "WARNING",
            "NativeCodeLoader",
            "Unable to load: x",
        ),
        ("26/01/02 03:04:05 FATAL Main: over", "CRITICAL", "Main", "over"),
        ("26/01/02 03:04:05 INFO Main: fine", "INFO", "Main", "fine"),
        ("WARNING: An illegal reflective access", "WARNING", "", "An illegal reflective access"),
        ("SEVERE: bad", "ERROR", "", "bad"),
        ("WARNING: Using incubator modules: jdk.incubator.vector", "INFO", "", None),
        ('Setting default log level to "WARN".', "INFO", "", None),
        ('Exception in thread "main" java.lang.OutOfMemoryError: Java heap space', "ERROR", "", None),
        ("org.apache.spark.SparkException: x", "ERROR", "", None),
        ("# A fatal error has been detected by the Java Runtime Environment:", "WARNING", "", None),
    ],
)
def test_lines_have_a_level_and_a_logger(line: str, level: str, logger: str, text: str | None) -> None:
    assert parsed(line) == JavaMessage(logging.getLevelNamesMapping()[level], logger, text or line, [])


def logged(write: Callable[[int], None], caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str, str]]:
    """The records of what `write` sends: name, level, message and stack."""
    source, sink = os.pipe()
    reader = Thread(target=log_output, args=(source,))
    reader.start()
    try:
        write(sink)
    finally:
        os.close(sink)
        reader.join(200)
    return [(each.name, each.levelname, each.getMessage(), getattr(each, "stack", "")) for each in caplog.records]


def test_mark_that_nobody_waits_for_any_more_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    lines = b"26/01/02 03:04:05 WARN One: first\nskiway-mark-1\n26/01/02 03:04:05 WARN One: second\n"
    found = logged(lambda sink: os.write(sink, lines) and None, caplog)
    assert [text for _, _, text, _ in found] == ["first", "second"]


def test_stack_trace_belongs_to_its_message(caplog: pytest.LogCaptureFixture) -> None:
    _, *stack, _ = TRACE.splitlines()
    assert logged(lambda sink: os.write(sink, TRACE.encode()) and None, caplog) == [
        ("spark.Executor", "ERROR", "Exception in task 0.0", "\n".join(stack)),
        ("spark.TaskSetManager", "WARNING", "Lost task", ""),
    ]


def test_message_is_logged_without_waiting_for_the_next(caplog: pytest.LogCaptureFixture) -> None:
    def write(sink: int) -> None:
        os.write(sink, b"26/01/02 03:04:05 WARN A: first\n")
        deadline = time.monotonic() + 200
        while not caplog.records:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    assert logged(write, caplog) == [("spark.A", "WARNING", "first", "")]


def test_unfinished_long_and_binary_lines_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    found = logged(lambda sink: os.write(sink, b"\xff\xfe odd\n\n" + b"x" * 40_000) and None, caplog)
    assert [(name, level, len(text)) for name, level, text, _ in found] == [
        ("spark", "WARNING", len("\ufffd\ufffd odd")),
        ("spark", "WARNING", 16_384),
    ]


JAVA = (
    "echo 'Setting default log level to \"WARN\".'; echo 'plain on stdout'; echo 'plain on stderr, password=planted' >&2; "
    "echo '26/01/02 03:04:05 ERROR Mine: boom'"
)


@pytest.mark.needs("spark")
def test_output_of_the_java_that_is_started_is_in_the_json_log(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A shell in place of Java, which writes to what it got as stdout and stderr."""
    from pyspark import SparkContext, java_gateway

    def launch(conf: object, popen_kwargs: dict[str, Any]) -> str:
        assert conf.get("spark.app.name") == "test"  # type: ignore[attr-defined]
        subprocess.run(["sh", "-c", JAVA], check=True, **popen_kwargs)
        return "gateway"

    initialized: list[object] = []
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda gateway, conf: initialized.append(gateway))
    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    before, stream = set(enumerate_threads()), io.StringIO()
    undo = configure(Log(format="json", level="INFO"), stream=stream)
    try:
        launch_java({"spark.app.name": "test"})
        for reader in set(enumerate_threads()) - before:
            reader.join(200)
    finally:
        undo()
    assert initialized == ["gateway"]
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(each["logger"], each["level"], each["message"]) for each in records] == [
        ("spark", "WARNING", "plain on stdout"),
        ("spark", "WARNING", "plain on stderr, password=****"),
        ("spark.Mine", "ERROR", "boom"),
    ]
    assert capfd.readouterr() == ("", "")


@pytest.mark.needs("spark")
def test_session_starts_java_with_its_output_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(Exception):
        pass

    def start(settings: dict[str, str]) -> None:
        raise Started(settings["spark.app.name"])

    monkeypatch.setattr(spark_session, "launch_java", start)
    monkeypatch.setattr(spark_session, "_prepare_environment", lambda _: None)
    monkeypatch.setattr(spark_session, "_check_running", lambda _: None)
    with pytest.raises(Started, match="test"):
        spark_session.session("test", "local[1]")


SCRIPT = """
    import sys
    from skiway.config import load
    from skiway.runtime.telemetry import logging_as_configured

    with logging_as_configured(load(flags={"log.format": "json"})):
        from skiway.spark_jobs.session import session

        spark = session("test", "local[1]", **{"spark.log.level": "WARN"})
        jvm = spark._jvm
        jvm.System.err.println("plain on stderr, password=planted")
        jvm.System.out.println("plain on stdout")
        jvm.org.slf4j.LoggerFactory.getLogger("org.example.Mine").error("boom", jvm.java.lang.RuntimeException("why"))
        print(spark.range(3).count())
    spark.stop()
"""


@pytest.mark.needs("java", "spark")
@pytest.mark.full  # it starts a Java of its own
def test_real_java_writes_nothing_but_records() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], capture_output=True, text=True, env=environment(), timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    records = [json.loads(line) for line in done.stderr.splitlines()]
    found = {(each["logger"], each["level"], each["message"]): each for each in records}
    assert ("spark", "WARNING", "plain on stderr, password=****") in found
    assert ("spark", "WARNING", "plain on stdout") in found
    assert "java.lang.RuntimeException: why" in found["spark.Mine", "ERROR", "boom"]["stack"]
    assert not [each for each in records if each["message"].startswith("Setting default log level")]
