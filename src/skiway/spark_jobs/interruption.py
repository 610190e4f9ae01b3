"""What a job does on Spark: in a session of its own, until the job is cancelled, is lost to another worker, or its worker stops.

While a job runs, the operations that its threads start on Spark have a tag. A thread in the background asks the job every
half second whether it must stop, and if so, interrupts all operations with the tag, again and again until the job has ended.
What waits for Spark calls `check_interrupted` when Spark fails, so that neither an interrupted operation nor the end of Java counts
as a failure of what was asked for.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import Cancelled, LimitExceeded, SkiwayError, Unavailable
from skiway.spark_jobs.java_output import SPARK_USES, JavaProcess, java_process, wait_for_output
from skiway.telemetry.logs import current_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from skiway.metastore.reconcile.outcomes import Control

ASK_EVERY_S: Final = 0.5

_NO_MEMORY: Final = re.compile(r"\bOutOfMemoryError\b|\[UNABLE_TO_ACQUIRE_MEMORY\]")

log = logging.getLogger("skiway.worker")


class _SparkWork:
    """What one job does on Spark."""

    def __init__(self, job_id: str, control: Control) -> None:
        self._tag, self._control = f"skiway-job-{job_id}", control
        self._lock = threading.Lock()
        self._own: SparkSession | None = None
        self._joined: dict[int, SparkSession] = {}
        self._interrupted = False
        self._java: JavaProcess | None = None

    def session(self, create: Callable[[], SparkSession]) -> SparkSession:
        """The session of the job. The first thread that needs it creates it, also after the end of Java."""
        with self._lock:
            if self._own is not None and self.end() is not None:
                self._joined.clear()
                self._own = self._java = None
            if self._own is None:
                self._own = create()
            return self._own

    def join(self, session: SparkSession) -> None:
        """Give the tag to the operations that this thread starts in the session from now on."""
        self._joined[id(session)] = session
        if not is_remote(session):
            self._java = java_process()
        SPARK_USES.begin(self, current_log())
        _owner(session).addTag(self._tag)

    def forget(self, session: SparkSession) -> None:
        """The job has ended the session."""
        self._joined.pop(id(session), None)

    def leave(self) -> None:
        """Take the tag from this thread, after the log has what Spark logged, and end the session of the job."""
        if not self._joined:
            return
        for session in self._joined.values():
            with suppress(Exception):  # Spark may be gone, which is not the error to report
                _owner(session).removeTag(self._tag)
        try:
            wait_for_output()
        finally:
            SPARK_USES.end(self)
            if self._own is not None:
                _end(self._own)

    def watch(self, ended: threading.Event) -> None:
        """Interrupt everything while the job must stop, until it has ended."""
        while not ended.wait(ASK_EVERY_S):
            if not self._joined or not self._control.must_stop():
                continue
            self._interrupted = True
            try:
                for session in list(self._joined.values()):
                    _owner(session).interruptTag(self._tag)
            except Exception as error:  # noqa: BLE001 - Spark may be gone; the next attempt may succeed
                log.warning("the operations of a job on Spark were not interrupted: %s", str(error)[:500])

    def check(self) -> None:
        """Raise `Cancelled` if operations of the job were interrupted."""
        if self._interrupted:
            self._control.check()

    def end(self) -> SkiwayError | None:
        """The error that the Java process of the job has ended; None while it runs.

        Unless the job was alone, another one may have used the memory, so it can be retried.
        """
        end = None if self._java is None else self._java.end()
        if end is None:
            return None
        if end.out_of_memory:
            return _out_of_memory(end.reason, is_alone=end.jobs <= 1)
        return Unavailable(f"{end.reason}; it starts again", key="spark.ended")


_WORK: ContextVar[_SparkWork | None] = ContextVar("spark_work", default=None)


@contextmanager
def interruptible(job_id: str, control: Control) -> Iterator[None]:
    """Run a job in the block. If it was interrupted, the block raises what `control.check` raises."""
    work, ended = _SparkWork(job_id, control), threading.Event()
    watcher = threading.Thread(target=work.watch, args=(ended,), name="interruption", daemon=True)
    watcher.start()
    before = _WORK.set(work)
    try:
        yield
        work.check()
    except Cancelled:
        control.check()  # says why, if it is the control that stops the job
        raise
    except Exception as error:
        _check(work, error)  # an interrupted operation can cause any error
        raise
    finally:
        _WORK.reset(before)
        ended.set()
        watcher.join()
        work.leave()


def session_of_job(create: Callable[[], SparkSession]) -> SparkSession:
    """The session of the job that this thread runs, as `joined` returns it. Without a job, a new session."""
    work = _WORK.get()
    if work is None:
        SPARK_USES.begin(None, None)
        return joined(create())
    return joined(work.session(create))


def joined(session: SparkSession) -> SparkSession:
    """The session, which is the active one of this thread from now on. If it runs a job, its operations can be interrupted."""
    internal: Any = session
    if not is_remote(session):  # parts of Spark take the settings of the active session
        if internal._jsparkSession._gateway_client is not internal._jvm._gateway_client:
            raise Unavailable("the Java process of this session has ended", key="spark.ended")
        internal._jvm.SparkSession.setActiveSession(internal._jsparkSession)
    work = _WORK.get()
    if work is not None:
        work.join(session)
    return session


def left(session: SparkSession) -> None:
    """End a session that a part of a job had for itself."""
    work = _WORK.get()
    if work is not None:
        work.forget(session)
    _end(session)


def _end(session: SparkSession) -> None:
    """End a session on a Spark Connect server, which would keep it for an hour. Others have nothing to end."""
    if is_remote(session):
        with suppress(Exception):  # the server may be gone
            session.stop()


def is_remote(session: SparkSession) -> bool:
    """Whether the session is on a Spark Connect server."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def check_interrupted(error: BaseException | None = None) -> None:
    """Raise `Cancelled` if the job that this thread runs was interrupted on Spark.

    With an error of Spark, also raise if Java has ended or is out of memory.
    """
    work = _WORK.get()
    if work is not None:
        _check(work, error)


def end_of_spark() -> SkiwayError | None:
    """The error that the Spark that this job used has ended; None if it runs."""
    work = _WORK.get()
    return None if work is None else work.end()


def _check(work: _SparkWork, error: BaseException | None) -> None:
    work.check()
    if error is None:
        return
    if (end := work.end()) is not None:
        raise end from error
    if not isinstance(error, SkiwayError) and _NO_MEMORY.search(str(error)):
        raise _out_of_memory("a task of Spark ran out of memory", is_alone=SPARK_USES.count() <= 1) from error


def _out_of_memory(reason: str, *, is_alone: bool) -> SkiwayError:
    advice = "give it more with spark.driver.memory in reconciler.spark.conf"
    kind = LimitExceeded if is_alone else Unavailable
    return kind(f"{reason}: {advice}", key="memory.exceeded")


class _Classic:
    """Tags of a session in this process. Those of Spark's context hold for all sessions, and for rows that are collected as Arrow."""

    def __init__(self, session: SparkSession) -> None:
        self._context = session.sparkContext

    def addTag(self, tag: str) -> None:  # noqa: N802 - as in Spark
        self._context.addJobTag(tag)

    def removeTag(self, tag: str) -> None:  # noqa: N802
        self._context.removeJobTag(tag)

    def interruptTag(self, tag: str) -> None:  # noqa: N802
        self._context.cancelJobsWithTag(tag)


def _owner(session: SparkSession) -> Any:
    """What has the tags: the session itself on a Spark Connect server."""
    return session if is_remote(session) else _Classic(session)
