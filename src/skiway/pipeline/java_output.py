"""The output of Spark's Java process as log records: every message has a level, a logger and, if it has one, a stack trace.

Java is started with a pipe in place of stdout and stderr, and a thread logs what arrives. So the output has the format
of the process's own log, without secrets, and reaches the log file as well. It also reaches the log of the job that uses Spark
(see `spark_uses`).
"""

from __future__ import annotations

import logging
import os
import re
import select
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final
from uuid import uuid4

from skiway.pipeline.spark_uses import SPARK_USES
from skiway.telemetry.job_logs import on_behalf_of

__all__ = ["JavaMessage", "launch_java", "log_output", "parsed", "wait_for_output"]

ROOT: Final = "spark"
MAX_LINE: Final = 16_384
MAX_STACK: Final = 50
PAUSE_S: Final = 0.2
"""How long a message waits for further lines of its stack trace."""

PATIENCE_S: Final = 2.0
"""How long to wait for output that Java has written already."""

_LAUNCHED: Final = Event()
"""Set if the output of Java arrives here."""

MARK: Final = "skiway-mark-"
_MARKS: Final[dict[str, Event]] = {}
"""What waits for lines that Java writes for `wait_for_output`. They start with `MARK`."""

LEVELS: Final = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "SEVERE": logging.ERROR,
    "FATAL": logging.CRITICAL,
}

# Spark's layout of log4j: "26/01/02 03:04:05 WARN NativeCodeLoader: Unable to load native-hadoop library ..."
_SPARK: Final = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (?P<level>[A-Z]+) (?P<logger>[^\s:]+): ?(?P<message>.*)")
# The Java launcher and java.util.logging: "WARNING: An illegal reflective access operation has occurred"
_JAVA: Final = re.compile(r"(?P<level>INFO|WARN|WARNING|ERROR|SEVERE): (?P<message>.*)")
# What Spark prints at every start
_GREETING: Final = re.compile(
    r"Using Spark's default log4j profile|Setting (?:default|Spark) log level to|To adjust logging level use|"
    r"WARNING: Using incubator modules"
)
_EXCEPTION: Final = re.compile(r"(?:Exception in thread \"|Error: |(?:[\w$]+\.)+[\w$]*(?:Exception|Error)\b)")
_CONTINUED: Final = re.compile(r"\s|Caused by: |Suppressed: ")


@dataclass(slots=True)
class JavaMessage:
    """A message of Java. `stack` are the lines of its stack trace."""

    level: int
    logger: str
    text: str
    stack: list[str]


def launch_java(settings: Mapping[str, str]) -> None:
    """Start the Java process of Spark with these settings, unless it runs already, and log its output."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    conf = SparkConf().setAll(list(settings.items()))
    source, sink = os.pipe()
    Thread(target=log_output, args=(source,), name="java-output", daemon=True).start()
    try:
        gateway = launch_gateway(conf, popen_kwargs={"stdout": sink, "stderr": sink})  # type: ignore[no-untyped-call]
    finally:
        os.close(sink)  # Java has its own, and its end is the end of the output
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)
    _LAUNCHED.set()


def wait_for_output() -> None:
    """Wait until everything is logged that Java has written so far. If it does not answer soon, do not wait longer."""
    if not _LAUNCHED.is_set():
        return
    from pyspark import SparkContext

    mark, seen = f"{MARK}{uuid4().hex}", Event()
    _MARKS[mark] = seen
    with suppress(Exception):  # Java may have ended
        SparkContext._jvm.java.lang.System.err.println(mark)  # type: ignore[union-attr]
        seen.wait(PATIENCE_S)
    del _MARKS[mark]


def log_output(source: int) -> None:
    """Log the messages that arrive at a file descriptor, until its end; then close it."""
    was_configured = False
    try:
        for message in _messages(source):
            is_configured = logging.getLogger(ROOT).hasHandlers()
            was_configured |= is_configured
            # After a server has closed its log, what Java says while it ends would be plain text on stderr.
            if is_configured or not was_configured:
                _log(message)
    finally:
        os.close(source)


def _log(message: JavaMessage) -> None:
    name = f"{ROOT}.{message.logger}" if message.logger else ROOT
    stack = {"stack": "\n".join(message.stack[:MAX_STACK])} if message.stack else None
    with on_behalf_of(SPARK_USES.owner()):
        logging.getLogger(name).log(message.level, "%s", message.text, extra=stack)


def _messages(source: int) -> Iterator[JavaMessage]:
    """The messages, each with its stack trace: complete at the next message, or when nothing arrives for a moment."""
    pending: JavaMessage | None = None
    for line in _lines(source):
        if line is None or line.startswith(MARK):
            if pending is not None:
                yield pending
            pending = None
            if line is not None and (waiting := _MARKS.get(line)) is not None:
                waiting.set()
        elif pending is not None and (_CONTINUED.match(line) or _EXCEPTION.match(line)):
            pending.stack.append(line)
        else:
            if pending is not None:
                yield pending
            pending = parsed(line)
    if pending is not None:
        yield pending


def _lines(source: int) -> Iterator[str | None]:
    """The lines that arrive; None whenever nothing has arrived for a moment."""
    rest = b""
    while True:
        while not select.select([source], [], [], PAUSE_S)[0]:
            yield None
        data = os.read(source, 65_536)
        *complete, rest = (rest + data).split(b"\n")
        if not data or len(rest) > MAX_LINE:
            complete, rest = [*complete, rest], b""
        for line in complete:
            text = line[:MAX_LINE].decode(errors="replace").rstrip()
            if text:
                yield text
        if not data:
            return


def parsed(line: str) -> JavaMessage:
    """The message in a line. A line in an unknown format is a warning, and the name of an exception is an error."""
    if match := _SPARK.fullmatch(line):
        return JavaMessage(LEVELS.get(match["level"], logging.WARNING), match["logger"], match["message"], [])
    if _GREETING.match(line):
        return JavaMessage(logging.INFO, "", line, [])
    if match := _JAVA.fullmatch(line):
        return JavaMessage(LEVELS[match["level"]], "", match["message"], [])
    return JavaMessage(logging.ERROR if _EXCEPTION.match(line) else logging.WARNING, "", line, [])
