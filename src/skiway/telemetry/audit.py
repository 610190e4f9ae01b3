"""The audit log: one record per call, in a file per category, written before the response is sent."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from skiway.config.telemetry import Audit
from skiway.errors import Internal, Unavailable
from skiway.foundation.resources import PLAIN
from skiway.telemetry.context import CallContext, call_facts, current_call
from skiway.telemetry.definitions import AUDIT_ERRORS
from skiway.telemetry.logs import LineFile
from skiway.telemetry.metrics import Metrics

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
