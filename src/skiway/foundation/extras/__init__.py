"""Optional dependencies: which extra adds what, and the error for one that is not installed.

    with extras.needed("geometry", "geometry columns"):
        import shapely

A package that cannot be imported at all without an extra starts with `import skiway.foundation.extras.lake` or
`import skiway.foundation.extras.spark`, which check without loading anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from skiway.errors import Unsupported

__all__ = ["EXTRAS", "MissingExtra", "needed", "overview", "require"]

EXTRAS: Final = {
    "memory": "an in-memory database to serve",
    "geometry": "geometry columns",
    "sql": "filters for SQLite, PostgreSQL and other databases",
    "pytest": "fixtures for tests of your own server",
    "lake": "the server and this command",
    "spark": "column statistics computed by Spark",
    "postgres": "metadata in PostgreSQL",
    "aws": "tables in AWS Glue, metadata in DynamoDB and secrets in AWS Secrets Manager",
    "gcs": "tables in Google Cloud Storage",
    "azure": "tables in Azure Data Lake Storage",
    "mcp": "the lake as tools of assistants, with the Model Context Protocol",
    "all": "everything",
}
"""Every extra for users, and what it is for."""


class MissingExtra(Unsupported, ImportError):
    """An optional library is not installed; the message names the extra that adds it."""

    def __init__(self, purpose: str, library: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs {library}, which is not installed: pip install 'skiway[{extra}]'",
            key="extra.missing",
            extra=extra,
        )


def require(*libraries: str, extra: str, purpose: str) -> None:
    """Raise `MissingExtra` unless all `libraries` can be imported. Top-level modules are not loaded."""
    for library in libraries:
        try:
            found = find_spec(library)
        except ModuleNotFoundError:  # the parent of a dotted name
            found = None
        if found is None:
            raise MissingExtra(purpose, library, extra)


@contextmanager
def needed(extra: str, purpose: str, *, when: bool = True) -> Iterator[None]:
    """Turn the failure to import a library within the block into `MissingExtra`, unless `when` is false."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if not when or library == "skiway":
            raise
        raise MissingExtra(purpose, library, extra) from error


def overview() -> str:
    """Which extra to install for what, in one sentence."""
    listed = ", ".join(f"{extra} ({purpose})" for extra, purpose in EXTRAS.items())
    return f"only the Python library is installed; add an extra, as in pip install 'skiway[lake]', for more: {listed}"
