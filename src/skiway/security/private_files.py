"""Files with secrets that several commands change: only their owner can open them, and readers never see half a change."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skiway.disk_sync import sync_paths
from skiway.errors import Unavailable

__all__ = ["changing", "replace_file"]


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
