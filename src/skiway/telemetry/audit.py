"""The audit log: one record per call, in a file per category, written before the response is sent. And files of lines, which rotate.

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
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, Final, Self
from weakref import WeakSet

import msgspec

from skiway.config.telemetry import Audit, Rotation
from skiway.errors import Internal, Unavailable
from skiway.foundation.resources import PLAIN
from skiway.telemetry.context import CallContext, call_facts, current_call
from skiway.telemetry.definitions import AUDIT_ERRORS
from skiway.telemetry.metrics import Metrics

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


CATEGORIES = (
    "account",
    "catalog",
    "namespace",
    "table",
    "view",
    "snapshot",
    "statistics",
    "directory",
    "grant",
    "policy",
    "webhook",
    "pipeline",
    "query",
    "connector",
    "system",
    *(resource.name for resource in PLAIN),
)

log = logging.getLogger(__name__)

_JSON: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A call and how it ended.

    `outcome` is `OK` or the code of an error, `resources` are ids by kind, `details` are facts such as the table and the
    number of rows.
    """

    operation: str
    outcome: str
    duration_s: float
    resources: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str | int] = field(default_factory=dict)


class AuditLog:
    """The audit log in `directory`: `table.log`, `account.log` and so on, with a JSON object per line.

    A record is passed to the operating system before `record` returns, and with `fsync` it is on disk. If it cannot be
    written, the error is logged and counted; with `required`, the call fails. Several processes may share a directory.
    """

    def __init__(
        self,
        directory: Path,
        settings: Audit | None = None,
        *,
        metrics: Metrics | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        settings = settings or Audit()
        self._files = {
            category: LineFile(directory / f"{category}.log", settings.rotation, fsync=settings.fsync)
            for category in CATEGORIES
        }
        self._required = settings.required
        self._metrics = metrics
        self._clock = clock

    @classmethod
    def open(cls, settings: Audit, *, metrics: Metrics | None = None) -> Self | None:
        """The configured audit log; None if auditing is disabled or has no directory."""
        if not settings.enabled or settings.directory is None:
            return None
        return cls(settings.directory, settings, metrics=metrics)

    def record(self, category: str, entry: AuditEntry, call: CallContext | None = None) -> None:
        """Write the entry, with what is known about `call`, by default the one being served."""
        file = self._files.get(category)
        if file is None:
            raise Internal(
                f"unknown audit category {category}: it must be one of {', '.join(CATEGORIES)}", key="audit.category"
            )
        try:
            file.write(_line(entry, call or current_call(), self._clock()))
        except OSError as error:
            self._failed(category, entry, error)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _failed(self, category: str, entry: AuditEntry, error: OSError) -> None:
        log.error("the audit record of %s could not be written: %s", entry.operation, error)
        if self._metrics:
            self._metrics.add(AUDIT_ERRORS, category=category)
        if self._required:
            raise Unavailable(
                "the call could not be recorded in the audit log, which is required: retry later, or ask the operator to check the "
                "audit directory",
                key="audit.unwritable",
            ) from error


def _line(entry: AuditEntry, call: CallContext | None, now: datetime) -> str:
    line: dict[str, Any] = {
        "time": now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        **call_facts(call),
        "operation": entry.operation,
        **entry.details,
        "resources": dict(entry.resources),
        "outcome": entry.outcome,
        "duration_ms": round(entry.duration_s * 1000, 3),
    }
    try:
        return _JSON.encode(line).decode()
    except UnicodeEncodeError:  # half of a character, which only the standard library can encode
        return json.dumps(line, ensure_ascii=False, separators=(",", ":"))
