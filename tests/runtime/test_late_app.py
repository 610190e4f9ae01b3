"""Web applications that are made after the server is ready."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from skiway.runtime.http.door import LateApp


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "echo", "scope": scope["path"]})


async def ask(app: LateApp, path: str) -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nobody reads the request")

    await app({"type": "http", "path": path}, receive, send)
    return sent


def test_requests_wait_until_the_application_is_made() -> None:
    may_make = threading.Event()

    def make() -> Any:
        assert may_make.wait(200)
        return echo

    app = LateApp(make)

    async def asked() -> list[Any]:
        early = [asyncio.ensure_future(ask(app, f"/{number}")) for number in range(3)]
        await asyncio.sleep(0)
        early[0].cancel()  # this visitor does not wait
        with pytest.raises(asyncio.CancelledError):
            await early[0]
        assert not any(each.done() for each in early[1:])
        may_make.set()
        return [*await early[1], *await early[2], *await ask(app, "/late")]

    with app.making():
        sent = asyncio.run(asked())
    assert [each["scope"] for each in sent] == ["/1", "/2", "/late"]


def test_application_is_made_once_and_before_the_block_ends() -> None:
    made: list[str] = []
    is_leaving = threading.Event()

    def make() -> Any:
        assert is_leaving.wait(200)
        made.append(threading.current_thread().name)
        return echo

    app = LateApp(make)
    with app.making():
        threading.Timer(0.1, is_leaving.set).start()  # while the block waits for the application
    assert made == ["late-app"]
    assert asyncio.run(ask(app, "/x")) == [{"type": "echo", "scope": "/x"}]
    assert len(made) == 1


def test_every_request_fails_if_the_application_cannot_be_made(caplog: pytest.LogCaptureFixture) -> None:
    def make() -> Any:
        raise LookupError("a file is missing")

    app = LateApp(make)
    with app.making():
        pass
    for _ in range(2):
        with pytest.raises(LookupError, match="a file is missing"):
            asyncio.run(ask(app, "/"))
    assert "a web application could not be made" in caplog.text
