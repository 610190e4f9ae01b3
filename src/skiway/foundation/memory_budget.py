"""The memory budget of a process: while it is exceeded, new work is rejected and running work continues.

The budget is compared with the resident memory of the process, which includes what libraries allocate. Before work is
rejected, Arrow is asked to return what it does not use. A process without running work always accepts a call, because
nothing could free memory otherwise.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pyarrow as pa

from skiway.errors import LimitExceeded

_MEASURED_FOR_S: Final = 0.05
_RELEASED_FOR_S: Final = 1.0
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_CGROUP: Final = Path("/sys/fs/cgroup/memory.max")
_ARRAY_BYTES: Final = 1000
"""What Arrow takes for an array besides its values: the objects of the array, its type and its buffers, and their alignment."""


def resident_bytes() -> int:
    """The resident memory of this process; where the system does not tell it, what Arrow has allocated."""
    try:
        with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - on every call, and three times as fast
            return int(statm.read().split()[1]) * _PAGE
    except OSError:
        return int(pa.total_allocated_bytes())


def available_bytes() -> int:
    """The memory that this process could use: that of its container, else that of the machine."""
    machine = _PAGE * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _CGROUP.read_text().strip()
    except OSError:
        return machine
    return min(machine, int(limit)) if limit.isdecimal() else machine


def arrow_bytes(table: pa.Table) -> int:
    """About how much memory a table takes, for caches. Of a small table with many columns, the values are the smallest part."""
    arrays: int = sum(_arrays(column.type) * column.num_chunks for column in table.columns)
    return int(table.nbytes) + _ARRAY_BYTES * arrays


def _arrays(of: pa.DataType) -> int:
    found = 1
    for place in range(of.num_fields):
        found += _arrays(of.field(place).type)
    return found


def release_unused() -> None:
    """Return memory to the system that was freed. The allocator of the C library keeps it otherwise, for each of its arenas."""
    pa.default_memory_pool().release_unused()


def collect_and_release() -> None:
    """Return memory to the system, also that of cyclic garbage. In a busy server, Python itself collects old objects almost never."""
    gc.collect()
    release_unused()


class MemoryBudget:
    """A budget of `limit` bytes; 0 is no limit."""

    def __init__(
        self, limit: int, *, measure: Callable[[], int] = resident_bytes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = limit
        self._measure, self._clock = measure, clock
        self._lock = threading.Lock()
        self._running = 0
        self._measured_at = self._released_at = float("-inf")
        self._used = 0
        self._work = _Work(self)

    def work(self) -> AbstractContextManager[None]:
        """Run work within the block; `LimitExceeded` if other work runs and the budget is exceeded."""
        return self._work

    def begin(self) -> None:
        """Begin work, or raise `LimitExceeded`."""
        with self._lock:
            if self.limit and self._running and (used := self._current()) > self.limit:
                raise LimitExceeded(
                    f"the server uses {used >> 20} MiB of memory, and its budget is {self.limit >> 20} MiB: try again when "
                    "running statements have ended",
                    key="memory.exceeded",
                    limit=str(self.limit),
                )
            self._running += 1

    def end(self) -> None:
        """The end of work that has begun."""
        with self._lock:
            self._running -= 1

    def _current(self) -> int:
        now = self._clock()
        if now - self._measured_at >= _MEASURED_FOR_S:
            self._measured_at, self._used = now, self._measure()
        if self._used > self.limit and now - self._released_at >= _RELEASED_FOR_S:
            self._released_at = now
            release_unused()
            self._used = self._measure()
        return self._used


class _Work(AbstractContextManager[None]):
    """A block of work, which any number of threads may run at a time."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget

    def __enter__(self) -> None:
        self._budget.begin()

    def __exit__(self, *_: object) -> None:
        self._budget.end()
