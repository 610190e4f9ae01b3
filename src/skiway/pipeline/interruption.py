"""Stops what a job does on Spark as soon as the job is cancelled, is lost to another worker, or its worker stops.

While a job runs, the operations that its threads start on Spark have a tag. A thread in the background asks the job every
half second whether it must stop, and if so, interrupts all operations with the tag, again and again until the job has ended.
What waits for Spark calls `check_interrupted` when Spark fails, so that an interrupted operation does not count as a failed one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import Cancelled
from skiway.pipeline.java_output import wait_for_output
from skiway.pipeline.spark_uses import SPARK_USES
from skiway.telemetry.job_logs import current_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from skiway.metastore.reconcile.outcomes import Control

__all__ = ["check_interrupted", "interruptible", "joined"]

ASK_EVERY_S: Final = 0.5

log = logging.getLogger("skiway.worker")


class _SparkWork:
    """What one job does on Spark."""

    def __init__(self, job_id: str, control: Control) -> None:
        self._tag, self._control = f"skiway-job-{job_id}", control
        self._session: Any = None
        self._interrupted = False

    def join(self, session: SparkSession) -> None:
        """Give the tag to the operations that this thread starts from now on."""
        self._session = session
        SPARK_USES.begin(self, current_log())
        _owner(session).addTag(self._tag)

    def leave(self) -> None:
        """Take the tag from this thread, after the log has what Spark logged."""
        if self._session is None:
            return
        try:
            _owner(self._session).removeTag(self._tag)
            wait_for_output()
        finally:
            SPARK_USES.end(self)

    def watch(self, ended: threading.Event) -> None:
        """Interrupt everything while the job must stop, until it has ended."""
        while not ended.wait(ASK_EVERY_S):
            if self._session is None or not self._control.must_stop():
                continue
            self._interrupted = True
            try:
                _owner(self._session).interruptTag(self._tag)
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


def joined(session: SparkSession) -> SparkSession:
    """The session. If this thread runs a job, its operations can be interrupted from now on."""
    work = _WORK.get()
    if work is not None:
        work.join(session)
    else:
        SPARK_USES.begin(None, None)
    return session


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


def _owner(session: Any) -> Any:
    """What has the tags: the session itself on a Spark Connect server."""
    return session if type(session).__module__.startswith("pyspark.sql.connect") else _Classic(session)
