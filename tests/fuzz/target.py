"""What is fuzzed: a target makes cases from a source of randomness and runs them.

A case is a list of plain values (text, numbers, bytes, lists, dicts), so that it can be stored. What a case may not do: give an
internal error, crash, hang, or take much memory. `Fault` reports the first of these; the process around the target notices
the others.
"""

from __future__ import annotations

import logging
import re
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, ClassVar

Case = dict[str, Any]

TESTS = Path(__file__).resolve().parents[1]


class Fault(Exception):
    """An internal error. `signature` is the same for faults with the same cause, and `detail` has the traceback."""

    def __init__(self, signature: str, detail: str) -> None:
        super().__init__(f"{signature}\n{detail}")
        self.signature, self.detail = signature, detail


class Target(ABC):
    """A part of the product that gets random input. `open` starts with a new state, which `close` ends."""

    name: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stack = ExitStack()

    @abstractmethod
    def open(self) -> None:
        """Start what the cases need."""

    @abstractmethod
    def case(self, chance: Random) -> Case:
        """A new case. It depends on `chance` only."""

    @abstractmethod
    def run(self, case: Case) -> str:
        """Run a case and return its outcome, such as the status of a call. Raises `Fault` for an internal error."""

    def close(self) -> None:
        """End what `open` started."""
        self.stack.close()


def fault_of(error: BaseException, *, authors: Iterable[str] = ()) -> Fault | None:
    """The fault that an unexpected exception is; None if the code of an author raised it, which tests wrote themselves."""
    frames = traceback.extract_tb(error.__traceback__)
    if frames and Path(frames[-1].filename).name in authors:
        return None
    ours = [frame for frame in frames if "/skiway/" in frame.filename or "/fuzz/" in frame.filename]
    place = f"{Path(ours[-1].filename).stem}.{ours[-1].name}" if ours else "?"
    cause = f" from {type(error.__cause__).__name__}" if error.__cause__ is not None else ""
    return Fault(f"{type(error).__name__} in {place}{cause}", "".join(traceback.format_exception(error)))


class CapturedErrors(logging.Handler):
    """The exceptions that a server logs, which callers are not told about."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._errors: list[BaseException] = []
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            with self._guard:
                self._errors.append(record.exc_info[1])

    def take(self) -> list[BaseException]:
        with self._guard:
            found, self._errors = self._errors, []
        return found


@contextmanager
def captured_errors() -> Iterator[CapturedErrors]:
    """Capture what Skiway logs, instead of printing it."""
    handler = CapturedErrors()
    log = logging.getLogger("skiway")
    before = log.propagate, log.handlers[:]
    log.propagate, log.handlers[:] = False, [handler]
    try:
        yield handler
    finally:
        log.propagate, log.handlers[:] = before


def logged_fault(errors: CapturedErrors, status: str, text: str, *, authors: Iterable[str] = ()) -> Fault | None:
    """The fault behind a response with an internal error."""
    found = errors.take()
    if not found:
        return Fault(f"{status}: {re.sub('[0-9a-f-]{8,}', '…', text)[:80]}", text)
    return fault_of(found[-1], authors=authors)
