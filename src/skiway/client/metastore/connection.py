"""The wire below the SDK: one gRPC channel, dialed at the first call."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

import grpc

from skiway.client.connection import Location, TlsOptions
from skiway.errors import InvalidArgument

__all__ = ["Channel", "located"]


def located(target: str, *, tls: bool) -> Location:
    """Where `host:port` is, or a location with a scheme such as `grpc+tls://host:port`."""
    has_scheme = "://" in target
    try:
        found = Location.parse(target if has_scheme else f"grpc://{target}")
    except InvalidArgument:
        raise InvalidArgument(
            f"{target!r} is no address of a metastore: write host:port, such as 127.0.0.1:50051",
            key="field",
            field="target",
        ) from None
    return replace(found, text=target, is_tls=found.is_tls or tls)


@dataclass(slots=True)
class Channel:
    """One channel to one server. Safe to use from many threads."""

    location: Location
    tls: TlsOptions | None
    max_message_bytes: int
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _channel: grpc.Channel | None = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)

    def open(self) -> grpc.Channel:
        """The channel, made when it is first needed."""
        with self._lock:
            if self._closed:
                raise InvalidArgument(f"the client of {self.location.text} was closed; make a new one")
            if self._channel is None:
                self._channel = self._dial()
            return self._channel

    def close(self) -> None:
        """End all calls and hang up."""
        with self._lock:
            self._closed = True
            if self._channel is not None:
                self._channel.close()

    def _dial(self) -> grpc.Channel:
        options = [
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", 64 * 1024),
            # gRPC would wait a second before it looks for a lost server again, longer than the first retries do
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]
        if self.location.is_tls:
            return grpc.secure_channel(self.location.target, (self.tls or TlsOptions()).credentials(), options)
        return grpc.insecure_channel(self.location.target, options)
