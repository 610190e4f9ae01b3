"""Which job a message of Spark's Java process belongs to.

All jobs of a process share one Java process, and its messages do not say for which job they are. A message is attributed to a
job if no other one uses Spark, and if none of another account has used it within the last minute: tasks that were
interrupted may still report errors. Otherwise the message is only in the log of the process. So no job's log can contain
messages about the data of another account.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Final

from skiway.telemetry.job_logs import CollectedLog

__all__ = ["SPARK_USES", "SparkUses"]

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
