"""Files that survive a power failure, and files that only their owner can open.

Paths are synced to disk at the same time, on threads that do nothing else: the disk then writes them together, and a busy
server is not descheduled after each of them. Four paths take 0.5 ms instead of 0.6 ms on an idle machine, and 0.5 ms instead
of 12 ms when all cores are busy.

A private file is replaced as a whole, so several commands can change it, and readers never see half a change.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import local

from skiway.errors import Unavailable

THREADS = 16

_blocks = local()  # `open` are the requests of the current thread's blocks, outermost first


@dataclass(frozen=True, slots=True)
class _Request:
    paths: tuple[str, ...]
    missing_ok: bool
    within: Callable[[], AbstractContextManager[object]]
    then: Callable[[], None]


def sync_paths(
    paths: Iterable[str | Path],
    *,
    missing_ok: bool = False,
    within: Callable[[], AbstractContextManager[object]] = nullcontext,
    then: Callable[[], None] = lambda: None,
) -> None:
    """Sync files and folders to disk, or do it at the end of the block of `synced_together` that the thread is in.

    With `missing_ok`, paths that somebody has deleted are ignored. Errors are raised in the context `within`. `then` is called
    once the paths are synced.
    """
    request = _Request(tuple(os.fspath(path) for path in paths), missing_ok, within, then)
    blocks = _open_blocks()
    if blocks:
        blocks[-1].append(request)
    else:
        _sync([request])


@contextmanager
def synced_together() -> Iterator[None]:
    """Sync what the block writes when it ends: all paths at the same time, instead of those of one file after another.

    A block inside of another one leaves that to it. `sync_waiting` does it earlier: nothing may refer to the files before. If a
    block fails, what it wrote is not synced. A commit waits for the disk once this way, instead of four times.
    """
    blocks = _open_blocks()
    blocks.append([])
    try:
        yield
        if len(blocks) == 1:
            sync_waiting()
        else:
            blocks[-2].extend(blocks[-1])
    finally:
        blocks.pop()


def sync_waiting() -> None:
    """Sync what the blocks of this thread have written so far, because something is about to refer to it."""
    blocks = _open_blocks()
    requests = [request for block in blocks for request in block]
    for block in blocks:
        block.clear()
    if requests:
        _sync(requests)


def _open_blocks() -> list[list[_Request]]:
    found: list[list[_Request]] = _blocks.__dict__.setdefault("open", [])
    return found


def _sync(requests: Sequence[_Request]) -> None:
    running: dict[tuple[str, bool], Future[None]] = {}
    for request in requests:
        for path in request.paths:
            if (path, request.missing_ok) not in running:
                running[path, request.missing_ok] = _threads().submit(_fsync, path, missing_ok=request.missing_ok)
    for each in requests:
        with each.within():
            for path in each.paths:
                running[path, each.missing_ok].result()
        each.then()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "disk-sync")


def _fsync(path: str, *, missing_ok: bool) -> None:
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


@contextmanager
def changing(path: Path, what: str) -> Iterator[None]:
    """A lock between the commands that change a file, and errors of the file system in words; `what` names the file."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
    except OSError as error:
        raise Unavailable(f"cannot write {what} {path}: {error.strerror}") from error


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file at once, so that readers see the old or the new content, and sync it. Only its owner can open it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
        sync_paths([path.parent])
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
