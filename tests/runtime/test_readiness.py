"""Readiness: a server whose store or worker does not work says which one, and recovers by itself."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from runtime.servers import eventually
from skiway.config import load
from skiway.errors import Unavailable
from skiway.runtime.grpc.door import NOT_SERVING, SERVING, WATCH_S, Health
from skiway.runtime.lifecycle import Readiness, check_descriptors, checks_of
from skiway.runtime.process import running
from skiway.spark_jobs.worker import Worker
from skiway.storage import open_stores


class Parts:
    """Two parts that work until they are told otherwise, and a clock."""

    def __init__(self) -> None:
        self.now, self.asked = 0.0, 0
        self.error: Exception | None = None
        self.hangs = threading.Event()
        self.hangs.set()

    def store(self) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error

    def readiness(self, **options: Any) -> Readiness:
        checks = {"store": self.store, "worker": lambda: self.hangs.wait(200)}
        return Readiness(checks, clock=lambda: self.now, **options)


@pytest.fixture
def parts() -> Parts:
    return Parts()


def test_results_are_kept_for_a_second(parts: Parts) -> None:
    readiness = parts.readiness()
    assert [readiness.failed() for _ in range(5)] == [()] * 5
    assert parts.asked == 1
    parts.error = Unavailable("gone")
    assert readiness.failed() == ()
    parts.now = 1.0
    assert readiness.failed() == readiness.failed() == ("store",)
    assert parts.asked == 2
    parts.error, parts.now = None, 1.1  # failures are kept for a tenth of that, so that recovery shows at once
    assert readiness.failed() == ()
    assert parts.asked == 3
    readiness.close()


def test_any_exception_is_a_failure(parts: Parts) -> None:
    parts.error = KeyError("oops")
    assert parts.readiness().failed() == ("store",)


def test_check_that_hangs_is_a_failure_until_it_ends(parts: Parts) -> None:
    parts.hangs.clear()
    readiness = parts.readiness(timeout_s=0.05)
    assert readiness.failed() == ("worker",)
    parts.now = 1.0
    assert readiness.failed() == ("worker",)
    parts.hangs.set()
    parts.now = 2.0
    eventually(lambda: not readiness._running["worker"].running())
    assert readiness.failed() == ()
    readiness.close()


def test_server_says_which_part_does_not_work_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(tmp_path, flags={"server.grpc.address": "127.0.0.1:0", "server.http.address": "127.0.0.1:0"})

    def fail(*_: object, **__: object) -> None:
        raise Unavailable("the database at db.internal does not answer")

    with running(settings, tmp_path) as process, grpc.insecure_channel(process.addresses["rpc"]) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check

        def by_grpc() -> bool:
            return bool(check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING)

        def by_http() -> bool:
            return httpx.get(f"{process.addresses['http']}/readyz").status_code == 200

        assert by_http()
        pointers, blobs, dead = process.stores.pointers, process.stores.blobs, property(lambda _: False)
        for part, broken, name, how, asks in (
            ("pointer store", pointers, "get", fail, by_grpc),  # each way asks the parts by itself
            ("blob store", blobs, "head", fail, by_http),
            ("worker", Worker, "is_alive", dead, by_http),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(broken, name, how)
                eventually(lambda: not asks())  # noqa: B023 - called at once
                assert httpx.get(f"{process.addresses['http']}/readyz").text == f"not ready: {part}\n"
                assert not by_grpc()
            eventually(asks)
            assert by_grpc()
            assert by_http()


class Watcher:
    """A client that watches the health of a server."""

    def __init__(self, channel: grpc.Channel, service: str = "") -> None:
        stub = health_pb2_grpc.HealthStub(channel)
        self.seen: list[str] = []
        self._stream = stub.Watch(health_pb2.HealthCheckRequest(service=service))
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for answer in self._stream:
                self.seen.append(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    def expect(self, *statuses: str) -> None:
        eventually(lambda: len(self.seen) >= len(statuses))
        assert self.seen == list(statuses)


def test_watchers_learn_of_every_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(tmp_path, flags={"server.grpc.address": "127.0.0.1:0", "server.http.address": "127.0.0.1:0"})

    def fail(*_: object, **__: object) -> None:
        raise Unavailable("the database at db.internal does not answer")

    with contextlib.ExitStack() as channels:
        with running(settings, tmp_path) as process:
            channel = channels.enter_context(grpc.insecure_channel(process.addresses["rpc"]))
            watcher, of_one = Watcher(channel), Watcher(channel, "skiway.v1.TableService")
            watcher.expect("SERVING")
            of_one.expect("SERVING")
            with monkeypatch.context() as patched:  # nobody checks: the server asks its parts itself
                patched.setattr(process.stores.pointers, "get", fail)
                watcher.expect("SERVING", "NOT_SERVING")
                late = Watcher(channel)
                late.expect("NOT_SERVING")
            watcher.expect("SERVING", "NOT_SERVING", "SERVING")
            late.expect("NOT_SERVING", "SERVING")
        for each in (watcher, of_one):  # the end of the server, too
            each.expect("SERVING", "NOT_SERVING", "SERVING", "NOT_SERVING")


def test_watchers_of_all_services_learn_of_a_change_before_the_server_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[Sequence[str]] = [()]
    health = Health(("skiway.v1.TableService",), failed=lambda: failed[0])
    sent: list[Any] = []
    context = SimpleNamespace(add_callback=lambda _: None)
    serving = health.serving()
    serving.__enter__()
    health._servicer.Watch(health_pb2.HealthCheckRequest(service="skiway.v1.TableService"), context, sent.append)
    failed[0] = ("store",)
    health.not_ready()
    end = threading.Thread(target=serving.__exit__, args=(None, None, None))
    tell = health._servicer.set

    def end_in_between(service: str, status: Any) -> None:
        tell(service, status)
        if service == "" and status == SERVING:
            end.start()
            end.join(0.3)

    monkeypatch.setattr(health._servicer, "set", end_in_between)
    failed[0] = ()
    health.not_ready()
    end.join()
    statuses = [None if each is None else each.status for each in sent]
    assert statuses == [SERVING, NOT_SERVING, SERVING, NOT_SERVING, None]
    health.close()


def test_failure_is_asked_again_soon() -> None:
    """Recovery shows to watchers long before the second for which success is kept."""
    failed: list[Sequence[str]] = [()]
    health = Health(failed=lambda: failed[0])
    sent: list[Any] = []
    with health.serving():
        failed[0] = ("store",)  # nobody watches yet, so the first answer must ask
        health._servicer.Watch(
            health_pb2.HealthCheckRequest(), SimpleNamespace(add_callback=lambda _: None), sent.append
        )
        assert [each.status for each in sent] == [NOT_SERVING]
        failed[0] = ()
        recovered_at = time.monotonic()
        eventually(lambda: len(sent) == 2)
        assert sent[1].status == SERVING
        assert time.monotonic() - recovered_at < WATCH_S * 0.9
    health.close()


def test_a_server_without_watchers_asks_its_parts_only_when_it_is_checked() -> None:
    asked = []
    health = Health(failed=lambda: asked.append(1) or ())  # type: ignore[func-returns-value]
    with health.serving():
        at_start = len(asked)
        time.sleep(WATCH_S * 1.5)
        assert len(asked) == at_start == 1
    health.close()


def test_server_is_not_ready_while_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with open_stores("memory://") as stores:
        checks = checks_of(stores, None, [tmp_path, tmp_path / "missing"])
        ready = Readiness(checks, max_age_s=0)
        assert ready.failed() == ()
        assert list(tmp_path.iterdir()) == []
        monkeypatch.setattr(os, "fsync", full)
        assert ready.failed() == ("disk",)
        with pytest.raises(Unavailable, match="the disk is full; free some space"):
            checks["disk"]()
        ready.close()


def test_server_is_not_ready_while_it_can_open_hardly_any_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    limit = max(int(each.name) for each in Path("/proc/self/fd").iterdir()) + 20
    fillers = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        with contextlib.suppress(OSError):
            while True:
                fillers.append(os.dup(free))
        for _ in range(3):
            os.close(fillers.pop())
        with pytest.raises(Unavailable, match=rf"fewer than 8 of {limit} files can still be opened: close connections"):
            check_descriptors()
        fillers += [os.dup(free) for _ in range(3)]  # the check has closed what it opened
    finally:
        for each in (*fillers, free):
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    check_descriptors()
