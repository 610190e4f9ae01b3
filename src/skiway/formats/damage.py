"""Files that other programs wrote, or that a disk has harmed: whatever is wrong with one is told in one way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from skiway.errors import InvalidArgument, PreconditionFailed, SkiwayError
from skiway.formats.files import Files

__all__ = ["corrupt", "undamaged"]


@contextmanager
def undamaged(files: Files, file: str) -> Iterator[None]:
    """A block that makes sense of a file: PreconditionFailed, with key `file.corrupt`, where there is none."""
    with files.translated(file):
        try:
            yield
        except InvalidArgument as error:  # nobody asked for what the file says
            raise corrupt(file, error.message) from error
        except (SkiwayError, OSError, pa.ArrowException):
            raise
        except Exception as error:
            # Readers stumble over damage in any way: a missing key, a wrong type, a length that no memory holds.
            raise corrupt(file, f"{type(error).__name__}: {error}") from error


def corrupt(file: str, reason: str) -> PreconditionFailed:
    """The error of a file that makes no sense."""
    said = "; ".join(line.strip() for line in reason.splitlines()[:3])[:300]
    return PreconditionFailed(
        f"file {file!r} is corrupt: {said}; restore it, or remove it from the table", key="file.corrupt", file=file
    )
