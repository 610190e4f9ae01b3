"""Readiness: whether the parts that a server needs do work, asked at most once per second.

Health checks may come often, and a store that is down may take long to say so. So results are kept for a moment, failures
for a much shorter one so that recovery shows at once, and a check that does not end in time counts as failed until it does.
"""

from __future__ import annotations

import logging
import os
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path
from threading import Lock
from typing import Final

from skiway.causes import cause_of
from skiway.errors import Unavailable
from skiway.metastore.platform import store_checks
from skiway.pipeline.session import has_spark_ended
from skiway.pipeline.worker import Worker
from skiway.storage import Stores

__all__ = ["Readiness", "check_descriptors", "check_room", "checks_of"]

MAX_AGE_S: Final = 1.0
MAX_FAILURE_AGE_S: Final = 0.1
TIMEOUT_S: Final = 3.0
PROBE: Final = bytes(64 * 1024)

SPARE_FILES: Final = 8

log = logging.getLogger("skiway.runtime")


def checks_of(stores: Stores, worker: Worker | None, folders: Sequence[Path] = ()) -> dict[str, Callable[[], object]]:
    """The checks of a server, by the name of the part; each raises if its part does not work.

    The server writes to `folders`, so their disks must have room.
    """
    checks = {**store_checks(stores), "files": check_descriptors}
    if folders:
        checks["disk"] = lambda: check_room(*folders)
    return checks if worker is None else {**checks, "worker": lambda: _check_alive(worker), "spark": _check_spark}


def check_descriptors() -> None:
    """Raise `Unavailable` if the process can open hardly any more files, and so hardly accept connections."""
    opened: list[int] = []
    try:
        for _ in range(SPARE_FILES):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise Unavailable(
            f"fewer than {SPARE_FILES} of {limit} files can still be opened: close connections, or raise the limit with ulimit -n",
            key="files.exhausted",
        ) from error
    finally:
        for descriptor in opened:
            os.close(descriptor)


def check_room(*folders: Path) -> None:
    """Raise `Unavailable` if nothing can be written to one of the folders: its disk is full, or read-only."""
    for folder in folders:
        if folder.is_dir():  # else it is created with the first file
            _probe(folder)


def _probe(folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(PROBE)
            os.fsync(probe.fileno())
    except OSError as error:
        cause = cause_of(error)
        reason = cause.sentence if cause is not None else f"{(error.strerror or str(error)).lower()}; check the disk"
        raise Unavailable(
            f"nothing can be written to {folder}: {reason}", key=cause.key if cause else "store.disk"
        ) from error


def _check_alive(worker: Worker) -> None:
    if not worker.is_alive:
        raise Unavailable("a thread of the worker has ended")


def _check_spark() -> None:
    """Spark starts with the first job that needs it. After its end, the worker starts it again."""
    if has_spark_ended():
        raise Unavailable("the Java process of Spark has ended, and was not started again yet")


class Readiness:
    """Runs the checks on threads of its own. `failed` names the parts that do not work."""

    def __init__(
        self,
        checks: Mapping[str, Callable[[], object]],
        *,
        max_age_s: float = MAX_AGE_S,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checks, self._max_age_s, self._timeout_s, self._clock = checks, max_age_s, timeout_s, clock
        self._threads = ThreadPoolExecutor(max(1, len(checks)), thread_name_prefix="readiness")
        self._running: dict[str, Future[object]] = {}
        self._lock = Lock()
        self._asked_at = float("-inf")
        self._failed: tuple[str, ...] = ()

    def failed(self) -> Sequence[str]:
        """The names of the parts that do not work; empty if the server can work."""
        with self._lock:
            max_age_s = min(self._max_age_s, MAX_FAILURE_AGE_S) if self._failed else self._max_age_s
            if self._clock() - self._asked_at >= max_age_s:
                failed = self._ask()
                for name in set(self._failed) - set(failed):
                    log.info("the %s works again", name)
                self._failed, self._asked_at = failed, self._clock()
            return self._failed

    def close(self) -> None:
        """End the threads, without waiting for checks that hang."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self) -> tuple[str, ...]:
        for name, check in self._checks.items():
            if name not in self._running:
                self._running[name] = self._threads.submit(check)
        until = time.monotonic() + self._timeout_s
        return tuple(name for name in self._checks if not self._works(name, until))

    def _works(self, name: str, until: float) -> bool:
        try:
            self._running[name].result(max(0.0, until - time.monotonic()))
        except NotYet:
            if not self._running[name].done():
                self._report(name, f"no answer within {self._timeout_s:g} s")
                return False  # it goes on, and the next call asks for its result
            del self._running[name]
            return False
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the part does not work
            self._report(name, str(error))
            del self._running[name]
            return False
        del self._running[name]
        return True

    def _report(self, name: str, reason: str) -> None:
        if name not in self._failed:
            log.error("not ready: the %s does not work: %s", name, reason)
