"""Logging: text on a terminal, JSON otherwise and in a file; without secrets. And the logs of jobs.

Every line contains the call it was written for and its trace id. Code logs with `logging.getLogger(__name__)` as usual and
passes structured fields in `extra={...}`.

Secrets are masked twice: values whose name suggests a secret, and text that looks like one. This is a safety net. Code that
holds a secret wraps it in `Secret` or `Redacted`, which mask themselves.

A job's log contains the records of the threads that work on it, as far as the process logs them. Threads share it if they are
started with a copy of the context. Code that reads a secret for a job calls `conceal`, which masks the secret wherever it occurs.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Final, TextIO
from urllib.parse import quote

from skiway.config.fields import MASK
from skiway.config.telemetry import Log
from skiway.telemetry.audit import LineFile
from skiway.telemetry.context import call_facts, current_call
from skiway.telemetry.traces import current_span_ids

# The attributes of every record; all others come from `extra`.
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
LIBRARY_LEVEL = logging.WARNING


def configure(settings: Log, *, stream: TextIO | None = None) -> Callable[[], None]:
    """Configure logging to `stream` (stderr by default) and to the file in the settings. Python's warnings are logged, too.

    Returns a function that undoes it: it removes and closes the handlers and restores the levels.
    """
    stream = stream if stream is not None else sys.stderr
    handlers = list(_handlers(settings, stream))
    root, ours = logging.getLogger(), logging.getLogger("skiway")
    before = root.level, ours.level
    for handler in handlers:
        root.addHandler(handler)
    level = logging.getLevelNamesMapping()[settings.level]
    ours.setLevel(level)
    root.setLevel(max(level, LIBRARY_LEVEL))
    logging.captureWarnings(True)

    def undo() -> None:
        logging.captureWarnings(False)
        root.setLevel(before[0])
        ours.setLevel(before[1])
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()

    return undo


def _handlers(settings: Log, stream: TextIO) -> Iterator[logging.Handler]:
    as_text = settings.format == "text" or (settings.format == "auto" and stream.isatty())
    console = logging.StreamHandler(stream)
    console.setFormatter(TextFormatter() if as_text else JsonFormatter())
    yield console
    if settings.file:
        yield _FileHandler(LineFile(settings.file, settings.rotation))


class _FileHandler(logging.Handler):
    """Writes JSON lines to a rotated file. As usual in logging, errors are reported on stderr."""

    def __init__(self, file: LineFile) -> None:
        super().__init__()
        self._file = file
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._file.write(self.format(record))
        except Exception:  # noqa: BLE001 - a log that cannot be written must not fail the call
            self.handleError(record)

    def close(self) -> None:
        self._file.close()
        super().close()


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, the call, the trace, extras and the exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without a line break."""
        line: dict[str, object] = {
            "time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": redacted_text(_message(record)),
        }
        line |= {name: redacted(value, name=name) for name, value in _extras(record).items()}
        line |= call_facts(current_call()) | _span_fields()
        if record.exc_info and record.exc_info[0]:
            line["exception"] = {
                "type": record.exc_info[0].__qualname__,
                "message": redacted_text(str(record.exc_info[1])),
                "stack": redacted_text(self.formatException(record.exc_info)),
            }
        try:
            return _json(line)
        except ValueError:
            return _json(_without_nan(line))


class TextFormatter(logging.Formatter):
    """One readable line: time of day, level, logger, message, then extras and the call."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, followed by the stack trace of an exception."""
        known: dict[str, object] = {name: redacted(value, name=name) for name, value in _extras(record).items()}
        known |= call_facts(current_call())
        facts = " ".join(f"{name}={value}" for name, value in known.items())
        line = (
            f"{_time(record):%H:%M:%S}.{int(record.msecs):03d} {record.levelname:<7} {record.name}  {_message(record)}"
        )
        parts = [f"{line}  [{facts}]" if facts else line]
        if record.exc_info and record.exc_info[0]:
            parts.append(self.formatException(record.exc_info))
        return redacted_text("\n".join(parts))


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _message(record: logging.LogRecord) -> str:
    """The message with its arguments; secrets in a dictionary of arguments are masked."""
    if isinstance(record.args, dict):
        arguments = redacted(record.args)
        return record.msg % arguments if isinstance(record.msg, str) else str(record.msg)
    return record.getMessage()


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in STANDARD}


def _span_fields() -> dict[str, object]:
    ids = current_span_ids()
    return {"trace_id": ids[0], "span_id": ids[1]} if ids else {}


def _json(line: object) -> str:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str, allow_nan=False)


def _without_nan(value: object) -> object:
    """The value with NaN and infinity as text, since JSON has neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return value


# Redaction

_WORDS = r"password|passwd|passphrase|secret|token|authorization|api[-_]?key|access[-_]?key|private[-_]?key|credential|cookie"
_NAME = re.compile(_WORDS, re.IGNORECASE)
# Names that contain such a word but hold no secret.
_HARMLESS = re.compile(
    r"(page|next|lease|fencing|continuation)_?token|tokens?_(count|file|type|url)|secret_(name|id)", re.IGNORECASE
)

_SCHEME = re.compile(r"\b(Bearer|Basic)\s+[^\s,;\"']+", re.IGNORECASE)
_USER_INFO = re.compile(r"(://[^\s:/?#@]*):[^\s/]*@")
_JWT = re.compile(r"\beyJ[\w-]{4,}\.[\w-]+\.[\w-]*")
_ASSIGNED = re.compile(
    rf"""(?<![\w.-])(?P<name>[\w.-]{{0,64}}?(?:{_WORDS})[\w.-]{{0,64}})(?P<is>["']?\s*[=:]\s*)(?P<value>"[^"]*"|'[^']*'|[^\s,;&)}}\]"']+)""",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Whether a value with this name is a secret."""
    return bool(_NAME.search(name)) and not _HARMLESS.search(name)


def redacted_text(text: str) -> str:
    """The text with everything masked that looks like a secret: `password=...`, bearer tokens, passwords in URLs."""
    text = _SCHEME.sub(rf"\1 {MASK}", _JWT.sub(MASK, text))
    if "://" in text:
        text = _USER_INFO.sub(rf"\1:{MASK}@", text)
    return _ASSIGNED.sub(_masked, text) if _NAME.search(text) else text


def _masked(match: re.Match[str]) -> str:
    if not is_secret_name(match["name"]) or match["value"].lower() in ("bearer", "basic", "none", "null"):
        return match[0]
    return f"{match['name']}{match['is']}{MASK}"


def redacted(value: object, *, name: str = "") -> object:
    """The value in a form that JSON can represent, with secrets masked: by name at any depth, and by pattern."""
    if name and is_secret_name(name) and value not in (None, "") and not isinstance(value, bool):
        return MASK
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): redacted(item, name=str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redacted(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: redacted(getattr(value, item.name), name=item.name) for item in fields(value) if item.repr}
    return redacted_text(str(value))


# The logs of jobs

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
