"""What callers learn about errors.

Errors of the tree are written for callers and sent as they are. Every other exception may contain anything (paths,
addresses, rows of somebody else), so callers get one fixed sentence with the correlation id, and the log gets the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from skiway.errors import Cancelled, Internal, SkiwayError

__all__ = ["disclosed", "internal_error", "outcome_of", "status_in"]

T = TypeVar("T")


def disclosed(error: BaseException) -> SkiwayError | None:
    """The error if callers may see it; None for a fault of the server, of which they see no details."""
    if isinstance(error, SkiwayError) and error.code != Internal.code:
        return error
    return None


def internal_error(correlation_id: str) -> Internal:
    """What a caller gets in the place of an error that is not disclosed."""
    message = f"internal error; see the server log, correlation id {correlation_id}"
    return Internal(message, key="internal.error", correlation_id=correlation_id)


def outcome_of(error: BaseException) -> str:
    """The code of the tree under which an error is audited."""
    if isinstance(error, SkiwayError):
        return error.code
    return Cancelled.code if isinstance(error, GeneratorExit | KeyboardInterrupt) else Internal.code


def status_in(table: Mapping[type[SkiwayError], T], error: BaseException) -> T:
    """The entry of an error's class in a door's table, or of its nearest base class; foreign errors are `SkiwayError`."""
    return next((table[kind] for kind in type(error).__mro__ if kind in table), table[SkiwayError])
