"""The log of a process: lines of text on a terminal, lines of JSON elsewhere and in a file.

Every line carries the call it was written for, and its trace. Code logs with `logging.getLogger(__name__)` as usual;
facts for machines go into `extra={...}`.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TextIO

from skiway.config.telemetry import Log
from skiway.telemetry.context import call_facts, current_call
from skiway.telemetry.line_files import LineFile
from skiway.telemetry.redaction import redacted, redacted_text
from skiway.telemetry.traces import current_span_ids

__all__ = ["JsonFormatter", "TextFormatter", "configure"]

# What every record has; the rest came with `extra`.
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
LEVEL_OF_OTHERS = logging.WARNING


def configure(settings: Log, *, stream: TextIO | None = None) -> Callable[[], None]:
    """Log as the settings say, to `stream` (the error stream unless given) and to their file.

    Returns what takes it back: handlers are removed and closed, levels are as before.
    """
    stream = stream if stream is not None else sys.stderr
    handlers = list(_handlers(settings, stream))
    root, ours = logging.getLogger(), logging.getLogger("skiway")
    before = root.level, ours.level
    for handler in handlers:
        root.addHandler(handler)
    level = logging.getLevelNamesMapping()[settings.level]
    ours.setLevel(level)
    root.setLevel(max(level, LEVEL_OF_OTHERS))

    def undo() -> None:
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
        rotation = settings.rotation
        yield _FileHandler(LineFile(settings.file, max_bytes=rotation.max_bytes, keep=rotation.keep))


class _FileHandler(logging.Handler):
    """Lines of JSON into a file that rotates. What cannot be written is told on the error stream, as logging does."""

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
        """The line, without its end."""
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
    """One line for people: time of day, level, logger, message, then what is known besides."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the stack of an exception below it."""
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
    """The message with its arguments; a dictionary of arguments without its secrets."""
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
    """JSON has no NaN and no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return value
