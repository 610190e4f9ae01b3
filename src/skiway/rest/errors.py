"""Errors as HTTP statuses, in the envelope that the Iceberg specification defines.

Clients choose their exception by the status, some by `type`. Some clients, and Apache's own tests, look at how the
message starts, so the messages here start like those of Iceberg's implementation and then say what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from skiway import errors
from skiway.errors import SkiwayError
from skiway.foundation.doors import disclosed, internal_error, status_in
from skiway.rest.calls import RestResponse, json_response

_MESSAGES: Final = {
    "namespace.by.path.missing": "Namespace does not exist: {path}",  # clients expect exactly this
    "table.by.name.missing": "Table does not exist: {path}.{name} in catalog {catalog}; check the spelling",
    "view.by.name.missing": "View does not exist: {path}.{name} in catalog {catalog}; check the spelling",
    "namespace.already.exists": "Namespace already exists: {name} (names are case-insensitive); choose another name, or "
    "use the existing namespace",
    "table.already.exists": "Table already exists: {name}; choose another name, or use the existing table",
    "view.already.exists": "View already exists: {name}; choose another name, or replace the view",
    "table.name.taken": "View with same name already exists: {name}; choose another name for the table",
    "view.name.taken": "Table with same name already exists: {name}; choose another name for the view",
    "table.created.meanwhile": "Requirement failed: table already exists: {name}; choose another name, or use the "
    "existing table",
    "namespace.not_empty": "Namespace {display_name} is not empty: it contains {found}; drop these first",
    "commit.failed": "Requirement failed: {reason}; the table or view has changed: load it again and repeat the change",
}

_REASONS: Final = {
    "Table UUID does not match": "UUID does not match",
    "view UUID does not match": "view UUID does not match",
    "current schema id has changed": "current schema changed",
    "last assigned field id has changed": "last assigned field id changed",
    "default spec id has changed": "default partition spec changed",
    "last assigned partition id has changed": "last assigned partition id changed",
    "default sort order id has changed": "default sort order changed",
}
"""Failed requirements in the words of PyIceberg, which checks them, and of Iceberg's implementation."""


def message_for(error: SkiwayError) -> str:
    """The message of `error` for Iceberg clients; its own message if Iceberg has none."""
    template = _MESSAGES.get(error.key)
    if template is None:
        return error.message
    reason = error.params.get("reason", "")
    for found, usual in _REASONS.items():
        reason = reason.replace(found, usual)
    return template.format_map({**error.params, "reason": reason})


BY_CLASS: Final[dict[type[errors.SkiwayError], tuple[int, str]]] = {
    errors.Unauthorized: (401, "NotAuthorizedException"),
    errors.PermissionDenied: (403, "ForbiddenException"),
    errors.NotFound: (404, "NotFoundException"),
    errors.InvalidArgument: (400, "BadRequestException"),
    errors.PreconditionFailed: (409, "CommitFailedException"),
    errors.AlreadyExists: (409, "AlreadyExistsException"),
    errors.Contention: (503, "ServiceUnavailableException"),
    errors.Conflict: (409, "CommitFailedException"),
    errors.Unsupported: (406, "UnsupportedOperationException"),
    errors.LimitExceeded: (400, "BadRequestException"),
    errors.Unavailable: (503, "ServiceUnavailableException"),
    errors.TimedOut: (503, "ServiceUnavailableException"),
    errors.Cancelled: (503, "ServiceUnavailableException"),
    errors.SkiwayError: (500, "InternalServerError"),
}
"""Status and type of each class; a class that is not listed uses those of its nearest base class."""

BY_KEY: Final[dict[str, tuple[int, str]]] = {
    "namespace.not_empty": (409, "NamespaceNotEmptyException"),
    "view.dialects_lost": (400, "IllegalArgumentException"),
    "view.update.invalid": (400, "IllegalArgumentException"),
    "idempotency.mismatch": (422, "UnprocessableEntityException"),
    "properties.contradict": (422, "UnprocessableEntityException"),
    "memory.exceeded": (503, "ServiceUnavailableException"),
    "secret.attempts": (429, "TooManyRequestsException"),
    "quota.exceeded": (429, "TooManyRequestsException"),
    "calls.limit": (429, "TooManyRequestsException"),
    "body.late": (408, "RequestTimeoutException"),
    "body.too_large": (413, "PayloadTooLargeException"),
    "body.media": (415, "UnsupportedMediaTypeException"),
    "method.unknown": (405, "MethodNotAllowedException"),
}
"""Cases that the specification, or HTTP, distinguishes from others of their class."""

OUTCOME_UNKNOWN: Final = frozenset({"store.outcome_unknown", "commit.unanswered", "audit.unwritable"})
"""Keys of errors after which a change may have happened. Clients take 500 for that, but not 503."""

OF_FILES: Final = frozenset(
    {"file.corrupt", "file.missing", "file.changed", "source.credentials", "bucket.missing", "certificate.untrusted"}
)
DAMAGE: Final = OF_FILES | {"resource.damaged", "table.damaged"}
"""Keys of errors about files and records of a table. A caller who reads the table has done nothing wrong: it is no conflict. A commit
may name files itself, and then is wrong."""

_PERMANENT: Final = frozenset({"DamagedTableException", "ServiceFailureException"})
"""Types of errors that the same call gets again."""

MISSING: Final = {
    "catalog": "NoSuchWarehouseException",
    "namespace": "NoSuchNamespaceException",
    "table": "NoSuchTableException",
    "view": "NoSuchViewException",
    "plan": "NoSuchPlanIdException",
    "plan_task": "NoSuchPlanTaskException",
}
"""The type of a missing object, by the first word of the error's key."""

_HEADERS: Final[dict[int, Mapping[str, str]]] = {
    401: {"www-authenticate": "Bearer"},
    429: {"retry-after": "1"},
    503: {"retry-after": "1"},
}


def failed(error: Exception, correlation_id: str, *, changes: bool = False) -> RestResponse:
    """The response for `error`; `changes` says whether the call would have changed something.

    Clients take 500 and 504 for a change that may have happened, as after an unexpected exception. If certainly nothing has,
    the status is another one.
    """
    shown = disclosed(error)
    status, kind = BY_CLASS[errors.SkiwayError] if shown is None else _kind(shown)
    if changes and (shown is None or shown.key in OUTCOME_UNKNOWN):
        status, kind = 500, "CommitStateUnknownException"
    elif shown is not None and shown.key in DAMAGE and not (changes and shown.key in OF_FILES):
        status, kind = 503 if changes else 500, "DamagedTableException"
    elif changes and status in (500, 502, 504):
        status, kind = 503, "ServiceFailureException"
    message = message_for(shown or internal_error(correlation_id)).encode("utf-8", "replace").decode()
    answer = json_response({"error": {"message": message, "type": kind, "code": status}}, status)
    headers = {} if kind in _PERMANENT else _HEADERS.get(status, {})
    if shown is not None and "retry_after" in shown.params:
        headers = {**headers, "retry-after": shown.params["retry_after"]}
    return RestResponse(status, answer.body, headers)


def status_of(error: BaseException) -> str:
    """The HTTP status of any exception, as text."""
    shown = disclosed(error)
    return str((BY_CLASS[errors.SkiwayError] if shown is None else _kind(shown))[0])


def _kind(error: errors.SkiwayError) -> tuple[int, str]:
    if error.key in BY_KEY:
        return BY_KEY[error.key]
    status, kind = status_in(BY_CLASS, error)
    if isinstance(error, errors.NotFound):
        kind = MISSING.get(error.key.partition(".")[0], kind)
    return status, kind
