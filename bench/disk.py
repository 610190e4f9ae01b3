"""A temporary directory on the project's disk: /tmp may be in memory, where a commit costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["scratch"]

CACHE = Path(__file__).parents[1] / ".cache"


@contextmanager
def scratch() -> Iterator[Path]:
    """Create an empty directory, and delete it after the block."""
    CACHE.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=CACHE, prefix="bench-") as folder:
        yield Path(folder)
