"""The wire below the client: one gRPC channel, raw bytes in and out, errors as those of our tree."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import parse_qs, unquote, urlsplit

import grpc
from google.protobuf.message import DecodeError, Message

from skiway.airport.wire import headers
from skiway.client.airport.errors import error_of
from skiway.errors import Cancelled, Internal, InvalidArgument

__all__ = ["Connection", "Duplex", "Location", "Stream", "TlsOptions", "parsed", "split_url"]

Metadata = Sequence[tuple[str, str]]

MAX_WAITING: Final = 8
SCHEMES: Final = ("grpc", "grpc+tcp", "grpc+tls", "grpc+unix")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """PEM files for `grpc+tls://`: who to trust in place of gRPC's default roots, and what to show of oneself."""

    root_certificates: Path | str | None = None
    client_certificate: Path | str | None = None
    client_key: Path | str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """What grpcio takes."""
        if (self.client_certificate is None) != (self.client_key is None):
            raise InvalidArgument("a client certificate needs its key, and a key its certificate: give both or none")
        return grpc.ssl_channel_credentials(
            _content(self.root_certificates), _content(self.client_key), _content(self.client_certificate)
        )


def _content(file: Path | str | None) -> bytes | None:
    if file is None:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read the PEM file {str(file)!r}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Location:
    """A server's address: `text` as the user wrote it, `target` as gRPC dials it."""

    text: str
    target: str
    is_tls: bool

    @classmethod
    def parse(cls, text: str) -> Location:
        """From `grpc://host:port`, `grpc+tcp://…`, `grpc+tls://…` or `grpc+unix:///path`."""
        parts = urlsplit(text)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme == "grpc+unix" and parts.path:
            return cls(text, f"unix:{parts.path}", is_tls=False)
        if parts.scheme not in SCHEMES or not parts.hostname or port is None:
            raise InvalidArgument(
                f"{text!r} is not a location: write grpc://host:port, grpc+tls://host:port or grpc+unix:///path"
            )
        return cls(text, parts.netloc.rpartition("@")[2], is_tls=parts.scheme == "grpc+tls")


def split_url(text: str) -> tuple[str, str | None, str | None]:
    """Location, catalog and token of `grpc://host:port/catalog?auth_token=…`; None for what it does not name."""
    parts = urlsplit(text)
    if parts.scheme not in ("grpc", "grpc+tls") or not (parts.path.strip("/") or parts.query):
        return text, None, None
    options = parse_qs(parts.query)
    if unknown := options.keys() - {"auth_token"}:
        raise InvalidArgument(f"unknown option {min(unknown)!r} in the location: auth_token is the one there is")
    token = options.get("auth_token", [None])[0]
    return f"{parts.scheme}://{parts.netloc}", unquote(parts.path.strip("/")) or None, token


class Stream:
    """The messages of one streaming call, as they come; closing it early cancels the call."""

    def __init__(self, call: Any, location: str) -> None:
        self._call = call
        self._location = location
        self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return cast(bytes, next(self._call))
        except grpc.RpcError as error:
            if self._closed:
                raise Cancelled("the stream was closed before its end") from None
            raise error_of(error, self._location) from error

    def close(self) -> None:
        """Take the call back, if it is still running."""
        self._closed = True
        self._call.cancel()


class _Outbox:
    """Messages on their way out. Few wait at a time, so that a slow server slows the sender down."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._closed = False

    def put(self, message: bytes) -> bool:
        """Leave a message; False where nobody will take it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) < MAX_WAITING)
            if not self._closed:
                self._waiting.append(message)
                self._changed.notify_all()
            return not self._closed

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closed)
            if not self._waiting:
                raise StopIteration
            self._changed.notify_all()
            return self._waiting.popleft()


class Duplex:
    """A call with messages in both directions: `send` them, iterate over the answers, and `close` it in any case."""

    def __init__(self, invoke: Any, location: str, **options: Any) -> None:
        self._outbox = _Outbox()
        call = invoke(self._outbox, **options)
        call.add_done_callback(lambda _: self._outbox.close())
        self._location = location
        self._answers = Stream(call, location)

    def __iter__(self) -> Iterator[bytes]:
        return self._answers

    def __next__(self) -> bytes:
        return next(self._answers)

    def send(self, message: bytes) -> None:
        """Send a message; if the server has ended the call meanwhile, this tells why."""
        if not self._outbox.put(message):
            for _ in self._answers:  # what is left of the answers, and then the error
                pass
            raise Internal(f"{self._location} ended the call before all was sent", key="answer.missing")

    def half_close(self) -> None:
        """All was sent."""
        self._outbox.close()

    def close(self) -> None:
        """Take the call back, if it is still running."""
        self._answers.close()
        self._outbox.close()


class Connection:
    """One channel to one server. Safe to use from many threads."""

    def __init__(
        self, location: Location, *, tls: TlsOptions | None, timeout_s: float | None, max_message_bytes: int
    ) -> None:
        self.location = location
        self._tls = tls
        self.timeout_s = timeout_s
        self._max_message_bytes = max_message_bytes
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._closed = False

    def call(self, method: str, request: Message, metadata: Metadata) -> bytes:
        """One message for one message."""
        invoke: Any = self._open().unary_unary(f"/{headers.SERVICE}/{method}")
        try:
            return cast(bytes, invoke(request.SerializeToString(), **self._options(metadata)))
        except grpc.RpcError as error:
            raise error_of(error, self.location.text) from error

    def stream(self, method: str, request: Message, metadata: Metadata) -> Stream:
        """Many messages for one message."""
        invoke: Any = self._open().unary_stream(f"/{headers.SERVICE}/{method}")
        return Stream(invoke(request.SerializeToString(), **self._options(metadata)), self.location.text)

    def exchange(self, method: str, metadata: Metadata) -> Duplex:
        """Many messages for many."""
        invoke: Any = self._open().stream_stream(f"/{headers.SERVICE}/{method}")
        return Duplex(invoke, self.location.text, **self._options(metadata))

    def elsewhere(self, uri: str) -> Connection:
        """A connection of its own to another server, with the same options."""
        return Connection(
            Location.parse(uri), tls=self._tls, timeout_s=self.timeout_s, max_message_bytes=self._max_message_bytes
        )

    def close(self) -> None:
        """End all calls and hang up."""
        with self._lock:
            self._closed = True
            if self._channel is not None:
                self._channel.close()

    def _options(self, metadata: Metadata) -> dict[str, Any]:
        for name, value in metadata:
            if not headers.can_carry(value):
                # Without the value, which may be a secret.
                raise InvalidArgument(
                    f"header {name} was to hold more than printable ASCII, which gRPC cannot send: give it another value",
                    key="header.invalid",
                    header=name,
                )
        return {"timeout": self.timeout_s, "metadata": metadata}

    def _open(self) -> grpc.Channel:
        with self._lock:
            if self._closed:
                raise InvalidArgument(f"the client of {self.location.text} was closed; make a new one")
            if self._channel is None:
                self._channel = self._dial()
            return self._channel

    def _dial(self) -> grpc.Channel:
        options = [
            ("grpc.max_receive_message_length", self._max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", 64 * 1024),
        ]
        if self.location.is_tls:
            return grpc.secure_channel(self.location.target, (self._tls or TlsOptions()).credentials(), options)
        return grpc.insecure_channel(self.location.target, options)


def parsed(kind: type[Any], data: bytes, location: str) -> Any:
    """A protobuf message of the server."""
    try:
        return cast(type[Message], kind).FromString(data)
    except DecodeError as error:
        raise Internal(f"{location} answered with something else than a {kind.__name__} message") from error
