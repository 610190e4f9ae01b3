"""The log of a job: what is logged in its course, bounded and without secrets.

A job's log contains the records of the threads that work on it, as far as the process logs them. Threads share it if they are
started with a copy of the context. Code that reads a secret for a job calls `conceal`, which masks the secret wherever it occurs.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from urllib.parse import quote

from skiway.config.fields import MASK
from skiway.telemetry.logs import TextFormatter, redacted_text

MAX_BYTES: Final = 200 * 1024
MAX_LINE_BYTES: Final = 8 * 1024
MIN_SECRET: Final = len(MASK)
"""Shorter values are not masked: they occur in other words."""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class RecentLines:
    """The last lines of a text, up to a number of bytes. `dropped` counts the lines before them."""

    def __init__(self, max_bytes: int = MAX_BYTES, *, dropped: int = 0) -> None:
        self.dropped = dropped
        self._max_bytes, self._size = max_bytes, 0
        self._lines: deque[str] = deque()

    def add(self, text: str) -> None:
        """Add lines. Long ones are cut off, and control characters, which could change a terminal, are escaped."""
        for part in text.split("\n"):
            line = _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", part)
            if len(line.encode()) > MAX_LINE_BYTES:
                line = f"{line.encode()[:MAX_LINE_BYTES].decode(errors='ignore')}…"
            self._lines.append(line)
            self._size += _size(line)
        while self._size > self._max_bytes:
            self._size -= _size(self._lines.popleft())
            self.dropped += 1

    @property
    def text(self) -> str:
        """The lines, each with a line break."""
        return "".join(f"{line}\n" for line in self._lines)


def _size(line: str) -> int:
    return len(line.encode()) + 1


class CollectedLog(logging.Handler):
    """Collects the log of one job, of an account."""

    def __init__(self, account_id: str = "", *, max_bytes: int = MAX_BYTES) -> None:
        super().__init__()
        self.setFormatter(TextFormatter())
        self.account_id = account_id
        self._lines, self._secrets = RecentLines(max_bytes), set[str]()
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Add the record if it belongs to this job."""
        if _CURRENT.get() is not self:
            return
        try:
            self.write(self.format(record))
        except Exception:  # noqa: BLE001 - a log that cannot be written must not fail the job
            self.handleError(record)

    def write(self, text: str) -> None:
        """Add lines that nobody else logs."""
        with self._guard:
            self._lines.add(self._without_secrets(redacted_text(text)))

    def conceal(self, *values: str) -> None:
        """Mask these secrets, also in what was logged before."""
        with self._guard:
            for value in filter(lambda secret: len(secret) >= MIN_SECRET, values):
                self._secrets |= {value, quote(value), quote(value, safe="")}

    @property
    def dropped(self) -> int:
        """How many lines were dropped, because the log is long."""
        return self._lines.dropped

    @property
    def text(self) -> str:
        """The log so far."""
        with self._guard:
            return self._without_secrets(self._lines.text)

    def _without_secrets(self, text: str) -> str:
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text


_CURRENT: ContextVar[CollectedLog | None] = ContextVar("job_log", default=None)


def current_log() -> CollectedLog | None:
    """The log of the job that this thread works on, if any."""
    return _CURRENT.get()


def conceal(*values: str) -> None:
    """Mask these secrets in the log of the job that this thread works on, if any."""
    log = _CURRENT.get()
    if log is not None:
        log.conceal(*values)


@contextmanager
def collecting(log: CollectedLog) -> Iterator[CollectedLog]:
    """Add what is logged in the block to a log."""
    root = logging.getLogger()
    root.addHandler(log)
    try:
        with on_behalf_of(log):
            yield log
    finally:
        root.removeHandler(log)


@contextmanager
def on_behalf_of(log: CollectedLog | None) -> Iterator[None]:
    """Add what this thread logs in the block to the log of a job that runs in another thread; to none if it is None."""
    before = _CURRENT.set(log)
    try:
        yield
    finally:
        _CURRENT.reset(before)
