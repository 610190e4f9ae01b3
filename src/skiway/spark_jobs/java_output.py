"""Spark's Java process: its start, its end, and its output as log records.

Every record has a level, a logger and, if it has one, a stack trace. Java is started with a pipe in place of stdout
and stderr, and a thread logs what arrives. So the output has the format of the process's own log, without secrets,
and reaches the log file as well.

All jobs of a process share one Java process, and its messages do not say for which job they are. A message is attributed to a
job if no other one uses Spark, and if none of another account has used it within the last minute: tasks that were
interrupted may still report errors. Otherwise the message is only in the log of the process. So no job's log can contain
messages about the data of another account.

Java can end at any time: the kernel kills it, or it runs out of memory. `JavaProcess` notices that, and
`discard_java` makes PySpark forget it, so that the next session starts a new one.
"""

from __future__ import annotations

import logging
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any, Final
from uuid import uuid4

from skiway.telemetry.logs import CollectedLog, on_behalf_of

GRACE_S: Final = 60.0
"""How long after its end a job may still cause messages."""


class SparkUses:
    """What uses the Java process now, and did until a moment ago."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._running: dict[Hashable, CollectedLog | None] = {}
        self._ended: list[tuple[str | None, float]] = []

    def begin(self, user: Hashable, log: CollectedLog | None) -> None:
        """A job with this log uses Spark from now on; without a log, something of an unknown account."""
        with self._lock:
            self._running[user] = log

    def end(self, user: Hashable) -> None:
        """The job no longer uses Spark."""
        with self._lock:
            log = self._running.pop(user, None)
            self._ended.append((log.account_id if log else None, self._clock()))

    def count(self) -> int:
        """How many jobs use Spark."""
        with self._lock:
            return len(self._running)

    def owner(self) -> CollectedLog | None:
        """The log of the job that a message of this moment belongs to, if that is certain."""
        with self._lock:
            now = self._clock()
            self._ended = [(account, when) for account, when in self._ended if when > now - GRACE_S]
            if len(self._running) != 1:
                return None
            (log,) = self._running.values()
            if log is None or any(account != log.account_id for account, _ in self._ended):
                return None
            return log


SPARK_USES: Final = SparkUses()
"""The uses of the Java process of this process."""


log = logging.getLogger("skiway.spark")

ROOT: Final = "spark"
MAX_LINE: Final = 16_384
MAX_STACK: Final = 50
PAUSE_S: Final = 0.2
"""How long a message waits for further lines of its stack trace."""

PATIENCE_S: Final = 2.0
"""How long to wait for output that Java has written already."""

_LAUNCHED: Final = Event()
"""Set if the output of Java arrives here."""

EXIT_S: Final = 5.0
"""How long a process that no longer answers has to exit before it is killed."""

_OUT_OF_MEMORY: Final = (3, 52)
"""The exit codes of Java and Spark after an OutOfMemoryError."""

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


@dataclass(frozen=True, slots=True)
class JavaEnd:
    """How a Java process ended. `jobs` is the number of jobs that used it then."""

    reason: str
    out_of_memory: bool
    jobs: int


class JavaProcess:
    """A Java process of Spark."""

    def __init__(self, gateway: Any) -> None:
        self.gateway = gateway
        self._process: subprocess.Popen[bytes] | None = gateway.proc
        self._lock = Lock()
        self._end: JavaEnd | None = None

    @property
    def has_exited(self) -> bool:
        """Whether the process has ended, without asking it."""
        return self._end is not None or (self._process is not None and self._process.poll() is not None)

    def end(self) -> JavaEnd | None:
        """How the process ended; None while it answers. One that does not answer is killed."""
        with self._lock:
            if self._end is None and (self.has_exited or not self._answers()):
                self._end = self._ended()
                log.error("%s; it starts again", self._end.reason)
            return self._end

    def close(self) -> None:
        """Close the connections to the process, after its end."""
        with suppress(Exception):
            self.gateway.shutdown()

    def _answers(self) -> bool:
        from pyspark import SparkContext

        context = SparkContext._active_spark_context if SparkContext._gateway is self.gateway else None
        try:
            if context is not None and context._jsc is not None:
                return not context._jsc.sc().isStopped()
            self.gateway.jvm.System.currentTimeMillis()
        except Exception:  # noqa: BLE001 - errors of Py4J and of sockets
            return False
        return True

    def _ended(self) -> JavaEnd:
        code: int | None = None
        if self._process is not None:
            try:
                code = self._process.wait(EXIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        out_of_memory = code in _OUT_OF_MEMORY
        if code is None:
            how = "no longer worked"
        elif out_of_memory:
            how = f"ran out of memory (exit code {code})"
        elif code < 0:
            how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
        else:
            how = f"ended with exit code {code}"
        return JavaEnd(f"the Java process of Spark {how}", out_of_memory, SPARK_USES.count())


_CURRENT: list[JavaProcess] = []
"""The last Java process of Spark in this process, even after its end."""


def java_process() -> JavaProcess | None:
    """The last Java process of Spark; None if Spark was never started here."""
    if "pyspark" in sys.modules:
        from pyspark import SparkContext

        gateway = SparkContext._gateway
        if gateway is not None and (not _CURRENT or _CURRENT[0].gateway is not gateway):
            _CURRENT[:] = [JavaProcess(gateway)]
    return _CURRENT[0] if _CURRENT else None


def discard_java() -> None:
    """Make PySpark forget a Java process that has ended. Sessions of that process stay useless."""
    java = java_process()
    if java is None or java.end() is None:
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, SQLContext

    if SparkContext._gateway is not java.gateway:
        return
    context = SparkContext._active_spark_context
    with suppress(Exception), SparkContext._lock:
        if context is not None:
            context._jsc = None  # it would be asked to stop
            context.stop()  # ends the server for accumulators
    java.close()
    with SparkContext._lock:
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        SQLContext._instantiatedContext = None


def launch_java(settings: Mapping[str, str]) -> None:
    """Start the Java process of Spark with these settings, unless it runs already, and log its output."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    conf = SparkConf().setAll(list(settings.items()))
    source, sink = os.pipe()
    Thread(target=_log_until_end, args=(source,), name="java-output", daemon=True).start()
    try:
        gateway = launch_gateway(conf, popen_kwargs={"stdout": sink, "stderr": sink})  # type: ignore[no-untyped-call]
    finally:
        os.close(sink)  # Java has its own, and its end is the end of the output
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)
    _LAUNCHED.set()


def _log_until_end(source: int) -> None:
    """Log the output, and that Java has ended."""
    log_output(source)
    java = java_process()
    if java is not None and java.has_exited:
        java.end()


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
