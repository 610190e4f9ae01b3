"""A file that tells where the doors are, there exactly while all of them are open."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from skiway.errors import Unavailable

__all__ = ["announced"]


@contextmanager
def announced(path: Path | None, addresses: Mapping[str, str]) -> Iterator[None]:
    """While inside, `path` holds the addresses as JSON; it appears whole or not at all. Without a path, nothing does."""
    if path is None:
        yield
        return
    text = json.dumps(dict(addresses)) + "\n"
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text)
        beside.replace(path)
    except OSError as error:
        raise Unavailable(f"the ready file {path} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        _remove(path, text)


def _remove(path: Path, text: str) -> None:
    """Only what we wrote: another server may have put its own file there since."""
    try:
        if path.read_text() == text:
            path.unlink()
    except FileNotFoundError:
        return
