"""Everything Skiway raises on purpose.

    SkiwayError
    ├── Unauthorized            missing or invalid credentials
    ├── PermissionDenied        the caller is known but not allowed
    ├── NotFound
    ├── InvalidArgument
    │   └── NullRowId           UPDATE or DELETE with a NULL row id
    ├── PreconditionFailed      the state, or the kind of object, does not allow it
    │   ├── SchemaNotEmpty
    │   └── ConstraintViolation NOT NULL, UNIQUE, CHECK
    ├── Conflict                the state changed; read it again
    │   ├── AlreadyExists
    │   └── Contention          lost a race; the same call can be retried
    ├── Unsupported             this server or object cannot do it
    ├── LimitExceeded           too large, too many, too deep
    ├── Unavailable             try again later
    ├── TimedOut
    ├── Cancelled
    └── Internal                a bug or corrupt data; the details are in the server's log

Domain code raises these errors. Only the doors know gRPC, Flight or HTTP, each with one table from this tree to its codes.
A message says what was asked, what was found, and what to do. It is written for the caller; text of other programs, such as
the answer of a database driver, belongs into `detail`, which only operators see.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AlreadyExists",
    "Busy",
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
    """Base class of the tree.

    `code` is stable and documented. `key` names the case within the code (`namespace.not_empty`) and `params` contain its
    facts, so that a program can react to it or show it in another language. `detail` is for operators: it is part of
    `str(error)`, and so of logs and of the output of commands on the same machine, but no door sends it to a caller.
    """

    code: ClassVar[str] = "MC_INTERNAL"

    def __init__(self, message: str, *, key: str = "", detail: str = "", **params: str) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.detail = detail
        self.params = params

    def __str__(self) -> str:
        return f"{self.message} ({self.detail})" if self.detail else self.message


class Unauthorized(SkiwayError):
    """Credentials are missing or invalid."""

    code = "MC_UNAUTHENTICATED"


class PermissionDenied(SkiwayError):
    """The caller is known but not allowed to do this."""

    code = "MC_PERMISSION_DENIED"


class NotFound(SkiwayError):
    """The object does not exist, or not for this caller."""

    code = "MC_NOT_FOUND"


class InvalidArgument(SkiwayError):
    """The request is invalid, whatever the state."""

    code = "MC_INVALID_ARGUMENT"


class NullRowId(InvalidArgument):
    """A row to update or delete has a NULL row id."""

    def __init__(
        self, message: str = "null rowid value not allowed", *, key: str = "rowid.null", **params: str
    ) -> None:
        super().__init__(message, key=key, **params)


class PreconditionFailed(SkiwayError):
    """The request is valid but the current state does not allow it."""

    code = "MC_PRECONDITION_FAILED"


class SchemaNotEmpty(PreconditionFailed):
    """A schema that contains objects cannot be dropped."""


class ConstraintViolation(PreconditionFailed):
    """Rows violate NOT NULL, UNIQUE, PRIMARY KEY or CHECK."""


class Conflict(SkiwayError):
    """The state changed, or already is as requested; it is safe to read it again and decide."""

    code = "MC_CONFLICT"


class AlreadyExists(Conflict):
    """The name already exists."""


class Contention(Conflict):
    """The call lost a race too often; the same call can be retried."""

    code = "MC_ABORT_RETRYABLE"


class Busy(Contention):
    """The store stayed locked for as long as a call waits. The call can be retried later; at once, it would only wait again."""


class Unsupported(SkiwayError):
    """This server, or this object, does not support the request."""

    code = "MC_UNSUPPORTED"


class LimitExceeded(SkiwayError):
    """The request is too large, too deep, or one too many."""

    code = "MC_RATE_LIMITED"


class Unavailable(SkiwayError):
    """Temporarily unavailable; try again later."""

    code = "MC_UNAVAILABLE"


class TimedOut(SkiwayError):
    """The deadline passed."""

    code = "MC_TIMEOUT"


class Cancelled(SkiwayError):
    """The caller cancelled the call or disconnected."""

    code = "MC_CANCELLED"


class Internal(SkiwayError):
    """A fault of the server. Callers see no details."""
