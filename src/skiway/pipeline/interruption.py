"""What a job does on Spark: in a session of its own, until the job is cancelled, is lost to another worker, or its worker stops.

While a job runs, the operations that its threads start on Spark have a tag. A thread in the background asks the job every
half second whether it must stop, and if so, interrupts all operations with the tag, again and again until the job has ended.
What waits for Spark calls `check_interrupted` when Spark fails, so that an interrupted operation does not count as a failed one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import Cancelled
from skiway.pipeline.java_output import wait_for_output
from skiway.pipeline.spark_uses import SPARK_USES
from skiway.telemetry.job_logs import current_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from skiway.metastore.reconcile.outcomes import Control

__all__ = ["check_interrupted", "interruptible", "is_remote", "joined", "left", "session_of_job"]

ASK_EVERY_S: Final = 0.5

log = logging.getLogger("skiway.worker")


class _SparkWork:
    """What one job does on Spark."""

    def __init__(self, job_id: str, control: Control) -> None:
        self._tag, self._control = f"skiway-job-{job_id}", control
        self._lock = threading.Lock()
        self._own: SparkSession | None = None
        self._joined: dict[int, SparkSession] = {}
        self._interrupted = False

    def session(self, create: Callable[[], SparkSession]) -> SparkSession:
        """The session of the job. The first thread that needs it creates it."""
        with self._lock:
            if self._own is None:
                self._own = create()
            return self._own

    def join(self, session: SparkSession) -> None:
        """Give the tag to the operations that this thread starts in the session from now on."""
        self._joined[id(session)] = session
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
    except Exception:
        work.check()  # an interrupted operation can cause any error
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


def check_interrupted() -> None:
    """Raise `Cancelled` if the job that this thread runs was interrupted on Spark."""
    work = _WORK.get()
    if work is not None:
        work.check()


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
