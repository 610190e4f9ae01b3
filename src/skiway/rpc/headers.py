"""The headers of a call: what they say of it, and which of them go back to the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from skiway.errors import InvalidArgument
from skiway.telemetry.context import CallContext

__all__ = [
    "CORRELATION_ID",
    "ENGINE_KIND",
    "ENGINE_VERSION",
    "LANGUAGE",
    "MAX_LENGTH",
    "QUERY_ID",
    "echo",
    "read",
    "text_headers",
]

CORRELATION_ID: Final = "x-correlation-id"
QUERY_ID: Final = "x-query-id"
ENGINE_KIND: Final = "x-engine-kind"
ENGINE_VERSION: Final = "x-engine-version"
LANGUAGE: Final = "accept-language"

MAX_LENGTH: Final = 128
"""How long the value of one of our headers may be: they are echoed, logged and sent on."""


def text_headers(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    """The headers that hold text, by their names in lower case."""
    return {name: value for name, value in metadata if isinstance(value, str)}


def read(
    headers: Mapping[str, str], operation: str, *, ids: Callable[[], str]
) -> tuple[CallContext, InvalidArgument | None]:
    """What the headers say of the call, and what is wrong with them.

    A header that is wrong is left out of the context, so that the refusal can be told like any other.
    """
    given, refusal = {}, None
    for name in (CORRELATION_ID, QUERY_ID, ENGINE_KIND, ENGINE_VERSION):
        value = headers.get(name, "").strip()
        if value and not _is_fit(value):
            refusal = refusal or _refusal(name, value)
        else:
            given[name] = value
    kind = given.get(ENGINE_KIND, "").lower()
    context = CallContext(
        correlation_id=given.get(CORRELATION_ID) or ids(),
        query_id=given.get(QUERY_ID, ""),
        engine_kind=kind,
        engine_version=given.get(ENGINE_VERSION, "") if kind else "",
        operation=operation,
    )
    return context, refusal


def echo(context: CallContext) -> tuple[tuple[str, str], ...]:
    """What goes back with every answer: the correlation id always, the others where they were given."""
    if not context.query_id and not context.engine_kind:
        return ((CORRELATION_ID, context.correlation_id),)
    said = (
        (CORRELATION_ID, context.correlation_id),
        (QUERY_ID, context.query_id),
        (ENGINE_KIND, context.engine_kind),
        (ENGINE_VERSION, context.engine_version),
    )
    return tuple((name, value) for name, value in said if value)


def _is_fit(value: str) -> bool:
    return len(value) <= MAX_LENGTH and value.isascii() and value.isprintable()


def _refusal(name: str, value: str) -> InvalidArgument:
    found = f"{len(value)} characters" if len(value) > MAX_LENGTH else "characters that cannot be printed"
    message = f"header {name} holds {found}: send up to {MAX_LENGTH} printable ASCII characters, or leave it out"
    return InvalidArgument(message, key="header.invalid", header=name, found=found, limit=str(MAX_LENGTH))
