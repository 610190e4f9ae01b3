"""HTTP connections with deadlines, which uvicorn does not have.

A client that connects and sends nothing, or its headers byte by byte, or that does not read its response, would hold its
connection for ever. The app itself limits the time for the body of a request.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from skiway.config.server import Http

__all__ = ["deadlines"]


def deadlines(settings: Http) -> type[H11Protocol]:
    """The protocol of connections with the configured deadlines."""

    class WithDeadlines(_Connection):
        header_s = settings.header_seconds
        reading_s = settings.body_seconds
        max_connections = settings.max_connections

    return WithDeadlines


class _Connection(H11Protocol):
    header_s: float
    reading_s: float
    max_connections: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._headers_due, self._reading_due = _Timer(), _Timer()

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

    def start(self, connection: H11Protocol, seconds: float) -> None:
        self.cancel()
        self._handle = connection.loop.call_later(seconds, connection.transport.abort)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
