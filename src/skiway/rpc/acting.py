"""The innermost layer: decode, call the function, encode."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt

from skiway.errors import Contention, InvalidArgument
from skiway.metastore import PLATFORM, Realm
from skiway.rpc.calls import Call, Handler
from skiway.rpc.methods import Method
from skiway.security import Principal

__all__ = ["Patience", "acted"]

MAKES_ACCOUNTS = "account.write"


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a lost race is run again, and how long to wait before: longer each time, up to `longest_s`."""

    retries: int = 8
    shortest_s: float = 0.005
    longest_s: float = 0.2
    jitter: float = 0.5
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random

    def pause_s(self, attempt: int) -> float:
        """How long to wait after this attempt, counted from 1; by chance up to `jitter` of it shorter or longer."""
        usual = min(self.longest_s, self.shortest_s * 2.0 ** (attempt - 1))
        return usual * (1 + self.jitter * (2 * self.random() - 1))

    def retrying(self, *, on_retry: Callable[[RetryCallState], None]) -> Retrying:
        """Calls a function, and again on `Contention` only: other errors do not change by waiting."""
        return Retrying(
            retry=retry_if_exception_type(Contention),
            stop=stop_after_attempt(self.retries + 1),
            wait=lambda state: self.pause_s(state.attempt_number),
            before_sleep=on_retry,
            sleep=self.sleep,
            reraise=True,
        )


def acted(realm_of: Callable[[Principal], Realm], patience: Patience, *, on_retry: Callable[[Call], None]) -> Handler:
    """Do what the method is for, in the realm of the caller's account.

    A call whose client is gone starts nothing. A method that changes something is tried again when it lost a race; one
    whose requests are streamed is not, they are consumed: it tries again by itself, step by step. Neither is one that
    streams its answer: the client has some of it already.
    """
    retrying = patience.retrying(on_retry=lambda state: on_retry(state.args[0]))

    def handle(call: Call, request: Any) -> bytes:
        realm = realm_of(_acting(call))
        if call.method.answers_many:
            _send_all(call, realm, request)
            return b""
        if call.method.streamed:
            answer = _act_on_stream(call, realm, request)
        elif call.method.rule.changes:
            answer = retrying(_act, call, realm, request)
        else:
            answer = _act(call, realm, request)
        call.speaks_of(answer)
        return answer.SerializeToString()

    return handle


def _acting(call: Call) -> Principal:
    """Who the call is for: those who may make accounts look after all of them, whichever account they are in."""
    assert call.principal is not None
    if call.method.service.for_platform and MAKES_ACCOUNTS in call.principal.permissions:
        return replace(call.principal, account_id=PLATFORM)
    return call.principal


def _act(call: Call, realm: Realm, data: bytes) -> Message:
    call.require_client()
    request = _decoded(call.method, data)
    call.speaks_of(request)
    answer = call.method.rule.act(realm, request)
    assert isinstance(answer, Message)
    return answer


def _send_all(call: Call, realm: Realm, data: bytes) -> None:
    """Send each message when it is made; a client that is gone makes no more of them."""
    call.require_client()
    request = _decoded(call.method, data)
    call.speaks_of(request)
    assert call.send is not None
    answers = call.method.rule.act(realm, request)
    assert isinstance(answers, Iterator)
    for answer in answers:
        call.require_client()
        call.send(answer.SerializeToString())


def _act_on_stream(call: Call, realm: Realm, messages: Iterator[bytes]) -> Message:
    call.require_client()
    try:
        answer = call.method.rule.act(realm, _messages(call, messages))
        assert isinstance(answer, Message)
        return answer
    except grpc.RpcError:
        # No error of ours, so that the function takes it for what it is: nothing that came may be concluded from.
        call.require_client()
        raise


def _messages(call: Call, messages: Iterator[bytes]) -> Iterator[Message]:
    """The client's messages, each decoded when it is asked for.

    To gRPC a connection that breaks is at first the end of the stream; that the client is gone is known a moment later.
    Asking once more waits for that, and then raises: half a stream must not look like a whole one.
    """
    for data in messages:
        message = _decoded(call.method, data)
        if not call.resources:
            call.speaks_of(message)
        yield message
    next(messages, None)


def _decoded(method: Method, data: bytes) -> Message:
    try:
        return method.request.FromString(data)
    except DecodeError:
        name = method.request.DESCRIPTOR.full_name
        raise InvalidArgument(
            f"the request of {method.operation} is not a {name}: send one, as the .proto files define it",
            key="message.malformed",
            field="request",
            wanted=name,
        ) from None
