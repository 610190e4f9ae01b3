"""Calls that are made again after a failure that the next attempt may not meet."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from queue import Empty, Queue
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from skiway.client.airport.connection import parsed
from skiway.client.metastore.connection import CORRELATION_ID, Caller, Channel
from skiway.client.metastore.errors import error_of
from skiway.errors import Contention, Unavailable
from skiway.model import v1
from skiway.model.v1 import connector_pb2

__all__ = ["Calls", "Retries", "retried"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a failed call is made again, at most, and how long to pause before: twice as long each time.

    Up to the share `jitter` of a pause is left out at random, so that many clients do not come back at once.
    """

    limit: int = 5
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0
    jitter: float = 0.5
    random: Callable[[], float] = random.random

    def pauses(self) -> Iterator[float]:
        """The pauses before each further attempt."""
        for number in range(self.limit):
            pause = min(self.longest_pause_s, self.first_pause_s * 2**number)
            yield pause * (1 - self.jitter * self.random())


def retried(attempt: Callable[[float | None], T], *, retries: Retries, timeout_s: float | None, repeatable: bool) -> T:
    """What `attempt` returns, which is told how many seconds are left for it.

    After `Contention` nothing was changed, so any call is made again. After `Unavailable` the server may have done what
    it was asked to, so only a `repeatable` call is: one that changes nothing, or one with a key. Nothing else is.
    """
    ends_at = math.inf if timeout_s is None else time.monotonic() + timeout_s
    pauses = retries.pauses()
    while True:
        left = ends_at - time.monotonic()
        try:
            return attempt(None if timeout_s is None else max(left, 0.0))
        except (Contention, Unavailable) as error:
            pause = next(pauses, math.inf)
            too_late = time.monotonic() + pause >= ends_at  # also when there are no pauses left
            if too_late or (isinstance(error, Unavailable) and not repeatable):
                raise
        time.sleep(pause)


# --------------------
# One call per request message: which method it is for, its headers, its deadline, its retries.


R = TypeVar("R", bound=Message)

_READS: Final = ("Get", "List", "Lookup", "Resolve")
_WAITING: Final = 2


@dataclass(frozen=True, slots=True)
class Calls:
    """All a client needs to call: the channel, who calls, how long and how often to try."""

    channel: Channel
    caller: Caller
    timeout_s: float | None
    retries: Retries
    ids: Callable[[], str]

    def key(self, given: str | None) -> v1.IdempotencyKey:
        """The key of a call that may have to be made again: the caller's, or a new one."""
        return v1.IdempotencyKey(key=self.ids() if given is None else given)

    def ask(self, request: Message, answer: type[R]) -> R:
        """The answer to `request`, which is of the type `answer`."""
        path = _path(request.DESCRIPTOR)
        data = request.SerializeToString()

        def send(headers: Mapping[str, str], timeout_s: float | None) -> Any:
            invoke: Any = self.channel.open().unary_unary(path)
            return invoke(data, timeout=timeout_s, metadata=tuple(headers.items()))

        return self._tried(send, answer, timeout_s=self.timeout_s, repeatable=_is_repeatable(path, request))

    def stream(self, request: Message, answer: type[R]) -> Iterator[R]:
        """The answers to `request`, one after the other, as they come. What breaks off is not begun again."""
        path, headers = _path(request.DESCRIPTOR), self.caller.headers(self.ids)
        target = self.channel.location.text
        invoke: Any = self.channel.open().unary_stream(path)
        call = invoke(request.SerializeToString(), timeout=self.timeout_s, metadata=tuple(headers.items()))
        try:
            for data in call:
                made: R = parsed(answer, data, target)
                yield made
        except grpc.RpcError as error:
            raise error_of(error, target, headers[CORRELATION_ID]) from error
        finally:
            call.cancel()  # who looks at no more of them wants no more

    def upload(
        self,
        requests: Callable[[], Iterable[Message]],
        answer: type[R],
        *,
        kind: type[Message],
        timeout_s: float | None,
        repeatable: bool,
    ) -> R:
        """The one answer to many requests of one `kind`; a repeatable upload asks for `requests` again.

        They are made in the thread of the caller, and a slow server slows it down.
        """
        path = _path(kind.DESCRIPTOR)

        def send(headers: Mapping[str, str], timeout_s: float | None) -> Any:
            outbox = _Outbox()
            invoke: Any = self.channel.open().stream_unary(path)
            call = invoke.future(outbox, timeout=timeout_s, metadata=tuple(headers.items()))
            call.add_done_callback(lambda _: outbox.end())
            try:
                outbox.send_all(request.SerializeToString() for request in requests())
                return call.result()
            except BaseException:
                call.cancel()  # half of them must not be taken for all
                raise

        return self._tried(send, answer, timeout_s=timeout_s, repeatable=repeatable, again=repeatable)

    def _tried(
        self,
        send: Callable[[Mapping[str, str], float | None], Any],
        answer: type[R],
        *,
        timeout_s: float | None,
        repeatable: bool,
        again: bool = True,
    ) -> R:
        headers = self.caller.headers(self.ids)
        target = self.channel.location.text

        def attempt(left_s: float | None) -> R:
            try:
                data = send(headers, left_s)
            except grpc.RpcError as error:
                raise error_of(error, target, headers[CORRELATION_ID]) from error
            made: R = parsed(answer, data, target)
            return made

        retries = self.retries if again else Retries(limit=0)
        return retried(attempt, retries=retries, timeout_s=timeout_s, repeatable=repeatable)


class _Outbox(Iterator[bytes]):
    """Messages on their way from the caller's thread to gRPC's; few wait at a time."""

    def __init__(self) -> None:
        self._waiting: Queue[bytes | None] = Queue(_WAITING)
        self._ended = threading.Event()

    def send_all(self, messages: Iterable[bytes]) -> None:
        """Leave all messages, as far as the server wants them: it may answer, or fail, before the last."""
        for message in messages:
            self._waiting.put(message)
            if self._ended.is_set():
                return
        self._waiting.put(None)

    def end(self) -> None:
        """Nobody will take messages any more: who waits for room gets it, and sees that it is over."""
        self._ended.set()
        try:
            while True:
                self._waiting.get_nowait()
        except Empty:
            self._waiting.put_nowait(None)  # gRPC's thread may wait for one

    def __next__(self) -> bytes:
        message = self._waiting.get()
        if message is None:
            raise StopIteration
        return message


@cache
def _path(wanted: Descriptor) -> str:
    """The method that takes requests of this type: each takes one of its own."""
    files = (wanted.file, connector_pb2.DESCRIPTOR)  # jobs have a file of their own, and no service
    for service in (service for file in files for service in file.services_by_name.values()):
        for method in service.methods:
            if method.input_type is wanted:
                return f"/{service.full_name}/{method.name}"
    raise AssertionError(f"no service of {wanted.file.name} takes a {wanted.name}")


def _is_repeatable(path: str, request: Any) -> bool:
    """Does it change nothing, or carry a key that makes a second one change nothing?"""
    method = path.rpartition("/")[2]
    has_key = "idempotency" in request.DESCRIPTOR.fields_by_name and request.idempotency.key.strip()
    return method.startswith(_READS) or bool(has_key)
