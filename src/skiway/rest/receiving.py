"""Bodies of requests, read with limits on their size and on the time that they take.

Callers are admitted before the server reads a body. Forms are the exception, because they contain the credentials of a caller.
So forms are small and have little time, and strangers who send them slowly do not keep others from sending theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import ClientDisconnect, Request

from skiway.errors import Cancelled, InvalidArgument, LimitExceeded, TimedOut

__all__ = ["Forms", "read_body"]

JSON: Final = "application/json"
FORM: Final = "application/x-www-form-urlencoded"
MAX_FORM_BYTES: Final = 64 * 1024
FORM_S: Final = 10.0


async def read_body(request: Request, *, max_bytes: int, seconds: float) -> bytes:
    """The body, which must be JSON if there is one."""
    async with _deadline(seconds):
        received = await _received(request, max_bytes)
    _check_media(request.headers.get("content-type", ""), received, JSON)
    return received


class Forms:
    """The forms that are being read. If `most` are open, the next one ends the one that was opened first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[asyncio.Timeout, None] = {}  # in the order in which they were opened

    async def read(self, request: Request, *, seconds: float) -> bytes:
        """The form in the body of a caller who is not authenticated yet."""
        async with _deadline(min(seconds, FORM_S)) as deadline:
            if len(self._open) >= self._most:
                first = next(iter(self._open))
                del self._open[first]
                first.reschedule(asyncio.get_running_loop().time())
            self._open[deadline] = None
            try:
                received = await _received(request, MAX_FORM_BYTES)
            finally:
                self._open.pop(deadline, None)
        _check_media(request.headers.get("content-type", ""), received, FORM)
        return received


@asynccontextmanager
async def _deadline(seconds: float) -> AsyncIterator[asyncio.Timeout]:
    try:
        async with asyncio.timeout(seconds) as deadline:
            yield deadline
    except TimeoutError:
        raise TimedOut(
            f"the body did not arrive within {seconds:g} s: send it faster, or less at a time", key="body.late"
        ) from None


async def _received(request: Request, limit: int) -> bytes:
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    received = bytearray()
    try:
        async for part in request.stream():
            received += part
            if len(received) > limit:
                raise _too_large(limit)
    except ClientDisconnect:
        raise Cancelled("the client went away while it sent the body", key="client.gone") from None
    return bytes(received)


def _check_media(given: str, body: bytes, wanted: str) -> None:
    """Pages in a browser can send forms and plain text to any server without asking it, but no JSON."""
    media = given.partition(";")[0].strip().lower()
    if body and media != wanted:
        what = "JSON" if wanted == JSON else "a form"
        raise InvalidArgument(
            f"the body is of type {media[:100] or 'none'}: send {what}, with the header content-type: {wanted}",
            key="body.media",
        )


def _too_large(limit: int) -> LimitExceeded:
    return LimitExceeded(f"the body has more than {limit} bytes: send less at a time", key="body.too_large")
