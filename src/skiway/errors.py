"""Everything Skiway raises on purpose.

    SkiwayError
    ├── Unauthorized            no or wrong credentials
    ├── PermissionDenied        known caller, not allowed
    ├── NotFound
    ├── InvalidArgument
    │   └── NullRowId           UPDATE or DELETE named a row by NULL
    ├── PreconditionFailed      not in this state, or not on this kind of object
    │   ├── SchemaNotEmpty
    │   └── ConstraintViolation NOT NULL, UNIQUE, CHECK
    ├── Conflict                lost against another state; reading again may help
    │   ├── AlreadyExists
    │   └── Contention          lost a race; the same call may simply be tried again
    ├── Unsupported             this server or object cannot do that
    ├── LimitExceeded           too large, too many, too deep
    ├── Unavailable             try again later
    ├── TimedOut
    ├── Cancelled
    └── Internal                our fault; the details are in the server's log

Domain code raises these; only the edges know gRPC, Flight or HTTP, each with one table from this tree to its codes.
A message says what was asked, what was found and what to do.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AlreadyExists",
    "Cancelled",
    "Conflict",
    "ConstraintViolation",
    "Contention",
    "Internal",
    "InvalidArgument",
    "LimitExceeded",
    "NotFound",
    "NullRowId",
    "PermissionDenied",
    "PreconditionFailed",
    "SchemaNotEmpty",
    "SkiwayError",
    "TimedOut",
    "Unauthorized",
    "Unavailable",
    "Unsupported",
]


class SkiwayError(Exception):
    """Base of the tree.

    `code` is stable and documented. `key` names the case within the code (`namespace.not_empty`), and `params` hold
    its facts, so that a caller can react, or show the message in another language.
    """

    code: ClassVar[str] = "MC_INTERNAL"

    def __init__(self, message: str, *, key: str = "", **params: str) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.params = params


class Unauthorized(SkiwayError):
    """No credentials, or wrong ones."""

    code = "MC_UNAUTHENTICATED"


class PermissionDenied(SkiwayError):
    """The caller is known and may not do this."""

    code = "MC_PERMISSION_DENIED"


class NotFound(SkiwayError):
    """What was named does not exist, or not for this caller."""

    code = "MC_NOT_FOUND"


class InvalidArgument(SkiwayError):
    """The request itself is wrong, in any state."""

    code = "MC_INVALID_ARGUMENT"


class NullRowId(InvalidArgument):
    """A row to update or delete was named by NULL."""

    def __init__(
        self, message: str = "null rowid value not allowed", *, key: str = "rowid.null", **params: str
    ) -> None:
        super().__init__(message, key=key, **params)


class PreconditionFailed(SkiwayError):
    """The request is well formed but does not fit the present state."""

    code = "MC_PRECONDITION_FAILED"


class SchemaNotEmpty(PreconditionFailed):
    """A schema that still holds objects cannot be dropped."""


class ConstraintViolation(PreconditionFailed):
    """Rows break NOT NULL, UNIQUE, PRIMARY KEY or CHECK."""


class Conflict(SkiwayError):
    """The state changed, or already is what was asked for; reading again and deciding anew is safe."""

    code = "MC_CONFLICT"


class AlreadyExists(Conflict):
    """The name is taken."""


class Contention(Conflict):
    """A race was lost again and again; the very same call may be tried later."""

    code = "MC_ABORT_RETRYABLE"


class Unsupported(SkiwayError):
    """This server, or this object, has no such ability."""

    code = "MC_UNSUPPORTED"


class LimitExceeded(SkiwayError):
    """Too large, too many or too deep."""

    code = "MC_RATE_LIMITED"


class Unavailable(SkiwayError):
    """Not now; trying later may work."""

    code = "MC_UNAVAILABLE"


class TimedOut(SkiwayError):
    """The deadline passed first."""

    code = "MC_TIMEOUT"


class Cancelled(SkiwayError):
    """The caller went away or took the call back."""

    code = "MC_CANCELLED"


class Internal(SkiwayError):
    """A fault of the server. What a caller sees of it holds no details."""
