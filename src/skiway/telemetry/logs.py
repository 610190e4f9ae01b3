"""Logging: text on a terminal, JSON otherwise and in a file; without secrets. And files of lines, which rotate.

Every line contains the call it was written for and its trace id. Code logs with `logging.getLogger(__name__)` as usual and
passes structured fields in `extra={...}`.

Secrets are masked twice: values whose name suggests a secret, and text that looks like one. This is a safety net. Code that
holds a secret wraps it in `Secret` or `Redacted`, which mask themselves.

Several threads and processes may write a file of lines, such as a log or the audit log, at the same time:

    audit.log       the current file
    audit.log.1     the last rotated file
    audit.log.2     the one before, and so on

A line is written completely or not at all, and rotation neither loses nor splits lines: every write holds an operating
system lock (`flock` on `audit.log.lock`). This works for the processes of one machine on a local disk. Without `flock`
(on Windows), only one process may write a file.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import TextIO
from weakref import WeakSet

from skiway.config.fields import MASK
from skiway.config.telemetry import Log, Rotation
from skiway.telemetry.context import call_facts, current_call
from skiway.telemetry.traces import current_span_ids

if sys.platform != "win32":
    import fcntl


OPEN_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
OWNER_ONLY = 0o600

# Process-wide, because `os.register_at_fork` is: after a fork, the child must reset every open file.
_open_files: WeakSet[LineFile] = WeakSet()


class LineFile:
    """Appends lines to `path`. The file is rotated before a line that would make it exceed `rotation.max_bytes`.

    The first write opens the file. A failed write raises OSError and leaves the file unchanged.
    """

    def __init__(self, path: Path, rotation: Rotation, *, fsync: bool = False) -> None:
        self._path = path
        self._lock_path = path.with_name(f"{path.name}.lock")
        self._rotation = rotation
        self._fsync = fsync
        self._mutex = Lock()
        self._file: int | None = None
        self._lock: int | None = None
        _open_files.add(self)

    def write(self, line: str) -> None:
        """Append one line, given without its line break. With `fsync`, it is on disk when this returns."""
        data = line.replace("\n", "\\n").encode("utf-8", "backslashreplace") + b"\n"
        with self._mutex:
            self._exclude_others()
            try:
                file, size = self._current()
                if size and size + len(data) > self._rotation.max_bytes:
                    self._rotate()
                    file, size = self._current()
                self._append(file, data, size)
            finally:
                self._admit_others()

    def close(self) -> None:
        """Close the file. A later write reopens it."""
        with self._mutex:
            self._close_descriptors()

    def _append(self, file: int, data: bytes, size: int) -> None:
        try:
            written = os.write(file, data)
            if written < len(data):
                raise OSError(f"only {written} of {len(data)} bytes of a line could be written to {self._path}")
            if self._fsync:
                os.fsync(file)
        except OSError:
            os.ftruncate(file, size)  # a partial line would look like a complete one
            raise

    def _current(self) -> tuple[int, int]:
        """The descriptor and size of the file at our path, which another process may have rotated."""
        if self._file is not None:
            ours = os.fstat(self._file)
            if _is_at(self._path, ours):
                return self._file, ours.st_size
            os.close(self._file)
            self._file = None
        self._file = os.open(self._path, OPEN_FLAGS, OWNER_ONLY)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":  # a crash of the machine cut off the last line
            size += os.write(self._file, b"\n")
        return self._file, size

    def _rotate(self) -> None:
        """Rename each file to the next number; the oldest is overwritten."""
        names = [
            self._path,
            *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._rotation.keep + 1)),
        ]
        for older, newer in reversed(list(zip(names[1:], names, strict=False))):
            if newer.exists():
                newer.replace(older)

    def _exclude_others(self) -> None:
        """Take the lock that all processes share."""
        if self._lock is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._lock_path, OPEN_FLAGS, OWNER_ONLY)
        if sys.platform != "win32":
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def _admit_others(self) -> None:
        if sys.platform != "win32" and self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _close_descriptors(self) -> None:
        for descriptor in (self._file, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._file = self._lock = None

    def after_fork(self) -> None:
        """Reset in a forked child: the thread that held the mutex is gone, and parent and child would share the file lock."""
        self._mutex = Lock()
        self._close_descriptors()

    def __del__(self) -> None:
        self._close_descriptors()


def _is_at(path: Path, file: os.stat_result) -> bool:
    try:
        there = os.stat(path)  # noqa: PTH116 - for every line, and twice as fast
    except FileNotFoundError:
        return False
    return (there.st_ino, there.st_dev) == (file.st_ino, file.st_dev)


def _after_fork() -> None:
    for file in list(_open_files):
        file.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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
