"""Sync files and folders to disk, so that they survive a power failure.

Paths are synced at the same time, on threads that do nothing else: the disk then writes them together, and a busy server
is not descheduled after each of them. Four paths take 0.5 ms instead of 0.6 ms on an idle machine, and 0.9 ms instead of
11 ms on one whose cores are overloaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from pathlib import Path

__all__ = ["meanwhile", "sync_paths"]

THREADS = 16


def sync_paths(paths: Iterable[Path], *, missing_ok: bool = False) -> None:
    """Sync files and folders to disk. With `missing_ok`, paths that somebody has deleted are ignored."""
    for each in [_threads("disk-sync").submit(_fsync, path, missing_ok=missing_ok) for path in paths]:
        each.result()


@contextmanager
def meanwhile(calls: Iterable[Callable[[], None]]) -> Iterator[None]:
    """Make calls while the block runs, and wait for them at its end. The error of a call is raised there."""
    running = [_threads("disk-sync-calls").submit(each) for each in calls]
    try:
        yield
    finally:
        wait(running)
    for each in running:
        each.result()


@cache
def _threads(name: str) -> ThreadPoolExecutor:
    # The calls wait for syncs, so both need threads of their own.
    return ThreadPoolExecutor(THREADS, name)


def _fsync(path: Path, *, missing_ok: bool) -> None:
    try:
        opened = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        if missing_ok:
            return
        raise
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
