"""Threads of servers: callers share them fairly, and idle clients do not keep them.

A plain pool serves calls in the order in which they arrive, so a caller with a thousand calls makes all others wait for
them. In `FairThreads`, each caller has a lane. Free threads take the next call of each lane in turn, and no lane gets all
threads: a call of a quiet caller starts at once. A lane that is full rejects calls.

A gRPC call occupies a thread while it waits for its client: for a request, for the next batch of a stream, or for the client
to read what was sent. `StreamWatch` knows which calls wait, and one thread ends those that wait for too long. The client
gets DEADLINE_EXCEEDED with the reason.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Self, TypeAlias, TypeVar
from weakref import WeakSet

import grpc

from skiway.errors import Cancelled, InvalidArgument, TimedOut

T = TypeVar("T")

_REFUSERS: Final = 2  # threads that reject calls beyond the limit
_MAX_SERVED: Final = 1000  # handlers in lanes
_BEHAVIORS: Final = ("stream_stream", "stream_unary", "unary_stream", "unary_unary")


def lane_share(threads: int) -> int:
    """How many of these threads one lane may use: three quarters, so that some are left for others."""
    return max(1, -(-threads * 3 // 4))


_Job = Callable[[], object]
_Given: TypeAlias = "SimpleQueue[tuple[str, _Job] | None]"


@dataclass(slots=True)
class _Lane:
    waiting: deque[_Job] = field(default_factory=deque)
    running: int = 0
    parked: int = 0


class FairThreads:
    """`threads` threads. A lane may use `per_lane` of them, and `waiting` more calls may wait in it.

    Up to `parked` calls that wait for others may leave their places to other calls, and have threads in addition.
    """

    def __init__(
        self, threads: int, name: str, *, per_lane: int | None = None, waiting: int = 1000, parked: int = 0
    ) -> None:
        self.name, self.threads, self.per_lane, self.waiting = name, threads, per_lane or threads, waiting
        self._started = 0
        self._free: list[_Given] = []  # one for each idle thread; the last one is warm
        self._parked, self._max_parked = 0, parked
        self._current = threading.local()
        self._refusers = ThreadPoolExecutor(_REFUSERS, thread_name_prefix=f"{name}-refused")
        self._lanes: dict[str, _Lane] = {}
        self._turns: deque[str] = deque()  # the lanes with waiting calls
        self._running = 0
        self._is_closed = False
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._served: dict[tuple[Any, str], Any] = {}
        _open.add(self)

    def serve(self, handler: Any, lane: str) -> Any:
        """The handler of a gRPC call, so that the call runs on these threads, in a lane."""
        if refusal := self.refusal(lane):
            name, _ = _behavior_of(handler)
            refused: Any = partial(_refuse, refusal)
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
        if not self.run(lane, partial(_fulfil, future, act)):
            future.cancel()
        return future

    def run(self, lane: str, job: _Job) -> bool:
        """The same without a result; errors are lost. Returns False if the threads were ended."""
        with self._lock:
            if self._is_closed:
                return False
            mine = self._lanes.get(lane)
            if mine is None:
                mine = self._lanes[lane] = _Lane()
            if not mine.waiting:
                self._turns.append(lane)
            mine.waiting.append(job)
            self._start()
        return True

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

    def shutdown(self, *, wait_s: float | None = 0.0) -> bool:
        """End the threads, once no calls run. Wait for running calls for `wait_s` seconds; returns whether all have ended."""
        self._refusers.shutdown(wait=False)
        with self._idle:
            self._is_closed = True
            while self._free:
                self._free.pop().put(None)
            return self._idle.wait_for(lambda: not self._running and not self._parked, wait_s)

    def refusal(self, lane: str) -> str:
        """Why a call of this lane is rejected; empty if it is not."""
        found = self._lanes.get(lane)
        if found is None or len(found.waiting) < self.waiting:
            return ""
        return f"{self.waiting} calls of this caller wait for a thread, which is the limit of this server: send fewer at a time"

    def _start(self) -> None:
        """Start calls while there are threads: one of each lane in turn."""
        for _ in range(len(self._turns)):
            if self._running >= self.threads:
                return
            name = self._turns[0]
            lane = self._lanes[name]
            if lane.running < self.per_lane:
                try:
                    thread = self._free.pop() if self._free else self._new_thread()
                except RuntimeError:  # no more threads can be started: the next call, or the end of one, tries again
                    return
                thread.put((name, lane.waiting.popleft()))
                lane.running += 1
                self._running += 1
            self._turns.popleft()
            if lane.waiting:
                self._turns.append(name)

    def _new_thread(self) -> _Given:
        """Start a thread. Returns what it takes its calls from."""
        given: _Given = SimpleQueue()
        self._started += 1
        threading.Thread(target=self._work, args=(given,), name=f"{self.name}_{self._started}", daemon=True).start()
        return given

    def _work(self, given: _Given) -> None:
        while (call := given.get()) is not None:
            self._current.lane, job = call
            with suppress(BaseException):  # a thread survives what it runs
                job()
            del call, job
            self._end(self._current.lane, given)

    def _end(self, name: str, thread: _Given) -> None:
        with self._lock:
            lane = self._lanes[name]
            lane.running -= 1
            self._running -= 1
            if not lane.running and not lane.waiting and not lane.parked:
                del self._lanes[name]
            self._free.append(thread)
            self._start()
            if self._is_closed:
                while self._free:
                    self._free.pop().put(None)
            if not self._running:
                self._idle.notify_all()


def _fulfil(future: Future[T], act: Callable[[], T]) -> None:
    """Run `act` and give its result to the future, unless the future was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(act())
    except BaseException as error:  # noqa: BLE001  (as a pool does: the caller that waits for the result gets it)
        future.set_exception(error)


_open: WeakSet[FairThreads] = WeakSet()


@atexit.register
def _wait_for_calls() -> None:
    """Let running calls end before the interpreter does, as those of a pool."""
    for threads in list(_open):
        threads.shutdown(wait_s=None)


def _behavior_of(handler: Any) -> tuple[str, Any]:
    """The function of a handler that gRPC calls, and the name of its kind."""
    return next((name, found) for name in _BEHAVIORS if (found := getattr(handler, name)) is not None)


class _LaneExecutor(ThreadPoolExecutor):
    """What gRPC takes for the pool of a call. It has no threads of its own."""

    def __init__(self, threads: FairThreads, lane: str) -> None:
        self._fair, self._lane = threads, lane

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._fair.run(self._lane, partial(fn, *args, **kwargs))
        return _STARTED


class _Started:
    """What gRPC gets as the future of a call. It never asks for the result."""

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        callback(self)  # with it gRPC counts calls for a limit that we do not use


_STARTED: Final = _Started()


def _refuse(refusal: str, _request: Any, context: grpc.ServicerContext, *_: object) -> None:
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)


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
        self.ended: TimedOut | Cancelled | None = None

    def __enter__(self) -> Self:
        self._watch.add(self)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Stop watching. If the call was ended, that is why it failed, whatever the failure looks like after libraries have read it."""
        self._watch.remove(self)
        if error is not None and self.ended is not None and error is not self.ended:
            raise self.ended from error

    def received(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        """The client's messages. After the call was ended, the next one raises `TimedOut`; `grpc.RpcError` if the client is gone.

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
            if deadline_passed(self._context):
                self.ended = TimedOut("the deadline of the call passed: allow more time", key="deadline.passed")
            else:
                self.ended = Cancelled("the client cancelled the call", key="client.gone")
            raise
        finally:
            self.resume()
            self._first = False

    def only(self, messages: Iterator[bytes]) -> bytes:
        """The message of a call that has exactly one; the block raises `Cancelled` if the client is gone."""
        message = self._next(messages)
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
        if (cut := getattr(self._context, "cut", None)) is not None:  # the native transport
            cut(grpc.StatusCode.DEADLINE_EXCEEDED, reason.message)
            return
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
