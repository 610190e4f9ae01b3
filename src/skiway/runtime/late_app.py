"""A web application that is made after the server is ready, on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["LateApp"]

log = logging.getLogger("skiway.runtime")


class LateApp:
    """The application that `make` returns. Requests wait until it is made."""

    def __init__(self, make: Callable[[], ASGIApp]) -> None:
        self._make = make
        self._made: Future[ASGIApp] = Future()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if not self._made.done():  # shielded, because the end of one request must not end the others
            await asyncio.shield(asyncio.wrap_future(self._made))
        await self._made.result()(scope, receive, send)

    @contextmanager
    def making(self) -> Iterator[None]:
        """Make the application on a thread; wait for it at the end of the block."""
        thread = threading.Thread(target=self._run, name="late-app", daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def _run(self) -> None:
        try:
            self._made.set_result(self._make())
        except BaseException as error:
            log.exception("a web application could not be made")
            self._made.set_exception(error)
