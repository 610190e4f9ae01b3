"""HTTP connections with limits that uvicorn does not have.

A client that connects and sends nothing, or its headers byte by byte, or that does not read its response, would hold its
connection for ever; endless headers would fill the memory. The app itself limits the body of a request.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from skiway.config.server import Http

__all__ = ["MAX_HEADER_BYTES", "limited_connections"]

MAX_HEADER_BYTES: Final = 64 * 1024


def limited_connections(settings: Http) -> type[HttpToolsProtocol]:
    """The protocol of connections with the configured limits."""

    class Limited(_Connection):
        header_s = settings.header_seconds
        reading_s = settings.body_seconds
        max_connections = settings.max_connections

    return Limited


class _Connection(HttpToolsProtocol):
    header_s: float
    reading_s: float
    max_connections: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._headers_due, self._reading_due = _Timer(), _Timer()
        self._header_bytes = 0
        self._reads_headers = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.abort()
            return
        self._headers_due.start(self, self.header_s)

    def data_received(self, data: bytes) -> None:
        if not self._headers_due and not self._is_serving():
            self._headers_due.start(self, self.header_s)
        super().data_received(data)
        if self._is_serving():
            self._headers_due.cancel()
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

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading_due.start(self, self.reading_s)

    def resume_writing(self) -> None:
        self._reading_due.cancel()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_due.cancel()
        self._reading_due.cancel()
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
