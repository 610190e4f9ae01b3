"""Threads of servers: callers share them fairly, and idle clients do not keep them.

A plain pool serves calls in the order in which they arrive, so a caller with a thousand calls makes all others wait for
them. In `FairThreads`, each caller has a lane. Free threads take the next call of each lane in turn, and no lane gets all
threads: a call of a quiet caller starts at once. A lane that is full rejects calls.

A gRPC call occupies a thread while it waits for its client: for a request, for the next batch of a stream, or for the client
to read what was sent. `StreamWatch` knows which calls wait, and one thread ends those that wait for too long. The client
gets DEADLINE_EXCEEDED with the reason.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self, TypeVar

import grpc

from skiway.errors import Cancelled, InvalidArgument, TimedOut

T = TypeVar("T")

_REFUSERS: Final = 2  # threads that reject calls beyond the limit
_MAX_SERVED: Final = 1000  # handlers in lanes
_BEHAVIORS: Final = ("stream_stream", "stream_unary", "unary_stream", "unary_unary")


def lane_share(threads: int) -> int:
    """How many of these threads one lane may use: three quarters, so that some are left for others."""
    return max(1, -(-threads * 3 // 4))


@dataclass(slots=True)
class _Lane:
    waiting: deque[tuple[Future[Any], Callable[[], Any]]] = field(default_factory=deque)
    running: int = 0
    parked: int = 0


class FairThreads:
    """`threads` threads. A lane may use `per_lane` of them, and `waiting` more calls may wait in it.

    Up to `parked` calls that wait for others may leave their places to other calls, and have threads in addition.
    """

    def __init__(
        self, threads: int, name: str, *, per_lane: int | None = None, waiting: int = 1000, parked: int = 0
    ) -> None:
        self.threads, self.per_lane, self._waiting = threads, per_lane or threads, waiting
        self._pool = ThreadPoolExecutor(threads + parked, thread_name_prefix=name)
        self._parked, self._max_parked = 0, parked
        self._current = threading.local()
        self._refusers = ThreadPoolExecutor(_REFUSERS, thread_name_prefix=f"{name}-refused")
        self._lanes: dict[str, _Lane] = {}
        self._turns: deque[str] = deque()  # the lanes with waiting calls
        self._running = 0
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._served: dict[tuple[Any, str], Any] = {}

    def serve(self, handler: Any, lane: str) -> Any:
        """The handler of a gRPC call, so that the call runs on these threads, in a lane."""
        if self._is_full(lane):
            name, _ = _behavior_of(handler)
            refused: Any = partial(_refuse, self._waiting)
            refused.experimental_thread_pool = self._refusers
            return handler._replace(**{name: refused})
        served = self._served.get((handler, lane))
        if served is None:
            if len(self._served) >= _MAX_SERVED:
                self._served.clear()
            served = self._served[handler, lane] = self._in_lane(handler, lane)
        return served

    def _in_lane(self, handler: Any, lane: str) -> Any:
        name, behavior = _behavior_of(handler)
        mine: Any = partial(behavior)
        mine.experimental_thread_pool = _LaneExecutor(self, lane)
        if getattr(behavior, "experimental_non_blocking", False):
            mine.experimental_non_blocking = True
        return handler._replace(**{name: mine})

    def submit(self, lane: str, act: Callable[[], T]) -> Future[T]:
        """Run `act` as soon as it is the turn of its lane."""
        future: Future[T] = Future()
        with self._lock:
            mine = self._lanes.setdefault(lane, _Lane())
            if not mine.waiting:
                self._turns.append(lane)
            mine.waiting.append((future, act))
            self._start()
        return future

    @contextmanager
    def parked(self) -> Iterator[bool]:
        """A block in which the current call only waits, and leaves its place to another call.

        It yields False, and the call keeps its place, if too many calls are parked, of all lanes or of this one.
        """
        name: str = self._current.lane
        if not self._park(name):
            yield False
            return
        try:
            yield True
        finally:
            with self._lock:
                lane = self._lanes[name]
                lane.parked -= 1
                lane.running += 1
                self._parked -= 1
                self._running += 1

    def _park(self, name: str) -> bool:
        with self._lock:
            lane = self._lanes[name]
            if self._parked >= self._max_parked or lane.parked >= lane_share(self._max_parked):
                return False
            lane.parked += 1
            lane.running -= 1
            self._parked += 1
            self._running -= 1
            self._start()
            return True

    def shutdown(self, *, wait_s: float = 0.0) -> bool:
        """End the threads, once no calls run. Wait for running calls for `wait_s` seconds; returns whether all have ended."""
        for pool in (self._pool, self._refusers):
            pool.shutdown(wait=False)
        with self._idle:
            return self._idle.wait_for(lambda: not self._running and not self._parked, wait_s)

    def _is_full(self, lane: str) -> bool:
        with self._lock:
            found = self._lanes.get(lane)
            return found is not None and len(found.waiting) >= self._waiting

    def _start(self) -> None:
        """Start calls while there are threads: one of each lane in turn."""
        for _ in range(len(self._turns)):
            if self._running >= self.threads:
                return
            name = self._turns.popleft()
            lane = self._lanes[name]
            if lane.running < self.per_lane:
                future, act = lane.waiting.popleft()
                try:
                    self._pool.submit(self._run, name, future, act)
                except RuntimeError:  # the threads were ended
                    future.cancel()
                else:
                    lane.running += 1
                    self._running += 1
            if lane.waiting:
                self._turns.append(name)

    def _run(self, name: str, future: Future[Any], act: Callable[[], Any]) -> None:
        self._current.lane = name
        try:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(act())
                except BaseException as error:  # noqa: BLE001  (as a pool does: the caller that waits for the result gets it)
                    future.set_exception(error)
        finally:
            with self._lock:
                lane = self._lanes[name]
                lane.running -= 1
                self._running -= 1
                if not lane.running and not lane.waiting and not lane.parked:
                    del self._lanes[name]
                self._start()
                if not self._running:
                    self._idle.notify_all()


def _behavior_of(handler: Any) -> tuple[str, Any]:
    """The function of a handler that gRPC calls, and the name of its kind."""
    return next((name, found) for name in _BEHAVIORS if (found := getattr(handler, name)) is not None)


class _LaneExecutor(ThreadPoolExecutor):
    """What gRPC takes for the pool of a call. It has no threads of its own."""

    def __init__(self, threads: FairThreads, lane: str) -> None:
        self._fair, self._lane = threads, lane

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._fair.submit(self._lane, partial(fn, *args, **kwargs))


def _refuse(waiting: int, _request: Any, context: grpc.ServicerContext, *_: object) -> None:
    context.abort(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"{waiting} calls of this caller wait for a thread, which is the limit of this server: send fewer at a time",
    )


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
