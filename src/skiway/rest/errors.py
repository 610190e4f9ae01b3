"""Sentences as clients of Iceberg know them: some of them, and Apache's own tests, look for how these begin.

What to do about it follows, as in all errors of this server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from skiway import errors
from skiway.errors import SkiwayError
from skiway.requests import disclosed, internal_error, status_in
from skiway.rest.calls import Answer, said

__all__ = ["BY_CLASS", "BY_KEY", "MISSING", "failed", "status_of", "worded"]

_SENTENCES: Final = {
    "namespace.by.path.missing": "Namespace does not exist: {path} in catalog {catalog}; check the spelling, or create it",
    "table.by.name.missing": "Table does not exist: {path}.{name} in catalog {catalog}; check the spelling, names are "
    "case-sensitive",
    "namespace.already.exists": "Namespace already exists: {name}, perhaps in other case; choose another name, or use "
    "what is there",
    "table.already.exists": "Table already exists: {name}; choose another name, or use what is there",
    "table.created.meanwhile": "Requirement failed: table already exists: {name}; choose another name, or use what is "
    "there",
    "namespace.not_empty": "Namespace {display_name} is not empty, it holds {found}; drop these first",
    "commit.failed": "Requirement failed: {reason}; the table was changed meanwhile: load it again and repeat the change",
}

_REASONS: Final = {
    "Table UUID does not match": "UUID does not match",
    "current schema id has changed": "current schema changed",
    "last assigned field id has changed": "last assigned field id changed",
    "default spec id has changed": "default partition spec changed",
    "last assigned partition id has changed": "last assigned partition id changed",
    "default sort order id has changed": "default sort order changed",
}
"""How requirements fail in PyIceberg, which checks them, and in the words of the specification's own implementation."""


def worded(error: SkiwayError) -> str:
    """What is said of `error` here; its own message where Iceberg has no words for it."""
    template = _SENTENCES.get(error.key)
    if template is None:
        return error.message
    reason = error.params.get("reason", "")
    for found, usual in _REASONS.items():
        reason = reason.replace(found, usual)
    return template.format_map({**error.params, "reason": reason})


# --------------------
# How an error leaves the server: a status, and the envelope that Iceberg's specification has for errors.
#
# Clients choose their exception by the status, and some by `type`. What goes wrong inside the server is told as an
# internal error with the correlation id to look for in its log.


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
"""Each class of the tree, or the nearest one above it that is here."""

BY_KEY: Final[dict[str, tuple[int, str]]] = {
    "namespace.not_empty": (409, "NamespaceNotEmptyException"),
    "idempotency.mismatch": (422, "UnprocessableEntityException"),
    "properties.contradict": (422, "UnprocessableEntityException"),
    "body.too_large": (413, "PayloadTooLargeException"),
    "body.media": (415, "UnsupportedMediaTypeException"),
    "method.unknown": (405, "MethodNotAllowedException"),
}
"""Cases that the specification, or HTTP, tells apart from others of their class."""

MISSING: Final = {
    "catalog": "NoSuchWarehouseException",
    "namespace": "NoSuchNamespaceException",
    "table": "NoSuchTableException",
    "view": "NoSuchViewException",
}
"""What is not found, by the word that the error's key begins with."""

_HEADERS: Final[dict[int, Mapping[str, str]]] = {
    401: {"www-authenticate": "Bearer"},
    503: {"retry-after": "1"},
}


def failed(error: Exception, correlation_id: str) -> Answer:
    """What a caller is told of `error`."""
    shown = disclosed(error)
    status, kind = BY_CLASS[errors.SkiwayError] if shown is None else _kind(shown)
    message = worded(shown or internal_error(correlation_id)).encode("utf-8", "replace").decode()
    answer = said({"error": {"message": message, "type": kind, "code": status}}, status)
    return Answer(status, answer.body, _HEADERS.get(status, {}))


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
