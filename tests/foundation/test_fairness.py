"""Callers take turns, whatever the number of their calls."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import grpc
import pytest

from skiway.foundation.threads import FairThreads, lane_share


def test_a_quiet_lane_does_not_wait_for_a_busy_one() -> None:
    threads, go = FairThreads(1, "test"), threading.Event()  # one thread: the order of two would depend on their speed
    order: list[str] = []
    blocked = [threads.submit("busy", go.wait)]
    busy = [threads.submit("busy", lambda: order.append("busy")) for _ in range(100)]
    quiet = threads.submit("quiet", lambda: order.append("quiet"))
    go.set()
    waited: list[Future[Any]] = [*blocked, *busy, quiet]
    wait(waited, timeout=200)
    assert order.index("quiet") <= 1
    threads.shutdown()


def test_a_lane_never_uses_all_threads() -> None:
    threads, go, started = FairThreads(4, "test", per_lane=lane_share(4)), threading.Event(), threading.Semaphore(0)

    def wait_for_go() -> bool:
        started.release()
        return go.wait(200)

    busy = [threads.submit("busy", wait_for_go) for _ in range(50)]
    assert all(started.acquire(timeout=200) for _ in range(3))
    assert threads.submit("quiet", lambda: "answered").result(timeout=200) == "answered"
    assert sum(each.running() for each in busy) == 3
    go.set()
    wait(busy, timeout=200)
    assert all(each.result() for each in busy)
    assert threads.shutdown(wait_s=200)


def test_results_errors_and_cancellation_are_those_of_a_pool() -> None:
    threads, go = FairThreads(1, "test"), threading.Event()
    first = threads.submit("a", lambda: go.wait(200))
    failing = threads.submit("a", lambda: 1 // 0)
    cancelled = threads.submit("b", lambda: "never")
    assert cancelled.cancel()
    go.set()
    assert first.result(timeout=200) is True
    with pytest.raises(ZeroDivisionError):
        failing.result(timeout=200)
    assert threads.shutdown(wait_s=200)
    assert threads.submit("a", lambda: "late").cancelled()


@pytest.mark.parametrize(("threads", "share"), [(1, 1), (2, 2), (3, 3), (4, 3), (16, 12), (64, 48)])
def test_share_of_a_lane(threads: int, share: int) -> None:
    assert lane_share(threads) == share


def test_calls_beyond_a_full_lane_are_rejected_and_other_lanes_are_served() -> None:
    fair, go, started = FairThreads(2, "test", per_lane=1, waiting=3), threading.Event(), threading.Semaphore(0)

    def answer(data: bytes, _: object) -> bytes:
        started.release()
        go.wait(200)
        return data

    handler: Any = grpc.unary_unary_rpc_method_handler(answer)

    class Handlers(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> object:  # type: ignore[override]
            return fair.serve(handler, str(dict(details.invocation_metadata)["caller"]))

    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((Handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.unary_unary("/x/y")
            first = call.future(b"0", metadata=(("caller", "busy"),), timeout=200)
            assert started.acquire(timeout=200)
            busy = [call.future(b"1", metadata=(("caller", "busy"),), timeout=200) for _ in range(10)]
            refused = [each for each in busy if _settled(each) is grpc.StatusCode.RESOURCE_EXHAUSTED]
            assert len(refused) == 7
            quiet = call.future(b"2", metadata=(("caller", "quiet"),), timeout=200)
            assert started.acquire(timeout=200)
            go.set()
            assert quiet.result() == b"2"
            assert first.result() == b"0"
            assert "which is the limit of this server" in refused[0].details()
    finally:
        server.stop(0).wait()
        fair.shutdown()


def _settled(call: Any) -> Any:
    """The status of a call that ends soon; None for one that waits."""
    try:
        call.exception(timeout=0.3)
    except grpc.FutureTimeoutError:
        return None
    return call.code()


def test_parked_calls_leave_their_places_to_others() -> None:
    threads, go, parked = FairThreads(1, "test", parked=4), threading.Event(), threading.Semaphore(0)

    def wait_parked() -> bool:
        with threads.parked() as is_parked:
            parked.release()
            return go.wait(200) and is_parked

    waiting = [threads.submit("a", wait_parked) for _ in range(3)]
    assert all(parked.acquire(timeout=200) for _ in waiting), "each leaves its place to the next"
    assert threads.submit("a", lambda: "answered").result(timeout=200) == "answered"
    fourth = threads.submit("a", wait_parked)
    assert parked.acquire(timeout=200)
    assert threads.submit("b", lambda: "late").cancel(), "a lane parks three quarters; its fourth call keeps its place"
    go.set()
    assert [each.result(timeout=200) for each in waiting] == [True] * 3
    assert fourth.result(timeout=200) is False
    assert threads.submit("a", lambda: "answered").result(timeout=200) == "answered"
    blocked, done = threading.Event(), threading.Event()

    def block() -> bool:
        blocked.set()
        return done.wait(200)

    busy = threads.submit("a", block)
    assert blocked.wait(200)
    second = threads.submit("a", lambda: None)
    assert not second.running(), "places are counted as before"
    done.set()
    assert busy.result(timeout=200)
    second.result(timeout=200)
    assert threads.shutdown(wait_s=200)


def test_errors_end_parking() -> None:
    threads = FairThreads(1, "test", parked=4)

    def fail() -> None:
        with threads.parked():
            raise LookupError

    for _ in range(10):
        with pytest.raises(LookupError):
            threads.submit("a", fail).result(timeout=200)
    assert threads.submit("a", lambda: "answered").result(timeout=200) == "answered"
    assert threads.shutdown(wait_s=200)
