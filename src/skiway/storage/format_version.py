"""The layout of stored data has a number, kept in the store, so that older programs refuse what they cannot read."""

from __future__ import annotations

from skiway.errors import Internal, PreconditionFailed

__all__ = ["FORMAT_VERSION", "check_format"]

FORMAT_VERSION = 1


def check_format(found: str, where: str) -> None:
    """Raise unless this program reads the format `found` in the store called `where`."""
    if not (found.isascii() and found.isdigit()):
        raise Internal(
            f"the store {where} says its format is {found[:40]!r}, which is no number: it is damaged or not Skiway's",
            key="store.format.corrupt",
        )
    if int(found) > FORMAT_VERSION:
        raise PreconditionFailed(
            f"the store {where} has format {found}, this Skiway reads up to {FORMAT_VERSION}: use a newer Skiway",
            key="store.format.newer",
            found=found,
            supported=str(FORMAT_VERSION),
        )
