"""What doors share: the codes of errors, what they mean, what callers learn about them, bearer tokens, valid headers, the error of requests
that are too large, and how many wrong secrets a client may send.

Errors of the tree are written for callers and sent as they are. Every other exception may contain anything (paths,
addresses, rows of somebody else), so callers get one fixed sentence with the correlation id, and the log gets the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Final, NamedTuple, TypeVar

import grpc

from skiway import errors
from skiway.errors import Cancelled, Internal, LimitExceeded, SkiwayError

T = TypeVar("T")

GRPC_CODES: Final[Mapping[type[SkiwayError], grpc.StatusCode]] = {
    errors.Unauthorized: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.PreconditionFailed: grpc.StatusCode.FAILED_PRECONDITION,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.Conflict: grpc.StatusCode.ABORTED,
    errors.Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.LimitExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.TimedOut: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Cancelled: grpc.StatusCode.CANCELLED,
    errors.SkiwayError: grpc.StatusCode.INTERNAL,
}
"""The gRPC code of each class, for the metastore's services and for Airport; see `status_in`."""


class Explanation(NamedTuple):
    """What a code means, and what a caller can do."""

    meaning: str
    action: str


EXPLANATIONS: Final[Mapping[str, Explanation]] = {
    "MC_UNAUTHENTICATED": Explanation(
        "credentials are missing or invalid",
        "send a valid token: `skiway login`, or `TOKEN` in ATTACH; it may have expired or been revoked",
    ),
    "MC_PERMISSION_DENIED": Explanation(
        "the caller may not do this",
        "ask an administrator of the account for the privilege that the message names: `skiway grants create`",
    ),
    "MC_NOT_FOUND": Explanation(
        "the object does not exist, or the caller may not see it",
        "check the name; the message lists similar ones. If it exists, a privilege is missing",
    ),
    "MC_INVALID_ARGUMENT": Explanation(
        "the request is invalid in any state", "correct the argument that the message names; the same call fails again"
    ),
    "MC_PRECONDITION_FAILED": Explanation(
        "the request is valid, but the current state does not allow it",
        "read the object again, and do first what the message asks for",
    ),
    "MC_CONFLICT": Explanation(
        "the name exists, or somebody has changed the object",
        "read the object again, and decide; choose another name if it exists",
    ),
    "MC_ABORT_RETRYABLE": Explanation(
        "the call lost a race too often, and has changed nothing", "make the same call again, after a moment"
    ),
    "MC_UNSUPPORTED": Explanation(
        "this server or object cannot do this", "use what the message suggests, or another kind of table"
    ),
    "MC_RATE_LIMITED": Explanation(
        "the request is too large or too deep, or the caller sends too many",
        "make the request smaller, or wait for as long as the message says; an operator can raise most limits",
    ),
    "MC_UNAVAILABLE": Explanation(
        "the server, or a service that it needs, is temporarily unavailable",
        "try again later; an operator finds the cause with `skiway doctor`",
    ),
    "MC_TIMEOUT": Explanation("the deadline passed", "allow more time, or ask for less; a change may have happened"),
    "MC_CANCELLED": Explanation(
        "the caller cancelled the call or disconnected", "make the call again if it was not meant"
    ),
    "MC_INTERNAL": Explanation(
        "a fault of the server, or damaged data",
        "look for the correlation id of the message in the log of the server; `skiway check` finds damaged data",
    ),
}
"""The codes of all errors. `skiway explain` and the explorer show them, and docs/reference/errors.md lists them."""


def exhausted(error: BaseException) -> LimitExceeded | None:
    """The error in our tree if a foreign one says that the process has no memory, or no threads, left."""
    is_thread = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    if not isinstance(error, MemoryError) and not is_thread:
        return None
    what = "cannot start more threads" if is_thread else "has not enough memory for the request"
    return LimitExceeded(f"the server {what}: try again when running statements have ended", key="memory.exceeded")


def require_at_most(most: int, found: int, what: str, *, remedy: str, key: str) -> None:
    """Raise `LimitExceeded` if a request has more than `most` of something, such as "the body has {} commas"."""
    if found > most:
        raise LimitExceeded(f"{what.format(found)}, the maximum is {most}: {remedy}", key=key)


def status_in(table: Mapping[type[SkiwayError], T], error: BaseException) -> T:
    """The entry of an error's class in a table, or of its nearest base class; foreign errors count as `SkiwayError`."""
    return table_entry(table, type(exhausted(error) or error))


def table_entry(table: Mapping[type[SkiwayError], T], of: type[BaseException]) -> T:
    """The entry of a class in a table, or of its nearest base class."""
    return next((table[kind] for kind in of.__mro__ if kind in table), table[SkiwayError])


def statuses(code: str) -> tuple[list[str], list[str]]:
    """The gRPC statuses of a code of errors, and the names of its classes."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and getattr(kind, "code", "") == code]
    found = [table_entry(GRPC_CODES, kind).name for kind in kinds]
    return list(dict.fromkeys(found)), [kind.__name__ for kind in kinds]


def disclosed(error: BaseException) -> SkiwayError | None:
    """The error if callers may see it; None for a fault of the server, of which they see no details."""
    if isinstance(error, SkiwayError) and error.code != Internal.code:
        return error
    return exhausted(error)


def bearer_token(authorization: str) -> str | None:
    """The bearer token in an `authorization` header; None without one."""
    kind, _, token = authorization.partition(" ")
    return (token.strip() or None) if kind.lower() == "bearer" else None


def internal_error(correlation_id: str) -> Internal:
    """What a caller gets in place of an error that is not disclosed."""
    message = f"internal error; {see_log(correlation_id)}"
    return Internal(message, key="internal.error", correlation_id=correlation_id)


def see_log(correlation_id: str) -> str:
    """Where an operator finds what callers are not told."""
    return f"see the server log, correlation id {correlation_id}"


def outcome_of(error: BaseException) -> str:
    """The code of the tree under which an error is audited."""
    if isinstance(error, SkiwayError):
        return error.code
    if (known := exhausted(error)) is not None:
        return known.code
    return Cancelled.code if isinstance(error, GeneratorExit | KeyboardInterrupt) else Internal.code


PAGES: Final = "explorer-pages"
"""The engine that the explorer names for calls that it makes itself, to show a page. What a visitor does has the engine `explorer`."""

MAX_HEADER_LENGTH: Final = 128
"""The longest value of a header that is echoed, logged or forwarded."""


def is_valid_header(value: str) -> bool:
    """Whether the value is short and printable enough to be echoed and logged."""
    return len(value) <= MAX_HEADER_LENGTH and value.isascii() and value.isprintable()


_MAX_ADDRESSES: Final = 10_000


class WrongSecrets:
    """Counts the wrong secrets that each address has sent: `burst` at once, then `per_minute`.

    Call it after a secret was found to be wrong. So a right secret always works, and clients that share an address, such as that
    of a proxy, cannot lock each other out.
    """

    def __init__(
        self, *, burst: int = 10, per_minute: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._burst, self._per_s, self._clock = burst, per_minute / 60, clock
        self._sent: dict[str, tuple[float, float]] = {}  # how many, as of when
        self._lock = Lock()

    def count(self, address: str) -> None:
        """Count a wrong secret; `LimitExceeded` if the address has sent too many."""
        now = self._clock()
        with self._lock:
            sent, since = self._sent.pop(address, (0.0, now))
            sent = max(0.0, sent - (now - since) * self._per_s) + 1
            while len(self._sent) >= _MAX_ADDRESSES:
                del self._sent[next(iter(self._sent))]
            self._sent[address] = min(sent, self._burst + 1), now
        if sent > self._burst:
            raise LimitExceeded(
                f"this address has sent too many wrong secrets: check the secret, and wait {1 / self._per_s:.0f} s before the next "
                "attempt",
                key="secret.attempts",
                retry_after=f"{1 / self._per_s:.0f}",
            )
