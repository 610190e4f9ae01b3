"""What is known of the call being served, for whatever is logged, measured or called in its course.

Standard library only, so that the plain install of the client can use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field

from skiway.errors import Cancelled

FACTS = ("correlation_id", "query_id", "account_id", "subject", "engine_kind", "engine_version", "operation")


@dataclass(frozen=True, slots=True)
class CallContext:
    """One call. Empty text means "not known": a call without a query, a platform principal without an account.

    `authorization` holds the headers the caller authenticated with, to be mirrored to services called on its behalf.
    They are credentials: they are in no repr and in no log line. `is_active` says whether the client still waits.
    """

    correlation_id: str
    query_id: str = ""
    engine_kind: str = ""
    engine_version: str = ""
    account_id: str = ""
    subject: str = ""
    operation: str = ""
    authorization: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    is_active: Callable[[], bool] = field(default=lambda: True, repr=False, compare=False)


_current: ContextVar[CallContext | None] = ContextVar("skiway_call", default=None)


def current_call() -> CallContext | None:
    """The call being served by this thread or task, if any."""
    return _current.get()


def require_active() -> None:
    """Raise `Cancelled` if the client of the current call is gone, or the server has stopped waiting for the call.

    Long loops that read call this. Loops that change something do not: a change is made completely or not at all.
    """
    call = _current.get()
    if call is not None and not call.is_active():
        raise Cancelled("the client is gone", key="client.gone")


class serving:  # noqa: N801 - read as a function: `with serving(context):`
    """Make `context` current inside the block; afterwards the previous one is current again.

    A thread that is started inside has no current call. Pass the context on and enter it there: `with serving(context):`.
    """

    __slots__ = ("_context", "_token")

    def __init__(self, context: CallContext) -> None:
        self._context = context

    def __enter__(self) -> CallContext:
        self._token = _current.set(self._context)
        return self._context

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):  # a stream that its client abandoned is closed outside of the context it began in
            _current.reset(self._token)


def enter(context: CallContext) -> None:
    """Replace the current context by one that knows more about the same call, within `serving`."""
    _current.set(context)


def call_facts(call: CallContext | None) -> dict[str, str]:
    """What is known of a call, without its credentials, for a log line or a span."""
    if call is None:
        return {}
    return {name: value for name in FACTS if (value := getattr(call, name))}
