"""HTTP connections with limits that uvicorn does not have.

A client that connects and sends nothing, or its headers byte by byte, or that does not read its response, would hold its
connection for ever; endless headers would fill the memory. The app itself limits the body of a request.

Clients that open many connections and send nothing cannot close the door: above the limits, a new connection replaces an
unfinished one, that is one without a complete request, else one that is idle between two requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from skiway.config.server import Http

MAX_HEADER_BYTES: Final = 64 * 1024
GRACE_S: Final = 1.0


class Connections:
    """The open connections of a door: those whose request is unfinished, by address, and those between two requests.

    Both are in the order in which they came into this state.
    """

    def __init__(self, settings: Http, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings, self._clock = settings, clock
        self._open: set[_Connection] = set()
        self._unfinished: dict[str, dict[_Connection, float]] = {}
        self._idle: dict[_Connection, None] = {}

    def protocol(self) -> type[HttpToolsProtocol]:
        """The protocol of these connections."""

        class Limited(_Connection):
            all = self
            header_s = self.settings.header_seconds
            reading_s = self.settings.body_seconds

        return Limited

    def opened(self, connection: _Connection) -> bool:
        """Add a connection, in place of another one if there are too many. False if none can be replaced."""
        if len(self._open) >= self.settings.max_connections and not self.shed(1):
            return False
        self._open.add(connection)
        self.unfinished(connection)
        mine = self._unfinished[connection.address]
        oldest, since = next(iter(mine.items()))
        # A client that opens many connections at once has a moment to send its requests.
        if len(mine) > self.settings.max_unfinished_per_address and self._clock() - since > GRACE_S:
            self._abort(oldest)
        return True

    def unfinished(self, connection: _Connection) -> None:
        """The connection waits for the rest of the headers of a request."""
        self._idle.pop(connection, None)
        if connection in self._open:
            self._unfinished.setdefault(connection.address, {})[connection] = self._clock()

    def serving(self, connection: _Connection) -> None:
        """The headers of a request have arrived."""
        self._idle.pop(connection, None)
        if (mine := self._unfinished.get(connection.address)) is not None:
            mine.pop(connection, None)
            if not mine:
                del self._unfinished[connection.address]

    def idle(self, connection: _Connection) -> None:
        """A response is complete."""
        if connection in self._open:
            self._idle[connection] = None

    def closed(self, connection: _Connection) -> None:
        """The connection has ended."""
        self.serving(connection)
        self._open.discard(connection)

    def shed(self, count: int) -> int:
        """Close some connections that no request runs on; returns how many.

        First those with unfinished requests, the oldest of the address that has most, then the oldest idle ones.
        """
        for done in range(count):
            if self._unfinished:
                address = max(self._unfinished, key=lambda each: len(self._unfinished[each]))
                self._abort(next(iter(self._unfinished[address])))
            elif self._idle:
                self._abort(next(iter(self._idle)))
            else:
                return done
        return count

    def _abort(self, connection: _Connection) -> None:
        self.closed(connection)
        connection.transport.abort()


class _Connection(HttpToolsProtocol):
    all: Connections
    header_s: float
    reading_s: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._headers_due, self._reading_due = _Timer(), _Timer()
        self._header_bytes = 0
        self._reads_headers = False
        self.address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if not self.all.opened(self):
            transport.abort()
            return
        self._headers_due.start(self, self.header_s)

    def data_received(self, data: bytes) -> None:
        if not self._headers_due and not self._is_serving():
            self._headers_due.start(self, self.header_s)
            self.all.unfinished(self)
        super().data_received(data)
        if self._is_serving():
            self._headers_due.cancel()
            self.all.serving(self)
        if self._reads_headers:
            # Counted here, because the parser collects the parts of a header before it calls `on_header`.
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
                self.send_400_response(f"The headers have more than {MAX_HEADER_BYTES} bytes: send less.")

    def on_message_begin(self) -> None:
        self._header_bytes, self._reads_headers = 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._reads_headers = False
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_serving():
            self.all.idle(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading_due.start(self, self.reading_s)

    def resume_writing(self) -> None:
        self._reading_due.cancel()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_due.cancel()
        self._reading_due.cancel()
        self.all.closed(self)
        super().connection_lost(exc)

    def _is_serving(self) -> bool:
        """Whether the headers of a request have arrived, and its response is not complete."""
        return self.cycle is not None and not self.cycle.response_complete


class _Timer:
    """Aborts a connection, unless it is cancelled in time."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return self._handle is not None

    def start(self, connection: HttpToolsProtocol, seconds: float) -> None:
        self.cancel()
        self._handle = connection.loop.call_later(seconds, connection.transport.abort)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
