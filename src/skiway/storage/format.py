"""The version of the format of stored data, and which versions this program can read.

A pointer store records the version of everything in it: its own tables, the keys, and the records behind them. Migrations
increase it (`skiway.metastore.migrations`). A blob store records the version of its layout only.

A backend calls `check_version` when it opens a store, so that an older program rejects a store that it cannot read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from skiway.errors import Conflict, Internal, PreconditionFailed

__all__ = ["BLOB_FORMAT_VERSION", "FORMAT_VERSION", "StoreFormat", "check_version", "require_format"]

FORMAT_VERSION: Final = 2
"""The format of new pointer stores, and the newest that this program reads."""

BLOB_FORMAT_VERSION: Final = 1
"""The layout of new blob stores, and the newest that this program reads."""


@dataclass(frozen=True, slots=True)
class StoreFormat:
    """The format of a pointer store. It is not `complete` from the start of a migration to this version until its end."""

    version: int
    complete: bool = True


def check_version(found: str, where: str, *, newest: int) -> int:
    """Return the recorded version as a number. Raise unless this program can read the store named `where`."""
    if not (found.isascii() and found.isdigit()):
        raise Internal(
            f"store {where} has the format {found[:40]!r}, which is not a number; it is damaged or not a Skiway store",
            key="store.format.corrupt",
        )
    if int(found) > newest:
        raise PreconditionFailed(
            f"store {where} has format {found}, but this version of Skiway reads up to {newest}; upgrade Skiway",
            key="store.format.newer",
            found=found,
            supported=str(newest),
        )
    return int(found)


def require_format(expected: StoreFormat, found: StoreFormat) -> None:
    """Raise `Conflict` unless the store has the expected format."""
    if found != expected:
        raise Conflict(
            f"the store was expected to have {expected}, but has {found}; read it and retry", key="store.format.changed"
        )
