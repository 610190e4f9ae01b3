"""Ends calls whose client neither sends nor reads for too long.

A gRPC call occupies a thread while it waits for its client: for a request, for the next batch of a stream, or for the client
to read what was sent. `StreamWatch` knows which calls wait, and one thread ends those that wait for too long. The client gets
DEADLINE_EXCEEDED with the reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Self

import grpc

from skiway.errors import Cancelled, InvalidArgument, TimedOut

__all__ = ["CONNECTION_OPTIONS", "IDLE_S", "OPENING_S", "StreamWatch", "WatchedCall", "deadline_passed"]

OPENING_S: Final = 30.0
"""How long a client may take to send the first message of a call."""

IDLE_S: Final = 1800.0
"""How long a stream may be idle. An INSERT is idle while DuckDB sorts, so this is not short."""

_SLOWEST_CHECK_S: Final = 1.0
_ROUNDED_S: Final = 0.1

CONNECTION_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.keepalive_time_ms", 60_000),  # a client that vanished without a word is noticed
    ("grpc.keepalive_timeout_ms", 20_000),
)
"""Options of gRPC servers, so that no connection stays open for nothing."""


def deadline_passed(context: grpc.ServicerContext) -> bool:
    """Whether the deadline of a call that is over has passed. gRPC rounds it, and clients give up a little earlier."""
    left: float | None = context.time_remaining()
    return left is not None and left <= _ROUNDED_S


class WatchedCall:
    """One call, which is watched within a block. It is waiting from `wait` to `resume`."""

    __slots__ = ("_context", "_first", "_watch", "ended", "since")

    def __init__(self, watch: StreamWatch, context: grpc.ServicerContext) -> None:
        self._watch, self._context, self._first = watch, context, True
        self.since: float | None = None
        self.ended: TimedOut | None = None

    def __enter__(self) -> Self:
        self._watch.add(self)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Stop watching. If the call was ended, that is why it failed, whatever the failure looks like after libraries have read it."""
        self._watch.remove(self)
        if error is not None and self.ended is not None and error is not self.ended:
            raise self.ended from error

    def received(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        """The client's messages. After the call was ended, the next one raises `TimedOut`.

        A broken connection first looks like the end of the stream to gRPC, and only then like a client that is gone. So gRPC
        is asked once more at the end, which waits for that and raises: half a stream must not pass for a whole one.
        """
        while (message := self._next(messages)) is not None:
            yield message
        self._next(messages)

    def _next(self, messages: Iterator[bytes]) -> bytes | None:
        self.wait()
        try:
            return next(messages, None)
        except grpc.RpcError:
            if self.ended is not None:
                raise self.ended from None
            raise
        finally:
            self.resume()
            self._first = False

    def only(self, messages: Iterator[bytes]) -> bytes:
        """The message of a call that has exactly one; `Cancelled` if the client is gone."""
        try:
            message = self._next(messages)
        except grpc.RpcError:
            if deadline_passed(self._context):
                raise TimedOut("the deadline of the call passed: allow more time", key="deadline.passed") from None
            raise Cancelled("the client cancelled the call", key="client.gone") from None
        if message is not None:
            return message
        raise InvalidArgument("the call ended without a request: send exactly one message", key="message.missing")

    def wait(self) -> None:
        """The client is expected to act: to read what is sent next, for example."""
        self.since = self._watch.clock()

    def resume(self) -> None:
        """The client has acted."""
        self.since = None

    def overdue(self, now: float) -> TimedOut | None:
        """The error for the client if it has waited for too long."""
        limit = self._watch.opening_s if self._first else self._watch.idle_s
        if self.since is None or now - self.since <= limit:
            return None
        what = "sent no request" if self._first else "neither sent nor read anything"
        return TimedOut(
            f"the client {what} for {limit:g} s, which is the limit of this server: call again",
            key="stream.idle",
            limit=f"{limit:g}",
        )

    def end(self, reason: TimedOut) -> None:
        """End the call. Its thread finds out by an error of the messages, or when it sends."""
        self.ended = reason
        try:
            # grpcio can only cancel calls of other threads publicly, and the client would not learn why.
            call: Any = self._context._rpc_event.call  # type: ignore[attr-defined]
            call.cancel(grpc.StatusCode.DEADLINE_EXCEEDED.value[0], reason.message)
        except (AttributeError, TypeError):
            self._context.cancel()


class StreamWatch:
    """Watches calls; see the module. The thread starts with the first call, and ends with `close`."""

    def __init__(
        self, *, opening_s: float = OPENING_S, idle_s: float = IDLE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.opening_s, self.idle_s, self.clock = opening_s, idle_s, clock
        self._every_s = min(_SLOWEST_CHECK_S, opening_s / 4, idle_s / 4)
        self._calls: set[WatchedCall] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def watched(self, context: grpc.ServicerContext) -> WatchedCall:
        """Watch a call within the block, `with watch.watched(context) as call`."""
        return WatchedCall(self, context)

    def add(self, call: WatchedCall) -> None:
        """Begin to watch a call."""
        with self._lock:
            self._calls.add(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="idle-streams", daemon=True)
                self._thread.start()

    def remove(self, call: WatchedCall) -> None:
        """Stop watching a call."""
        with self._lock:
            self._calls.discard(call)

    def check(self) -> None:
        """End the calls that have waited for too long."""
        now = self.clock()
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            if call.ended is None and (reason := call.overdue(now)) is not None:
                call.end(reason)

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            self.check()
